//! What a shop instance tells the demo: one line of JSON on stdout for each event.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// An event of one shop instance.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// The instance serves requests at this address.
    Ready { pid: u32, address: SocketAddr },
    /// A purchase got the lock.
    Granted { sale: u64, token: u64 },
    /// The chosen purchase is between its read and its write, and waits there. Without a token, it has
    /// no lock.
    Paused { token: Option<u64> },
    /// A purchase ended.
    Ended { token: Option<u64> },
    /// A purchase wrote after its lease had ended.
    WroteLate { sale: u64, token: u64, late_ms: u64 },
    /// The database refused a write: it had seen a newer token.
    Refused { sale: u64, token: u64, newest: u64 },
}
