//! The embedded backend with faults on command, for the tests of users. The feature `testing`
//! compiles it.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::watch;

use super::memory::MemoryBackend;
use super::{Backend, Boxed, Renewal};
use crate::error::{BackendErrorKind, LockError};
use crate::protocol::acquisition::{AcquireOutcome, RenewOutcome, SentAcquires};
use crate::protocol::cleanup::{ReleaseOutcome, ReleaseRequest};
use crate::protocol::clock::{Clock, Moment};
use crate::protocol::key::LockKey;
use crate::sync::Mutex;

/// A command that a manager sends to its backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Command {
    /// An acquire, or a poll of a waiter.
    Acquire,
    /// A renewal by [`LockGuard::renew`](crate::LockGuard::renew). In memory there are no others.
    Renew,
    /// A release, or the cancel of an acquire.
    Release,
}

/// The faults of one command.
#[derive(Default)]
struct CommandFaults {
    /// Refuses every command.
    refusal: Option<BackendErrorKind>,
    /// Refuses the next commands, one each.
    next_refusals: VecDeque<BackendErrorKind>,
    delay: Duration,
    calls: u64,
}

#[derive(Default)]
struct FaultPlan {
    acquire: CommandFaults,
    renew: CommandFaults,
    release: CommandFaults,
    /// The releases of dropped guards and futures that failed. They are repeated when the backend
    /// accepts releases again, as the background worker does with a server.
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
        self.plan.lock().of(command).refusal = Some(kind);
    }

    pub(crate) fn refuse_next(&self, command: Command, kind: BackendErrorKind) {
        self.plan.lock().of(command).next_refusals.push_back(kind);
    }

    pub(crate) fn accept(&self, command: Command) {
        {
            let mut plan = self.plan.lock();
            let faults = plan.of(command);
            faults.refusal = None;
            faults.next_refusals.clear();
        }
        self.send_unsent();
    }

    pub(crate) fn delay(&self, command: Command, delay: Duration) {
        self.plan.lock().of(command).delay = delay;
    }

    pub(crate) fn calls(&self, command: Command) -> u64 {
        self.plan.lock().of(command).calls
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
    /// it. A command that fails has no effect.
    async fn admit(&self, command: Command, limit: Duration) -> Result<(), LockError> {
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
                let text = "no reply came in time, as `Faults::delay` requested";
                return Err(LockError::backend(BackendErrorKind::TimedOut, text));
            }
            self.check_up()?;
        }
        let refusal = {
            let mut plan = self.plan.lock();
            let faults = plan.of(command);
            faults.next_refusals.pop_front().or(faults.refusal)
        };
        refusal.map_or(Ok(()), |kind| Err(refused(kind)))
    }

    /// Releases for a guard or a future that was dropped. No caller waits for the reply, so a
    /// release that fails is sent again later.
    fn release_in_background(&self, request: &ReleaseRequest) -> Result<ReleaseOutcome, LockError> {
        let is_down = self.is_down();
        {
            let mut plan = self.plan.lock();
            plan.release.calls += 1;
            // The second copy succeeds.
            plan.release.next_refusals.pop_front();
            let error = match plan.release.refusal {
                _ if is_down => Some(unreachable()),
                refusal => refusal.map(refused),
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
            if is_down || plan.release.refusal.is_some() {
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

fn refused(kind: BackendErrorKind) -> LockError {
    LockError::backend(kind, "the backend refused a command, as `Faults` requested")
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
            self.admit(Command::Acquire, limit).await?;
            self.memory.acquire(sent, limit).await
        })
    }

    fn renew<'a>(
        &'a self,
        renewals: &'a [Renewal],
        limit: Duration,
    ) -> Boxed<'a, Vec<Result<RenewOutcome, LockError>>> {
        Box::pin(async move {
            match self.admit(Command::Renew, limit).await {
                Ok(()) => self.memory.renew(renewals, limit).await,
                Err(error) => {
                    let failed = |_: &Renewal| Err(error.clone());
                    renewals.iter().map(failed).collect()
                }
            }
        })
    }

    fn release<'a>(
        &'a self,
        release_request: &'a ReleaseRequest,
        limit: Duration,
    ) -> Boxed<'a, Result<ReleaseOutcome, LockError>> {
        Box::pin(async move {
            // The manager polls the release of a dropped guard only once.
            if limit.is_zero() {
                return self.release_in_background(release_request);
            }
            self.admit(Command::Release, limit).await?;
            Ok(self.memory.release_now(release_request))
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

    fn seems_down(&self) -> bool {
        self.is_down()
    }

    fn is_connected(&self) -> bool {
        !self.is_down()
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
