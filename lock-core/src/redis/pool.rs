//! Two connections for all runtimes: one for the first runtime that uses locks, and one for the background worker.
//!
//! The driver of a connection is a task of a runtime, and ends with it. A connection that the caller's own runtime drives
//! is the fastest, because no command wakes another thread. But a runtime may be blocked, or not be polled at all between
//! two calls of `block_on`, so no other runtime may depend on it. The background worker always runs. Its connection serves
//! every runtime but the first one, however many there are: a server of actix-web has one for each of its threads. A
//! section takes 1.59 times as long as the raw commands there instead of 1.26 times (bench `overhead`). When the first
//! runtime ends, its connection ends, and the next runtime that needs one takes its place.
//!
//! Transactions and confirmations have connections of their own, one for each runtime: a caller holds such a connection for
//! several commands, and one that is never polled again must not hold up the renewals of the worker.
//!
//! A separate task connects, one at a time for each connection. A caller may stop waiting for it; the
//! task continues for the next caller. All waiting callers share its outcome. After a failure, and
//! after a connection that broke at once, the task tries again as long as a caller waits. The
//! pause before each try doubles.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::sync::{Notify, watch};

use super::connection::Connection;
use super::connector::Connector;
use crate::error::LockError;
use crate::store::Reach;
use crate::sync::{Mutex, Process, assert_no_mutex_held};
use crate::telemetry::Reporter;
use lock_protocol::acquisition::Origin;
use lock_protocol::backoff::{Backoff, Jitter};
use lock_protocol::clock::{Clock, Deadline, Moment};

/// A connection that lived this long resets the backoff.
const STEADY: Duration = Duration::from_secs(1);

/// The connections of one client.
pub(super) struct Pool {
    pub(super) connector: Arc<Connector>,
    /// Runtimes but the first use the worker's connection.
    is_shared: bool,
    /// What each runtime uses: a connection of its own, or the background worker's.
    runtimes: Arc<Mutex<HashMap<Id, Arc<RuntimeConnection>>>>,
    /// The latest attempt to connect failed, in any runtime.
    is_down: Arc<AtomicBool>,
    process: Process,
}

struct RuntimeConnection {
    state: Mutex<DialState>,
    /// Drives the connection.
    driver: Handle,
    /// Wakes callers when there is a connection, or an error that waiting does not cure.
    outcome_known: Notify,
    process: Process,
    /// Dropping it ends the tasks that wait for the end of a runtime.
    open: watch::Sender<()>,
}

/// | State | Event | Next |
/// |---|---|---|
/// | idle, failed, stopped | a caller needs a connection | dialing |
/// | up | a caller finds that the connection has ended, or leads to an earlier server | dialing |
/// | up | no call has needed it for five minutes, in a cluster | idle |
/// | up | another connection, which messages can arrive over | up |
/// | dialing | a connection | up |
/// | dialing | an error; a caller waits, and another attempt may cure it | dialing, after a pause |
/// | dialing | another error | failed |
/// | dialing | the task is dropped: its runtime is shutting down | stopped |
enum Dial {
    Idle,
    /// A task of the runtime is connecting. With the error of the latest attempt, or of the last connection.
    Dialing(Option<LockError>),
    Up(Arc<Connection>, Moment),
    Failed(LockError),
    Stopped,
}

struct DialState {
    dial: Dial,
    /// There was a connection before.
    was_up: bool,
    /// The number of callers that wait for a connection.
    waiting: usize,
    /// The earliest time of the next attempt.
    again_at: Moment,
    backoff: Backoff,
    #[cfg(feature = "cluster")]
    idle: Idle,
}

/// How many searches in a row have found no new use of a connection.
#[cfg(feature = "cluster")]
#[derive(Default)]
struct Idle {
    uses: u64,
    searches: u32,
}

/// A connection without a use for this many searches is closed.
#[cfg(feature = "cluster")]
const IDLE_SEARCHES: u32 = 5;

#[cfg(feature = "cluster")]
impl Idle {
    /// Records how often a connection was used. Returns whether it was idle for long.
    fn found(&mut self, uses: u64) -> bool {
        if self.uses == uses {
            self.searches += 1;
        } else {
            *self = Self { uses, searches: 0 };
        }
        self.searches >= IDLE_SEARCHES
    }
}

impl Pool {
    /// Two connections for all runtimes.
    pub(super) fn new(connector: Connector) -> Self {
        Self {
            is_shared: true,
            ..Self::for_each_runtime(connector)
        }
    }

    /// A connection for each runtime.
    pub(super) fn for_each_runtime(connector: Connector) -> Self {
        Self {
            is_shared: false,
            connector: Arc::new(connector),
            runtimes: Arc::default(),
            is_down: Arc::default(),
            process: Process::current(),
        }
    }

    /// Returns the connection for the calling runtime, and opens one if none works. Waits until the deadline; after
    /// that it returns the latest error.
    ///
    /// # Cancel safety
    /// Connecting continues for other callers.
    pub(super) async fn for_current_runtime(
        &self,
        deadline: Deadline,
    ) -> Result<Arc<Connection>, LockError> {
        let Some(runtime) = self.for_runtime()? else {
            return Err(stopped().await);
        };
        if let Some(connection) = self.usable(&runtime) {
            return Ok(connection);
        }
        let waiting_caller = WaitingCaller::at(&runtime);
        let connected = async {
            loop {
                // Created before the check, so that no notification is missed in between.
                let outcome_known = runtime.outcome_known.notified();
                if let Some(connection) = self.usable(&runtime) {
                    return Ok(connection);
                }
                if let Some(error) = runtime.lasting_failure() {
                    return Err(error);
                }
                self.dial(&runtime);
                // While a runtime shuts down, `spawn` drops the task before it returns.
                if matches!(runtime.state.lock().dial, Dial::Stopped) {
                    let is_own = Handle::current().id() == runtime.driver.id();
                    return Err(if is_own {
                        LockError::NoRuntime
                    } else {
                        self.connector.no_answer()
                    });
                }
                outcome_known.await;
            }
        };
        let outcome = tokio::time::timeout(deadline.left(), connected).await;
        drop(waiting_caller);
        if matches!(outcome, Ok(Err(LockError::NoRuntime))) {
            return Err(stopped().await);
        }
        outcome.unwrap_or_else(|_elapsed| Err(self.last_failure(&runtime)))
    }

    /// Returns whether the latest attempt to connect failed, in any runtime.
    pub(super) fn seems_down(&self) -> bool {
        self.is_down.load(Ordering::Relaxed)
    }

    /// Returns whether calls from the calling runtime would reach the server.
    pub(super) fn reach(&self) -> Reach {
        if self.is_connected() {
            Reach::Connected
        } else if self.seems_down() {
            Reach::Down
        } else {
            Reach::NotYet
        }
    }

    /// Returns whether the calling runtime would use a connection that works.
    pub(super) fn is_connected(&self) -> bool {
        let Ok(handle) = Handle::try_current() else {
            return false;
        };
        let known = self.runtimes.lock().get(&handle.id()).cloned();
        known.is_some_and(|runtime| self.usable(&runtime).is_some())
    }

    /// Returns whether any runtime has a connection that works.
    pub(super) fn is_any_connected(&self) -> bool {
        self.connections()
            .iter()
            .any(|runtime| self.usable(runtime).is_some())
    }

    /// Opens the first connection of a manager, and returns an error at once.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub(super) async fn first(&self, limit: Duration) -> Result<Arc<Connection>, LockError> {
        let connection = self.connector.connect(limit).await?;
        connection.link.announce(false);
        // The worker does not run yet.
        let runtime = self.for_runtime()?.ok_or(LockError::NoRuntime)?;
        let replaced = runtime.state.lock().up(&connection);
        drop(replaced);
        Ok(connection)
    }

    /// Returns the connection with this origin, if it still works.
    pub(super) fn by_origin(&self, origin: Origin) -> Option<Arc<Connection>> {
        self.connections()
            .iter()
            .filter_map(|runtime| runtime.current())
            .find(|connection| connection.origin == origin && connection.link.is_open())
    }

    /// Stops using the connections to an earlier primary.
    pub(super) fn retire_older(&self) {
        for connection in self
            .connections()
            .iter()
            .filter_map(|runtime| runtime.current())
        {
            self.retire_if_older(&connection);
        }
    }

    /// Opens another connection beside this one, and uses it if messages can arrive over it. This one stays until then,
    /// because it carries renewals, and the server may refuse another one. Returns the one in use.
    pub(super) async fn upgrade(
        &self,
        connection: Arc<Connection>,
        deadline: Deadline,
    ) -> Arc<Connection> {
        let Ok(newer) = self.connector.connect(deadline.left()).await else {
            return connection;
        };
        if !newer.has_pushes {
            return connection;
        }
        for runtime in self.connections() {
            let replaced = {
                let mut state = runtime.state.lock();
                let is_it = matches!(&state.dial, Dial::Up(up, ..) if Arc::ptr_eq(up, &connection));
                is_it.then(|| state.up(&newer))
            };
            if replaced.is_some() {
                newer.link.announce(false);
                // Calls on it go on, unless another server is the primary by now.
                self.retire_if_older(&connection);
                drop(replaced);
                return newer;
            }
        }
        connection
    }

    /// Closes the connections that had no use between this search and the fifth one before it. The next caller opens
    /// another one.
    #[cfg(feature = "cluster")]
    pub(super) fn close_idle(&self) {
        for runtime in self.connections() {
            let Some(uses) = runtime.current().map(|connection| connection.times_used()) else {
                continue;
            };
            let closed = {
                let mut state = runtime.state.lock();
                let is_idle = matches!(state.dial, Dial::Up(..)) && state.idle.found(uses);
                is_idle.then(|| {
                    state.was_up = false;
                    state.idle = Idle::default();
                    std::mem::replace(&mut state.dial, Dial::Idle)
                })
            };
            drop(closed);
        }
    }

    fn retire_if_older(&self, connection: &Connection) {
        if connection.node().generation < self.connector.location.generation() {
            connection.retire();
        }
    }

    fn usable(&self, runtime: &RuntimeConnection) -> Option<Arc<Connection>> {
        let generation = self.connector.location.generation();
        runtime.current().filter(|connection| {
            connection.link.is_open()
                && connection.node().is_process(connection.first.run_id)
                && connection.node().generation == generation
        })
    }

    fn last_failure(&self, runtime: &RuntimeConnection) -> LockError {
        let known = match &runtime.state.lock().dial {
            Dial::Dialing(error) => error.clone(),
            Dial::Failed(error) => Some(error.clone()),
            Dial::Idle | Dial::Up(..) | Dial::Stopped => None,
        };
        known.unwrap_or_else(|| self.connector.no_answer())
    }

    /// Starts the task that connects, unless it is running.
    fn dial(&self, runtime: &Arc<RuntimeConnection>) {
        if self.usable(runtime).is_some() {
            return;
        }
        let now = Clock::System.now();
        let unusable = runtime.current();
        let link = unusable.as_ref().map(|unusable| &unusable.link);
        let has_answered = link.is_some_and(|link| link.has_answered());
        let error = link.and_then(|link| link.error());
        let replaced = {
            let mut state = runtime.state.lock();
            let error = match state.dial {
                Dial::Dialing(_) => return,
                // It was made just now.
                Dial::Up(ref current, _)
                    if !unusable.as_ref().is_some_and(|it| Arc::ptr_eq(it, current)) =>
                {
                    return;
                }
                Dial::Up(_, at) => {
                    let is_steady = now.since(at) >= STEADY;
                    // The server may accept connections and reject each command.
                    if is_steady || has_answered {
                        state.backoff.reset();
                    }
                    if !is_steady {
                        state.again_at = now.plus(state.backoff.pause());
                    }
                    error
                }
                Dial::Failed(ref error) => Some(error.clone()),
                Dial::Idle | Dial::Stopped => None,
            };
            std::mem::replace(&mut state.dial, Dial::Dialing(error))
        };
        // It is not among the current connections any more, which are retired when the primary changes.
        if let Some(unusable) = &unusable {
            self.retire_if_older(unusable);
        }
        drop((replaced, unusable));
        let dialing = Dialing {
            runtime: Arc::clone(runtime),
            reporter: Arc::clone(&self.connector.config.reporter),
            is_over: false,
        };
        let connector = Arc::clone(&self.connector);
        let is_down = Arc::clone(&self.is_down);
        assert_no_mutex_held();
        runtime.driver.spawn(dialing.run(connector, is_down));
    }

    /// Returns the connection for the calling runtime; `None` while that runtime shuts down.
    fn for_runtime(&self) -> Result<Option<Arc<RuntimeConnection>>, LockError> {
        let caller = Handle::try_current().map_err(|_| LockError::NoRuntime)?;
        let known = self.runtimes.lock().get(&caller.id()).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let worker = self.connector.config.worker.get();
        if let Some(worker) = worker
            && self.is_shared
            && worker.id() != caller.id()
        {
            // Before the decision, which is made under the same lock as the entry of the caller.
            let shared = self.join(worker, None);
            return Ok(shared.and_then(|shared| self.join(&caller, Some(shared))));
        }
        Ok(self.join(&caller, None))
    }

    /// Records which connection a runtime uses: one of its own, or this one if another runtime came first. Returns the
    /// connection it uses; `None` while the runtime shuts down.
    fn join(
        &self,
        runtime: &Handle,
        shared: Option<Arc<RuntimeConnection>>,
    ) -> Option<Arc<RuntimeConnection>> {
        let (connection, mut closed) = {
            let mut runtimes = self.runtimes.lock();
            if let Some(known) = runtimes.get(&runtime.id()) {
                return Some(Arc::clone(known));
            }
            let is_first = |shared: &Arc<RuntimeConnection>| {
                let mut drivers = runtimes.values().map(|known| known.driver.id());
                drivers.all(|id| id == shared.driver.id())
            };
            let own = || Arc::new(RuntimeConnection::new(runtime.clone(), self.process));
            let shared = shared.filter(|shared| !is_first(shared));
            let connection = shared.unwrap_or_else(own);
            runtimes.insert(runtime.id(), Arc::clone(&connection));
            let closed = connection.open.subscribe();
            (connection, closed)
        };
        let leave = ForgetRuntime {
            runtimes: Arc::downgrade(&self.runtimes),
            runtime: runtime.id(),
            process: self.process,
        };
        // While a runtime shuts down, `spawn` drops the task at once.
        assert_no_mutex_held();
        runtime.spawn(async move {
            let _leave = leave;
            let _closed = closed.changed().await;
        });
        let is_there = self.runtimes.lock().contains_key(&runtime.id());
        is_there.then_some(connection)
    }

    /// Returns the connections of all runtimes.
    fn connections(&self) -> Vec<Arc<RuntimeConnection>> {
        let runtimes = self.runtimes.lock();
        let drivers = runtimes
            .iter()
            .filter(|(id, known)| **id == known.driver.id());
        drivers.map(|(_, known)| Arc::clone(known)).collect()
    }
}

impl RuntimeConnection {
    fn new(driver: Handle, process: Process) -> Self {
        Self {
            state: Mutex::new(DialState {
                dial: Dial::Idle,
                was_up: false,
                waiting: 0,
                again_at: Clock::System.now(),
                backoff: Backoff::new(Jitter::from_os()),
                #[cfg(feature = "cluster")]
                idle: Idle::default(),
            }),
            driver,
            outcome_known: Notify::new(),
            process,
            open: watch::Sender::new(()),
        }
    }

    fn current(&self) -> Option<Arc<Connection>> {
        match &self.state.lock().dial {
            Dial::Up(connection, _) => Some(Arc::clone(connection)),
            _ => None,
        }
    }

    /// Returns an error that another attempt does not cure, while it is recent.
    fn lasting_failure(&self) -> Option<LockError> {
        let now = Clock::System.now();
        let state = self.state.lock();
        match &state.dial {
            Dial::Failed(error) if !error.is_retryable() && now < state.again_at => {
                Some(error.clone())
            }
            _ => None,
        }
    }
}

/// Returns the error of a runtime that shuts down.
async fn stopped() -> LockError {
    // Ends the poll, so that the runtime can drop this task too. A timer cannot do it: timers panic during shutdown.
    tokio::task::yield_now().await;
    LockError::NoRuntime
}

impl DialState {
    /// Uses a new connection. Returns what is to be dropped outside of the mutex.
    fn up(&mut self, connection: &Arc<Connection>) -> Dial {
        self.was_up = true;
        let up = Dial::Up(Arc::clone(connection), Clock::System.now());
        std::mem::replace(&mut self.dial, up)
    }
}

/// Counts one caller that waits for a connection.
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

/// The task that connects. It ends with a connection, with an error that another attempt does not
/// cure, or when no caller waits any more.
struct Dialing {
    runtime: Arc<RuntimeConnection>,
    reporter: Arc<Reporter>,
    /// Finished: another task may be connecting by now.
    is_over: bool,
}

impl Dialing {
    async fn run(mut self, connector: Arc<Connector>, is_down: Arc<AtomicBool>) {
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
                    is_down.store(false, Ordering::Relaxed);
                    self.succeeded(&connection);
                }
                Err(error) => {
                    is_down.store(true, Ordering::Relaxed);
                    self.failed(error);
                }
            }
            if self.is_over {
                return;
            }
        }
    }

    fn succeeded(&mut self, connection: &Arc<Connection>) {
        let (is_reconnect, replaced) = {
            let mut state = self.runtime.state.lock();
            (state.was_up, state.up(connection))
        };
        self.is_over = true;
        drop(replaced);
        connection.link.announce(is_reconnect);
    }

    fn failed(&mut self, error: LockError) {
        let lasts = !error.is_retryable();
        let now = Clock::System.now();
        let (is_last, replaced) = {
            let mut state = self.runtime.state.lock();
            state.again_at = now.plus(state.backoff.pause());
            // Under the same lock as the count of waiting callers: the next caller starts a new task.
            let is_last = lasts || state.waiting == 0;
            let dial = if is_last {
                Dial::Failed(error)
            } else {
                Dial::Dialing(Some(error))
            };
            (is_last, std::mem::replace(&mut state.dial, dial))
        };
        self.is_over = is_last;
        drop(replaced);
    }
}

impl Drop for Dialing {
    /// Also runs when the runtime ends meanwhile, or when the task panicked.
    fn drop(&mut self) {
        if !self.runtime.process.is_current() {
            return;
        }
        if !self.is_over {
            let stopped = std::mem::replace(&mut self.runtime.state.lock().dial, Dial::Stopped);
            drop(stopped);
        }
        let outcome_known = &self.runtime.outcome_known;
        self.reporter.waking(|| outcome_known.notify_waiters());
    }
}

/// Forgets a runtime. A task of that runtime owns it, so it is dropped with the runtime.
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
            // After the mutex is released: this may drop the driver of the connection.
            drop(runtime);
        }
    }
}

#[cfg(test)]
mod tests;
