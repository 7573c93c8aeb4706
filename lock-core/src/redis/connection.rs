//! One connection to one server process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::{RedisConnectionInfo, RedisError};
use tokio::time::error::Elapsed;

use super::credentials::{self, Issued};
use super::errors::{io_error, timed_out};
use super::handshake::Greeting;
use super::node::Node;
use super::report::ConnectionReport;
use super::transport::{Expected, Transport};
use crate::error::{BackendErrorKind, LockError};
use lock_protocol::acquisition::Origin;
use lock_protocol::clock::{Clock, Deadline, Moment};
use lock_protocol::clock_sync::{ClockSync, UNKNOWN_RUN_ID};
use lock_protocol::codec::abilities::Abilities;
use lock_protocol::codec::accepted;
use lock_protocol::resp::{CommandBuf, OPERATOR_REPLY, Replies, Reply};
use lock_protocol::unconfirmed::ANY_PROCESS;

use crate::sync::Mutex;

/// A connection to a primary, with the scripts loaded.
pub(super) struct Connection {
    transport: Transport,
    pub(super) node: Arc<Node>,
    /// The user that has logged in; `None` for the default user.
    pub(super) user: Option<Arc<str>>,
    pub(super) report: ConnectionReport,
    pub(super) origin: Origin,
    /// The server's time and run id when the connection began. The time is also the lowest
    /// fencing token that a grant over this connection may have.
    pub(super) first: ClockSync,
    /// The least difference between this machine's clock and the server's when the connection
    /// began.
    pub(super) clock_difference: Duration,
    /// How long the server ran when the connection began, in whole seconds. Known in a quorum only.
    pub(super) uptime: Option<Duration>,
    /// What the server is known to support.
    pub(super) abilities: Abilities,
    /// Serializes commands that belong together, such as a transaction.
    pub(super) turn: tokio::sync::Mutex<()>,
    broken: AtomicBool,
    /// Another server is the primary now: replies that arrive here do not count.
    retired: AtomicBool,
    is_asking: bool,
    broken_by: Mutex<Option<LockError>>,
    /// The server has executed a command.
    has_answered: AtomicBool,
    /// The time after which a command without a reply shows that the connection is broken.
    patience: Duration,
    /// When the oldest command without a reply since the last reply was sent, in nanoseconds; zero
    /// when there is none. A count of timeouts would prove nothing: a command with little time left
    /// also times out on a good connection.
    silent_since: AtomicU64,
    /// When to log in with new credentials.
    renew_login_at: Mutex<Option<Moment>>,
}

/// Returns a number for a connection, never used twice in this process.
fn next_origin() -> Origin {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Returns the time that this machine's clock shows.
pub(super) fn since_epoch() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// What a connection takes from its connector.
pub(super) struct ConnectionSettings {
    pub(super) is_asking: bool,
    /// The time after which a command without a reply shows that the connection is broken.
    pub(super) patience: Duration,
    pub(super) renew_login_at: Option<Moment>,
}

impl Connection {
    pub(super) fn new(
        transport: Transport,
        report: ConnectionReport,
        node: Arc<Node>,
        login: &RedisConnectionInfo,
        greeting: Greeting,
        settings: &ConnectionSettings,
    ) -> Self {
        Self {
            transport,
            user: login_user(login),
            report,
            node,
            origin: next_origin(),
            first: greeting.first,
            clock_difference: greeting.clock_difference,
            uptime: greeting.uptime,
            abilities: greeting.abilities,
            turn: tokio::sync::Mutex::default(),
            broken: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            is_asking: settings.is_asking,
            broken_by: Mutex::default(),
            has_answered: AtomicBool::new(false),
            patience: settings.patience,
            silent_since: AtomicU64::new(0),
            renew_login_at: Mutex::new(settings.renew_login_at),
        }
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// Marks the connection broken, so that it is not used any more.
    pub(super) fn mark_broken(&self, error: &LockError) {
        self.node.connection_broke(error);
        let broken_by = error.clone();
        let replaced = self.broken_by.lock().replace(broken_by);
        drop(replaced);
        if !self.broken.swap(true, Ordering::AcqRel) {
            self.report.disconnected(Some(error));
        }
        self.transport.give_up();
    }

    /// Returns whether the server has executed a command over this connection.
    pub(super) fn has_answered(&self) -> bool {
        self.has_answered.load(Ordering::Relaxed)
    }

    /// Returns the error that broke the connection.
    pub(super) fn broken_by(&self) -> Option<LockError> {
        self.broken_by.lock().clone()
    }

    /// Returns when to log in with new credentials.
    pub(super) fn renew_login_at(&self) -> Option<Moment> {
        *self.renew_login_at.lock()
    }

    /// Logs in with new credentials. A connection that the server refuses is not used any more: it has
    /// the rights of credentials that expire.
    pub(super) async fn log_in(&self, issued: &Issued, limit: Duration) -> Result<(), LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        // Not inside a transaction.
        let _turn = tokio::time::timeout(deadline.left(), self.turn.lock())
            .await
            .map_err(|_elapsed| timed_out(&self.unreachable_text()))?;
        let replies = self.ask(|out| issued.write_auth(out), 1, deadline.left());
        match accepted(Replies::new(&replies.await?).next()) {
            Ok(_) => {
                *self.renew_login_at.lock() = issued.renew_at;
                Ok(())
            }
            Err(refusal) => {
                let error = credentials::refused(&refusal);
                self.mark_broken(&error);
                Err(error)
            }
        }
    }

    /// Returns the run id of the server process, or that of any process if the server does not show its own.
    pub(super) fn process(&self) -> u64 {
        match self.first.run_id {
            UNKNOWN_RUN_ID => ANY_PROCESS,
            run_id => run_id,
        }
    }

    /// Returns the lowest fencing token that a grant may have.
    pub(super) fn floor_us(&self) -> u64 {
        let floor_us = self.first.server_us.saturating_add(self.lead_us());
        floor_us.max(self.node.floor_us())
    }

    /// Returns how far the seed of a counter lies ahead of the server's time.
    pub(super) fn lead_us(&self) -> u64 {
        self.node.lead_us()
    }

    /// Stops using the connection, because another server is the primary now. Callers that wait for a
    /// reply get an error.
    pub(super) fn retire(&self) {
        let error = LockError::advised(
            BackendErrorKind::NotPrimary,
            format!(
                "the lock server at {} is not used as the primary any more",
                self.node.text
            ),
            "try again: the next call goes to the primary that the Sentinels name",
        );
        self.retired.store(true, Ordering::Release);
        self.mark_broken(&error);
        self.transport.abort();
    }

    /// Sends questions at once, and waits at most `limit` for the replies to them: one for each.
    pub(super) async fn ask(
        &self,
        write: impl Fn(&mut CommandBuf<'_>) + Unpin,
        replies: usize,
        limit: Duration,
    ) -> Result<Vec<u8>, LockError> {
        let expected = Expected {
            replies,
            largest: OPERATOR_REPLY,
        };
        let write = |out: &mut Vec<u8>| write(&mut CommandBuf::new(out).asking(self.is_asking));
        self.exchange(write, expected, limit).await
    }

    /// Returns whether `ASKING` stands in front of each command.
    pub(super) fn is_asking(&self) -> bool {
        self.is_asking
    }

    /// Sends the commands that `write` encodes, with `ASKING` in front of each if
    /// [`is_asking`](Self::is_asking). Returns the replies to the commands.
    pub(super) async fn exchange(
        &self,
        write: impl FnMut(&mut Vec<u8>) + Unpin,
        expected: Expected,
        limit: Duration,
    ) -> Result<Vec<u8>, LockError> {
        if self.is_asking {
            let expected = Expected {
                replies: 2 * expected.replies,
                ..expected
            };
            let replies = tokio::time::timeout(limit, self.transport.call(write, expected)).await;
            let replies = self.classify(replies, limit)?;
            let of_commands = Replies::new(&replies).skip(1).step_by(2);
            return Ok(of_commands.flat_map(Reply::bytes).copied().collect());
        }
        let replies = tokio::time::timeout(limit, self.transport.call(write, expected)).await;
        let replies = self.classify(replies, limit)?;
        if !self.has_answered() && Replies::new(&replies).any(|reply| reply.error().is_none()) {
            self.has_answered.store(true, Ordering::Relaxed);
        }
        Ok(replies)
    }

    /// Records a command that was sent `limit` ago and got no reply. Returns whether the server has
    /// been silent for at least `span`.
    fn is_silent_for(&self, span: Duration, limit: Duration) -> bool {
        let now = Clock::System.now();
        let sent = now.minus(limit).as_nanos().max(1);
        let known = self.silent_since.load(Ordering::Relaxed);
        if known == 0 {
            // A concurrent call that also sees zero records the same silence.
            self.silent_since.store(sent, Ordering::Relaxed);
        }
        let since = if known == 0 { sent } else { known.min(sent) };
        now.since(Moment::from_nanos(since)) >= span
    }

    fn unusable(&self, error: &RedisError) -> LockError {
        io_error(self.unreachable_text(), error)
    }

    fn unreachable_text(&self) -> String {
        format!("cannot reach the lock server at {}", self.node.text)
    }

    /// Records what a missing reply says about the connection.
    fn classify(
        &self,
        replies: Result<std::io::Result<Vec<u8>>, Elapsed>,
        limit: Duration,
    ) -> Result<Vec<u8>, LockError> {
        match replies {
            Ok(_) if self.retired.load(Ordering::Acquire) => Err(self
                .broken_by()
                .unwrap_or_else(|| timed_out(&self.unreachable_text()))),
            Ok(Ok(replies)) => {
                self.silent_since.store(0, Ordering::Relaxed);
                Ok(replies)
            }
            Ok(Err(error)) => {
                let error = self.unusable(&error.into());
                self.mark_broken(&error);
                Err(error)
            }
            Err(_elapsed) => {
                let error = timed_out(&self.unreachable_text());
                // A network that drops packets never reports that the connection is dead.
                if limit >= self.patience || self.is_silent_for(self.patience / 2, limit) {
                    self.mark_broken(&error);
                }
                Err(error)
            }
        }
    }
}

/// Returns the user that logs in. Without a password there is no login, and the text in the place of the
/// user may be a password.
fn login_user(login: &RedisConnectionInfo) -> Option<Arc<str>> {
    login.password()?;
    login.username().map(Into::into)
}
