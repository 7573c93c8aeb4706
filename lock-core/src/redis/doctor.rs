//! The servers of a deployment, one by one, for `lockctl doctor`. Not an interface: `lockctl` has the version of this
//! crate.
//!
//! A store connects to the servers that it needs, and refuses those that are not fit for locks. `doctor` looks at all of
//! them and says why. So [`find`] reads an address as [`connect`](super::connect) does, and [`Server::open`] dials and
//! logs in as a store does: with the same certificates, the same address map, and the same step back to RESP2. It only
//! leaves out the checks of a handshake, which are what `doctor` explains.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::connect::{read_in_time, tls_clients};
use super::connector::{Connector, Slots};
use super::deployment::{Deployment, NodeAddress, Topology};
use super::location::Location;
use super::node::Node;
use super::node_config::{DeploymentKind, NodeConfig};
use super::pushes::{Push, Pushes, Subscribing};
use crate::config::Settings;
use crate::error::{BackendErrorKind, LockError};
use crate::store::NotificationSink;
use crate::telemetry::Reporter;
use lock_protocol::clock::{Clock, Deadline};
use lock_protocol::codec::MAX_ERROR_TEXT;
use lock_protocol::resp::{OPERATOR_REPLY, Reply as Frame, ServerError};

/// The servers of a deployment.
pub struct Servers {
    /// Each of them.
    pub servers: Vec<Server>,
    /// The certificate that clients show.
    pub client_certificate: Option<CertificateEnd>,
}

/// When a certificate ends.
#[derive(Clone, Debug)]
pub struct CertificateEnd {
    /// The file that has it, or the address of the server.
    pub location: String,
    /// The end of its validity.
    pub ends: SystemTime,
    /// How long before its end the library reports it.
    pub notice: Duration,
}

/// One server, and how to reach it.
pub struct Server {
    connector: Arc<Connector>,
}

/// Finds the servers of a deployment, within the command timeout.
pub(crate) async fn find(
    deployment: Deployment,
    settings: &Settings,
    notifications: Arc<dyn NotificationSink>,
    reporter: Arc<Reporter>,
) -> Result<Servers, LockError> {
    let deadline = Deadline::after(Clock::System, settings.command_timeout);
    let kind = DeploymentKind::of(&deployment.topology);
    let reading = tls_clients(deployment.servers(), settings, &reporter);
    let clients = read_in_time(deadline, reading).await?;
    let config = |deployment: &Deployment| {
        let of_files = |(files, _): &&(_, _)| Some(files) == deployment.tls.as_ref();
        let tls = clients.iter().find(of_files);
        let tls = tls.map(|(_, client)| Arc::clone(client));
        NodeConfig::new(deployment, kind, tls, settings, &notifications, &reporter)
    };
    let servers = match &deployment.topology {
        Topology::Standalone(address) => {
            vec![Server::new(
                config(&deployment)?,
                Node::new(address.clone()),
            )]
        }
        _ => {
            return Err(LockError::backend(
                BackendErrorKind::InvalidUrl,
                "not one server",
            ));
        }
    };
    let shown = clients
        .iter()
        .find_map(|(_, client)| client.client_certificate());
    Ok(Servers {
        servers,
        client_certificate: shown.map(|(certificate, location)| CertificateEnd {
            location,
            ends: certificate.ends,
            notice: certificate.notice,
        }),
    })
}

impl Server {
    fn new(config: Arc<NodeConfig>, node: Node) -> Self {
        let location = Location::Fixed(Arc::new(node));
        let connector = Connector::new(config, location, Slots::Settled, Vec::new());
        Self {
            connector: Arc::new(connector),
        }
    }

    /// Returns the address that the URL has.
    #[must_use]
    pub fn address(&self) -> String {
        self.connector.node().address.to_string()
    }

    /// Returns the host; `None` for a Unix socket.
    #[must_use]
    pub fn host(&self) -> Option<String> {
        match &self.connector.node().address {
            NodeAddress::Tcp(host, _) => Some(host.clone()),
            NodeAddress::Unix(_) => None,
        }
    }

    /// Returns whether it is reached by TLS.
    #[must_use]
    pub fn has_tls(&self) -> bool {
        self.connector.config.tls.is_some()
    }

    /// Returns whether connections show a password.
    #[must_use]
    pub fn has_password(&self) -> bool {
        self.connector.config.has_login()
    }

    /// Returns the user of connections.
    #[must_use]
    pub fn user(&self) -> &str {
        self.connector.config.user()
    }

    /// Connects and logs in, within the command timeout.
    ///
    /// # Errors
    /// [`LockError::Backend`] if the server can't be reached, or refuses the login.
    ///
    /// # Cancel safety
    /// Dropping the future closes what it has opened.
    pub async fn open(&self) -> Result<Connection, LockError> {
        let limit = self.connector.config.timeout();
        let logged_in = self.connector.log_in(limit).await?;
        let certificate = logged_in.stream.certificate();
        Ok(Connection {
            certificate: certificate.map(|certificate| CertificateEnd {
                location: self.address(),
                ends: certificate.ends,
                notice: certificate.notice,
            }),
            speaks_resp3: logged_in.protocol.supports_resp3(),
            refusal_of_resp3: logged_in.refused_resp3.map(|refused| refused.text()),
            // Each question has a time limit.
            pushes: Pushes::new(logged_in.stream, None),
            asked: 0,
            has_heard: false,
            limit,
        })
    }
}

/// A connection to one server. A question that gets no reply in the command timeout fails, and its late reply does no
/// harm.
pub struct Connection {
    /// The certificate that the server has shown.
    pub certificate: Option<CertificateEnd>,
    /// There are notifications in RESP3 only.
    pub speaks_resp3: bool,
    /// What the server said when it refused RESP3.
    pub refusal_of_resp3: Option<String>,
    /// Tagged with the number of the question.
    pushes: Pushes<u64>,
    asked: u64,
    /// A message has arrived while a reply was awaited.
    has_heard: bool,
    limit: Duration,
}

/// Why a command has no reply.
#[derive(Debug)]
pub enum AskError {
    /// The server replied with an error.
    Refused {
        /// Its first word, such as `NOPERM`.
        code: String,
        /// The words behind it.
        text: String,
    },
    /// The connection broke, or no reply came in time.
    Broken(io::Error),
}

impl AskError {
    fn refused(error: ServerError<'_>) -> Self {
        Self::Refused {
            code: error.code().to_owned(),
            // As it is: `lockctl` escapes it.
            text: error.detail().chars().take(MAX_ERROR_TEXT).collect(),
        }
    }
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { code, text } => write!(f, "{code} {text}"),
            Self::Broken(error) if error.kind() == io::ErrorKind::TimedOut => {
                f.write_str("no reply in time")
            }
            Self::Broken(error) => error.fmt(f),
        }
    }
}

impl From<io::Error> for AskError {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

/// A reply of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// An integer.
    Integer(i64),
    /// A string, or a status such as `OK`.
    Text(Vec<u8>),
    /// The elements of an array or a set, or the names and values of a map by turns.
    List(Vec<Self>),
    /// Nothing, or what locks don't need.
    Nothing,
}

impl Reply {
    fn of(frame: Frame<'_>) -> Self {
        if let Some(number) = frame.integer() {
            Self::Integer(number)
        } else if let Some(text) = frame.text().or_else(|| frame.status()) {
            Self::Text(text.to_vec())
        } else if let Some(items) = frame.items() {
            Self::List(items.map(Self::of).collect())
        } else {
            Self::Nothing
        }
    }

    /// Returns a text.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => str::from_utf8(text).ok(),
            _ => None,
        }
    }

    /// Returns the bytes of a text.
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns a number, which some commands reply as a text.
    #[must_use]
    pub fn number(&self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(*number),
            text => text.text()?.parse().ok(),
        }
    }

    /// Returns the elements; none of what is no list.
    #[must_use]
    pub fn items(&self) -> &[Self] {
        match self {
            Self::List(items) => items,
            _ => &[],
        }
    }
}

impl Connection {
    /// Sends a command, and returns its reply.
    ///
    /// # Errors
    /// The server refused the command, the connection broke, or no reply came in time.
    ///
    /// # Cancel safety
    /// The server may have run the command.
    pub async fn ask(&mut self, command: &[impl AsRef<str>]) -> Result<Reply, AskError> {
        let mut replies = self.ask_all(&[command]).await?;
        replies.pop().unwrap_or(Ok(Reply::Nothing))
    }

    /// Sends commands at once, and returns the reply to each.
    ///
    /// # Errors
    /// The connection broke, or a reply didn't come in time.
    ///
    /// # Cancel safety
    /// The server may have run the commands.
    pub async fn ask_all<W: AsRef<str>>(
        &mut self,
        commands: &[impl AsRef<[W]>],
    ) -> io::Result<Vec<Result<Reply, AskError>>> {
        let before = self.asked;
        for command in commands {
            let Some((name, arguments)) = command.as_ref().split_first() else {
                continue;
            };
            self.asked += 1;
            self.pushes.send(self.asked, OPERATOR_REPLY, |out| {
                let mut command = out.command(name.as_ref());
                for argument in arguments {
                    command.arg(argument.as_ref());
                }
            });
        }
        let (asked, limit) = (self.asked, self.limit);
        let receiving = async {
            let mut replies = Vec::new();
            let mut answered = before;
            while answered < asked {
                match self.pushes.next().await? {
                    // Earlier ones came too late.
                    Push::Reply(number, reply) if number > before => {
                        answered = number;
                        replies.push(match reply.error() {
                            Some(error) => Err(AskError::refused(error)),
                            None => Ok(Reply::of(reply)),
                        });
                    }
                    Push::Message { .. } => self.has_heard = true,
                    _ => {}
                }
            }
            Ok(replies)
        };
        in_time(limit, receiving).await
    }

    /// Subscribes to a channel. Only in RESP3.
    ///
    /// # Errors
    /// The server refused, the connection broke, or no reply came in time.
    ///
    /// # Cancel safety
    /// The channel may stay subscribed.
    pub async fn subscribe(&mut self, channel: &str) -> Result<(), AskError> {
        let how = Subscribing::Classic;
        self.pushes.subscribe(how, channel.into());
        let pushes = &mut self.pushes;
        self.has_heard = false;
        let confirmed = async {
            loop {
                match pushes.next().await? {
                    Push::Subscribed(_, confirmed) if *confirmed == *channel => return Ok(Ok(())),
                    Push::Refused(_, refused, error) if *refused == *channel => {
                        return Ok(Err(AskError::refused(error)));
                    }
                    _ => {}
                }
            }
        };
        in_time(self.limit, confirmed).await?
    }

    /// Waits for a message on the subscribed channel, unless one has arrived since the subscription.
    ///
    /// # Errors
    /// The connection broke, or no message came in time.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn message(&mut self) -> Result<(), AskError> {
        let limit = self.limit;
        let arriving = async {
            while !self.has_heard {
                self.has_heard = matches!(self.pushes.next().await?, Push::Message { .. });
            }
            Ok(())
        };
        Ok(in_time(limit, arriving).await?)
    }
}

async fn in_time<T>(limit: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let done = tokio::time::timeout(limit, work).await;
    done.unwrap_or_else(|_elapsed| Err(io::ErrorKind::TimedOut.into()))
}
