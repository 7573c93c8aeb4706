//! What one run of the model explores, and which events it has to reach.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::acquisition::{AcquireConfig, AcquireOrigin, LeaseKind, Patience, QueueLimit};
use crate::clock::Moment;
use crate::key::{LockKey, LockName};
use crate::kind::Kind;
use crate::lease::LeaseConfig;
use crate::poll_schedule::RETRY_INTERVAL;
use crate::renew::Renew;
use crate::ttl::Ttl;

/// A fault of a broken implementation. The model has to detect each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mutation {
    /// The lease is counted from the arrival of the reply.
    DeadlineFromReply,
    /// A grant by notification is counted from the arrival of the notification.
    DeadlineFromReceipt,
    /// The lease is assumed to be as long as the server's.
    NoMargin,
    /// The server executes an acquire however old it is.
    NoNotAfter,
    /// A cancel counts as final although a copy of the acquire may still be on its way.
    CancelFinalAtOnce,
    /// The token is the result of INCR alone.
    BareCounter,
    /// The floor is read once, and kept after the server lost its memory.
    FloorKept,
    /// A renewal creates the key when it has expired.
    RenewalRecreates,
    /// A release deletes the key without checking its owner.
    PlainDelete,
    /// Waiters rely on notifications and never poll.
    NotificationsOnly,
}

/// How often each event may happen in one run of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Budget {
    /// A request arrives twice.
    pub(super) duplicates: u8,
    /// A message is lost. Only used where time waits for messages: elsewhere a message that is never
    /// delivered counts as lost.
    pub(super) losses: u8,
    /// A command gets no reply before its connection breaks or its sender stops waiting. The command
    /// may still arrive. When this budget is used up, a sender waits longer than it would, as if its
    /// timers were late.
    pub(super) silences: u8,
    /// A client dies without a release.
    pub(super) crashes: u8,
    /// A caller drops its future.
    pub(super) quits: u8,
    pub(super) renewals: u8,
    /// The server saves a snapshot of its memory.
    pub(super) snapshots: u8,
    /// The server dies, and starts again from the last snapshot.
    pub(super) restores: u8,
    /// The server's clock jumps forward, far beyond the margin.
    pub(super) jumps: u8,
    /// The server's clock is set back.
    pub(super) setbacks: u8,
}

/// A fault that the budget limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultKind {
    Duplicate,
    Loss,
    Silence,
    Crash,
    Quit,
    Restore,
    Jump,
    Setback,
}

impl Budget {
    fn of(&mut self, fault: FaultKind) -> &mut u8 {
        match fault {
            FaultKind::Duplicate => &mut self.duplicates,
            FaultKind::Loss => &mut self.losses,
            FaultKind::Silence => &mut self.silences,
            FaultKind::Crash => &mut self.crashes,
            FaultKind::Quit => &mut self.quits,
            FaultKind::Restore => &mut self.restores,
            FaultKind::Jump => &mut self.jumps,
            FaultKind::Setback => &mut self.setbacks,
        }
    }

    pub(super) fn has(mut self, fault: FaultKind) -> bool {
        *self.of(fault) > 0
    }

    pub(super) fn spend(&mut self, fault: FaultKind) {
        *self.of(fault) -= 1;
    }

    /// Removes what is left of all faults.
    pub(super) fn end_faults(&mut self) {
        *self = Self {
            renewals: self.renewals,
            snapshots: self.snapshots,
            ..Self::default()
        };
    }
}

/// What one run of the model explores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) clients: usize,
    /// The kind of the lock of each client.
    pub(super) kinds: [Kind; 3],
    /// Which clients may become readers while they hold the exclusive lock, as bits.
    pub(super) may_downgrade: u8,
    /// Whether a holder may give its lock away by a ticket, which idle clients resume.
    pub(super) has_tickets: bool,
    /// Which clients may try once, and which may wait, as bits.
    pub(super) may_try: u8,
    pub(super) may_wait: u8,
    /// The tick after which nothing is explored.
    pub(super) horizon: u64,
    /// The tick after which no client begins to acquire.
    pub(super) begin_by: u64,
    pub(super) wait: Duration,
    pub(super) ttl: Ttl,
    /// The lease that a handover gives. It is shorter than the ttl, as for long ttls.
    pub(super) handover_lease: Duration,
    pub(super) command_timeout: Duration,
    /// The shortest hold of a lock, also when it is released before.
    pub(super) min_hold: Option<Duration>,
    /// Time stands still while any event is due. Only the order of events and their losses vary. For
    /// promises about how long something takes.
    pub(super) prompt: bool,
    pub(super) budget: Budget,
    /// How many faults of any kind may happen in one run.
    pub(super) most_faults: u8,
    pub(super) mutation: Option<Mutation>,
}

impl Rules {
    pub(super) fn is(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// The settings of an acquisition that begins now.
    pub(super) fn acquire_config(&self, id: usize, waits: bool, now: Moment) -> AcquireConfig {
        let name = LockName::from("k");
        AcquireConfig {
            key: LockKey::new("", &name).expect("a valid key"),
            lease_config: LeaseConfig {
                ttl: self.ttl,
                renew: Renew::Auto,
                max_hold: None,
                margin: Duration::ZERO,
                kind: self.kinds[id],
            },
            label: Arc::from(""),
            patience: if waits {
                Patience::Wait {
                    started: now,
                    deadline: now.plus(self.wait),
                    max_queue: QueueLimit::NONE,
                }
            } else {
                Patience::OneAttempt {
                    started: now,
                    until: now.plus(self.command_timeout),
                }
            },
            outage_wait: None,
            origin: AcquireOrigin::New,
            lease_kind: LeaseKind::Renewed,
            command_timeout: self.command_timeout,
            retry_interval: RETRY_INTERVAL,
        }
    }
}

/// An event that has to happen in some step, or the model has explored nothing of interest.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sight {
    HandedOverByNotification,
    GrantNeededARenewal,
    GrantWasGivenUp,
    LateAcquireRefused,
    HandoverLeaseExpired,
    LostReplyRepeated,
    CancelMetAGrant,
    CancelHadToWait,
    HandoverLeaseExtended,
    RenewalRefused,
    LostAtTheDeadline,
    TokenSeededAgain,
    TwoHoldersOutsideThePromise,
    CancelledCameBack,
    /// Two clients held the lock together, as they may.
    Shared,
    /// A holder of the exclusive lock became a reader.
    Downgraded,
    /// A client resumed a ticket, and another one did not.
    Resumed,
    ResumeRefused,
}

/// The events of all steps. Kept outside of the state, because a history would multiply the states.
#[derive(Clone, Debug, Default)]
pub(super) struct Sights(Arc<AtomicU32>);

impl Sights {
    pub(super) fn saw(&self, sight: Sight) {
        self.0.fetch_or(1 << sight as u32, Ordering::Relaxed);
    }

    pub(super) fn has(&self, sight: Sight) -> bool {
        self.0.load(Ordering::Relaxed) & (1 << sight as u32) != 0
    }
}
