//! The figures of an episode, and of many.

use lock_testing::{AccessKind, Call, Kind, Nanos};

use super::nemesis::NEMESES;
use crate::mailbox::Notification;

/// How often operations of one kind ended in each way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcomes {
    pub(super) invoked: u64,
    pub(super) ok: u64,
    pub(super) failed: u64,
    pub(super) unknown: u64,
}

/// How often a nemesis acted, and how many operations overlapped it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NemesisUse {
    pub(super) times: u64,
    pub(super) operations: u64,
}

/// What happened, as numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) episodes: u64,
    pub(super) operations: u64,
    pub(super) virtual_ns: u128,
    pub(super) events: u64,
    pub(super) calls: [Outcomes; 5],
    pub(super) nemeses: [NemesisUse; NEMESES],
    pub(super) cancels: u64,
    pub(super) repeated_cancels: u64,
    pub(super) late_grants: u64,
    pub(super) confirmations: u64,
    pub(super) handovers: u64,
    pub(super) grants_by_notification: u64,
    pub(super) heads: u64,
    pub(super) timeouts: u64,
    pub(super) refused: u64,
    pub(super) timed_out: u64,
    pub(super) losses: u64,
    pub(super) deaths: u64,
    pub(super) accepted_writes: u64,
    pub(super) stale_writes: u64,
    pub(super) stale_reads: u64,
    pub(super) outside: u64,
    pub(super) longest_wait: Nanos,
    pub(super) digest: u64,
}

impl Default for Figures {
    fn default() -> Self {
        Self {
            episodes: 0,
            operations: 0,
            virtual_ns: 0,
            events: 0,
            calls: [Outcomes::default(); 5],
            nemeses: [NemesisUse::default(); NEMESES],
            cancels: 0,
            repeated_cancels: 0,
            late_grants: 0,
            confirmations: 0,
            handovers: 0,
            grants_by_notification: 0,
            heads: 0,
            timeouts: 0,
            refused: 0,
            timed_out: 0,
            losses: 0,
            deaths: 0,
            accepted_writes: 0,
            stale_writes: 0,
            stale_reads: 0,
            outside: 0,
            longest_wait: 0,
            digest: 0,
        }
    }
}

impl Figures {
    pub(super) fn on_invoke(&mut self, call: Call) {
        self.operations += 1;
        self.calls[call as usize].invoked += 1;
    }

    pub(super) fn on_end(&mut self, call: Call, kind: Kind) {
        let outcomes = &mut self.calls[call as usize];
        match kind {
            Kind::Ok => outcomes.ok += 1,
            Kind::Fail => outcomes.failed += 1,
            _ => outcomes.unknown += 1,
        }
    }

    /// Counts a cancel: an acquire that was dropped.
    pub(super) fn on_cancel(&mut self) {
        self.operations += 1;
        self.cancels += 1;
    }

    pub(super) fn on_access(&mut self, kind: AccessKind) {
        match kind {
            AccessKind::Write { .. } => self.accepted_writes += 1,
            AccessKind::RefusedWrite => self.stale_writes += 1,
            AccessKind::RefusedRead => self.stale_reads += 1,
            _ => {}
        }
    }

    pub(super) fn note_notification(&mut self, notification: &Notification) {
        match notification {
            Notification::Grant(_) => self.grants_by_notification += 1,
            Notification::Head { .. } => self.heads += 1,
            Notification::First
            | Notification::Released
            | Notification::Poll
            | Notification::ShuttingDown => {}
        }
    }

    /// Adds a number to the digest of the history.
    pub(super) fn digest(&mut self, part: u64) {
        let mixed = (self.digest ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.digest = mixed ^ (mixed >> 29);
    }

    /// Adds the figures of another episode. The order of episodes does not matter.
    pub(super) fn add(&mut self, other: &Self) {
        self.episodes += other.episodes;
        self.operations += other.operations;
        self.virtual_ns += other.virtual_ns;
        self.events += other.events;
        for (sum, part) in self.calls.iter_mut().zip(other.calls) {
            sum.invoked += part.invoked;
            sum.ok += part.ok;
            sum.failed += part.failed;
            sum.unknown += part.unknown;
        }
        for (sum, part) in self.nemeses.iter_mut().zip(other.nemeses) {
            sum.times += part.times;
            sum.operations += part.operations;
        }
        self.cancels += other.cancels;
        self.repeated_cancels += other.repeated_cancels;
        self.late_grants += other.late_grants;
        self.confirmations += other.confirmations;
        self.handovers += other.handovers;
        self.grants_by_notification += other.grants_by_notification;
        self.heads += other.heads;
        self.timeouts += other.timeouts;
        self.refused += other.refused;
        self.timed_out += other.timed_out;
        self.losses += other.losses;
        self.deaths += other.deaths;
        self.accepted_writes += other.accepted_writes;
        self.stale_writes += other.stale_writes;
        self.stale_reads += other.stale_reads;
        self.outside += other.outside;
        self.longest_wait = self.longest_wait.max(other.longest_wait);
        self.digest ^= other.digest;
    }
}
