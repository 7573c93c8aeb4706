//! One connection to one Sentinel.
//!
//! Questions and announcements share it. A question has a time limit, which also shows that the connection still works.
//! After a failure the link connects again at the next question.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::RedisError;
use tokio::sync::Notify;

use super::super::deployment::NodeAddress;
use super::super::dial::{Stream, dial, resolve};
use super::super::errors::{io_error, timed_out};
use super::super::link::Link;
use super::super::login::{Fallback, dial_and_log_in};
use super::super::node::Node;
use super::super::node_config::connection_info;
use super::super::transport::{Expected, Push, Receiver, Subscribing, Transport};
use super::{PrimaryReply, SentinelAccess};
use crate::error::{BackendErrorKind, LockError};
use lock_protocol::clock::Clock;
use lock_protocol::op::Refusal;
use lock_protocol::primary::{Announcement, ListedSentinel};
use lock_protocol::resp::{CommandBuf, LOCK_REPLY, Replies, Reply};

/// The channel on which Sentinels announce a new primary.
const SWITCHES: &str = "+switch-master";

/// The question for the address of the primary.
const ADDRESS: &str = "GET-MASTER-ADDR-BY-NAME";

/// How long a Sentinel may take to reply over an open connection.
pub(super) const REPLY: Duration = Duration::from_millis(300);

/// How often a Sentinel may change its mind while it is asked.
const TRIES: usize = 3;

/// The most bytes of a list of Sentinels. Each of them has some 700.
const LIST: usize = 1024 * 1024;

/// Asks one Sentinel, and receives its announcements. Connects again after a failure.
pub(super) struct SentinelLink {
    address: NodeAddress,
    access: SentinelAccess,
    service: String,
    connection: Option<SentinelConnection>,
}

struct SentinelConnection {
    transport: Transport,
    has_asked_run_id: bool,
    heard: Arc<Heard>,
}

/// What a Sentinel has said without being asked.
#[derive(Default)]
struct Heard {
    /// It has announced a new primary since `announced` returned, or the connection has ended.
    changed: Notify,
    has_ended: AtomicBool,
}

impl Receiver for Heard {
    fn receive(&self, push: Push<'_>) {
        if let Push::Message { .. } = push {
            self.changed.notify_one();
        }
    }

    fn caught_up(&self) {}

    fn ended(&self, _is_flooded: bool) {
        self.has_ended.store(true, Ordering::Release);
        self.changed.notify_one();
    }
}

/// What a Sentinel tells of itself and of the others.
#[derive(Default)]
pub(super) struct KnownHere {
    pub(super) run_id: Option<String>,
    pub(super) others: Vec<ListedSentinel<NodeAddress>>,
}

impl SentinelLink {
    pub(super) fn new(address: NodeAddress, access: SentinelAccess, service: String) -> Self {
        Self {
            address,
            access,
            service,
            connection: None,
        }
    }

    /// Waits until the Sentinel announces a new primary of any service.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(super) async fn announced(&mut self) {
        if let Some(connection) = &self.connection
            && connection.announced().await.is_ok()
        {
            return;
        }
        self.connection = None;
        // The next question connects again.
        std::future::pending::<()>().await;
    }

    /// Asks for the primary of the service. Connects first if there is no connection, within this limit.
    pub(super) async fn ask(&mut self, connecting: Duration) -> Result<PrimaryReply, LockError> {
        let asked = self.primary(connecting).await;
        if asked.is_err() {
            self.connection = None;
        }
        asked
    }

    /// Asks for the run id of the Sentinel, and for the other Sentinels of the service. Without a reply there are
    /// none.
    pub(super) async fn others(&mut self) -> KnownHere {
        let mut known = KnownHere::default();
        let Some(connection) = &mut self.connection else {
            return known;
        };
        let sentinels = ["SENTINELS", &*self.service];
        let mut questions: Vec<&[&str]> = vec![&sentinels];
        // Once for each connection: the Sentinel keeps it, and logs each question of a user without the right.
        if !std::mem::replace(&mut connection.has_asked_run_id, true) {
            questions.push(&["MYID"]);
        }
        let replies = tokio::time::timeout(REPLY, connection.ask(&questions, LIST));
        // A user may lack the rights.
        match replies.await {
            Ok(Ok(replies)) => {
                let mut replies = Replies::new(&replies);
                let others = replies.next().and_then(Reply::items);
                known.others = others.into_iter().flatten().filter_map(listed).collect();
                known.run_id = replies.next().and_then(Reply::word).map(str::to_owned);
            }
            Ok(Err(_broken)) => self.connection = None,
            Err(_elapsed) => {}
        }
        known
    }

    /// Asks for the address before and after the epoch. In the middle of a failover, `SENTINEL MASTER` names the
    /// old address with the new epoch; the other command names the address that belongs to the epoch.
    async fn primary(&mut self, connecting: Duration) -> Result<PrimaryReply, LockError> {
        let connection = if let Some(connection) = self.connection.take() {
            connection
        } else {
            let connected = tokio::time::timeout(connecting, self.connect()).await;
            connected.unwrap_or_else(|_elapsed| Err(self.timed_out()))?
        };
        let reply = self.primary_over(&connection).await;
        self.connection = Some(connection);
        reply
    }

    async fn primary_over(
        &self,
        connection: &SentinelConnection,
    ) -> Result<PrimaryReply, LockError> {
        let address = [ADDRESS, &*self.service];
        let primary = ["MASTER", &*self.service];
        let questions: [&[&str]; 3] = [&address, &primary, &address];
        for _ in 0..TRIES {
            let asked = Clock::System.now();
            let asking = connection.ask(&questions, LOCK_REPLY);
            let replies = tokio::time::timeout(REPLY, asking).await;
            let replies = replies.map_err(|_elapsed| self.timed_out())?;
            let replies = replies.map_err(|error| self.broke(&error.into()))?;
            let mut replies = Replies::new(&replies);
            let mut next = || {
                let reply = replies.next().ok_or_else(|| self.no_sentinel())?;
                match reply.error() {
                    Some(error) => Err(self.refused(&Refusal::of(error))),
                    None => Ok(reply),
                }
            };
            let (before, reply, after) = (next()?, next()?, next()?);
            if before.bytes() != after.bytes() {
                continue;
            }
            let epoch = field(reply, "config-epoch").and_then(|epoch| epoch.parse().ok());
            let (Some(epoch), Some(address)) = (epoch, address_of_pair(before)) else {
                return Err(self.no_sentinel());
            };
            let announcement = Announcement { epoch, address };
            return Ok(PrimaryReply {
                announcement,
                asked,
            });
        }
        Err(LockError::backend(
            BackendErrorKind::NoPrimary,
            format!("{} names one primary after the other", self.text()),
        ))
    }

    fn no_sentinel(&self) -> LockError {
        LockError::backend(
            BackendErrorKind::Unsupported,
            format!("{} did not reply as a Sentinel does", self.text()),
        )
    }

    fn refused(&self, refusal: &Refusal) -> LockError {
        if refusal.text.contains("No such master") {
            return LockError::advised(
                BackendErrorKind::NoPrimary,
                format!("{} knows no service `{}`", self.text(), self.service),
                "check the name of the service in the URL: `sentinel masters` shows all",
            );
        }
        if refusal.is_unknown_command() {
            return LockError::advised(
                BackendErrorKind::Unsupported,
                format!("{} is no Sentinel", self.text()),
                "name the Sentinels in the URL and their port, which is 26379 as a rule",
            );
        }
        LockError::refused_as(format!("{} refused", self.text()), refusal)
    }

    fn text(&self) -> String {
        format!("the Sentinel at {}", self.address)
    }

    pub(super) fn timed_out(&self) -> LockError {
        timed_out(&self.text())
    }

    fn broke(&self, error: &RedisError) -> LockError {
        io_error(format!("cannot reach {}", self.text()), error)
    }

    fn failed(&self, error: &RedisError) -> LockError {
        io_error(format!("cannot connect to {}", self.text()), error)
    }

    async fn connect(&self) -> Result<SentinelConnection, LockError> {
        let login = connection_info(&self.access.login);
        let begun = dial_and_log_in(|| self.dial(), &login, Fallback::AfterRefusal).await?;
        let begun = begun.map_err(|failed| {
            failed.to_lock_error(&format!("cannot connect to {}", self.text()))
        })?;
        let node = Arc::new(Node::new(self.address.clone()));
        let link = Link::unreported(node, &self.access.config.reporter, REPLY);
        let transport = Transport::start(begun.stream, Arc::new(link));
        let heard = Arc::<Heard>::default();
        transport.receive_with(Arc::clone(&heard) as Arc<dyn Receiver>);
        // An old Sentinel is asked each second, and announces nothing.
        if begun.protocol.supports_resp3() {
            // A user may lack the right. Then the Sentinel is only asked.
            let switches = (Subscribing::Classic, SWITCHES.into());
            transport.subscribe(Vec::new(), vec![switches]);
        }
        Ok(SentinelConnection {
            transport,
            has_asked_run_id: false,
            heard,
        })
    }

    async fn dial(&self) -> Result<Stream, LockError> {
        let (tls, is_securing) = (self.access.tls.as_ref(), AtomicBool::new(false));
        let address = self.access.reach(&self.address)?;
        let resolved = resolve(&address).await;
        let resolved = resolved.map_err(|error| self.failed(&error.into()))?;
        let stream = dial(&address, &resolved, tls, &is_securing).await?;
        stream.map_err(|error| self.failed(&error))
    }
}

impl SentinelConnection {
    /// Sends questions at once, and returns the replies, each of which has at most `largest` bytes.
    async fn ask(&self, questions: &[&[&str]], largest: usize) -> io::Result<Vec<u8>> {
        let write = |out: &mut Vec<u8>| {
            let mut out = CommandBuf::new(out);
            for question in questions {
                let mut command = out.command("SENTINEL");
                for word in *question {
                    command.arg(*word);
                }
            }
        };
        let expected = Expected {
            replies: questions.len(),
            largest,
        };
        self.transport.call(write, expected).await
    }

    async fn announced(&self) -> io::Result<()> {
        self.heard.changed.notified().await;
        if self.heard.has_ended.load(Ordering::Acquire) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        Ok(())
    }
}

/// Returns a field of a reply that has names and values.
fn field<'a>(reply: Reply<'a>, name: &str) -> Option<&'a str> {
    let mut items = reply.items()?;
    loop {
        let (known, value) = (items.next()?, items.next()?);
        if known.word() == Some(name) {
            return value.word();
        }
    }
}

/// Reads an address that is a list of its host and its port.
fn address_of_pair(reply: Reply<'_>) -> Option<NodeAddress> {
    let mut pair = reply.items()?;
    let (host, port) = (pair.next()?.word()?, pair.next()?.word()?);
    Some(NodeAddress::Tcp(host.to_owned(), port.parse().ok()?))
}

/// Reads one Sentinel of a list, or one replica.
pub(in crate::redis) fn listed(reply: Reply<'_>) -> Option<ListedSentinel<NodeAddress>> {
    let port = field(reply, "port")?.parse().ok()?;
    Some(ListedSentinel {
        address: NodeAddress::Tcp(field(reply, "ip")?.to_owned(), port),
        // Empty while the Sentinels have not met.
        run_id: field(reply, "runid")
            .filter(|run_id| !run_id.is_empty())
            .map(str::to_owned),
    })
}

#[cfg(test)]
mod fuzz {
    use super::{LIST, Replies, Reply, address_of_pair, field, listed};
    use lock_protocol::resp::FrameScan;

    #[test]
    fn replies_of_a_sentinel_are_read_without_a_panic() {
        let examples = [
            "*2\r\n$9\r\n127.0.0.1\r\n$4\r\n6379\r\n",
            "*1\r\n*6\r\n$2\r\nip\r\n$3\r\n::1\r\n$4\r\nport\r\n$5\r\n26379\r\n$5\r\nrunid\r\n$2\r\nab\r\n",
            "%2\r\n$12\r\nconfig-epoch\r\n$1\r\n3\r\n$4\r\nport\r\n:7\r\n",
        ];
        let words = ["$5\r\nrunid\r\n", "$0\r\n\r\n", "_\r\n", "*0\r\n"];
        test_support::fuzz("sentinels", &examples, &words, |input| {
            let scanned = FrameScan::default().scan(input, LIST);
            let Ok(Some(len)) = scanned else {
                return None;
            };
            let reply = Replies::new(&input[..len]).next().unwrap();
            let address = address_of_pair(reply);
            let epoch = field(reply, "config-epoch").and_then(|it| it.parse::<u64>().ok());
            let others = reply.items().into_iter().flatten();
            let others = others.filter_map(listed).count();
            let run_id = Reply::word(reply).is_some();
            Some((address.is_some(), epoch.is_some(), others.min(9), run_id))
        });
    }
}
