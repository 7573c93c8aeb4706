//! The holder of a lock, as errors and inspections show it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use lock_protocol::acquisition::{FOREIGN_LABEL, ObservedHolder};
use lock_protocol::fencing_token::FencingToken;
use lock_protocol::kind::Kind;
use lock_protocol::revocation::parse_revoked;
use lock_protocol::wire::label_tag;

/// The holder of a lock, as this client last saw it.
///
/// Errors return it from [`LockError::holder`](crate::LockError::holder), and inspections from
/// [`LockManager::holder`](crate::LockManager::holder) and [`LockInfo::holder`](crate::admin::LockInfo::holder).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The label of the holder's manager, without the tag: by default the host name and the process id. For the lock
    /// of another library, it is `a client of another library`, or the deadline that the key holds. When several hold
    /// the lock, it is the label of the first one, which may have released it by now;
    /// [`LockInfo::holders`](crate::admin::LockInfo::holders) has the labels of all. After a revocation, it is
    /// `revoked by <by>: <reason>`.
    pub label: Arc<str>,
    /// The [tag](crate::LockManagerBuilder::holder_tag) of the acquisition, such as a trace id. `None` when the holder
    /// gave none.
    pub tag: Option<Arc<str>>,
    /// The fencing token. `None` outside of the native [dialect](crate::dialect::Dialect), because the value does not have it,
    /// and in an error whose reply does not name it.
    pub token: Option<FencingToken>,
    /// How long the holder has held the lock by the server's clock; for a lock that several hold, since the first of
    /// them got it. In an error, the time runs up to the error, as if the holder had not changed since this client last
    /// saw it. `None` for a lock in another dialect, or of another library, and for the readers and holders of permits
    /// in [`LockInfo::holders`](crate::admin::LockInfo::holders).
    pub held_for: Option<Duration>,
    /// How long the lease lasts unless the holder renews it. In an error, the time counts from the error, unless the
    /// holder has renewed the lease since this client last saw it. `None` for a key without an expiry, and in memory
    /// for a lock that lasts as long as its guard.
    pub remaining: Option<Duration>,
    /// The kind of the lock. For permits, it has how many there are, with a weight of 1; in
    /// [`LockInfo::holders`](crate::admin::LockInfo::holders), it has how many this holder took.
    ///
    /// ```
    /// # use lock_core::{Kind, LockError, LockManager};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let held = locks.lock("mailer").permits(2).weight(2).acquire().await?;
    /// let request = locks.lock("mailer").permits(2).wait(Duration::ZERO);
    /// let error = request.acquire().await.unwrap_err();
    /// let kind = error.holder().map(|holder| holder.kind);
    /// assert_eq!(kind, Some(Kind::Permits { of: 2, weight: 1 }));
    /// held.release().await
    /// # }
    /// ```
    pub kind: Kind,
    /// How many readers hold the lock together, or how many permits are taken. In
    /// [`LockInfo::holders`](crate::admin::LockInfo::holders), it is what this holder has alone. 1 for an exclusive lock, and
    /// where the reply does not count: in a [`Revocation`](crate::admin::Revocation) and an
    /// [`AdminError`](crate::admin::AdminError).
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let one = locks.lock("stock:7").read().acquire().await?;
    /// let two = locks.lock("stock:7").read().acquire().await?;
    /// let writer = locks.lock("stock:7").write().wait(Duration::ZERO);
    /// let error = writer.acquire().await.unwrap_err();
    /// assert_eq!(error.holder().map(|holder| holder.count), Some(2));
    /// assert_eq!(locks.holder("stock:7").await?.map(|holder| holder.count), Some(2));
    /// # drop((one, two));
    /// # Ok(())
    /// # }
    /// ```
    pub count: u32,
    pub(crate) state: HolderState,
    pub(crate) is_own: bool,
    pub(crate) is_foreign: bool,
}

/// Whether a [`Holder`] still has the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HolderState {
    Holding,
    Kept,
    Done,
    Revoked,
}

impl HolderState {
    fn of(seen: &ObservedHolder) -> Self {
        if seen.is_done() {
            Self::Done
        } else if !seen.is_without_owner() {
            Self::Holding
        } else if parse_revoked(&seen.label).is_some() {
            Self::Revoked
        } else {
            Self::Kept
        }
    }
}

impl Holder {
    /// Creates the holder as a reply showed it.
    pub(crate) fn new(seen: ObservedHolder) -> Self {
        let state = HolderState::of(&seen);
        let is_foreign = !seen.is_of_this_library();
        // The reason of a revocation may end as a tag does.
        let (label, tag) = match state {
            HolderState::Revoked => (seen.label, None),
            HolderState::Holding | HolderState::Kept | HolderState::Done => without_tag(seen.label),
        };
        Self {
            label,
            tag,
            token: seen.token,
            held_for: seen.held_for,
            remaining: seen.remaining,
            kind: seen.kind,
            count: seen.members.unwrap_or(1),
            state,
            is_own: seen.is_own,
            is_foreign,
        }
    }

    /// Creates the holder of a value that names none.
    pub(crate) fn foreign(remaining: Option<Duration>) -> Self {
        Self {
            label: FOREIGN_LABEL.into(),
            tag: None,
            token: None,
            held_for: None,
            remaining,
            kind: Kind::Exclusive,
            count: 1,
            state: HolderState::Holding,
            is_own: false,
            is_foreign: true,
        }
    }

    /// Returns whether a guard of this manager held the lock when this client last saw it. For a lock that several
    /// hold, an inspection returns whether one of their guards is this manager's. An error returns `false` then,
    /// because its reply names only the first holder's label.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let _held = locks.lock("import").acquire().await?;
    /// let holder = locks.holder("import").await?;
    /// assert!(holder.is_some_and(|holder| holder.is_own()));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.is_own
    }

    /// Returns whether the value has no owner of this library: another library wrote it, or it is a lock in the dialect
    /// [`DeadlineGetset`](crate::dialect::Dialect::DeadlineGetset).
    /// [`Admin::force_release`](crate::admin::Admin::force_release) refuses it without
    /// [`remove_foreign`](crate::admin::ForceRelease::remove_foreign).
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.is_foreign
    }

    /// Returns whether the holder that an error names had already released the lock, so that only its
    /// [`min_hold`](crate::LockRequest::min_hold) keeps it locked, for [`remaining`](Self::remaining). Returns `false`
    /// for a lock with permits, even while a `min_hold` keeps all of them, because the server's reply counts kept
    /// permits as taken. An inspection shows such a lock as [`LockStatus::Kept`](crate::admin::LockStatus::Kept),
    /// without a holder.
    ///
    /// ```
    /// # use lock_core::{Holder, LockError, LockManager};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let request = locks.lock("nightly").min_hold(Duration::from_secs(10));
    /// request.acquire().await?.release().await?;
    /// let request = locks.lock("nightly").wait(Duration::ZERO);
    /// let error = request.acquire().await.unwrap_err();
    /// assert!(error.holder().is_some_and(Holder::is_kept));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.state == HolderState::Kept
    }

    /// Returns whether an operator had [revoked](crate::admin::Admin::force_release) the lock that an error names. It
    /// stays locked for [`remaining`](Self::remaining). An inspection shows such a lock as
    /// [`LockStatus::Blocked`](crate::admin::LockStatus::Blocked), without a holder.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        self.state == HolderState::Revoked
    }

    /// Returns the label with the tag, as the key's value has it.
    pub(crate) fn full_label(&self) -> Cow<'_, str> {
        match &self.tag {
            Some(tag) => format!("{} #{tag}", self.label).into(),
            None => Cow::Borrowed(&self.label),
        }
    }
}

/// Splits a label into its text and its tag.
pub(crate) fn without_tag(label: impl Into<Arc<str>>) -> (Arc<str>, Option<Arc<str>>) {
    let label = label.into();
    let Some(tag) = label_tag(&label) else {
        return (label, None);
    };
    let text = &label[..label.len() - tag.len() - " #".len()];
    (text.into(), Some(tag.into()))
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
    let label = holder.full_label();
    match (holder.kind, holder.count) {
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
fn other_number(holder: &Holder, requested: Kind) -> Option<String> {
    let Kind::Permits { of, .. } = holder.kind else {
        return None;
    };
    let requested = requested.permits().filter(|requested| *requested != of)?;
    Some(format!(
        "; this call asks for permits out of {requested}, and all callers of a lock have to use one number"
    ))
}

/// Returns what an error says about a lock that no longer has a holder. Returns `None` if it has one.
fn without_owner(holder: &Holder, left: Option<&str>, position: Option<u64>) -> Option<String> {
    let label = holder.full_label();
    let text = match holder.state {
        HolderState::Holding => return None,
        HolderState::Kept => format!(": `{label}` released it, and its `min_hold` keeps it locked"),
        HolderState::Done => {
            format!(": the work of `{label}` succeeded, and its `once_per` keeps it locked")
        }
        HolderState::Revoked => format!(": it was {label}, and stays locked"),
    };
    let left = left.map(|left| format!(" for another {left}"));
    Some(
        [Some(text), left, waiters_ahead(position)]
            .into_iter()
            .flatten()
            .collect(),
    )
}

fn waiters_ahead(position: Option<u64>) -> Option<String> {
    Some(format!(", waiters ahead: {}", position?))
}

/// Returns what an error says about the holder, to a caller that asked for this kind of lock and had this many waiters
/// ahead.
pub(super) fn about(holder: Option<&Holder>, requested: Kind, position: Option<u64>) -> String {
    let Some(holder) = holder else {
        return String::new();
    };
    let label = holder.full_label();
    let name = if holder.is_own {
        format!("this process (`{label}`)")
    } else if label == FOREIGN_LABEL {
        FOREIGN_LABEL.to_owned()
    } else {
        format!("`{label}`")
    };
    let left = holder.remaining.map(rounded);
    if let Some(text) = without_owner(holder, left.as_deref(), position) {
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
        waiters_ahead(position),
        other_number(holder, requested),
    ]
    .into_iter()
    .flatten()
    .collect()
}
