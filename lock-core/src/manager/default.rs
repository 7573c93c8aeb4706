//! The managers that the attribute uses without `manager = ..`: the scoped one, the global one, and the
//! one of the environment variable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::{self, Handle};
use tokio::sync::watch;

use super::LockManager;
use crate::error::LockError;
use crate::sync::{PerProcess, Process, assert_no_mutex_held};

/// The detail of connection errors whose URL comes from the variable.
pub(super) use crate::config::environment::URL_FROM_VARIABLE as FROM_VARIABLE;

static GLOBAL: PerProcess<Option<LockManager>> = PerProcess::new(None);
/// Whether this process or its parent has installed a manager. Set under the mutex of `GLOBAL`.
static IS_INSTALLED: AtomicBool = AtomicBool::new(false);
static BY_URL: PerProcess<ByUrl> = PerProcess::new(ByUrl {
    connected: None,
    connecting: Vec::new(),
});

/// The state of the manager for the URL in `DISTRIBUTED_LOCK_URL`.
#[derive(Default)]
struct ByUrl {
    connected: Option<LockManager>,
    /// The runtimes on which a task connects. A caller waits only for the task of its own runtime,
    /// because another runtime may not be running.
    connecting: Vec<(runtime::Id, Connecting)>,
}

/// The outcome of connecting. The channel closes without an outcome when the runtime ends first.
type Connecting = watch::Receiver<Option<Result<LockManager, LockError>>>;

impl ByUrl {
    fn position(&self, runtime: runtime::Id) -> Option<usize> {
        let mut connecting = self.connecting.iter();
        connecting.position(|(known, _)| *known == runtime)
    }
}

/// Installs a manager for the whole process.
pub(super) fn install(manager: &LockManager) -> Result<(), LockError> {
    let mut global = GLOBAL.lock();
    match &*global {
        Some(installed) if Arc::ptr_eq(&installed.inner, &manager.inner) => Ok(()),
        Some(_) => Err(LockError::AlreadyInstalled),
        None => {
            *global = Some(manager.clone());
            IS_INSTALLED.store(true, Ordering::Release);
            Ok(())
        }
    }
}

/// Returns the manager of the scope, the installed one, or the one that is connected to the URL in
/// `DISTRIBUTED_LOCK_URL`, if there is one.
pub(super) fn current() -> Result<Option<LockManager>, LockError> {
    if let Ok(scoped) = SCOPE.try_with(Clone::clone) {
        return Ok(Some(scoped));
    }
    if let Some(installed) = installed()? {
        return Ok(Some(installed));
    }
    Ok(BY_URL.lock().connected.clone())
}

/// Returns the installed manager, if there is one.
fn installed() -> Result<Option<LockManager>, LockError> {
    let global = GLOBAL.lock();
    // The environment may name another server than the manager of the parent uses.
    if global.is_none() && IS_INSTALLED.load(Ordering::Acquire) {
        return Err(LockError::Forked);
    }
    Ok(global.clone())
}

/// Returns the manager for the URL in `DISTRIBUTED_LOCK_URL`. On each runtime one task connects,
/// and callers that come meanwhile share its outcome. A call after a failure connects again.
pub(super) async fn by_url() -> Result<LockManager, LockError> {
    let runtime = Handle::try_current().map_err(|_| LockError::NoRuntime)?;
    let mut is_first = true;
    loop {
        let (sender, receiver) = watch::channel(None);
        let (mut receiver, sender) = {
            let mut known = BY_URL.lock();
            if let Some(manager) = &known.connected {
                return Ok(manager.clone());
            }
            if let Some(at) = known.position(runtime.id()) {
                (known.connecting[at].1.clone(), None)
            } else {
                known.connecting.push((runtime.id(), receiver.clone()));
                (receiver, Some(sender))
            }
        };
        let is_ours = sender.is_some();
        if let Some(sender) = sender {
            let connecting = ConnectingByUrl {
                runtime: runtime.id(),
                sender,
                process: Process::current(),
            };
            assert_no_mutex_held();
            runtime.spawn(connecting.run());
        }
        if let Ok(outcome) = receiver.wait_for(Option::is_some).await
            && let Some(outcome) = outcome.clone()
        {
            return outcome;
        }
        // A runtime that shuts down drops a spawned task at once. Leaving the poll lets the runtime
        // drop this task too. It does not drop a caller of `Handle::block_on`.
        tokio::task::yield_now().await;
        if is_ours && !std::mem::take(&mut is_first) {
            return Err(LockError::NoRuntime);
        }
    }
}

/// The task that connects.
struct ConnectingByUrl {
    runtime: runtime::Id,
    sender: watch::Sender<Option<Result<LockManager, LockError>>>,
    process: Process,
}

impl ConnectingByUrl {
    async fn run(self) {
        let outcome = LockManager::from_env().await.map(|manager| {
            // Another runtime may have been faster. All runtimes share one manager.
            let mut known = BY_URL.lock();
            known
                .connected
                .get_or_insert_with(|| manager.clone())
                .clone()
        });
        self.leave();
        self.sender.send_replace(Some(outcome));
    }

    /// Removes this task, so that a later call connects again unless there is a manager.
    fn leave(&self) {
        let left = {
            let mut known = BY_URL.lock();
            let at = known.position(self.runtime);
            at.map(|at| known.connecting.swap_remove(at))
        };
        drop(left);
    }
}

impl Drop for ConnectingByUrl {
    /// Removes a task whose runtime ended before it had an outcome. Not in a forked child, where
    /// another thread may have held the mutex at the fork and nothing unlocks it.
    fn drop(&mut self) {
        if self.process.is_current() && self.sender.borrow().is_none() {
            self.leave();
        }
    }
}

tokio::task_local! {
    pub(crate) static SCOPE: LockManager;
}
