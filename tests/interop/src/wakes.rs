//! How the waits of lock-core ended: by a notification or by a poll.

use std::fmt::{self, Display, Formatter};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lock_core::telemetry::{LockCommand, LockEvent, LockObserver, NotificationUse};

/// A waiter asks a second time when it has subscribed, so that it misses no release in between. The
/// subscription takes a round trip. A poll comes hundreds of milliseconds later.
const SUBSCRIPTION: Duration = Duration::from_millis(100);

/// The part of the waits that may end by a poll, in percent: on a stalled machine a poll may come
/// before a notification.
const POLLS: u64 = 2;

/// Why a waiter sent the acquire that got the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wake {
    /// It did not have to wait: its first acquire, or the one after the subscription.
    #[default]
    AtOnce,
    /// A notification arrived.
    Notification,
    /// A timer ended, also that for the holder's expiry.
    Poll,
}

impl Wake {
    /// Returns the word that programs print.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AtOnce => "at-once",
            Self::Notification => "notification",
            Self::Poll => "poll",
        }
    }
}

/// The number of acquires that ended in each way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WakeCounts {
    /// Acquires that did not have to wait.
    pub at_once: u64,
    /// Waits that a notification ended.
    pub notification: u64,
    /// Waits that a timer ended.
    pub poll: u64,
    /// Acquire commands, also those that found the lock busy.
    pub commands: u64,
}

impl WakeCounts {
    /// Parses the words of [`Display`].
    pub fn parse<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<Self> {
        let mut number = || words.next()?.parse().ok();
        Some(Self {
            at_once: number()?,
            notification: number()?,
            poll: number()?,
            commands: number()?,
        })
    }

    /// Adds the counts of another process.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            at_once: self.at_once + other.at_once,
            notification: self.notification + other.notification,
            poll: self.poll + other.poll,
            commands: self.commands + other.commands,
        }
    }

    /// Returns the fault in these counts, if there is one.
    pub fn fault(&self) -> Option<String> {
        let waits = self.notification + self.poll;
        (self.poll * 100 > waits * POLLS).then(|| {
            format!(
                "{} of {waits} waits of lock-core ended by a poll",
                self.poll
            )
        })
    }

    /// Returns the counts as a sentence.
    pub fn describe(&self) -> String {
        let Self {
            at_once,
            notification,
            poll,
            commands,
        } = self;
        format!(
            "lock-core waited {} times: {notification} waits ended by a notification, {poll} by a poll; \
             {at_once} acquires did not wait; {commands} acquire commands",
            notification + poll
        )
    }
}

impl Display for WakeCounts {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (at_once, notification) = (self.at_once, self.notification);
        write!(
            f,
            "{at_once} {notification} {} {}",
            self.poll, self.commands
        )
    }
}

/// Follows the acquires of a process that has one waiter at a time.
#[derive(Debug, Default)]
pub struct WakeTracker {
    counts: WakeCounts,
    /// Why the last acquire command was sent.
    wake: Wake,
    /// When the last acquire command of this acquire ended.
    asked: Option<Instant>,
    /// The commands of this acquire.
    commands: u64,
    /// When a notification arrived that no command has used yet.
    notified: Option<Instant>,
}

impl WakeTracker {
    /// Records a notification that a waiter used.
    pub fn notified(&mut self, at: Instant) {
        self.notified.get_or_insert(at);
    }

    /// Records an acquire command.
    pub fn commanded(&mut self, sent: Instant, ended: Instant) {
        self.wake = match (self.notified, self.asked) {
            // A notification that arrived later is the reason for the next command.
            (Some(notified), _) if notified <= sent => {
                self.notified = None;
                Wake::Notification
            }
            (_, None) => Wake::AtOnce,
            (_, Some(asked)) if self.commands == 1 && sent < asked + SUBSCRIPTION => Wake::AtOnce,
            _ => Wake::Poll,
        };
        self.commands += 1;
        self.counts.commands += 1;
        self.asked = Some(ended);
    }

    /// Records the end of an acquire.
    pub fn ended(&mut self, is_granted: bool) {
        if is_granted {
            let count = match self.wake {
                Wake::AtOnce => &mut self.counts.at_once,
                Wake::Notification => &mut self.counts.notification,
                Wake::Poll => &mut self.counts.poll,
            };
            *count += 1;
        }
        self.asked = None;
        self.commands = 0;
        self.notified = None;
    }
}

/// Observes a manager with a [`WakeTracker`].
#[derive(Clone, Debug, Default)]
pub struct WakeObserver(Arc<Mutex<WakeTracker>>);

impl WakeObserver {
    /// Returns the counts so far.
    pub fn counts(&self) -> WakeCounts {
        self.tracker().counts
    }

    /// Returns how the last acquire ended.
    pub fn last(&self) -> Wake {
        self.tracker().wake
    }

    fn tracker(&self) -> MutexGuard<'_, WakeTracker> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LockObserver for WakeObserver {
    fn on_event(&self, event: &LockEvent<'_>) {
        let now = Instant::now();
        match *event {
            LockEvent::NotificationReceived {
                outcome: NotificationUse::Used,
                ..
            } => self.tracker().notified(now),
            LockEvent::CommandEnded {
                command: LockCommand::Acquire,
                duration,
                ..
            } => {
                let sent = now.checked_sub(duration).unwrap_or(now);
                self.tracker().commanded(sent, now);
            }
            LockEvent::Granted { .. } => self.tracker().ended(true),
            LockEvent::NotAcquired { .. } => self.tracker().ended(false),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Follows one acquire whose commands are sent at these times, in milliseconds, and take 1 ms.
    fn wake(notified: Option<u64>, sent: &[u64]) -> Wake {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut tracker = WakeTracker::default();
        let mut notified = notified;
        for &sent in sent {
            if let Some(notified) = notified.take_if(|notified| *notified <= sent + 1) {
                tracker.notified(at(notified));
            }
            tracker.commanded(at(sent), at(sent + 1));
        }
        tracker.ended(true);
        assert_eq!(tracker.counts.commands, sent.len() as u64);
        tracker.wake
    }

    #[test]
    fn first_acquire_and_that_after_the_subscription_do_not_wait() {
        assert_eq!(wake(None, &[0]), Wake::AtOnce);
        assert_eq!(wake(None, &[0, 5]), Wake::AtOnce);
    }

    #[test]
    fn acquire_after_a_notification_is_no_poll() {
        assert_eq!(wake(Some(40), &[0, 5, 40]), Wake::Notification);
        assert_eq!(wake(Some(700), &[0, 700]), Wake::Notification);
    }

    #[test]
    fn acquire_without_a_notification_is_a_poll() {
        assert_eq!(wake(None, &[0, 5, 10]), Wake::Poll);
        assert_eq!(wake(None, &[0, 700]), Wake::Poll);
    }

    #[test]
    fn notification_during_a_command_is_the_reason_for_the_next() {
        assert_eq!(wake(Some(41), &[0, 5, 40]), Wake::Poll);
        assert_eq!(wake(Some(41), &[0, 5, 40, 42]), Wake::Notification);
    }

    #[test]
    fn counts_survive_printing() {
        let counts = WakeCounts {
            at_once: 1,
            notification: 2,
            poll: 3,
            commands: 9,
        };
        let text = counts.to_string();
        assert_eq!(WakeCounts::parse(&mut text.split(' ')), Some(counts));
        assert_eq!(WakeCounts::parse(&mut "1 2 3".split(' ')), None);
    }

    #[test]
    fn polls_are_a_fault() {
        let counts = |notification, poll| WakeCounts {
            notification,
            poll,
            ..WakeCounts::default()
        };
        assert_eq!(counts(0, 0).fault(), None);
        assert_eq!(counts(98, 2).fault(), None);
        assert!(counts(97, 3).fault().is_some());
    }
}
