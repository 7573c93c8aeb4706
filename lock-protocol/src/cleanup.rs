//! A release or a cancel, until nothing of its owner id is left on the server.
//!
//! All releases take this path. Some end a guard that was released or dropped. Others cancel an
//! acquisition that was dropped, or whose wait ended. A caller that waits for the reply sends the first
//! copies. The background worker sends the others.

use std::sync::Arc;
use std::time::Duration;

use crate::acquisition::{Failure, FailureClass, Origin};
use crate::backoff::Backoff;
use crate::clock::{Moment, ServerMs};
use crate::clock_sync::UNKNOWN_RUN_ID;
use crate::key::LockKey;
use crate::kind::Kind;
use crate::lock_state::{ReleaseReply, Verdict};
use crate::owner_id::OwnerId;
use crate::ttl::{Ttl, whole_millis};
use crate::unconfirmed::Unconfirmed;
use crate::wire::QueueEntry;

/// A request to release the lock of an owner id and to remove its entries.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReleaseRequest {
    pub key: LockKey,
    pub owner_id: OwnerId,
    pub ttl: Ttl,
    pub entries: Vec<QueueEntry>,
    /// The connection that a cancel has to follow; `None` if any connection will do.
    pub origin: Option<Origin>,
    /// Copies of the acquire that may still take effect. Only a reply that rules them out confirms the
    /// release.
    pub unconfirmed: Option<Unconfirmed>,
    pub keep: Keep,
    pub subject: ReleaseSubject,
    pub kind: Kind,
    /// The label of the acquire. A member of a shared lock has it in its text.
    pub label: Arc<str>,
}

/// What a release leaves in the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Keep {
    /// Nothing: the key is free, or the next waiter's.
    #[default]
    Nothing,
    /// A lock without an owner until this moment: a `min_hold`.
    Until(Moment),
    /// Nothing, unless the work succeeds. Then the request becomes [`Done`](Self::Done).
    OncePer { period_ms: u64 },
    /// The work has succeeded: the key says so for this long since it was granted.
    Done { period_ms: u64 },
}

impl Keep {
    /// Returns what a release leaves after the work has succeeded.
    #[must_use]
    pub fn after_success(self) -> Self {
        match self {
            Self::OncePer { period_ms } => Self::Done { period_ms },
            other => other,
        }
    }

    /// Returns the period for which the work is done; 0 if it isn't.
    pub fn done_ms(self) -> u64 {
        match self {
            Self::Done { period_ms } => period_ms,
            Self::Nothing | Self::Until(_) | Self::OncePer { .. } => 0,
        }
    }
}

/// What a release ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReleaseSubject {
    /// The lock of a guard.
    Guard,
    /// The lock of a guard. An event has reported its loss, or its failed release.
    ReportedGuard,
    /// An acquire that made no guard.
    Acquire,
}

/// The outcome of one release command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleaseOutcome {
    pub was_owner: bool,
    /// `None` if the reply has no time: a plain release does not need it.
    pub server_ms: Option<ServerMs>,
    /// The server process that replied.
    pub run_id: u64,
    /// The queue has more dead waiters than one call removes. The caller sends the release again.
    pub more: bool,
    /// Other clients received a message about the release. Always false in dialects that hand a lock over.
    pub notified_others: bool,
}

impl ReleaseOutcome {
    /// Returns the outcome for a lock that was released before; nothing was sent.
    pub const fn already_released() -> Self {
        Self {
            was_owner: true,
            server_ms: Some(ServerMs::LAST),
            run_id: UNKNOWN_RUN_ID,
            more: false,
            notified_others: false,
        }
    }

    /// Returns the outcome for an exclusive lock that became a read lock.
    pub const fn of_downgrade() -> Self {
        Self {
            was_owner: true,
            ..Self::already_released()
        }
    }

    /// Returns the outcome of a reply with this server time, if it has one.
    pub fn from_reply(reply: ReleaseReply, server_us: Option<u64>) -> Self {
        Self {
            was_owner: reply.verdict != Verdict::NotOwner,
            server_ms: server_us.map(ServerMs::from_micros),
            run_id: UNKNOWN_RUN_ID,
            more: reply.more,
            notified_others: false,
        }
    }

    /// Returns the outcome for a dialect without a queue.
    pub fn without_waiters(was_owner: bool, server_ms: ServerMs) -> Self {
        Self {
            was_owner,
            server_ms: Some(server_ms),
            run_id: UNKNOWN_RUN_ID,
            more: false,
            notified_others: false,
        }
    }

    /// Returns the outcome as the reply of this server process.
    pub fn told_by(self, run_id: u64) -> Self {
        Self { run_id, ..self }
    }
}

/// What a release command left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Remainder {
    Nothing,
    /// A copy of the acquire may take effect for this long.
    Unconfirmed(Duration),
    DeadWaiters,
}

impl ReleaseRequest {
    fn remainder(&self, outcome: &ReleaseOutcome, now: Moment) -> Remainder {
        let unconfirmed = self.unconfirmed.as_ref();
        match unconfirmed.and_then(|it| it.time_left(outcome, now)) {
            Some(left) => Remainder::Unconfirmed(left),
            None if outcome.more => Remainder::DeadWaiters,
            None => Remainder::Nothing,
        }
    }

    /// Returns whether the outcome, which arrived now, leaves nothing to do: no sent copy of the acquire
    /// can take effect any more, and no dead waiters are left in the queue.
    pub fn is_finished_by(&self, outcome: &ReleaseOutcome, now: Moment) -> bool {
        self.remainder(outcome, now) == Remainder::Nothing
    }

    /// Returns for how long a `min_hold` keeps the key locked, if the release is sent now.
    pub fn min_hold_ms(&self, now: Moment) -> u64 {
        match self.keep {
            Keep::Until(until) => whole_millis(until.since(now)),
            Keep::Nothing | Keep::OncePer { .. } | Keep::Done { .. } => 0,
        }
    }

    /// Returns whether the release, if it keeps the key locked for this long, only frees an exclusive lock: it removes
    /// no entry, settles no copy of the acquire, and doesn't keep the key locked. Then the reply needs no server time.
    pub fn is_plain(&self, min_hold_ms: u64) -> bool {
        self.entries.is_empty()
            && self.unconfirmed.is_none()
            && min_hold_ms == 0
            && self.keep.done_ms() == 0
            && !self.kind.is_shared()
    }

    /// Returns whether the lock may have no expiry: the command that sets it may have been lost.
    fn may_never_expire(&self) -> bool {
        !self.key.dialect().capabilities().is_expiry_atomic()
    }
}

/// Why a cleanup stopped before the server confirmed it. The lease expires by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GiveUpReason {
    /// Every lease of the owner id has expired. A queue entry may live until the end of its wait.
    Expired,
    /// The server's clock was set back, so no reply confirms the cancel.
    ClockSetBack,
    /// The server refuses to release the lock of a guard until the user's rights change.
    Forbidden,
    /// Another attempt would fail in the same way.
    Refused,
}

/// The next step of a cleanup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CleanupStep {
    /// Send the request.
    Send,
    WaitUntil(Moment),
    /// Wait for the reply to the request.
    AwaitReply,
    Finished,
    GaveUp(GiveUpReason),
}

/// Whether a shutdown of the manager waits for a cleanup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShutdownWaits {
    Yes,
    /// The lease has ended, and only a key without an expiry may be left.
    No,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum CleanupState {
    Due(Moment),
    InFlight,
    Finished,
    GaveUp(GiveUpReason),
}

/// How many command timeouts the removal of dead waiters may take. Each command removes many, and a server that always
/// tells of more is not asked forever.
const REMOVAL_TIMEOUTS: u32 = 10;

/// A release or a cancel, and how long it is worth trying.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cleanup {
    request: ReleaseRequest,
    state: CleanupState,
    /// By then, every lease of the owner id has expired.
    give_up_at: Moment,
    /// How long dead waiters are removed.
    removal_limit: Duration,
    /// The end of the removal of dead waiters; `None` before a reply tells of some.
    removes_until: Option<Moment>,
    tries: u32,
    shutdown_waits: ShutdownWaits,
}

impl Cleanup {
    pub fn new(request: ReleaseRequest, now: Moment, command_timeout: Duration) -> Self {
        // Every command that was sent until now has taken effect, and its lease has ended.
        let longest = command_timeout
            .saturating_mul(2)
            .saturating_add(request.ttl.as_duration());
        Self {
            give_up_at: now.plus(longest),
            removal_limit: command_timeout.saturating_mul(REMOVAL_TIMEOUTS),
            removes_until: None,
            request,
            state: CleanupState::Due(now),
            tries: 0,
            shutdown_waits: ShutdownWaits::Yes,
        }
    }

    pub fn request(&self) -> &ReleaseRequest {
        &self.request
    }

    /// Returns how often it failed.
    pub fn tries(&self) -> u32 {
        self.tries
    }

    pub fn shutdown_waits(&self) -> ShutdownWaits {
        self.shutdown_waits
    }

    pub fn next_step(&self, now: Moment) -> CleanupStep {
        match self.state {
            CleanupState::Due(at) if at <= now => CleanupStep::Send,
            CleanupState::Due(at) => CleanupStep::WaitUntil(at),
            CleanupState::InFlight => CleanupStep::AwaitReply,
            CleanupState::Finished => CleanupStep::Finished,
            CleanupState::GaveUp(reason) => CleanupStep::GaveUp(reason),
        }
    }

    /// Records that a failure of this release is reported. Returns false if it was reported before, or if it
    /// is the cancel of an acquire.
    #[must_use]
    pub fn report_failure(&mut self) -> bool {
        let is_first = self.request.subject == ReleaseSubject::Guard;
        if is_first {
            self.request.subject = ReleaseSubject::ReportedGuard;
        }
        is_first
    }

    /// Records that the request is about to be sent.
    pub fn on_send(&mut self) {
        self.state = CleanupState::InFlight;
    }

    pub fn on_reply(&mut self, outcome: &ReleaseOutcome, now: Moment) {
        self.on_sent_once();
        let has_expired = now >= self.give_up_at;
        let unconfirmed = self.request.unconfirmed;
        let is_of_another = unconfirmed.is_some_and(|it| it.is_of_another(outcome.run_id));
        self.state = match self.request.remainder(outcome, now) {
            // Living waiters may be behind the dead ones.
            Remainder::Unconfirmed(_) if has_expired && self.may_go_on(outcome, now) => {
                CleanupState::Due(now)
            }
            Remainder::Unconfirmed(_) if has_expired => CleanupState::GaveUp(if is_of_another {
                GiveUpReason::Expired
            } else {
                GiveUpReason::ClockSetBack
            }),
            Remainder::Unconfirmed(left) => CleanupState::Due(now.plus(left).min(self.give_up_at)),
            Remainder::DeadWaiters if self.may_go_on(outcome, now) => CleanupState::Due(now),
            // If dead waiters are left, the next call for this lock removes them.
            Remainder::DeadWaiters | Remainder::Nothing => CleanupState::Finished,
        };
        if outcome.was_owner {
            // A repeated release, which undoes late copies of the acquire, leaves nothing in the key.
            self.request.keep = Keep::Nothing;
        }
    }

    /// Returns whether dead waiters are left, and there is time to remove them, counted from the reply that tells of them
    /// first.
    fn may_go_on(&mut self, outcome: &ReleaseOutcome, now: Moment) -> bool {
        let limit = self.removal_limit;
        outcome.more && now < *self.removes_until.get_or_insert_with(|| now.plus(limit))
    }

    pub fn on_failure(&mut self, class: FailureClass, now: Moment) {
        self.on_sent_once();
        let has_expired = now >= self.give_up_at;
        let may_come_later = self.request.unconfirmed.is_some();
        self.state = match class {
            FailureClass::MustNotRepeat => CleanupState::GaveUp(GiveUpReason::Refused),
            // A companion key of another type is only found after the key was deleted.
            FailureClass::ForeignKey if !may_come_later => {
                CleanupState::GaveUp(GiveUpReason::Refused)
            }
            // People grant a permission, and they take longer than a lease lasts.
            FailureClass::Forbidden if !may_come_later => {
                CleanupState::GaveUp(match self.request.subject {
                    ReleaseSubject::Guard | ReleaseSubject::ReportedGuard => {
                        GiveUpReason::Forbidden
                    }
                    ReleaseSubject::Acquire => GiveUpReason::Refused,
                })
            }
            _ if has_expired && !self.request.may_never_expire() => {
                CleanupState::GaveUp(GiveUpReason::Expired)
            }
            _ => {
                if has_expired {
                    self.shutdown_waits = ShutdownWaits::No;
                }
                self.tries = self.tries.saturating_add(1);
                CleanupState::Due(now.plus(Backoff::after(self.tries)))
            }
        };
    }

    /// Records that the outcome of a command is lost, because the code that waited for it panicked. It
    /// may have panicked before it sent the command, so the next copy goes behind the acquire too.
    pub fn on_panic(&mut self, again_at: Moment) {
        self.state = CleanupState::Due(again_at);
    }

    /// The first copy goes behind the acquire on its connection. Later ones use the worker's own
    /// connection, which still works.
    fn on_sent_once(&mut self) {
        self.request.origin = None;
    }

    /// Returns whether it needs no release any more, because every lease has expired.
    pub fn has_expired(&self, now: Moment) -> bool {
        now >= self.give_up_at && !self.request.may_never_expire()
    }

    pub fn give_up_at(&self) -> Moment {
        self.give_up_at
    }
}

/// The caller's part of a release: until the first reply, or until its time ends. After a temporary
/// failure it sends the release again, with the growing pauses of the cleanup.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AwaitedRelease<E> {
    cleanup: Cleanup,
    deadline: Moment,
    /// Whether the lock was valid when the release began.
    validity: Validity,
    known_failure: Option<E>,
}

/// Whether a lock was valid when its release began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Validity {
    Valid,
    Lost,
}

/// The next step of a caller that waits for a release.
#[derive(Debug)]
pub enum AwaitedStep<E> {
    /// Send the request, with a reply within this time.
    Send {
        limit: Duration,
    },
    WaitUntil(Moment),
    Done(Result<ReleaseOutcome, E>),
}

impl<E: Failure> AwaitedRelease<E> {
    pub fn new(cleanup: Cleanup, deadline: Moment, validity: Validity) -> Self {
        Self {
            cleanup,
            deadline,
            validity,
            known_failure: None,
        }
    }

    pub fn request(&self) -> &ReleaseRequest {
        &self.cleanup.request
    }

    /// Returns whether nothing is left to do.
    pub fn is_finished(&self) -> bool {
        self.cleanup.state == CleanupState::Finished
    }

    /// Sends the first copy.
    pub fn on_start(&mut self, now: Moment) -> AwaitedStep<E> {
        self.send(now)
    }

    fn send(&mut self, now: Moment) -> AwaitedStep<E> {
        self.cleanup.on_send();
        AwaitedStep::Send {
            limit: self.deadline.since(now),
        }
    }

    pub fn on_reply(&mut self, mut outcome: ReleaseOutcome, now: Moment) -> AwaitedStep<E> {
        self.cleanup.on_reply(&outcome, now);
        // The first copy may have released the lock, and its reply may be lost.
        let was_sent_before = self.known_failure.is_some();
        // Not so for a mark that the work is done: the server says whether it has it.
        let is_plain = self.cleanup.request().keep.done_ms() == 0;
        outcome.was_owner |= was_sent_before && is_plain && self.validity == Validity::Valid;
        AwaitedStep::Done(Ok(outcome))
    }

    pub fn on_failure(&mut self, failure: E, now: Moment) -> AwaitedStep<E> {
        let class = failure.class();
        self.cleanup.on_failure(class, now);
        let failure = match self.known_failure.take() {
            // A later copy had less time, so its timeout says less than an earlier failure.
            Some(known) if class == FailureClass::TimedOut => known,
            // The server did reply, in words that say more.
            Some(known)
                if class == FailureClass::MustNotRepeat
                    && known.class() == FailureClass::Unknown =>
            {
                known
            }
            _ => failure,
        };
        if !class.is_transient() || now >= self.deadline {
            return AwaitedStep::Done(Err(failure));
        }
        self.known_failure = Some(failure);
        match self.cleanup.next_step(now) {
            CleanupStep::WaitUntil(at) => AwaitedStep::WaitUntil(at.min(self.deadline)),
            _ => self.send(now),
        }
    }

    /// Handles the end of a pause. Sends another copy, if there is time for its reply.
    pub fn on_timeout(&mut self, now: Moment) -> AwaitedStep<E> {
        match self.known_failure.take() {
            Some(failure) if now >= self.deadline => AwaitedStep::Done(Err(failure)),
            known => {
                self.known_failure = known;
                self.send(now)
            }
        }
    }
}

#[cfg(test)]
mod tests;
