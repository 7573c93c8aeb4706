//! What one run of the model explores, and what it has to have seen.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::backend::Acquisition;
use crate::protocol::clock::Moment;
use crate::protocol::key::{LockKey, LockName};
use crate::protocol::lease::LeaseConfig;
use crate::protocol::owner_id::OwnerId;
use crate::protocol::renew::Renew;
use crate::protocol::ttl::Ttl;

/// What a broken implementation would do instead. Each must be found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mutation {
    /// The lease is counted from the moment that the reply came.
    DeadlineFromReply,
    /// A grant by push is counted from the moment that it came.
    DeadlineFromPush,
    /// The lease is believed to be as long as the server's.
    NoMargin,
    /// The server carries out an acquire however old it is.
    NoNotAfter,
    /// A cancel counts, although a copy may still be on its way.
    SettledAtOnce,
    /// The token is a bare INCR.
    BareCounter,
    /// The floor is read once, and kept over the loss of the server's memory.
    FloorKept,
    /// A renewal sets the key when it is gone.
    RenewalRecreates,
    /// A release deletes the key without looking whose it is.
    PlainDelete,
    /// Waiters trust in pushes and never look.
    PushesOnly,
}

/// How often something may happen in one run of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Budget {
    /// A request arrives twice.
    pub(super) duplicates: u8,
    /// A message is lost. Only where time waits for messages: elsewhere one that is never
    /// delivered is as good as lost.
    pub(super) losses: u8,
    /// A command gets no answer before its connection breaks or its sender gives up on it; it
    /// may arrive all the same. When these are used up a sender waits for longer than it would:
    /// then it is its timers that are late.
    pub(super) silences: u8,
    /// A client ends without a word.
    pub(super) crashes: u8,
    /// A caller drops its future.
    pub(super) quits: u8,
    pub(super) renewals: u8,
    /// The server writes down what it knows.
    pub(super) snapshots: u8,
    /// The server dies, and begins again with what it wrote down last.
    pub(super) restores: u8,
    /// The server's clock jumps forward, far beyond the margin.
    pub(super) jumps: u8,
    /// The server's clock is set back.
    pub(super) setbacks: u8,
}

/// What one run of the model explores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) clients: usize,
    /// Who may ask once, and who may wait, as bits.
    pub(super) may_try: u8,
    pub(super) may_wait: u8,
    /// Ticks after which nothing is explored any more.
    pub(super) horizon: u64,
    /// Ticks after which nobody begins to ask.
    pub(super) begin_by: u64,
    pub(super) wait: Duration,
    pub(super) ttl: Ttl,
    /// What a hand-over gives; shorter than the ttl, as it is for long ones.
    pub(super) handover_lease: Duration,
    pub(super) command_timeout: Duration,
    /// For how long a lock stays locked, also when it is released before.
    pub(super) min_hold: Option<Duration>,
    /// Time stands still while anything can be done: what is left to chance is the order, and
    /// what gets lost. For promises about how long something takes.
    pub(super) prompt: bool,
    pub(super) budget: Budget,
    pub(super) mutation: Option<Mutation>,
}

impl Rules {
    pub(super) fn is(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    fn lease_config(&self) -> LeaseConfig {
        LeaseConfig {
            ttl: self.ttl,
            renew: Renew::Auto,
            max_hold: None,
            margin: Duration::ZERO,
        }
    }

    pub(super) fn acquisition(
        &self,
        owner_id: OwnerId,
        waits_until: Option<Moment>,
    ) -> Acquisition {
        let name = LockName::from("k");
        let key = LockKey::new("", &name).expect("a valid key");
        let mut acquisition =
            Acquisition::new(key, self.lease_config(), Arc::from(""), waits_until);
        acquisition.owner_id = owner_id;
        acquisition
    }
}

/// What has to have happened somewhere, or the model has explored nothing of interest.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sight {
    HandedOverByPush,
    GrantNeededARenewal,
    GrantWasLetGo,
    LateCopyRefused,
    ClaimExpired,
    LostReplyAskedAgain,
    CancelMetAGrant,
    CancelHadToWait,
    ClaimExtended,
    RenewalRefused,
    LostAtTheDeadline,
    TokenSeededAgain,
    TwoHoldersOutsideThePromise,
    SettledCameBack,
}

/// The sights of all steps. Beside the state and not in it: history would multiply the states.
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
