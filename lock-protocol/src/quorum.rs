//! A lock that a majority of independent servers holds: S. Sanfilippo's Redlock, with fencing tokens.
//!
//! An acquisition has two rounds. The first one acquires the key at a majority. The second one writes
//! the highest token of the first back to the servers that gave one. After that, each later holder
//! gets a higher token from at least one server, and no order of the servers' clocks is necessary.
//! A dialect without fencing tokens has the first round only.
//!
//! The machines of this module return [`QuorumAction`]s. The driver sends them and passes the
//! replies, with the time. Servers are numbers from zero.

mod acquire;
mod lease;
mod members;
mod release;

use std::time::Duration;

pub use acquire::{BusyServer, QuorumAcquire, QuorumOutcome};
pub use lease::{QuorumLease, RenewalRound};
pub use members::{Members, SeenProcess, Standing};
pub use release::{QuorumRelease, ReleaseRound};

use super::clock::Moment;
use super::clock_sync::UNKNOWN_RUN_ID;
use super::fencing_token::FencingToken;
use super::lease::{DRIFT_DIVISOR, ROUNDING};
use super::ttl::Ttl;

/// Returns how many servers are more than half of them.
pub const fn majority(servers: usize) -> usize {
    servers / 2 + 1
}

/// What the driver does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuorumAction {
    /// Acquire the key at this server, with the owner id of this acquisition.
    Acquire(usize),
    /// Where this acquisition owns the key: raise the counter and the key's token to this token. A higher one stays.
    Raise(usize, FencingToken),
    /// As [`Raise`](Self::Raise), but the key gets this token although it has a higher one.
    SetToken(usize, FencingToken),
    /// Renew the key at this server.
    Renew(usize),
    /// Acquire the key again at a server that lost it, with the same owner id and a time after which
    /// the server refuses the command. A release is complete at that server only after that time.
    Heal(usize),
    /// Cancel the acquisition at all servers.
    CancelAll,
    /// Wait for replies, and call `tick` at this moment at the latest.
    Wait { until: Moment },
}

/// One reply that confirms the key at a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServerLease {
    /// `None` in a dialect without fencing tokens.
    pub token: Option<FencingToken>,
    pub remaining: Duration,
    /// When the confirmed command was sent to this server.
    pub sent_at: Moment,
    /// The process that confirmed it.
    pub run_id: u64,
}

/// The process to which a connection to a server leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetProcess {
    pub run_id: u64,
    /// It is not in quarantine.
    pub counts: bool,
}

/// Returns whether two votes are from one process: two addresses came to lead there, one after the other.
fn is_one_process(one: u64, other: u64) -> bool {
    one == other && one != UNKNOWN_RUN_ID
}

impl ServerLease {
    fn ends_at(&self, ttl: Ttl) -> Moment {
        end_of_lease(ttl, self.sent_at, self.remaining)
    }
}

/// The end of the key at one server, as its holder counts it.
fn end_of_lease(ttl: Ttl, sent_at: Moment, remaining: Duration) -> Moment {
    let ttl = ttl.as_duration();
    sent_at
        .plus(remaining.min(ttl))
        .minus(ttl / DRIFT_DIVISOR)
        .minus(ROUNDING)
}

/// The moment until which `needed` servers hold the key. `None` when there are fewer.
fn end_of_majority(ends: impl Iterator<Item = Moment>, needed: usize) -> Option<Moment> {
    let mut ends: Vec<_> = ends.collect();
    ends.sort_unstable_by(|a, b| b.cmp(a));
    ends.get(needed.checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests;
