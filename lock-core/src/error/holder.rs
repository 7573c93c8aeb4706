//! The holder of a lock, as errors show it.

use std::sync::Arc;
use std::time::Duration;

use crate::protocol::acquisition::ObservedHolder;
use crate::protocol::wire::label_tag;

/// The holder of a lock that a request did not get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub(crate) label: Arc<str>,
    pub(crate) remaining: Option<Duration>,
    pub(crate) held_for: Option<Duration>,
    pub(crate) position: Option<u32>,
    pub(crate) this_process: bool,
}

impl Holder {
    /// Creates the holder as a reply showed it. `position` is the caller's place in the queue.
    pub(crate) fn new(seen: ObservedHolder, position: Option<u64>) -> Self {
        Self {
            label: seen.label,
            remaining: seen.remaining,
            held_for: seen.held_for,
            position: position.map(|rank| u32::try_from(rank).unwrap_or(u32::MAX)),
            this_process: seen.is_own,
        }
    }

    /// Returns the label of the holder: by default its host name and process id. For the lock of
    /// another library, this is the beginning of the key's value.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns the remaining time of the holder's lease when this client last saw it. The holder
    /// may renew the lease. Returns `None` for a key without an expiry.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }

    /// Returns how long the holder had held the lock when this client last saw it, by the server's clock.
    /// Returns `None` for the lock of another library.
    #[must_use]
    pub fn held_for(&self) -> Option<Duration> {
        self.held_for
    }

    /// Returns the tag that the holder gave to this lock, such as the id of its trace. It is the part of
    /// the label after ` #`. Returns `None` when the label has no tag.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        label_tag(&self.label)
    }

    /// Returns how many waiters were ahead of the caller in the queue. Returns `None` when the caller
    /// did not wait.
    #[must_use]
    pub fn position(&self) -> Option<u32> {
        self.position
    }

    /// Returns whether the holder was a guard of the same manager when this client last saw it.
    #[must_use]
    pub fn is_this_process(&self) -> bool {
        self.this_process
    }
}

/// A time, rounded for people.
pub(super) fn rounded(time: Duration) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const YEAR: u64 = 365 * 24 * HOUR;
    match time.as_secs() {
        0 => format!("{}ms", time.as_nanos().div_ceil(1_000_000)),
        seconds @ 1..10 => match time.subsec_millis() / 100 {
            0 => format!("{seconds}s"),
            tenths => format!("{seconds}.{tenths}s"),
        },
        seconds @ 10..120 => format!("{seconds}s"),
        seconds @ 120..HOUR => format!("{}m", seconds / MINUTE),
        seconds @ HOUR..YEAR => format!("{}h", seconds / HOUR),
        _ => "more than a year".to_owned(),
    }
}

/// Returns what an error says about the holder.
pub(super) fn about(holder: Option<&Holder>) -> String {
    let Some(holder) = holder else {
        return String::new();
    };
    let name = if holder.this_process {
        format!("this process (`{}`)", holder.label)
    } else {
        format!("`{}`", holder.label)
    };
    let (text, lease) = match (holder.held_for, holder.remaining.map(rounded)) {
        (None, None) => (format!(": {name} holds it"), None),
        (None, Some(left)) => (format!(": {name} holds it for {left} unless renewed"), None),
        (Some(time), left) => (
            format!(": {name} has held it for {}", rounded(time)),
            left.map(|left| format!(" ({left} left unless renewed)")),
        ),
    };
    let queue = holder
        .position
        .map(|position| format!(", waiters ahead: {position}"));
    [Some(text), lease, queue].into_iter().flatten().collect()
}
