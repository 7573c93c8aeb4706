//! What waiters and callers learn of a lock: notifications, and the holder in a reply.

use super::queue::QueueScan;
use super::{Env, KeyValue, LockState, RawHolder};
use crate::clock::ServerMs;
use crate::kind::{Group, Kind};
use crate::wire::{EntryKind, Mode, WireNotification};

impl LockState {
    /// The grants of a scan, one channel after the other, and a head-of-queue notification for the waiter that
    /// is first now.
    pub(super) fn notifications(&self, scan: &QueueScan, env: &Env<'_>) -> Vec<WireNotification> {
        let mut notifications = Vec::new();
        if scan.granted.is_empty() && !scan.head_changed && !scan.notify_head {
            return notifications;
        }
        let mut channels: Vec<&str> = Vec::new();
        for channel in scan
            .granted
            .iter()
            .filter_map(|grant| grant.to.channel.as_deref())
        {
            if !channels.contains(&channel) {
                channels.push(channel);
            }
        }
        for channel in channels {
            let of_channel = scan
                .granted
                .iter()
                .filter(|grant| grant.to.channel.as_deref() == Some(channel));
            notifications.extend(of_channel.map(|grant| WireNotification::Grant {
                owner_id: grant.to.owner_id,
                token: grant.token,
                server_us: env.now_us,
                lease_ms: grant.to.lease_ms,
            }));
        }
        let head = self
            .queue
            .as_ref()
            .and_then(|queue| queue.value.values().next());
        if let Some(head) = head.filter(|head| head.mode == Mode::Subscribed) {
            let kind = match &head.kind {
                EntryKind::Known(kind) => *kind,
                EntryKind::Unknown(_) => Kind::Exclusive,
            };
            notifications.push(WireNotification::Head {
                to: head.owner_id.short(),
                server_us: env.now_us,
                holder_ms: match &self.key {
                    // The next poll continues the scan.
                    _ if scan.more => 0,
                    // The waiter has to learn it at once, and the one behind it when this one leaves.
                    _ if self.is_done() => 0,
                    Some(key) if key.value.is_native() => {
                        self.wait_ms(kind, 0, env.now_ms()).unwrap_or(0)
                    }
                    // The release of a foreign holder sends no notification, so the first waiter has
                    // to poll now.
                    _ => scan.grace_ms,
                },
            });
        }
        notifications
    }

    /// Returns the time after which a caller of this kind may get the key by expiry alone. Returns `None` for a
    /// key without an expiry.
    pub(super) fn wait_ms(&self, kind: Kind, grace_ms: u64, now_ms: ServerMs) -> Option<u64> {
        match &self.key {
            None => Some(grace_ms),
            Some(key) => match (&key.value, kind.group()) {
                (KeyValue::Shared(shared), Some(group @ Group::Permits(_)))
                    if shared.group == group =>
                {
                    self.first_end().map(|end| end.since(now_ms))
                }
                _ => key.remaining_ms(now_ms),
            },
        }
    }

    /// Describes the holder to a caller of this kind.
    pub(super) fn observed_holder(&self, kind: Kind, grace_ms: u64, now_ms: ServerMs) -> RawHolder {
        RawHolder {
            remaining_ms: self.wait_ms(kind, grace_ms, now_ms),
            value: match self.key.as_ref().map(|key| &key.value) {
                Some(KeyValue::Shared(group)) => group.counted(self.members()),
                Some(value) => value.text(),
                None => String::new(),
            },
        }
    }
}
