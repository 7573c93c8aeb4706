//! One connection to one server process.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::RedisConnectionInfo;
use tokio::time::error::Elapsed;

use super::credentials::{Issued, RenewLogin};
use super::dial::Stream;
use super::errors::timed_out;
use super::handshake::Greeting;
use super::link::Link;
use super::node::{Node, Witness};
use super::transport::{Expected, Receiver, Subscribed, Transport};
use crate::error::LockError;
use crate::store::Boxed;
use lock_protocol::acquisition::Origin;
use lock_protocol::clock::{Clock, Deadline, Moment};
use lock_protocol::clock_sync::{ClockSync, UNKNOWN_RUN_ID};
use lock_protocol::codec::abilities::Abilities;
use lock_protocol::codec::accepted;
use lock_protocol::identity::{Info, Role};
use lock_protocol::resp::{CommandBuf, OPERATOR_REPLY, Replies, Reply};
use lock_protocol::unconfirmed::ANY_PROCESS;

use crate::sync::Mutex;

/// A connection to a primary, with the scripts loaded.
pub(super) struct Connection {
    transport: Transport,
    pub(super) link: Arc<Link>,
    /// The user that has logged in; `None` for the default user.
    pub(super) user: Option<Arc<str>>,
    pub(super) origin: Origin,
    /// The address to which it leads; `None` for a Unix socket.
    pub(super) peer: Option<IpAddr>,
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
    is_asking: bool,
    /// How often it was used for locks or waiters.
    uses: AtomicU64,
    /// It speaks RESP3, in which a server can send messages.
    pub(super) has_pushes: bool,
    /// When to log in with new credentials.
    renew_login_at: Mutex<Option<Moment>>,
}

/// Returns a number for a connection, never used twice in this process.
fn next_origin() -> Origin {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Connection {
    /// Starts the driver of the connection on the current runtime.
    pub(super) fn start(
        stream: Stream,
        link: Link,
        login: &RedisConnectionInfo,
        greeting: Greeting,
        is_asking: bool,
        has_pushes: bool,
        renew_login_at: Option<Moment>,
    ) -> Self {
        let link = Arc::new(link);
        Self {
            peer: stream.peer(),
            transport: Transport::start(stream, Arc::clone(&link)),
            link,
            user: login_user(login),
            origin: next_origin(),
            first: greeting.first,
            clock_difference: greeting.clock_difference,
            uptime: greeting.uptime,
            abilities: greeting.abilities,
            turn: tokio::sync::Mutex::default(),
            is_asking,
            uses: AtomicU64::new(0),
            has_pushes,
            renew_login_at: Mutex::new(renew_login_at),
        }
    }

    pub(super) fn node(&self) -> &Node {
        &self.link.node
    }

    /// Stops sending commands, because the server can't be used. Callers still get the replies they wait for.
    pub(super) fn give_up(&self, error: &LockError) {
        self.link.ended(error);
        self.transport.give_up();
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
        floor_us.max(self.node().floor_us())
    }

    /// Returns how far the seed of a counter lies ahead of the server's time.
    pub(super) fn lead_us(&self) -> u64 {
        self.node().lead_us()
    }

    /// Stops using the connection, because another server is the primary now. Callers that wait for a
    /// reply get an error.
    pub(super) fn retire(&self) {
        self.link.retired();
        self.transport.abort();
    }

    /// Records that a lock or a waiter needs the connection. Questions about the cluster don't count.
    pub(super) fn uses(&self) {
        self.uses.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how often the connection was used.
    #[cfg(feature = "cluster")]
    pub(super) fn times_used(&self) -> u64 {
        self.uses.load(Ordering::Relaxed)
    }

    /// Gives all messages of the server to this receiver.
    pub(super) fn receive_with(&self, receiver: Arc<dyn Receiver>) {
        self.transport.receive_with(receiver);
    }

    /// Ends and begins subscriptions. The receiver learns what becomes of those that begin.
    pub(super) fn subscribe(&self, ending: Vec<Subscribed>, beginning: Vec<Subscribed>) {
        self.transport.subscribe(ending, beginning);
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
        self.exchange_unused(write, expected, limit).await
    }

    /// Returns whether `ASKING` stands in front of each command.
    pub(super) fn is_asking(&self) -> bool {
        self.is_asking
    }

    /// As [`exchange_unused`](Self::exchange_unused), for the commands of locks: it records the use.
    pub(super) fn exchange(
        &self,
        write: impl FnMut(&mut Vec<u8>) + Unpin,
        expected: Expected,
        limit: Duration,
    ) -> impl Future<Output = Result<Vec<u8>, LockError>> {
        self.uses();
        self.exchange_unused(write, expected, limit)
    }

    /// Sends the commands that `write` encodes, with `ASKING` in front of each if
    /// [`is_asking`](Self::is_asking). Returns the replies to the commands.
    async fn exchange_unused(
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
        Ok(replies)
    }

    /// Records what replies, or a missing reply, say about the connection.
    fn classify(
        &self,
        replies: Result<io::Result<Vec<u8>>, Elapsed>,
        limit: Duration,
    ) -> Result<Vec<u8>, LockError> {
        match replies {
            Ok(Ok(replies)) => {
                // The replies to `ASKING` say nothing about the commands.
                let of_others = usize::from(self.is_asking);
                let own = || {
                    Replies::new(&replies)
                        .skip(of_others)
                        .step_by(1 + of_others)
                };
                self.link
                    .replied(|| own().any(|reply| reply.error().is_none()))?;
                Ok(replies)
            }
            Ok(Err(error)) => Err(self.link.failed(&error)),
            Err(_elapsed) => {
                let (error, has_ended) = self.link.stays_silent(limit);
                if has_ended {
                    self.transport.give_up();
                }
                Err(error)
            }
        }
    }
}

impl RenewLogin for Connection {
    fn is_open(&self) -> bool {
        self.link.is_open()
    }

    fn renew_login_at(&self) -> Option<Moment> {
        *self.renew_login_at.lock()
    }

    fn log_in<'a>(
        &'a self,
        issued: &'a Issued,
        limit: Duration,
    ) -> Boxed<'a, Result<(), LockError>> {
        Box::pin(async move {
            let deadline = Deadline::after(Clock::System, limit);
            // Not inside a transaction.
            let _turn = tokio::time::timeout(deadline.left(), self.turn.lock())
                .await
                .map_err(|_elapsed| timed_out(&self.link.unreachable_text()))?;
            let replies = self.ask(|out| issued.write_auth(out), 1, deadline.left());
            match accepted(Replies::new(&replies.await?).next()) {
                Ok(_) => {
                    *self.renew_login_at.lock() = issued.renew_at;
                    Ok(())
                }
                Err(refusal) => {
                    let error = issued.refused(refusal);
                    self.give_up(&error);
                    Err(error)
                }
            }
        })
    }
}

impl Witness for Connection {
    fn is_open(&self) -> bool {
        self.link.is_open()
    }

    fn run_id(&self) -> u64 {
        self.first.run_id
    }

    fn peer(&self) -> Option<IpAddr> {
        self.peer
    }

    fn is_replica(&self, limit: Duration) -> Boxed<'_, Option<bool>> {
        Box::pin(async move {
            let write = |out: &mut CommandBuf<'_>| {
                out.command("ROLE");
                out.command("INFO").arg("replication");
            };
            let replies = self.ask(write, 2, limit).await.ok()?;
            let mut replies = Replies::new(&replies);
            let roles = [
                replies.next().and_then(Role::of_reply),
                replies.next().and_then(Info::read).and_then(Info::role),
            ];
            Some(roles.contains(&Some(Role::Replica)))
        })
    }
}

/// Returns the user that logs in. Without a password there is no login, and the text in the place of the
/// user may be a password.
fn login_user(login: &RedisConnectionInfo) -> Option<Arc<str>> {
    login.password()?;
    login.username().map(Into::into)
}
