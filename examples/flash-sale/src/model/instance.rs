//! What the page shows of a shop instance.

use std::net::SocketAddr;
use std::time::Duration;

/// What an instance does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    #[default]
    Starting,
    Serving,
    /// Its next purchase is stopped or killed in the middle.
    Chosen,
    Frozen,
    Stopped,
}

impl State {
    /// Whether the instance gets requests.
    pub(crate) fn serves(self) -> bool {
        matches!(self, Self::Serving | Self::Chosen)
    }

    pub(crate) fn can_die(self) -> bool {
        matches!(self, Self::Serving | Self::Frozen)
    }
}

/// The purchase in which an instance was frozen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Freeze {
    pub(super) token: Option<u64>,
    /// Set when the instance woke up.
    pub(super) slept: Option<Duration>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Instance {
    pub(crate) state: State,
    pub(crate) pid: Option<u32>,
    pub(crate) address: Option<SocketAddr>,
    /// The token of the purchase that has the lock.
    pub(crate) held: Option<u64>,
    pub(crate) last_token: Option<u64>,
    /// How often the instance got the lock in this sale.
    pub(crate) grants: u64,
    pub(super) freeze: Option<Freeze>,
}
