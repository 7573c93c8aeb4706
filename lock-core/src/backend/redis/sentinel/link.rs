//! One connection to one Sentinel.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{ProtocolVersion, PushInfo, PushKind, RedisError, Value};
use tokio::sync::Notify;

use super::super::access::connection_info;
use super::super::connector::{Connector, keepalive};
use super::super::dial::{Setup, dial};
use super::super::errors::{io_error, is_resp3_unknown, lock_error, timed_out};
use super::super::place::NodeAddress;
use super::{PrimaryReply, SentinelAccess};
use crate::error::{BackendErrorKind, LockError};

/// The channel on which Sentinels announce a new primary.
const SWITCHES: &str = "+switch-master";

/// Asks one Sentinel, and receives its announcements. Connects again after a failure.
pub(super) struct SentinelLink {
    address: NodeAddress,
    access: SentinelAccess,
    service: String,
    connection: Option<MultiplexedConnection>,
    announced: Arc<Notify>,
}

impl SentinelLink {
    pub(super) fn new(address: NodeAddress, access: SentinelAccess, service: String) -> Self {
        Self {
            address,
            access,
            service,
            connection: None,
            announced: Arc::default(),
        }
    }

    /// Waits until the Sentinel announces a new primary of any service.
    pub(super) async fn announced(&self) {
        self.announced.notified().await;
    }

    /// Asks for the primary of the service.
    pub(super) async fn ask(&mut self, limit: Duration) -> Result<PrimaryReply, LockError> {
        let asked = tokio::time::timeout(limit, self.primary()).await;
        let asked = asked.unwrap_or_else(|_elapsed| Err(timed_out(&self.text())));
        if asked.is_err() {
            self.connection = None;
        }
        asked
    }

    /// Asks for the other Sentinels of the service. Without a reply there are none.
    pub(super) async fn others(&mut self, limit: Duration) -> Vec<NodeAddress> {
        let Some(connection) = &self.connection else {
            return Vec::new();
        };
        let mut connection = connection.clone();
        let mut command = redis::cmd("SENTINEL");
        command.arg("SENTINELS").arg(&self.service);
        let reply = connection.send_packed_command(&command);
        match tokio::time::timeout(limit, reply).await {
            Ok(Ok(Value::Array(others))) => others.iter().filter_map(address_of).collect(),
            // A user may lack the right.
            _ => Vec::new(),
        }
    }

    async fn primary(&mut self) -> Result<PrimaryReply, LockError> {
        let mut connection = if let Some(connection) = &self.connection {
            connection.clone()
        } else {
            let connection = self.connect().await?;
            self.connection.insert(connection).clone()
        };
        let mut command = redis::cmd("SENTINEL");
        command.arg("MASTER").arg(&self.service);
        let reply = connection.send_packed_command(&command).await;
        let reply = reply.and_then(Value::extract_error).map_err(|error| {
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
            lock_error(format!("{} refused", self.text()), &error)
        })?;
        let epoch = field(&reply, "config-epoch").and_then(|epoch| epoch.parse().ok());
        let (Some(epoch), Some(address)) = (epoch, address_of(&reply)) else {
            return Err(LockError::backend(
                BackendErrorKind::Unsupported,
                format!("{} did not reply as a Sentinel does", self.text()),
            ));
        };
        Ok(PrimaryReply { epoch, address })
    }

    fn text(&self) -> String {
        format!("the Sentinel at {}", self.address)
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
            Err(error) if is_resp3_unknown(&error) => {
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

fn address_of(reply: &Value) -> Option<NodeAddress> {
    let port = field(reply, "port")?.parse().ok()?;
    Some(NodeAddress::Tcp(field(reply, "ip")?, port))
}
