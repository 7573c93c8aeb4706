//! Notifications to a waiter, and the mailbox that keeps them until the waiter reads them.

use std::time::Duration;

use crate::clock::Moment;
use crate::clock_sync::{ClockSync, grant_deadline};
use crate::fencing_token::FencingToken;
use crate::wire::WireNotification;

/// A handover of the lock to a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    pub token: FencingToken,
    pub received: Moment,
    pub lease: Duration,
    /// The end of the lease; `None` when only a renewal can find it out.
    pub until: Option<Moment>,
}

/// A message to one waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notification {
    Grant(Grant),
    /// The waiter is the first in the queue, and the holder's lease ends at this moment.
    Head {
        holder_expires_at: Moment,
    },
    /// The waiter is now the first of this manager's waiters on its key.
    First,
    /// The lock was released, in a dialect without handover. The waiter polls.
    Released,
    /// The waiter has to poll the server to find out what happened.
    Poll,
    /// The manager is shutting down, and the waiter has to end.
    ShuttingDown,
}

impl Notification {
    /// Reads a message that the server process with this run id published.
    pub fn from_wire(
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

/// Why a waiter has to poll. The greater cause contains the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum PollCause {
    Released,
    Any,
}

/// The notifications that a waiter has not read yet: at most one of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mailbox {
    grant: Option<Grant>,
    head: Option<Moment>,
    first: bool,
    poll: Option<PollCause>,
    /// The waiter has read that the lock was released, and no command has had a reply since.
    has_unanswered_release: bool,
    shutting_down: bool,
}

impl Mailbox {
    pub fn put(&mut self, notification: Notification) {
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
            Notification::Released => self.poll = self.poll.max(Some(PollCause::Released)),
            Notification::Poll => self.poll = Some(PollCause::Any),
            Notification::ShuttingDown => self.shutting_down = true,
        }
    }

    /// Records the reply to a command of the waiter.
    pub fn on_reply(&mut self) {
        self.has_unanswered_release = false;
    }

    /// Returns whether the lock was released, and no command of the waiter has had a reply since.
    pub fn has_release(&self) -> bool {
        self.has_unanswered_release || self.poll == Some(PollCause::Released)
    }

    /// Takes the most important notification.
    pub fn take(&mut self) -> Option<Notification> {
        if let Some(grant) = self.grant.take() {
            return Some(Notification::Grant(grant));
        }
        if std::mem::take(&mut self.shutting_down) {
            return Some(Notification::ShuttingDown);
        }
        match self.poll.take() {
            Some(PollCause::Any) => return Some(Notification::Poll),
            Some(PollCause::Released) => {
                self.has_unanswered_release = true;
                return Some(Notification::Released);
            }
            None => {}
        }
        if let Some(holder_expires_at) = self.head.take() {
            return Some(Notification::Head { holder_expires_at });
        }
        std::mem::take(&mut self.first).then_some(Notification::First)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner_id::OwnerId;

    fn at(ms: u64) -> Moment {
        Moment::from_millis(ms)
    }

    /// A grant whose lease ends for certain.
    fn grant(token: u64) -> Grant {
        Grant {
            token: FencingToken::new(token),
            received: at(1),
            lease: Duration::from_secs(2),
            until: Some(at(1_900)),
        }
    }

    fn head(ms: u64) -> Notification {
        Notification::Head {
            holder_expires_at: at(ms),
        }
    }

    #[test]
    fn most_important_notification_comes_first() {
        let mut mailbox = Mailbox::default();
        mailbox.put(Notification::First);
        mailbox.put(head(5));
        mailbox.put(Notification::Poll);
        mailbox.put(Notification::Grant(grant(1)));
        let taken: Vec<_> = std::iter::from_fn(|| mailbox.take()).collect();
        let expected = [
            Notification::Grant(grant(1)),
            Notification::Poll,
            head(5),
            Notification::First,
        ];
        assert_eq!(taken, expected);
    }

    #[test]
    fn mailbox_keeps_one_notification_of_each_kind_the_last() {
        let mut mailbox = Mailbox::default();
        for _ in 0..3 {
            mailbox.put(Notification::First);
            mailbox.put(Notification::Poll);
        }
        mailbox.put(head(5));
        mailbox.put(head(9));
        let taken: Vec<_> = std::iter::from_fn(|| mailbox.take()).collect();
        assert_eq!(taken, [Notification::Poll, head(9), Notification::First]);
    }

    #[test]
    fn one_poll_is_enough_for_all_releases() {
        let mut mailbox = Mailbox::default();
        mailbox.put(Notification::Released);
        mailbox.put(Notification::Released);
        mailbox.put(Notification::First);
        assert!(mailbox.has_release());
        assert_eq!(mailbox.take(), Some(Notification::Released));
        assert!(mailbox.has_release(), "no reply yet");
        mailbox.on_reply();
        assert!(!mailbox.has_release());
        assert_eq!(mailbox.take(), Some(Notification::First));
        mailbox.put(Notification::Released);
        mailbox.put(Notification::Poll);
        let taken: Vec<_> = std::iter::from_fn(|| mailbox.take()).collect();
        assert_eq!(taken, [Notification::Poll]);
    }

    #[test]
    fn second_grant_in_the_mailbox_has_no_certain_end() {
        let mut mailbox = Mailbox::default();
        mailbox.put(Notification::Grant(grant(1)));
        mailbox.put(Notification::Grant(grant(2)));
        let uncertain = Grant {
            until: None,
            ..grant(2)
        };
        assert_eq!(mailbox.take(), Some(Notification::Grant(uncertain)));
        assert_eq!(mailbox.take(), None);
        // The first one was read, so the next one is the only one.
        mailbox.put(Notification::Grant(grant(3)));
        assert_eq!(mailbox.take(), Some(Notification::Grant(grant(3))));
    }

    #[test]
    fn message_is_read_with_the_clock_sync_of_its_server() {
        let owner_id = OwnerId::from_number(1);
        let message = WireNotification::Grant {
            owner_id,
            token: FencingToken::new(3),
            server_us: 1_000_500_000,
            lease_ms: 2_000,
        };
        let clock_sync = ClockSync {
            sent: at(5_000),
            server_us: 1_000_000_000,
            run_id: 1,
        };
        let received = at(5_510);
        let read = |run_id| Notification::from_wire(&message, Some(clock_sync), run_id, received);
        let Notification::Grant(grant) = read(1) else {
            panic!("a grant");
        };
        // Sent at 5500; 1 % of 2510 ms for the clocks, and 2 ms for rounding.
        let margin = Duration::from_micros(25_100) + Duration::from_millis(2);
        assert_eq!(grant.until, Some(at(7_500).minus(margin)));
        assert_eq!(grant.received, received);
        let Notification::Grant(uncertain) = read(2) else {
            panic!("a grant");
        };
        assert_eq!(uncertain.until, None, "another server");

        let message = WireNotification::Head {
            to: owner_id.short(),
            server_us: 1_000_500_000,
            holder_ms: 90,
        };
        let read = Notification::from_wire(&message, None, 1, received);
        assert_eq!(read, head(5_600));
    }
}
