//! Notifications to a waiter, and the mailbox that keeps them until the waiter reads them.

use std::time::Duration;

use crate::protocol::clock::Moment;
use crate::protocol::clock_sync::{ClockSync, grant_deadline};
use crate::protocol::fencing_token::FencingToken;
use crate::protocol::wire::WireNotification;

/// A handover of the lock to a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(crate) struct Grant {
    pub(crate) token: FencingToken,
    pub(crate) received: Moment,
    pub(crate) lease: Duration,
    /// The end of the lease; `None` when only a renewal can find it out.
    pub(crate) until: Option<Moment>,
}

/// A message to one waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notification {
    Grant(Grant),
    /// The waiter is the first in the queue, and the holder's lease ends at this moment.
    Head {
        holder_expires_at: Moment,
    },
    /// The waiter is now the first of this manager's waiters on its key.
    First,
    /// The waiter has to poll the server to find out what happened.
    Poll,
}

impl Notification {
    /// Reads a message that the server process with this run id published.
    pub(crate) fn from_wire(
        message: &WireNotification,
        clock_sync: Option<ClockSync>,
        run_id: u64,
        received: Moment,
    ) -> Self {
        match *message {
            WireNotification::Grant {
                token,
                server_us,
                lease_ms,
                ..
            } => {
                let lease = Duration::from_millis(lease_ms);
                Self::Grant(Grant {
                    token,
                    received,
                    lease,
                    until: grant_deadline(clock_sync, run_id, server_us, lease, received),
                })
            }
            WireNotification::Head { holder_ms, .. } => Self::Head {
                holder_expires_at: received.plus(Duration::from_millis(holder_ms)),
            },
        }
    }
}

/// The notifications that a waiter has not read yet: at most one of each kind.
#[derive(Clone, Debug, Default)]
#[cfg_attr(test, derive(PartialEq, Eq, Hash))]
pub(crate) struct Mailbox {
    grant: Option<Grant>,
    head: Option<Moment>,
    first: bool,
    poll: bool,
}

impl Mailbox {
    pub(crate) fn put(&mut self, notification: Notification) {
        match notification {
            Notification::Grant(grant) => {
                // Two grants cannot both be valid, and only the server knows which one is.
                let is_only = self.grant.is_none();
                self.grant = Some(Grant {
                    until: grant.until.filter(|_| is_only),
                    ..grant
                });
            }
            Notification::Head { holder_expires_at } => self.head = Some(holder_expires_at),
            Notification::First => self.first = true,
            Notification::Poll => self.poll = true,
        }
    }

    /// Takes the most important notification.
    pub(crate) fn take(&mut self) -> Option<Notification> {
        if let Some(grant) = self.grant.take() {
            return Some(Notification::Grant(grant));
        }
        if std::mem::take(&mut self.poll) {
            return Some(Notification::Poll);
        }
        if let Some(holder_expires_at) = self.head.take() {
            return Some(Notification::Head { holder_expires_at });
        }
        std::mem::take(&mut self.first).then_some(Notification::First)
    }
}
