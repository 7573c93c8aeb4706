//! One connection to one Sentinel.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, ProtocolVersion, PushInfo, PushKind, RedisError, Value};
use tokio::sync::Notify;

use super::super::access::connection_info;
use super::super::connector::{Connector, keepalive};
use super::super::dial::{Setup, dial};
use super::super::errors::{io_error, is_resp3_unknown, lock_error, timed_out};
use super::super::place::NodeAddress;
use super::{PrimaryReply, SentinelAccess};
use crate::error::{BackendErrorKind, LockError};
use lock_protocol::clock::Clock;
use lock_protocol::primary::{Announcement, ListedSentinel};

/// The channel on which Sentinels announce a new primary.
const SWITCHES: &str = "+switch-master";

/// The question for the address of the primary.
const ADDRESS: &str = "GET-MASTER-ADDR-BY-NAME";

/// How long a Sentinel may take to reply over an open connection.
pub(super) const REPLY: Duration = Duration::from_millis(300);

/// How often a Sentinel may change its mind while it is asked.
const TRIES: usize = 3;

/// Asks one Sentinel, and receives its announcements. Connects again after a failure.
pub(super) struct SentinelLink {
    address: NodeAddress,
    access: SentinelAccess,
    service: String,
    connection: Option<MultiplexedConnection>,
    has_asked_run_id: bool,
    announced: Arc<Notify>,
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
            has_asked_run_id: false,
            announced: Arc::default(),
        }
    }

    /// Waits until the Sentinel announces a new primary of any service.
    pub(super) async fn announced(&self) {
        self.announced.notified().await;
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
        let Some(connection) = &self.connection else {
            return known;
        };
        let mut connection = connection.clone();
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.cmd("SENTINEL").arg("SENTINELS").arg(&self.service);
        // Once for each connection: the Sentinel keeps it, and logs each question of a user without the right.
        if !std::mem::replace(&mut self.has_asked_run_id, true) {
            pipeline.cmd("SENTINEL").arg("MYID");
        }
        pipeline.ignore_errors();
        let replies = connection.send_packed_commands(&pipeline, 0, pipeline.len());
        // A user may lack the rights.
        if let Ok(Ok(replies)) = tokio::time::timeout(REPLY, replies).await {
            let mut replies = replies.into_iter();
            if let Some(Value::Array(others)) = replies.next() {
                known.others = others.iter().filter_map(listed).collect();
            }
            known.run_id = replies
                .next()
                .and_then(|it| redis::from_redis_value(it).ok());
        }
        known
    }

    /// Asks for the address before and after the epoch. In the middle of a failover, `SENTINEL MASTER` names the
    /// old address with the new epoch; the other command names the address that belongs to the epoch.
    async fn primary(&mut self, connecting: Duration) -> Result<PrimaryReply, LockError> {
        let mut connection = if let Some(connection) = &self.connection {
            connection.clone()
        } else {
            let connected = tokio::time::timeout(connecting, self.connect()).await;
            let connection = connected.unwrap_or_else(|_elapsed| Err(self.timed_out()))?;
            self.has_asked_run_id = false;
            self.connection.insert(connection).clone()
        };
        let mut pipeline = Pipeline::with_capacity(3);
        for question in [ADDRESS, "MASTER", ADDRESS] {
            pipeline.cmd("SENTINEL").arg(question).arg(&self.service);
        }
        pipeline.ignore_errors();
        for _ in 0..TRIES {
            let asked = Clock::System.now();
            let replies = connection.send_packed_commands(&pipeline, 0, pipeline.len());
            let replies = tokio::time::timeout(REPLY, replies).await;
            let replies = replies.map_err(|_elapsed| self.timed_out())?;
            let mut replies = replies.map_err(|error| self.refused(&error))?.into_iter();
            let mut next = || {
                let reply = replies.next().unwrap_or(Value::Nil).extract_error();
                reply.map_err(|error| self.refused(&error))
            };
            let (before, reply, after) = (next()?, next()?, next()?);
            if before != after {
                continue;
            }
            let epoch = field(&reply, "config-epoch").and_then(|epoch| epoch.parse().ok());
            let (Some(epoch), Some(address)) = (epoch, address_of_pair(&before)) else {
                return Err(LockError::backend(
                    BackendErrorKind::Unsupported,
                    format!("{} did not reply as a Sentinel does", self.text()),
                ));
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

    fn refused(&self, error: &RedisError) -> LockError {
        let text = error.detail().unwrap_or_default();
        if text.contains("No such master") {
            return LockError::advised(
                BackendErrorKind::NoPrimary,
                format!("{} knows no service `{}`", self.text(), self.service),
                "check the name of the service in the URL: `sentinel masters` shows all",
            );
        }
        if text.contains("unknown command") {
            return LockError::advised(
                BackendErrorKind::Unsupported,
                format!("{} is no Sentinel", self.text()),
                "name the Sentinels in the URL and their port, which is 26379 as a rule",
            );
        }
        lock_error(format!("{} refused", self.text()), error)
    }

    fn text(&self) -> String {
        format!("the Sentinel at {}", self.address)
    }

    pub(super) fn timed_out(&self) -> LockError {
        timed_out(&self.text())
    }

    fn failed(&self, error: &RedisError) -> LockError {
        io_error(format!("cannot connect to {}", self.text()), error)
    }

    async fn connect(&self) -> Result<MultiplexedConnection, LockError> {
        let login = connection_info(&self.access.login);
        let (tls, is_securing) = (self.access.tls.as_ref(), AtomicBool::new(false));
        let open = || async {
            let stream = dial(&self.address, tls, &keepalive(), &is_securing).await?;
            stream.map_err(|error| self.failed(&error))
        };
        let announced = Arc::clone(&self.announced);
        let config = Connector::config().set_push_sender(move |message: PushInfo| {
            if message.kind == PushKind::Message {
                announced.notify_one();
            }
            Ok::<(), Infallible>(())
        });
        let setup = match Setup::begin(open().await?, &login, config).await {
            // An old Sentinel is asked each second, and announces nothing.
            Err(error) if is_resp3_unknown(&error, &login) => {
                let login = login.set_protocol(ProtocolVersion::RESP2);
                let setup = Setup::begin(open().await?, &login, Connector::config()).await;
                return setup.map(Setup::spawn).map_err(|error| self.failed(&error));
            }
            setup => setup.map_err(|error| self.failed(&error))?,
        };
        let mut connection = setup.spawn();
        // A user may lack the right. Then the Sentinel is only asked.
        let _subscribed = connection.subscribe(SWITCHES).await;
        Ok(connection)
    }
}

/// Returns a field of a reply that has names and values.
fn field(reply: &Value, name: &str) -> Option<String> {
    let text = |value: &Value| redis::from_redis_value_ref::<String>(value).ok();
    let is_name = |value: &Value| text(value).is_some_and(|text| text == name);
    match reply {
        Value::Map(fields) => {
            let (_, value) = fields.iter().find(|(key, _)| is_name(key))?;
            text(value)
        }
        Value::Array(flat) => {
            let pair = flat.chunks_exact(2).find(|pair| is_name(&pair[0]))?;
            text(&pair[1])
        }
        _ => None,
    }
}

/// Reads an address that is a list of its host and its port.
fn address_of_pair(reply: &Value) -> Option<NodeAddress> {
    let (host, port): (String, String) = redis::from_redis_value_ref(reply).ok()?;
    Some(NodeAddress::Tcp(host, port.parse().ok()?))
}

/// Reads one Sentinel of a list.
fn listed(reply: &Value) -> Option<ListedSentinel<NodeAddress>> {
    let port = field(reply, "port")?.parse().ok()?;
    Some(ListedSentinel {
        address: NodeAddress::Tcp(field(reply, "ip")?, port),
        // Empty while the Sentinels have not met.
        run_id: field(reply, "runid").filter(|run_id| !run_id.is_empty()),
    })
}
