//! The locks in memory with faults on command, for the tests of users. The feature `testing`
//! compiles it.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::watch;

use crate::error::{BackendErrorKind, LockError};
use crate::memory::MemoryStore;
use crate::store::{
    Boxed, Call, Reach, Store, StoreStatus, StoreTraits, Together, ends_set, fail_all,
};
use crate::sync::Mutex;
use lock_protocol::cleanup::ReleaseRequest;
use lock_protocol::clock::{Deadline, Moment};
use lock_protocol::key::LockKey;
use lock_protocol::op::OpKind;

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
    /// The store executes it, and no reply comes.
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

/// Whether the caller gets the reply to a command that the store executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    Arrives,
    IsLost,
}

#[derive(Default)]
struct FaultPlan {
    acquire: CommandFaults,
    renew: CommandFaults,
    release: CommandFaults,
    /// The releases of dropped guards and futures that failed. They are sent again when the store
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

/// A [`MemoryStore`] that fails on command.
pub(crate) struct FaultyStore {
    memory: MemoryStore,
    plan: Mutex<FaultPlan>,
    is_up: watch::Sender<bool>,
}

impl FaultyStore {
    pub(crate) fn new(memory: MemoryStore) -> Self {
        Self {
            memory,
            plan: Mutex::default(),
            is_up: watch::Sender::new(true),
        }
    }

    /// Returns the store below, which executes every command.
    pub(crate) fn memory(&self) -> &MemoryStore {
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

    pub(crate) fn is_down(&self) -> bool {
        !*self.is_up.borrow()
    }

    fn check_up(&self) -> Result<(), LockError> {
        if self.is_down() {
            return Err(unreachable());
        }
        Ok(())
    }

    /// Runs calls of one kind, as one command that may take this long.
    async fn run(&self, calls: &mut [&mut Call<'_>], limit: Duration) {
        let command = match calls.first().map(|call| &call.op.kind) {
            Some(OpKind::Acquire(_)) => Some(Command::Acquire),
            Some(OpKind::Renew(..)) => Some(Command::Renew),
            Some(OpKind::Release(_)) => Some(Command::Release),
            // Operators see the locks in memory, unless the store is down.
            _ => None,
        };
        let admitted = match command {
            Some(command) => self.admit(command, limit).await,
            None => self.check_up().map(|()| Reply::Arrives),
        };
        let reply = match admitted {
            Ok(reply) => reply,
            Err(error) => return fail_all(calls, &error),
        };
        for call in calls.iter_mut() {
            let outcome = self.memory.run(&mut call.op.kind);
            call.outcome = (reply == Reply::Arrives).then_some(outcome);
        }
        if reply == Reply::IsLost {
            tokio::time::sleep(limit).await;
            fail_all(calls, &timed_out("`Faults`"));
        }
    }

    /// Waits for the delay of the command, and returns its error if the store does not execute
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
            self.memory.release(request);
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

fn refused(kind: BackendErrorKind) -> LockError {
    LockError::backend(kind, "the backend refused a command, as `Faults` requested")
}

impl Store for FaultyStore {
    fn traits(&self) -> &StoreTraits {
        self.memory.traits()
    }

    fn call<'a, 'c: 'a, 'o: 'c>(
        &'a self,
        calls: &'a mut [&'c mut Call<'o>],
        together: Together,
        deadline: Deadline,
    ) -> Boxed<'a, ()> {
        Box::pin(async move {
            let limit = deadline.left();
            // Renewals go out together, and fail together.
            let renews = |call: &&mut Call<'_>| matches!(call.op.kind, OpKind::Renew(..));
            if calls.iter().all(renews) {
                return self.run(calls, limit).await;
            }
            for at in 0..calls.len() {
                self.run(&mut calls[at..=at], limit).await;
                if ends_set(calls, at..at + 1, together) {
                    break;
                }
            }
        })
    }

    /// Releases for a guard or a future that was dropped. No caller waits for the reply, so a
    /// release that fails is sent again later.
    fn release_now(&self, request: &ReleaseRequest) {
        let is_down = self.is_down();
        {
            let mut plan = self.plan.lock();
            plan.release.calls += 1;
            // The second copy succeeds.
            plan.release.next.pop_front();
            let is_refused = matches!(plan.release.every, Some(CommandFault::Refuse(_)));
            if is_down || is_refused {
                plan.unsent.push(request.clone());
                return;
            }
        }
        self.memory.release(request);
    }

    fn reach(&self) -> Reach {
        if self.is_down() {
            Reach::Down
        } else {
            Reach::Connected
        }
    }

    fn status(&self) -> StoreStatus {
        StoreStatus {
            connected: !self.is_down(),
            ..self.memory.status()
        }
    }

    fn notifies<'a>(&'a self, key: &'a LockKey, limit: Duration) -> Boxed<'a, bool> {
        self.memory.notifies(key, limit)
    }

    fn wait_connected(&self, until: Moment) -> Boxed<'_, Result<(), LockError>> {
        let mut is_up = self.is_up.subscribe();
        Box::pin(async move {
            let left = until.since(self.traits().clock.now());
            let connected = tokio::time::timeout(left, is_up.wait_for(|is_up| *is_up)).await;
            match connected {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(_)) | Err(_) => Err(unreachable()),
            }
        })
    }
}
