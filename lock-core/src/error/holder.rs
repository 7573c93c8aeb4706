//! The holder of a lock, as errors show it.

use std::sync::Arc;
use std::time::Duration;

use lock_protocol::acquisition::{FOREIGN_LABEL, ObservedHolder};
use lock_protocol::kind::Kind;
use lock_protocol::revocation::parse_revoked;
use lock_protocol::wire::label_tag;

/// The holder of a lock that a request did not get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub(crate) state: HolderState,
    pub(crate) label: Arc<str>,
    pub(crate) remaining: Option<Duration>,
    pub(crate) held_for: Option<Duration>,
    pub(crate) position: Option<u32>,
    pub(crate) this_process: bool,
    pub(crate) kind: Kind,
    pub(crate) members: Option<u32>,
    /// The number of permits out of which the caller wants some.
    pub(crate) requested_permits: Option<u32>,
}

/// Whether a [`Holder`] still has the lock. Returned by [`Holder::state`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HolderState {
    /// It holds the lock.
    Holding,
    /// It released the lock, and its [`min_hold`](crate::LockRequest::min_hold) keeps the lock until the end of
    /// [`Holder::remaining`].
    Kept,
    /// An operator [revoked](crate::Admin::force_release) the lock, which stays locked until the end of
    /// [`Holder::remaining`].
    Revoked,
}

impl HolderState {
    fn of(seen: &ObservedHolder) -> Self {
        if !seen.is_without_owner() {
            Self::Holding
        } else if parse_revoked(&seen.label).is_some() {
            Self::Revoked
        } else {
            Self::Kept
        }
    }
}

impl Holder {
    /// Creates the holder as a reply showed it. `position` is the caller's place in the queue.
    pub(crate) fn new(seen: ObservedHolder, position: Option<u64>) -> Self {
        Self {
            state: HolderState::of(&seen),
            label: seen.label,
            remaining: seen.remaining,
            held_for: seen.held_for,
            position: position.map(|rank| u32::try_from(rank).unwrap_or(u32::MAX)),
            this_process: seen.is_own,
            kind: seen.kind,
            members: seen.members,
            requested_permits: None,
        }
    }

    /// Returns the holder as a caller with this kind sees it.
    pub(crate) fn seen_for(self, kind: Kind) -> Self {
        Self {
            requested_permits: kind.permits(),
            ..self
        }
    }

    /// Returns whether it still held the lock when this client last saw it. A lock with permits is always
    /// [`Holding`](HolderState::Holding), even while a `min_hold` keeps all of them: the reply of the server counts
    /// kept permits as taken.
    ///
    /// ```
    /// # use lock_core::{Holder, HolderState, LockError, LockManager};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let request = locks.lock("nightly").min_hold(Duration::from_secs(10));
    /// request.acquire().await?.release().await?;
    /// let request = locks.lock("nightly").wait(Duration::ZERO);
    /// let error = request.acquire().await.unwrap_err();
    /// assert_eq!(error.holder().map(Holder::state), Some(HolderState::Kept));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn state(&self) -> HolderState {
        self.state
    }

    /// Returns the label of the holder: by default its host name and process id. For the lock of
    /// another library, it is `a client of another library`, or the deadline that the key holds. When several hold the lock, it is the label
    /// of the first holder, which may have released it by now. After a revocation, it is
    /// `revoked by <by>: <reason>`.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns the kind of lock that is held. For permits, it has how many there are, with a weight of 1.
    ///
    /// ```
    /// # use lock_core::{Holder, Kind, LockError, LockManager};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let held = locks.lock("mailer").permits(2).weight(2).acquire().await?;
    /// let request = locks.lock("mailer").permits(2).wait(Duration::ZERO);
    /// let error = request.acquire().await.unwrap_err();
    /// let kind = error.holder().map(Holder::kind);
    /// assert_eq!(kind, Some(Kind::Permits { of: 2, weight: 1 }));
    /// held.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns how many readers held the lock, or how many permits were taken, when this client last saw it.
    /// Returns 1 for an exclusive lock.
    ///
    /// ```
    /// # use lock_core::{Holder, LockError, LockManager};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let one = locks.lock("stock:7").read().acquire().await?;
    /// let two = locks.lock("stock:7").read().acquire().await?;
    /// let writer = locks.lock("stock:7").write().wait(Duration::ZERO);
    /// let error = writer.acquire().await.unwrap_err();
    /// assert_eq!(error.holder().map(Holder::count), Some(2));
    /// # drop((one, two));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn count(&self) -> u32 {
        self.members.unwrap_or(1)
    }

    /// Returns the remaining time of the holder's lease at the moment of the error, unless the holder has renewed it
    /// since this client last saw it. Returns `None` for a key without an expiry.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }

    /// Returns how long the holder has held the lock at the moment of the error, by the server's clock, if it is still
    /// the holder that this client last saw. For a lock that several hold, the time counts from the first of them.
    /// Returns `None` for a lock in another dialect, or of another library.
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

/// Returns what an error says about several holders.
fn group(holder: &Holder) -> String {
    let label = &holder.label;
    match (holder.kind, holder.count()) {
        (Kind::Permits { of, .. }, taken) if taken >= of => {
            format!("all {of} permits are out, first `{label}`")
        }
        (Kind::Permits { of, .. }, taken) => {
            format!("{taken} of {of} permits are out, first `{label}`")
        }
        (_, readers) => format!("held for reading by {readers}, first `{label}`"),
    }
}

/// Says that the caller wants permits out of another number than the holders have.
fn other_number(holder: &Holder) -> Option<String> {
    let Kind::Permits { of, .. } = holder.kind else {
        return None;
    };
    let requested = holder
        .requested_permits
        .filter(|requested| *requested != of)?;
    Some(format!(
        "; this call asks for permits out of {requested}, and all callers of a lock have to use one number"
    ))
}

/// Returns what an error says about a lock that no longer has a holder. Returns `None` if it has one.
fn without_owner(holder: &Holder, left: Option<&str>) -> Option<String> {
    let label = &holder.label;
    let text = match holder.state {
        HolderState::Holding => return None,
        HolderState::Kept => format!(": `{label}` released it, and its `min_hold` keeps it locked"),
        HolderState::Revoked => format!(": it was {label}, and stays locked"),
    };
    let left = left.map(|left| format!(" for another {left}"));
    Some(
        [Some(text), left, waiters_ahead(holder)]
            .into_iter()
            .flatten()
            .collect(),
    )
}

fn waiters_ahead(holder: &Holder) -> Option<String> {
    let position = holder.position?;
    Some(format!(", waiters ahead: {position}"))
}

/// Returns what an error says about the holder.
pub(super) fn about(holder: Option<&Holder>) -> String {
    let Some(holder) = holder else {
        return String::new();
    };
    let name = if holder.this_process {
        format!("this process (`{}`)", holder.label)
    } else if &*holder.label == FOREIGN_LABEL {
        FOREIGN_LABEL.to_owned()
    } else {
        format!("`{}`", holder.label)
    };
    let left = holder.remaining.map(rounded);
    if let Some(text) = without_owner(holder, left.as_deref()) {
        return text;
    }
    let (text, lease) = match (holder.held_for, left) {
        (time, left) if holder.kind.is_shared() => {
            let since = time.map_or_else(String::new, |time| format!(", for {}", rounded(time)));
            let left = left.map(|left| format!(" ({left} left unless renewed)"));
            (format!(": {}{since}", group(holder)), left)
        }
        (None, None) => (format!(": {name} holds it"), None),
        (None, Some(left)) => (format!(": {name} holds it for {left} unless renewed"), None),
        (Some(time), left) => (
            format!(": {name} has held it for {}", rounded(time)),
            left.map(|left| format!(" ({left} left unless renewed)")),
        ),
    };
    [
        Some(text),
        lease,
        waiters_ahead(holder),
        other_number(holder),
    ]
    .into_iter()
    .flatten()
    .collect()
}
