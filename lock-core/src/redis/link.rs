//! Whether a connection works: one answer for commands, pool, health and telemetry.
//!
//! | State | Event | Next |
//! |---|---|---|
//! | up | a command got no reply in its time | silent since it was sent, or since the last reply to another one |
//! | silent | a reply, to whatever command | up |
//! | silent | a command got no reply, and the silence has lasted for half of the patience | ended |
//! | up, silent | the socket failed, or a reply shows that the server can't be used | ended |
//! | any | another server is the primary | retired: replies that arrive now don't count |
//! | ended, retired | anything else | the same; the first error stays |
//!
//! Counting timeouts would prove nothing, because a command with little time left also times out on a good connection.
//! Nor does a long wait: while the server works through a queue, a new connection would only send the waiting commands
//! once more, which prolongs the overload that delays them. Waiting for the socket to fail isn't enough either: a
//! network that drops packets never reports a dead connection.
//!
//! The state is one atomic number, because each reply looks at it. Whoever ends the link first reports the end. The
//! driver ends it as soon as the socket does, so no caller has to lose a command to notice.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::RedisError;

use super::errors::{io_error, not_the_primary, timed_out};
use super::node::Node;
use super::report::{ConnectionReport, kind_of_this_thread};
use crate::error::LockError;
use crate::sync::Mutex;
use crate::telemetry::Reporter;
use lock_protocol::clock::{Clock, Moment};

/// Less is the moment since which the server is silent, in nanoseconds.
const ENDED: u64 = u64::MAX - 1;
const RETIRED: u64 = u64::MAX;
const UP: u64 = 0;

/// The state of one connection.
pub(super) struct Link {
    state: AtomicU64,
    /// When the server last replied while more commands were waiting, in nanoseconds. Without others, the next command is
    /// sent after the reply anyway.
    heard: AtomicU64,
    story: Mutex<Story>,
    /// The server has executed a command.
    has_answered: AtomicBool,
    /// The time after which a command without a reply shows that the connection is broken.
    patience: Duration,
    pub(super) node: Arc<Node>,
    pub(super) report: ConnectionReport,
}

/// What was reported of a connection, or will be.
#[derive(Default)]
struct Story {
    /// Its begin was reported.
    is_announced: bool,
    has_ended: bool,
    /// Why it ended; `None` if this side closed it.
    error: Option<LockError>,
}

impl Link {
    pub(super) fn new(node: Arc<Node>, report: ConnectionReport, patience: Duration) -> Self {
        Self {
            state: AtomicU64::new(UP),
            heard: AtomicU64::new(0),
            story: Mutex::default(),
            has_answered: AtomicBool::new(false),
            patience,
            node,
            report,
        }
    }

    /// The link of a connection that no telemetry learns of.
    pub(super) fn unreported(
        node: Arc<Node>,
        reporter: &Arc<Reporter>,
        patience: Duration,
    ) -> Self {
        let report = ConnectionReport {
            reporter: Arc::clone(reporter),
            server: Arc::clone(&node.server),
            kind: kind_of_this_thread(),
        };
        Self::new(node, report, patience)
    }

    /// Returns whether new commands may be sent.
    pub(super) fn is_open(&self) -> bool {
        self.state.load(Ordering::Acquire) < ENDED
    }

    /// Returns whether the server has executed a command over this connection.
    pub(super) fn has_answered(&self) -> bool {
        self.has_answered.load(Ordering::Relaxed)
    }

    /// Returns the error that ended the connection.
    pub(super) fn error(&self) -> Option<LockError> {
        self.story.lock().error.clone()
    }

    /// Reports the begin of the connection, and its end if that came before.
    pub(super) fn announce(&self, is_reconnect: bool) {
        self.report.connected(is_reconnect);
        let error = {
            let mut story = self.story.lock();
            story.is_announced = true;
            story.error.clone()
        };
        if let Some(error) = error {
            self.report.disconnected(Some(&error));
        }
    }

    pub(super) fn unreachable_text(&self) -> String {
        format!("cannot reach the lock server at {}", self.node.text())
    }

    /// Records a reply, or returns an error if the link was retired before the reply arrived. `is_executed` tells whether
    /// the server executed the command.
    pub(super) fn replied(&self, is_executed: impl FnOnce() -> bool) -> Result<(), LockError> {
        if self.state.load(Ordering::Acquire) == RETIRED {
            return Err(self.error_of_retired());
        }
        if !self.has_answered() && is_executed() {
            self.has_answered.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Records that the server has replied to a command, even if its caller has stopped waiting. `others_wait` tells
    /// whether commands without a reply are left.
    pub(super) fn heard(&self, others_wait: bool) {
        if others_wait {
            let now = Clock::System.now().as_nanos();
            self.heard.store(now, Ordering::Release);
        }
        let known = self.state.load(Ordering::Acquire);
        if known != UP && known < ENDED {
            self.change_from(known, UP);
        }
    }

    fn error_of_retired(&self) -> LockError {
        self.error()
            .unwrap_or_else(|| timed_out(&self.unreachable_text()))
    }

    /// Records a command without a reply that was sent `limit` ago. Returns its error, and whether the link ended.
    pub(super) fn stays_silent(&self, limit: Duration) -> (LockError, bool) {
        let error = timed_out(&self.unreachable_text());
        let now = Clock::System.now();
        let sent = now.minus(limit).as_nanos();
        let heard = self.heard.load(Ordering::Acquire);
        let known = self.state.load(Ordering::Acquire);
        let earliest = if known == UP { sent } else { known.min(sent) };
        let since = earliest.max(heard).max(UP + 1);
        // A concurrent call that meets the same state records the same silence.
        if known < ENDED {
            self.change_from(known, since);
        }
        let ends = now.since(Moment::from_nanos(since)) >= self.patience / 2;
        if ends {
            self.ended(&error);
        }
        (error, ends)
    }

    /// Ends the link, because a reply shows that the server can't be used, or because none comes.
    pub(super) fn ended(&self, error: &LockError) {
        self.node.connection_broke(error);
        self.ends(ENDED, Some(error));
    }

    /// Ends the link, because the socket did. Returns the error for callers.
    pub(super) fn failed(&self, error: &io::Error) -> LockError {
        let error = RedisError::from(io::Error::new(error.kind(), error.to_string()));
        let error = io_error(self.unreachable_text(), &error);
        self.ended(&error);
        match self.state.load(Ordering::Acquire) {
            RETIRED => self.error_of_retired(),
            _ => error,
        }
    }

    /// Ends the link without a report: this side closed the connection, or the runtime of its driver has ended.
    pub(super) fn closed(&self) {
        self.ends(ENDED, None);
    }

    /// Ends the link, because another server is now the primary. Callers get an error instead of later replies.
    pub(super) fn retired(&self) {
        let error = not_the_primary(&self.node.text());
        self.node.connection_broke(&error);
        self.ends(RETIRED, Some(&error));
    }

    /// Sets the state, and reports the end if it is one. The first error counts, or that of a retired link: its callers
    /// have to know that another server is the primary.
    fn ends(&self, state: u64, error: Option<&LockError>) {
        let mut kept = error.cloned();
        let (is_first, is_announced) = {
            let mut story = self.story.lock();
            let is_first = !std::mem::replace(&mut story.has_ended, true);
            if is_first || state == RETIRED {
                std::mem::swap(&mut story.error, &mut kept);
            }
            (is_first, story.is_announced)
        };
        // What is left is dropped outside of the mutex: an error may have a foreign cause.
        drop(kept);
        self.state.fetch_max(state, Ordering::AcqRel);
        if is_first {
            self.node.link_ended(Clock::System.now());
            if let (true, Some(error)) = (is_announced, error) {
                self.report.disconnected(Some(error));
            }
        }
    }

    /// Changes the state of an open link, unless another thread did.
    fn change_from(&self, known: u64, to: u64) {
        let _newer = self
            .state
            .compare_exchange(known, to, Ordering::AcqRel, Ordering::Acquire);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::deployment::NodeAddress;
    use crate::telemetry::ConnectionKind;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn link() -> Link {
        let node = Arc::new(Node::new(NodeAddress::Unix("/socket".into())));
        let report = ConnectionReport {
            reporter: Arc::default(),
            server: Arc::clone(&node.server),
            kind: ConnectionKind::Command,
        };
        Link::new(node, report, PATIENCE)
    }

    #[test]
    fn long_wait_without_any_reply_ends_the_link() {
        let link = link();
        assert!(link.stays_silent(PATIENCE).1);
        assert!(!link.is_open());
    }

    #[test]
    fn short_waits_end_the_link_once_the_silence_is_long() {
        let link = link();
        assert!(!link.stays_silent(PATIENCE / 4).1);
        // The second one was sent before the first one.
        assert!(link.stays_silent(PATIENCE / 2).1);
    }

    #[test]
    fn server_that_replies_to_others_is_slow_and_not_silent() {
        let link = link();
        link.heard(true);
        assert!(!link.stays_silent(PATIENCE).1);
        assert!(link.is_open());
    }

    #[test]
    fn reply_ends_the_silence_even_if_its_caller_has_stopped_waiting() {
        let link = link();
        assert!(!link.stays_silent(PATIENCE / 4).1);
        link.heard(false);
        assert_eq!(link.state.load(Ordering::Relaxed), UP);
    }

    #[test]
    fn reply_does_not_open_a_link_that_has_ended() {
        for end in [Link::closed, Link::retired] {
            let link = link();
            end(&link);
            link.heard(true);
            assert!(!link.is_open());
        }
    }
}
