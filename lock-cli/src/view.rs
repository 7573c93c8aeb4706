//! Locks as people and programs see them.

use std::time::{Duration, SystemTime};

use lock_core::admin::{LockInfo, LockStatus, WaiterInfo};
use lock_core::{Holder, Kind};
use serde::Serialize;

use crate::text::{human, millis, rfc3339};
use crate::wording;

/// A lock, with the fields of the schemas `lockctl.lock/1` and `lockctl.show/1`.
#[derive(Serialize)]
pub(crate) struct LockRecord<'a> {
    schema: &'static str,
    name: &'a str,
    key: &'a str,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<HolderRecord<'a>>,
    /// How many hold a shared lock: the readers, or the permits that are taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    holding: Option<u64>,
    /// The holders of a shared lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    holders: Option<Vec<HolderRecord<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<KeptRecord<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    done: Option<DoneRecord<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blocked: Option<BlockedRecord<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    foreign: Option<ForeignRecord>,
    waiting: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<Vec<WaiterRecord<'a>>>,
}

/// The holder of a lock.
#[derive(Serialize)]
pub(crate) struct HolderRecord<'a> {
    label: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<&'a str>,
    /// A text: the number may be larger than those of JavaScript.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    held_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining_ms: Option<u64>,
    foreign: bool,
}

/// A lock without a holder, which a `--min-hold` keeps.
#[derive(Serialize)]
struct KeptRecord<'a> {
    by: &'static str,
    label: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<&'a str>,
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
}

/// A lock whose work is done for a `--once-per`.
#[derive(Serialize)]
struct DoneRecord<'a> {
    label: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<&'a str>,
    /// When the work that succeeded began.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
}

#[derive(Serialize)]
struct BlockedRecord<'a> {
    text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
}

#[derive(Serialize)]
struct ForeignRecord {
    found: String,
    advice: String,
}

#[derive(Serialize)]
struct WaiterRecord<'a> {
    position: u64,
    label: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<&'a str>,
    /// What it waits for, unless its version has a kind that this one doesn't know.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    expires_in_ms: u64,
}

impl<'a> LockRecord<'a> {
    /// A line of a list.
    pub(crate) fn in_list(lock: &'a LockInfo) -> Self {
        Self::new("lockctl.lock/1", lock)
    }

    /// The whole lock with its queue.
    pub(crate) fn whole(lock: &'a LockInfo) -> Self {
        let queue = lock.waiters.iter().map(WaiterRecord::new).collect();
        let holders = lock.holders.iter();
        let holders = holders.map(|holder| HolderRecord::new(holder, lock.read_at));
        Self {
            queue: Some(queue),
            holders: shared(lock).map(|_| holders.collect()),
            ..Self::new("lockctl.show/1", lock)
        }
    }

    fn new(schema: &'static str, lock: &'a LockInfo) -> Self {
        let mut record = Self {
            schema,
            name: lock.name.as_str(),
            key: &lock.key,
            state: state(lock),
            holder: None,
            holding: shared(lock).map(|_| lock.holders_total),
            holders: None,
            kept: None,
            done: None,
            blocked: None,
            foreign: None,
            waiting: lock.waiters_total,
            queue: None,
        };
        match &lock.status {
            LockStatus::Held(holder) => {
                record.holder = Some(HolderRecord::new(holder, lock.read_at));
            }
            LockStatus::Kept {
                free_at,
                label,
                tag,
                kind,
                ..
            } => {
                record.kept = Some(KeptRecord {
                    by: "min_hold",
                    label,
                    tag: tag.as_deref(),
                    kind: kind.to_string(),
                    until: free_at.map(rfc3339),
                });
            }
            LockStatus::Done {
                since,
                free_at,
                label,
                tag,
                ..
            } => {
                record.done = Some(DoneRecord {
                    label,
                    tag: tag.as_deref(),
                    since: since.map(rfc3339),
                    until: free_at.map(rfc3339),
                });
            }
            LockStatus::Blocked { free_at, text, .. } => {
                let until = free_at.map(rfc3339);
                record.blocked = Some(BlockedRecord { text, until });
            }
            LockStatus::Foreign { found, advice, .. } => {
                record.foreign = Some(ForeignRecord {
                    found: wording::plain(found),
                    advice: wording::plain(advice),
                });
            }
            _ => {}
        }
        record
    }
}

impl<'a> HolderRecord<'a> {
    pub(crate) fn new(holder: &'a Holder, read_at: SystemTime) -> Self {
        let since = holder.held_for.and_then(|held| read_at.checked_sub(held));
        Self {
            label: &holder.label,
            tag: holder.tag.as_deref(),
            token: holder.token.map(|token| token.to_string()),
            kind: holder.kind.to_string(),
            since: since.map(rfc3339),
            held_ms: holder.held_for.map(millis),
            remaining_ms: holder.remaining.map(millis),
            foreign: holder.is_foreign(),
        }
    }
}

impl<'a> WaiterRecord<'a> {
    fn new(waiter: &'a WaiterInfo) -> Self {
        Self {
            position: waiter.position,
            label: &waiter.label,
            tag: waiter.tag.as_deref(),
            kind: waiter.kind.map(|kind| kind.to_string()),
            expires_in_ms: millis(waiter.expires_in),
        }
    }
}

/// The word for the state of a lock.
pub(crate) fn state(lock: &LockInfo) -> &'static str {
    match lock.status {
        LockStatus::Free => "free",
        LockStatus::Held(_) => "held",
        LockStatus::Kept { .. } => "kept",
        LockStatus::Done { .. } => "done",
        LockStatus::Blocked { .. } => "blocked",
        _ => "foreign",
    }
}

/// Whether the key belongs to another program, and not to this library.
pub(crate) fn is_foreign(lock: &LockInfo) -> bool {
    match &lock.status {
        LockStatus::Held(holder) => holder.is_foreign(),
        LockStatus::Foreign { .. } => true,
        _ => false,
    }
}

/// Returns the kind of a lock that several may hold.
pub(crate) fn shared(lock: &LockInfo) -> Option<Kind> {
    let kind = match &lock.status {
        LockStatus::Held(holder) => Some(holder.kind),
        LockStatus::Kept { kind, .. } => Some(*kind),
        _ => None,
    };
    kind.filter(|kind| *kind != Kind::Exclusive)
}

/// Says how many hold a shared lock: `3 readers`, `6 of 8 permits`. Returns `None` for all other locks.
pub(crate) fn holding(lock: &LockInfo) -> Option<String> {
    holders(shared(lock)?, lock.holders_total)
}

/// Says how many holders of this kind a lock has. Returns `None` for an exclusive lock.
pub(crate) fn holders(kind: Kind, total: u64) -> Option<String> {
    Some(match (kind, total) {
        (Kind::Exclusive, _) => return None,
        (Kind::Read, 1) => "1 reader".to_owned(),
        (Kind::Read, readers) => format!("{readers} readers"),
        (Kind::Permits { of, .. }, taken) => format!("{taken} of {of} permits"),
        (kind, total) => format!("{total}, {kind}"),
    })
}

/// The holder for people: `web-1:42 #3f2a`.
pub(crate) fn label(holder: &Holder) -> String {
    match &holder.tag {
        Some(tag) => format!("{} #{tag}", holder.label),
        None => holder.label.to_string(),
    }
}

/// Says why a lock without a holder is not free, and until when. Returns `None` for all other locks.
pub(crate) fn without_holder(lock: &LockInfo) -> Option<String> {
    Some(match &lock.status {
        LockStatus::Kept {
            free_at,
            label,
            tag,
            ..
        } => {
            let until = free_at.map_or_else(String::new, |at| format!(" until {}", rfc3339(at)));
            let left = left(lock)?;
            let what = holding(lock).map_or_else(String::new, |holding| format!("{holding} "));
            let by = min_hold_of(label, tag.as_deref());
            format!("no holder; {what}kept{until} by {by} ({left})")
        }
        LockStatus::Done {
            since,
            free_at,
            label,
            tag,
            ..
        } => {
            let since = since.map_or_else(String::new, |at| format!(" since {}", rfc3339(at)));
            let until = free_at.map_or_else(String::new, |at| format!(" until {}", rfc3339(at)));
            let by = with_tag(label, tag.as_deref());
            format!("no holder; done{since}{until} by {by} ({})", left(lock)?)
        }
        LockStatus::Blocked { text, .. } => {
            format!("no holder; kept locked {} after it was {text}", left(lock)?)
        }
        _ => return None,
    })
}

/// Says for how long a lock without a holder is locked. Returns `None` for all other locks.
fn left(lock: &LockInfo) -> Option<String> {
    let (LockStatus::Kept { free_at, .. }
    | LockStatus::Done { free_at, .. }
    | LockStatus::Blocked { free_at, .. }) = &lock.status
    else {
        return None;
    };
    let left = free_at.and_then(|at| at.duration_since(lock.read_at).ok());
    Some(match left {
        Some(left) => format!("for {}", human(left)),
        None => "forever, since the key has no expiry".to_owned(),
    })
}

/// Names the last holder, whose `--min-hold` has not passed.
fn min_hold_of(label: &str, tag: Option<&str>) -> String {
    format!("--min-hold of {}", with_tag(label, tag))
}

fn with_tag(label: &str, tag: Option<&str>) -> String {
    let tag = tag.map_or_else(String::new, |tag| format!(" #{tag}"));
    format!("{label}{tag}")
}

/// The columns of a list.
pub(crate) const COLUMNS: [&str; 5] = ["NAME", "HOLDER", "SINCE", "LEFT", "WAITING"];

/// The line of a lock in a list.
pub(crate) fn row(lock: &LockInfo) -> [String; 5] {
    let ago = |held: Duration| format!("{} ago", human(held));
    let none = || "-".to_owned();
    let left_until = |at: Option<SystemTime>| {
        let left = at.and_then(|at| at.duration_since(lock.read_at).ok());
        left.map_or_else(|| "for ever".to_owned(), human)
    };
    let (holder, since, left) = match &lock.status {
        LockStatus::Held(holder) => (
            match holding(lock) {
                // The first holder may have released the lock.
                Some(holding) => format!("({holding})"),
                None => label(holder),
            },
            holder.held_for.map_or_else(none, ago),
            holder
                .remaining
                .map_or_else(|| "for ever".to_owned(), human),
        ),
        LockStatus::Kept {
            free_at,
            label,
            tag,
            ..
        } => {
            let why = min_hold_of(label, tag.as_deref());
            (format!("(none: {why})"), none(), left_until(*free_at))
        }
        LockStatus::Done {
            since,
            free_at,
            label,
            tag,
            ..
        } => {
            let age = since.and_then(|at| lock.read_at.duration_since(at).ok());
            (
                format!("(none: done by {})", with_tag(label, tag.as_deref())),
                age.map_or_else(none, ago),
                left_until(*free_at),
            )
        }
        LockStatus::Blocked { free_at, text, .. } => {
            (format!("(none: {text})"), none(), left_until(*free_at))
        }
        LockStatus::Foreign { found, .. } => {
            (format!("({})", wording::plain(found)), none(), none())
        }
        _ => ("(free)".to_owned(), none(), none()),
    };
    [
        lock.name.to_string(),
        holder,
        since,
        left,
        lock.waiters_total.to_string(),
    ]
}
