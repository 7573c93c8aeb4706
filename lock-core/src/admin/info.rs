//! What an operator sees of a lock: its holder, and its waiters.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::error::{Holder, HolderState, LockError, foreign_key, without_tag};
use lock_protocol::acquisition::ObservedHolder;
use lock_protocol::clock::ServerMs;
use lock_protocol::inspection::{
    InspectReply, KeyContent, ReadTime, SeenKey, SeenMember, SeenMembers,
};
use lock_protocol::key::{LockKey, LockName};
use lock_protocol::kind::Kind;
use lock_protocol::lock_state::RawHolder;
use lock_protocol::owner_id::OwnerId;
use lock_protocol::revocation::parse_revoked;
use lock_protocol::wire::{KEPT, QueueEntry, escaped, tidy_label};

/// A lock and its waiters at one moment. Returned by
/// [`Admin::inspect`](crate::admin::Admin::inspect) and, without the waiters, in a
/// [`LockPage`](crate::admin::LockPage).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The name of the lock, exactly as it is on the server. It may have control characters.
    pub name: LockName,
    /// The key of the lock: the manager's prefix and the name. Control characters are escaped, so it
    /// can be printed.
    pub key: Arc<str>,
    /// Whether the lock is held, and by which holder.
    pub status: LockStatus,
    /// Up to 100 holders, beginning with those whose leases end first. Only the first 512 permits are read, so if more
    /// are taken, the last holder listed may have more permits than its `kind` says. An exclusive lock has one holder.
    /// A permit that a [`min_hold`](crate::LockRequest::min_hold) keeps has no holder. For a shared lock in a
    /// [`LockPage`](crate::admin::LockPage), the list is empty.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let one = locks.lock("stock:7").read().acquire().await?;
    /// let two = locks.lock("stock:7").read().acquire().await?;
    /// let info = locks.admin().inspect("stock:7").await?;
    /// assert_eq!(info.holders.len(), 2);
    /// assert!(info.holders.iter().all(|holder| holder.is_own()));
    /// # drop((one, two));
    /// # Ok(())
    /// # }
    /// ```
    pub holders: Vec<Holder>,
    /// The number of holders: 1 for an exclusive lock, the number of readers, or the number of permits that
    /// are taken. In a [`LockPage`](crate::admin::LockPage), it includes leases of a shared lock that have ended, until
    /// the next acquire or release removes them.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let held = locks.lock("mailer").permits(4).weight(3).acquire().await?;
    /// let info = locks.admin().inspect("mailer").await?;
    /// assert_eq!(info.holders_total, 3);
    /// assert_eq!(info.holders.len(), 1);
    /// held.release().await
    /// # }
    /// ```
    pub holders_total: u64,
    /// The first waiters in the queue, in the order in which they get the lock: at most 100.
    pub waiters: Vec<WaiterInfo>,
    /// How many entries the queue has. They include waiters that died, until a handover or a poll
    /// removes them.
    pub waiters_total: u64,
    /// When the server read the lock, by its clock.
    pub read_at: SystemTime,
    /// The content of the key, for [`ForceRelease::expect_unchanged`](crate::admin::ForceRelease).
    pub(crate) seen: SeenKey,
}

impl LockInfo {
    /// Returns the holder. Returns `None` when the lock is free, kept, done or blocked, and when the key holds
    /// something that is not a lock.
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        match &self.status {
            LockStatus::Held(holder) => Some(holder),
            _ => None,
        }
    }

    pub(crate) fn into_holder(self) -> Option<Holder> {
        match self.status {
            LockStatus::Held(holder) => Some(holder),
            _ => None,
        }
    }
}

/// Whether a lock is held.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockStatus {
    /// The key does not exist: the next caller gets the lock.
    Free,
    /// A holder has the lock. It may be a client of another library.
    Held(Holder),
    /// The lock has no holder: it was released, and its [`min_hold`](crate::LockRequest::min_hold) keeps it
    /// locked until `free_at`. Also the status of a lock with permits when all permits that are taken are kept so.
    ///
    /// ```
    /// # use lock_core::admin::LockStatus;
    /// # use lock_core::{LockError, LockManager};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let request = locks.lock("nightly").min_hold(Duration::from_secs(10));
    /// request.acquire().await?.release().await?;
    /// let info = locks.admin().inspect("nightly").await?;
    /// assert!(matches!(info.status, LockStatus::Kept { .. }));
    /// assert_eq!(info.holder(), None);
    /// # Ok(())
    /// # }
    /// ```
    #[non_exhaustive]
    Kept {
        /// When the lock is free, on the server's clock. `None` for a key whose expiry another client
        /// removed: such a key stays locked until an operator removes it.
        free_at: Option<SystemTime>,
        /// The label of the last holder, without the tag.
        label: Arc<str>,
        /// The [tag](crate::LockManagerBuilder::holder_tag) of the last holder's acquisition.
        tag: Option<Arc<str>>,
        /// The kind of the lock. For permits, it has how many there are, with a weight of 1.
        kind: Kind,
    },
    /// The lock has no holder: the work that it protects has succeeded, and its
    /// [`once_per`](crate::LockRequest::once_per) keeps the name taken until `free_at`.
    /// [`Admin::force_release`](crate::admin::Admin::force_release) frees it, so that the work can be done again.
    ///
    /// ```
    /// # use lock_core::admin::LockStatus;
    /// # use lock_core::{LockError, LockManager};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = LockManager::in_memory();
    /// let request = || locks.lock("report").once_per(Duration::from_secs(3600));
    /// request().acquire().await?.complete().await?;
    /// let info = locks.admin().inspect("report").await?;
    /// assert!(matches!(info.status, LockStatus::Done { .. }));
    /// locks.admin().force_release("report").await?;
    /// assert!(request().try_acquire().await?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    #[non_exhaustive]
    Done {
        /// When the lock was acquired for the work that succeeded, on the server's clock. `None` if that time can't be
        /// represented.
        since: Option<SystemTime>,
        /// When the name is free, on the server's clock. `None` for a key whose expiry another client removed: such a
        /// key stays taken until an operator removes it.
        free_at: Option<SystemTime>,
        /// The label of the manager whose work succeeded, without the tag.
        label: Arc<str>,
        /// The [tag](crate::LockManagerBuilder::holder_tag) of its acquisition.
        tag: Option<Arc<str>>,
    },
    /// The lock has no holder, because an operator revoked it. No caller gets it before `free_at`.
    #[non_exhaustive]
    Blocked {
        /// When the lock is free, on the server's clock. `None` for a key without an expiry: such a
        /// key stays locked until an operator removes it.
        free_at: Option<SystemTime>,
        /// The operator and the reason: `revoked by <by>: <reason>`.
        text: Arc<str>,
    },
    /// The key holds something that cannot be locked. An acquire fails with
    /// [`LockError::ForeignKey`], which has the same texts.
    #[non_exhaustive]
    Foreign {
        /// The value that the key holds.
        found: Arc<str>,
        /// What to do about it.
        advice: Arc<str>,
    },
}

/// A waiter in the queue of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaiterInfo {
    /// How many entries are ahead of it.
    pub position: u64,
    /// The label of the waiter's manager, without the tag.
    pub label: Arc<str>,
    /// The [tag](crate::LockManagerBuilder::holder_tag) of its acquisition.
    pub tag: Option<Arc<str>>,
    /// What it waits for: an exclusive lock, a lock for reading, or permits. `None` for a kind of another version.
    pub kind: Option<Kind>,
    /// How long the entry counts without a sign of life of the waiter. Zero for a waiter that is
    /// gone: the next handover removes its entry.
    pub expires_in: Duration,
}

/// Whether an owner id belongs to the manager that inspects.
pub(crate) type IsOwn<'a> = &'a dyn Fn(OwnerId) -> bool;

impl LockInfo {
    /// Interprets the reply to an inspection.
    pub(crate) fn new(
        key: &LockKey,
        name: LockName,
        reply: &InspectReply,
        is_own: IsOwn<'_>,
    ) -> Self {
        let time = reply.time;
        let waiters = (0..)
            .zip(&reply.entries)
            .map(|(position, entry)| waiter(position, entry, time.server_ms))
            .collect();
        let mut status = LockStatus::new(key, &reply.content, time, is_own);
        let mut holders = Vec::new();
        let mut holders_total = 0;
        let mut kept = None;
        if let LockStatus::Held(shown) = &mut status {
            if shown.kind.is_shared() {
                holders = holders_of(shown, &reply.members.first, is_own);
                holders_total = reply.members.total;
                kept = kept_permits(shown, &reply.members, time);
                shown.is_own = holders.iter().any(Holder::is_own);
                shown.count = u32::try_from(holders_total).unwrap_or(u32::MAX);
            } else {
                holders.push(shown.clone());
                holders_total = 1;
            }
        }
        Self {
            name,
            key: escaped(key.as_str()).into(),
            status: kept.unwrap_or(status),
            holders,
            holders_total,
            waiters,
            waiters_total: reply.total,
            read_at: time.system,
            seen: SeenKey::of(&reply.content),
        }
    }
}

/// The most holders of a shared lock that are shown.
const SHOWN_HOLDERS: usize = 100;

/// Returns the holders of these members. A holder of several permits has as many members, one after another.
fn holders_of(shown: &Holder, members: &[SeenMember], is_own: IsOwn<'_>) -> Vec<Holder> {
    let mut holders: Vec<(OwnerId, Holder)> = Vec::new();
    for member in members {
        let mut parts = member.text.splitn(3, ' ');
        // A permit that is kept has no holder.
        let Some(owner_id) = parts.next().and_then(OwnerId::parse) else {
            continue;
        };
        let known = holders.iter_mut().find(|(known, _)| *known == owner_id);
        if let Some((_, holder)) = known {
            if let Kind::Permits { weight, .. } = &mut holder.kind {
                *weight += 1;
                holder.count += 1;
            }
            continue;
        }
        let (label, tag) = without_tag(tidy_label(parts.nth(1).unwrap_or_default()));
        let holder = Holder {
            label,
            tag,
            token: shown.token,
            held_for: None,
            remaining: member.remaining_ms.map(Duration::from_millis),
            kind: shown.kind,
            count: 1,
            state: HolderState::Holding,
            is_own: is_own(owner_id),
            is_foreign: false,
        };
        holders.push((owner_id, holder));
    }
    let holders = holders.into_iter().map(|(_, holder)| holder);
    holders.take(SHOWN_HOLDERS).collect()
}

/// Returns the status of permits that have no holder any more, only a `min_hold`. Returns `None` if one has a holder,
/// or if the reply does not have all members.
fn kept_permits(shown: &Holder, members: &SeenMembers, time: ReadTime) -> Option<LockStatus> {
    let last = members.first.last()?;
    let is_kept = |member: &SeenMember| member.text.starts_with(KEPT);
    let is_complete = usize::try_from(members.total) == Ok(members.first.len());
    if !is_complete || !members.first.iter().all(is_kept) {
        return None;
    }
    let label = last.text.splitn(3, ' ').nth(2).unwrap_or_default();
    let (label, tag) = without_tag(tidy_label(label));
    Some(LockStatus::Kept {
        free_at: end(last.remaining_ms.map(Duration::from_millis), time),
        label,
        tag,
        kind: shown.kind,
    })
}

/// Returns the end of a remaining time on the server's clock.
fn end(remaining: Option<Duration>, time: ReadTime) -> Option<SystemTime> {
    time.system.checked_add(remaining?)
}

fn waiter(position: u64, entry: &str, now_ms: ServerMs) -> WaiterInfo {
    // The text of an entry that a newer version wrote may have an owner id, and is not shown.
    let (label, kind, expires_at_ms) = QueueEntry::parse(entry).map_or_else(
        || (Arc::from("a waiter of another version"), None, now_ms),
        |entry| (entry.label, entry.kind.known(), entry.expires_at_ms),
    );
    let (label, tag) = without_tag(tidy_label(&label));
    WaiterInfo {
        position,
        label,
        tag,
        kind,
        expires_in: Duration::from_millis(expires_at_ms.since(now_ms)),
    }
}

impl LockStatus {
    /// Interprets the content of a key.
    pub(crate) fn new(
        key: &LockKey,
        content: &KeyContent,
        time: ReadTime,
        is_own: IsOwn<'_>,
    ) -> Self {
        match content {
            KeyContent::Free => Self::Free,
            KeyContent::OtherType { kind, .. } => foreign(foreign_key::of_type(key, kind)),
            KeyContent::Text(found) => of_text(key, &found.holder, time, is_own),
        }
    }
}

fn of_text(key: &LockKey, found: &RawHolder, time: ReadTime, is_own: IsOwn<'_>) -> LockStatus {
    let remaining = found.remaining_ms.map(Duration::from_millis);
    let value = found.value.as_str();
    let observed = ObservedHolder::from_value(value, remaining, Some(time.server_ms));
    let owner_id = observed.as_ref().and_then(|holder| holder.owner_id);
    if let Some(last) = observed.as_ref().filter(|seen| seen.is_done()) {
        let (label, tag) = without_tag(Arc::clone(&last.label));
        return LockStatus::Done {
            since: last.held_for.and_then(|age| time.system.checked_sub(age)),
            free_at: end(remaining, time),
            label,
            tag,
        };
    }
    if let Some(last) = observed.as_ref().filter(|seen| seen.is_without_owner()) {
        let free_at = end(remaining, time);
        if parse_revoked(&last.label).is_some() {
            let text = Arc::clone(&last.label);
            return LockStatus::Blocked { free_at, text };
        }
        let (label, tag) = without_tag(Arc::clone(&last.label));
        return LockStatus::Kept {
            free_at,
            label,
            tag,
            kind: Kind::Exclusive,
        };
    }
    let is_foreign = !observed
        .as_ref()
        .is_some_and(ObservedHolder::is_of_this_library);
    if is_foreign
        && let Some(refusal) = foreign_key::of_value(key, value, remaining, time.server_ms)
    {
        return foreign(refusal);
    }
    // An empty value has no holder; it comes from another library.
    let mut holder = observed.map_or_else(|| Holder::foreign(remaining), Holder::new);
    holder.is_own = owner_id.is_some_and(is_own);
    LockStatus::Held(holder)
}

fn foreign(refusal: LockError) -> LockStatus {
    match refusal {
        LockError::ForeignKey { found, advice, .. } => LockStatus::Foreign { found, advice },
        other => LockStatus::Foreign {
            found: other.to_string().into(),
            advice: "".into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiter_has_the_kind_of_its_entry() {
        let kind = |text: &str| {
            let owner_id = "00000001-0000-4000-8000-000000000000";
            let entry = format!("{owner_id} {text} 2000 1700000000000 lk1:lock::c web-1 #tag");
            let shown = waiter(0, &entry, ServerMs::new(1_700_000_000_000));
            assert_eq!(&*shown.label, "web-1");
            shown.kind
        };
        assert_eq!(kind("s"), Some(Kind::Exclusive));
        assert_eq!(kind("pr"), Some(Kind::Read));
        let permits = |of, weight| Some(Kind::Permits { of, weight });
        assert_eq!(kind("s8"), permits(8, 1));
        assert_eq!(kind("s8x2"), permits(8, 2));
        // Of another version.
        assert_eq!(kind("s?new"), None);
        assert_eq!(waiter(0, "no entry", ServerMs::new(1)).kind, None);
    }
}
