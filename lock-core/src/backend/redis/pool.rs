//! One connection for each runtime that asks for locks.
//!
//! A connection's driver is a task of the runtime that made it and dies with it, so runtimes
//! never share one. A seat is given up when its runtime ends.
//!
//! Connecting is a task of its own, one at a time for each runtime: whoever waits for it may give
//! up, and it goes on for the next one. All who wait share what comes of it. After a failure, and
//! after a connection that broke at once, it is tried again after a pause that doubles, as long as
//! somebody waits.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::sync::{Notify, oneshot};

use super::connection::{Connection, Connector};
use crate::backend::Origin;
use crate::error::LockError;
use crate::protocol::backoff::{Backoff, Jitter};
use crate::protocol::clock::{Clock, Moment};
use crate::stats::Counters;
use crate::sync::{Mutex, Process, assert_no_mutex_held};

/// A connection that lived for so long was a good one.
const STEADY: Duration = Duration::from_secs(1);

/// The seats of all runtimes.
pub(super) struct Pool {
    pub(super) connector: Arc<Connector>,
    runtimes: Arc<Mutex<HashMap<Id, Arc<RuntimeConnection>>>>,
    last_seen: Arc<LastSeen>,
    process: Process,
}

/// What the dials of all runtimes came to.
#[derive(Default)]
struct LastSeen {
    /// The life of the server that was seen last; connections to an earlier one are dropped.
    run_id: AtomicU64,
    /// The last dial failed.
    is_down: AtomicBool,
}

struct RuntimeConnection {
    state: Mutex<DialState>,
    /// There is a connection, or an error that waiting does not cure.
    outcome_known: Notify,
    process: Process,
    /// Dropped with the seat: ends the task that waits for the end of the runtime.
    _open: oneshot::Sender<()>,
}

struct DialState {
    current: Option<Arc<Connection>>,
    /// Whether a task of the runtime connects.
    is_dialing: bool,
    /// That task ended before it was done: its runtime shuts down.
    was_dropped: bool,
    /// How many wait for it.
    waiting: usize,
    /// When the last connection was made that has not been replaced.
    connected_at: Option<Moment>,
    /// What came of connecting last, where nothing did.
    failure: Option<LockError>,
    /// Before this it is not tried again.
    again_at: Moment,
    backoff: Backoff,
}

impl Pool {
    pub(super) fn new(connector: Connector) -> Self {
        Self {
            connector: Arc::new(connector),
            runtimes: Arc::default(),
            last_seen: Arc::default(),
            process: Process::current(),
        }
    }

    /// The connection of the calling runtime, made where there is none that works. Waits for that
    /// at most for the limit; what went wrong last is the error then.
    ///
    /// # Cancel safety
    /// Connecting goes on for others who wait.
    pub(super) async fn for_current_runtime(
        &self,
        limit: Duration,
    ) -> Result<Arc<Connection>, LockError> {
        let runtime = self.for_runtime()?;
        if let Some(connection) = self.usable(&runtime) {
            return Ok(connection);
        }
        let waiting = WaitingCaller::at(&runtime);
        let connected = async {
            loop {
                // Before the look, so that nothing is missed in between.
                let outcome_known = runtime.outcome_known.notified();
                if let Some(connection) = self.usable(&runtime) {
                    return Ok(connection);
                }
                if let Some(error) = runtime.lasting_failure() {
                    return Err(error);
                }
                self.dial(&runtime);
                // A runtime that shuts down drops the task that connects in the very call that
                // spawns it.
                if runtime.state.lock().was_dropped {
                    return Err(LockError::NoRuntime);
                }
                outcome_known.await;
            }
        };
        let outcome = tokio::time::timeout(limit, connected).await;
        drop(waiting);
        if matches!(outcome, Ok(Err(LockError::NoRuntime))) {
            // This task has to leave its poll, so that it is dropped too. Not under a timer, which
            // panics there.
            tokio::task::yield_now().await;
        }
        outcome.unwrap_or_else(|_elapsed| Err(self.last_failure(&runtime)))
    }

    /// Whether the last dial failed, of whatever runtime.
    pub(super) fn seems_down(&self) -> bool {
        self.last_seen.is_down.load(Ordering::Relaxed)
    }

    /// Whether the calling runtime has a connection that works.
    pub(super) fn is_connected(&self) -> bool {
        let runtime = self.for_runtime();
        runtime.is_ok_and(|runtime| self.usable(&runtime).is_some())
    }

    /// Makes the first connection of a manager, and says at once what is wrong.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub(super) async fn first(&self, limit: Duration) -> Result<Arc<Connection>, LockError> {
        let connection = Arc::new(self.connector.connect(limit).await?);
        self.saw_run_id(connection.first.run_id);
        let runtime = self.for_runtime()?;
        let replaced = runtime
            .state
            .lock()
            .current
            .replace(Arc::clone(&connection));
        drop(replaced);
        Ok(connection)
    }

    /// That very connection, where it still works.
    pub(super) fn by_origin(&self, origin: Origin) -> Option<Arc<Connection>> {
        let runtimes: Vec<_> = self.runtimes.lock().values().cloned().collect();
        runtimes
            .iter()
            .filter_map(|runtime| runtime.current())
            .find(|connection| connection.origin == origin && !connection.is_broken())
    }

    /// A connection of any kind met this life of the server.
    pub(super) fn saw_run_id(&self, run_id: u64) {
        self.last_seen.run_id.store(run_id, Ordering::Relaxed);
    }

    fn usable(&self, runtime: &RuntimeConnection) -> Option<Arc<Connection>> {
        let newest = self.last_seen.run_id.load(Ordering::Relaxed);
        runtime
            .current()
            .filter(|connection| !connection.is_broken() && connection.first.run_id == newest)
    }

    fn last_failure(&self, runtime: &RuntimeConnection) -> LockError {
        let known = runtime.state.lock().failure.clone();
        known.unwrap_or_else(|| self.connector.no_answer())
    }

    /// Has a task of the runtime connect, unless one does.
    fn dial(&self, runtime: &Arc<RuntimeConnection>) {
        let mut replaced = None;
        {
            let now = Clock::System.now();
            let current = runtime.current();
            let has_answered = current
                .as_ref()
                .is_some_and(|current| current.has_answered());
            let broken_by = current.and_then(|current| current.broken_by());
            let mut state = runtime.state.lock();
            if state.is_dialing {
                return;
            }
            state.is_dialing = true;
            state.was_dropped = false;
            if let Some(at) = state.connected_at.take() {
                let is_steady = now.since(at) >= STEADY;
                // The server may accept connections, and refuse each command.
                if is_steady || has_answered {
                    state.backoff.reset();
                }
                if !is_steady {
                    state.again_at = now.plus(state.backoff.pause());
                }
                replaced = std::mem::replace(&mut state.failure, broken_by);
            }
        }
        drop(replaced);
        let dialing = Dialing {
            runtime: Arc::clone(runtime),
            counters: Arc::clone(&self.connector.counters),
            is_over: false,
        };
        let connector = Arc::clone(&self.connector);
        let last_seen = Arc::clone(&self.last_seen);
        assert_no_mutex_held();
        tokio::spawn(dialing.run(connector, last_seen));
    }

    fn for_runtime(&self) -> Result<Arc<RuntimeConnection>, LockError> {
        let handle = Handle::try_current().map_err(|_| LockError::NoRuntime)?;
        let known = self.runtimes.lock().get(&handle.id()).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let (open, closed) = oneshot::channel();
        let runtime = {
            let mut runtimes = self.runtimes.lock();
            if let Some(known) = runtimes.get(&handle.id()) {
                return Ok(Arc::clone(known));
            }
            let runtime = Arc::new(RuntimeConnection {
                state: Mutex::new(DialState {
                    current: None,
                    is_dialing: false,
                    was_dropped: false,
                    waiting: 0,
                    connected_at: None,
                    failure: None,
                    again_at: Clock::System.now(),
                    backoff: Backoff::new(Jitter::from_os()),
                }),
                outcome_known: Notify::new(),
                process: self.process,
                _open: open,
            });
            runtimes.insert(handle.id(), Arc::clone(&runtime));
            runtime
        };
        let leave = ForgetRuntime {
            runtimes: Arc::downgrade(&self.runtimes),
            runtime: handle.id(),
            process: self.process,
        };
        // A runtime that shuts down drops the task in this call, and the seat with it.
        assert_no_mutex_held();
        handle.spawn(async move {
            let _leave = leave;
            let _closed = closed.await;
        });
        Ok(runtime)
    }
}

impl RuntimeConnection {
    fn current(&self) -> Option<Arc<Connection>> {
        self.state.lock().current.clone()
    }

    /// An error that asking again does not cure, as long as it is fresh.
    fn lasting_failure(&self) -> Option<LockError> {
        let now = Clock::System.now();
        let state = self.state.lock();
        let failure = state.failure.as_ref()?;
        let is_lasting = !failure.is_retryable() && now < state.again_at;
        is_lasting.then(|| failure.clone())
    }
}

/// Somebody waits for a connection.
struct WaitingCaller<'a> {
    runtime: &'a RuntimeConnection,
}

impl<'a> WaitingCaller<'a> {
    fn at(runtime: &'a RuntimeConnection) -> Self {
        runtime.state.lock().waiting += 1;
        Self { runtime }
    }
}

impl Drop for WaitingCaller<'_> {
    fn drop(&mut self) {
        if self.runtime.process.is_current() {
            self.runtime.state.lock().waiting -= 1;
        }
    }
}

/// The task that connects. Ends with a connection, with an error that asking again does not cure,
/// or when nobody waits any more.
struct Dialing {
    runtime: Arc<RuntimeConnection>,
    counters: Arc<Counters>,
    /// Another task may connect by now.
    is_over: bool,
}

impl Dialing {
    async fn run(mut self, connector: Arc<Connector>, last_seen: Arc<LastSeen>) {
        loop {
            let pause = {
                let again_at = self.runtime.state.lock().again_at;
                again_at.since(Clock::System.now())
            };
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            match connector.connect(Duration::MAX).await {
                Ok(connection) => {
                    let run_id = connection.first.run_id;
                    last_seen.run_id.store(run_id, Ordering::Relaxed);
                    last_seen.is_down.store(false, Ordering::Relaxed);
                    self.succeeded(connection);
                }
                Err(error) => {
                    last_seen.is_down.store(true, Ordering::Relaxed);
                    self.failed(error);
                }
            }
            if self.is_over {
                return;
            }
        }
    }

    fn succeeded(&mut self, connection: Connection) {
        let now = Clock::System.now();
        let replaced = {
            let mut state = self.runtime.state.lock();
            state.is_dialing = false;
            state.connected_at = Some(now);
            let connection = Some(Arc::new(connection));
            let connection = std::mem::replace(&mut state.current, connection);
            (connection, state.failure.take())
        };
        self.is_over = true;
        drop(replaced);
    }

    fn failed(&mut self, error: LockError) {
        let lasts = !error.is_retryable();
        let now = Clock::System.now();
        let (is_last, replaced) = {
            let mut state = self.runtime.state.lock();
            state.again_at = now.plus(state.backoff.pause());
            let replaced = state.failure.replace(error);
            let is_last = lasts || state.waiting == 0;
            // In one step with the look at those who wait: the next to come begins anew.
            state.is_dialing = !is_last;
            (is_last, replaced)
        };
        self.is_over = is_last;
        drop(replaced);
    }
}

impl Drop for Dialing {
    /// Also when its runtime ends in the middle of it, or it panicked.
    fn drop(&mut self) {
        if !self.runtime.process.is_current() {
            return;
        }
        if !self.is_over {
            let mut state = self.runtime.state.lock();
            state.is_dialing = false;
            state.was_dropped = true;
        }
        let outcome_known = &self.runtime.outcome_known;
        self.counters.waking(|| outcome_known.notify_waiters());
    }
}

/// Held by a task of the runtime: dropped with it.
struct ForgetRuntime {
    runtimes: Weak<Mutex<HashMap<Id, Arc<RuntimeConnection>>>>,
    runtime: Id,
    process: Process,
}

impl Drop for ForgetRuntime {
    fn drop(&mut self) {
        if let Some(runtimes) = self.runtimes.upgrade()
            && self.process.is_current()
        {
            let runtime = runtimes.lock().remove(&self.runtime);
            // Outside of the lock: its connection's driver may go with it.
            drop(runtime);
        }
    }
}
