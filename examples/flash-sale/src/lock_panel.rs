//! The panel of the lock: its holder and its queue, as the lock server has them.

use std::time::Duration;

use lock_core::admin::{LockInfo, LockStatus};

use crate::instance::instance_of;
use crate::model::Model;

/// The lease of the shop's lock, which the bar shows as a whole.
const LEASE: Duration = Duration::from_secs(2);

/// The page shows this many waiters.
const SHOWN: usize = 24;

#[derive(Clone, Debug, Default)]
pub(crate) struct LockPanel {
    pub(crate) holder: String,
    pub(crate) lease: String,
    pub(crate) waiting: String,
    /// The first waiters, each with a short text.
    pub(crate) queue: Vec<String>,
    /// The rest of the lease, in thousandths.
    pub(crate) left: u32,
}

impl LockPanel {
    pub(crate) fn new(info: &LockInfo, model: &Model) -> Self {
        let (holder, lease, left) = match &info.status {
            LockStatus::Free => ("Free".to_owned(), String::new(), 0),
            LockStatus::Held(holder) => {
                let by = model.holder_of(holder.token.map(u64::from));
                let by = by.or_else(|| instance_of(&holder.label));
                let by = by.map_or_else(|| holder.label.to_string(), |n| format!("instance {n}"));
                let token = holder.token.map(|token| model.count(token.into()));
                let token = token.map_or_else(String::new, |token| format!(", token {token}"));
                let remaining = holder.remaining.unwrap_or(LEASE).min(LEASE);
                let ms = u32::try_from(remaining.as_millis()).unwrap_or_default();
                let lease = format!("Lease ends in {:.1} s", remaining.as_secs_f64());
                (format!("Held by {by}{token}"), lease, ms / 2)
            }
            _ => ("Blocked".to_owned(), String::new(), 0),
        };
        let waiting = match info.waiters_total {
            0 => "Nobody waits".to_owned(),
            1 => "1 request waits".to_owned(),
            total => format!("{total} requests wait"),
        };
        let name = |label: &str| match instance_of(label) {
            Some(number) => number.to_string(),
            None => "·".to_owned(),
        };
        let waiters = info.waiters.iter().take(SHOWN);
        Self {
            holder,
            lease,
            waiting,
            queue: waiters.map(|waiter| name(&waiter.label)).collect(),
            left,
        }
    }

    /// The panel while the lock is switched off.
    pub(crate) fn off() -> Self {
        Self {
            holder: "Switched off".to_owned(),
            waiting: "Requests do not wait for each other".to_owned(),
            ..Self::default()
        }
    }
}
