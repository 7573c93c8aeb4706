//! The embedded backend with faults on command, for the tests of users. The feature `testing`
//! compiles it.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::watch;

use super::admin::{ForceRequest, InspectDetail, ListReply, ListRequest};
use super::memory::MemoryBackend;
use super::{AdminBackend, Backend, BackendStatus, Boxed, Renewal};
use crate::error::{BackendErrorKind, LockError};
use crate::sync::Mutex;
use lock_protocol::acquisition::{AcquireOutcome, RenewOutcome, SentAcquires};
use lock_protocol::cleanup::{ReleaseOutcome, ReleaseRequest};
use lock_protocol::clock::{Clock, Moment};
use lock_protocol::inspection::{InspectReply, ReadTime};
use lock_protocol::key::LockKey;
use lock_protocol::lock_state::ForceReply;

/// A command that a manager sends to its backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Command {
    /// An acquire, or a poll of a waiter.
    Acquire,
    /// A renewal. A lock in memory needs no automatic renewals as long as they would succeed, so only
    /// [`LockGuard::renew`](crate::LockGuard::renew) sends one. While a fault makes all renewals fail, the library also
    /// renews each held lock in the background, fails, and lets the lock expire with its ttl.
    Renew,
    /// A release, or the cancel of an acquire.
    Release,
}

/// What happens to a command.
#[derive(Clone, Copy, Debug)]
enum CommandFault {
    /// It has no effect.
    Refuse(BackendErrorKind),
    /// The backend executes it, and no reply comes.
    LoseReply,
}

/// The faults of one command.
#[derive(Default)]
struct CommandFaults {
    /// The fault of every command.
    every: Option<CommandFault>,
    /// The faults of the next commands, one each.
    next: VecDeque<CommandFault>,
    delay: Duration,
    calls: u64,
}

/// Whether the caller gets the reply to a command that the backend executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    Arrives,
    IsLost,
}

/// The limit of the release of a dropped guard or future, for which no caller waits. The manager
/// polls it only once: see `ManagerInner::release_in_background`. A caller that waits has time left.
const NO_CALLER: Duration = Duration::ZERO;

#[derive(Default)]
struct FaultPlan {
    acquire: CommandFaults,
    renew: CommandFaults,
    release: CommandFaults,
    /// The releases of dropped guards and futures that failed. They are sent again when the backend
    /// accepts releases again.
    ///
    /// A `Cleanup` would give up when the lease has ended, or when the user has no permission. With
    /// a server the lease then frees the lock. In memory a renewed lease does not end.
    unsent: Vec<ReleaseRequest>,
}

impl FaultPlan {
    fn of(&mut self, command: Command) -> &mut CommandFaults {
        match command {
            Command::Acquire => &mut self.acquire,
            Command::Renew => &mut self.renew,
            Command::Release => &mut self.release,
        }
    }
}

/// A [`MemoryBackend`] that fails on command.
pub(crate) struct FaultyBackend {
    memory: MemoryBackend,
    plan: Mutex<FaultPlan>,
    is_up: watch::Sender<bool>,
}

impl FaultyBackend {
    pub(crate) fn new(memory: MemoryBackend) -> Self {
        Self {
            memory,
            plan: Mutex::default(),
            is_up: watch::Sender::new(true),
        }
    }

    /// Returns the backend below, which executes every command.
    pub(crate) fn memory(&self) -> &MemoryBackend {
        &self.memory
    }

    pub(crate) fn down(&self) {
        self.is_up.send_replace(false);
    }

    pub(crate) fn up(&self) {
        self.is_up.send_replace(true);
        self.send_unsent();
    }

    pub(crate) fn refuse(&self, command: Command, kind: BackendErrorKind) {
        self.plan.lock().of(command).every = Some(CommandFault::Refuse(kind));
    }

    pub(crate) fn refuse_next(&self, command: Command, kind: BackendErrorKind) {
        let mut plan = self.plan.lock();
        plan.of(command).next.push_back(CommandFault::Refuse(kind));
    }

    pub(crate) fn lose_replies(&self, command: Command) {
        self.plan.lock().of(command).every = Some(CommandFault::LoseReply);
    }

    pub(crate) fn lose_next_reply(&self, command: Command) {
        let mut plan = self.plan.lock();
        plan.of(command).next.push_back(CommandFault::LoseReply);
    }

    pub(crate) fn accept(&self, command: Command) {
        {
            let mut plan = self.plan.lock();
            let faults = plan.of(command);
            faults.every = None;
            faults.next.clear();
        }
        self.send_unsent();
    }

    pub(crate) fn delay(&self, command: Command, delay: Duration) {
        self.plan.lock().of(command).delay = delay;
    }

    pub(crate) fn calls(&self, command: Command) -> u64 {
        self.plan.lock().of(command).calls
    }

    /// Returns whether every renewal fails now that has to get its reply within `limit`.
    pub(crate) fn fails_renewals(&self, limit: Duration) -> bool {
        let plan = self.plan.lock();
        self.is_down() || plan.renew.every.is_some() || plan.renew.delay > limit
    }

    fn is_down(&self) -> bool {
        !*self.is_up.borrow()
    }

    fn check_up(&self) -> Result<(), LockError> {
        if self.is_down() {
            return Err(unreachable());
        }
        Ok(())
    }

    /// Waits for the delay of the command, and returns its error if the backend does not execute
    /// it. Such a command has no effect.
    async fn admit(&self, command: Command, limit: Duration) -> Result<Reply, LockError> {
        let delay = {
            let mut plan = self.plan.lock();
            let faults = plan.of(command);
            faults.calls += 1;
            faults.delay
        };
        self.check_up()?;
        if !delay.is_zero() {
            tokio::time::sleep(delay.min(limit)).await;
            if delay > limit {
                return Err(timed_out("`Faults::delay`"));
            }
            self.check_up()?;
        }
        let fault = {
            let mut plan = self.plan.lock();
            let faults = plan.of(command);
            faults.next.pop_front().or(faults.every)
        };
        match fault {
            None => Ok(Reply::Arrives),
            Some(CommandFault::LoseReply) => Ok(Reply::IsLost),
            Some(CommandFault::Refuse(kind)) => Err(refused(kind)),
        }
    }

    /// Releases for a guard or a future that was dropped. No caller waits for the reply, so a
    /// release that fails is sent again later.
    fn release_in_background(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome, LockError> {
        let is_down = self.is_down();
        {
            let mut plan = self.plan.lock();
            plan.release.calls += 1;
            // The second copy succeeds.
            plan.release.next.pop_front();
            let error = match plan.release.every {
                _ if is_down => Some(unreachable()),
                Some(CommandFault::Refuse(kind)) => Some(refused(kind)),
                // No caller waits for the reply.
                Some(CommandFault::LoseReply) | None => None,
            };
            if let Some(error) = error {
                plan.unsent.push(request.clone());
                return Err(error);
            }
        }
        Ok(self.memory.release_now(request))
    }

    fn send_unsent(&self) {
        let is_down = self.is_down();
        let unsent = {
            let mut plan = self.plan.lock();
            if is_down || matches!(plan.release.every, Some(CommandFault::Refuse(_))) {
                return;
            }
            std::mem::take(&mut plan.unsent)
        };
        for request in &unsent {
            self.memory.release_now(request);
        }
    }
}

fn unreachable() -> LockError {
    let text = "the backend is down, as `Faults::down` requested";
    LockError::backend(BackendErrorKind::Unreachable, text)
}

fn timed_out(request: &str) -> LockError {
    let text = format!("no reply came in time, as {request} requested");
    LockError::backend(BackendErrorKind::TimedOut, text)
}

/// Returns the reply to an executed command, or the timeout of its caller.
async fn delivered<T>(reply: Reply, value: T, limit: Duration) -> Result<T, LockError> {
    if reply == Reply::IsLost {
        tokio::time::sleep(limit).await;
        return Err(timed_out("`Faults`"));
    }
    Ok(value)
}

fn refused(kind: BackendErrorKind) -> LockError {
    LockError::backend(kind, "the backend refused a command, as `Faults` requested")
}

/// Operators see the locks in memory, unless the backend is down.
impl AdminBackend for FaultyBackend {
    fn inspect<'a>(
        &'a self,
        key: &'a LockKey,
        detail: InspectDetail,
        limit: Duration,
    ) -> Boxed<'a, Result<InspectReply, LockError>> {
        Box::pin(async move {
            self.check_up()?;
            self.memory.admin().inspect(key, detail, limit).await
        })
    }

    fn force_release<'a>(
        &'a self,
        request: &'a ForceRequest,
        limit: Duration,
    ) -> Boxed<'a, Result<(ReadTime, ForceReply), LockError>> {
        Box::pin(async move {
            self.check_up()?;
            self.memory.admin().force_release(request, limit).await
        })
    }

    fn list<'a>(
        &'a self,
        request: &'a ListRequest,
        limit: Duration,
    ) -> Boxed<'a, Result<ListReply, LockError>> {
        Box::pin(async move {
            self.check_up()?;
            self.memory.admin().list(request, limit).await
        })
    }
}

impl Backend for FaultyBackend {
    fn clock(&self) -> Clock {
        self.memory.clock()
    }

    fn acquire<'a>(
        &'a self,
        sent: &'a mut SentAcquires,
        limit: Duration,
    ) -> Boxed<'a, Result<AcquireOutcome, LockError>> {
        Box::pin(async move {
            let reply = self.admit(Command::Acquire, limit).await?;
            let outcome = self.memory.acquire_now(sent);
            delivered(reply, outcome, limit).await
        })
    }

    fn renew<'a>(
        &'a self,
        renewals: &'a [Renewal],
        limit: Duration,
    ) -> Boxed<'a, Vec<Result<RenewOutcome, LockError>>> {
        Box::pin(async move {
            let executed = match self.admit(Command::Renew, limit).await {
                Ok(reply) => {
                    let outcomes = self.memory.renew(renewals, limit).await;
                    delivered(reply, outcomes, limit).await
                }
                Err(error) => Err(error),
            };
            executed.unwrap_or_else(|error| {
                let failed = |_: &Renewal| Err(error.clone());
                renewals.iter().map(failed).collect()
            })
        })
    }

    fn release<'a>(
        &'a self,
        release_request: &'a ReleaseRequest,
        limit: Duration,
    ) -> Boxed<'a, Result<ReleaseOutcome, LockError>> {
        Box::pin(async move {
            if limit == NO_CALLER {
                return self.release_in_background(release_request);
            }
            let reply = self.admit(Command::Release, limit).await?;
            let outcome = self.memory.release_now(release_request);
            delivered(reply, outcome, limit).await
        })
    }

    fn can_batch_release(&self, key: &LockKey) -> bool {
        self.memory.can_batch_release(key)
    }

    fn release_all<'a>(
        &'a self,
        release_requests: &'a [&'a ReleaseRequest],
        limit: Duration,
    ) -> Boxed<'a, Vec<Result<ReleaseOutcome, LockError>>> {
        Box::pin(async move {
            let mut outcomes = Vec::with_capacity(release_requests.len());
            for release_request in release_requests {
                outcomes.push(self.release(release_request, limit).await);
            }
            outcomes
        })
    }

    fn admin(&self) -> &dyn AdminBackend {
        self
    }

    fn seems_down(&self) -> bool {
        self.is_down()
    }

    fn is_connected(&self) -> bool {
        !self.is_down()
    }

    fn status(&self) -> BackendStatus {
        BackendStatus {
            connected: self.is_connected(),
            ..self.memory.status()
        }
    }

    fn notifies_waiters<'a>(&'a self, key: &'a LockKey, limit: Duration) -> Boxed<'a, bool> {
        self.memory.notifies_waiters(key, limit)
    }

    fn wait_connected(&self, until: Moment) -> Boxed<'_, Result<(), LockError>> {
        let mut is_up = self.is_up.subscribe();
        Box::pin(async move {
            let left = until.since(self.clock().now());
            let connected = tokio::time::timeout(left, is_up.wait_for(|is_up| *is_up)).await;
            match connected {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(_)) | Err(_) => Err(unreachable()),
            }
        })
    }

    fn listen(&self) -> Boxed<'_, ()> {
        self.memory.listen()
    }

    fn holds_without_renewal(&self) -> bool {
        self.memory.holds_without_renewal()
    }
}
