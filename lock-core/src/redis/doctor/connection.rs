//! A connection of `lockctl doctor` to one server.

use std::fmt;
use std::io;
use std::time::Duration;

use super::CertificateEnd;
use crate::redis::login::LoggedIn;
use crate::redis::pushes::{Push, Pushes, Subscribing};
use lock_protocol::codec::MAX_ERROR_TEXT;
use lock_protocol::resp::{OPERATOR_REPLY, Replies, Reply as Frame, ServerError};

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
    /// How channels are subscribed.
    how: Subscribing,
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
    pub(super) fn new(
        logged_in: LoggedIn,
        certificate: Option<CertificateEnd>,
        how: Subscribing,
        limit: Duration,
    ) -> Self {
        Self {
            certificate,
            speaks_resp3: logged_in.protocol.supports_resp3(),
            refusal_of_resp3: logged_in.refused_resp3.map(|refused| refused.text()),
            // Each question has a time limit.
            pushes: Pushes::new(logged_in.stream, None),
            asked: 0,
            has_heard: false,
            limit,
            how,
        }
    }

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
        let replies = self.ask_raw(commands).await?;
        Ok(replies.iter().map(|reply| read(reply)).collect())
    }

    /// As [`ask_all`](Self::ask_all), with the bytes of each reply.
    pub(super) async fn ask_raw<W: AsRef<str>>(
        &mut self,
        commands: &[impl AsRef<[W]>],
    ) -> io::Result<Vec<Vec<u8>>> {
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
                        replies.push(reply.bytes().to_vec());
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
        self.pushes.subscribe(self.how, channel.into());
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

    /// Publishes to a channel.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    ///
    /// # Cancel safety
    /// The message may have been published.
    pub async fn publish(&mut self, channel: &str, text: &str) -> Result<(), AskError> {
        let command = match self.how {
            Subscribing::Classic => "PUBLISH",
            Subscribing::Sharded => "SPUBLISH",
        };
        self.ask(&[command, channel, text]).await?;
        Ok(())
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

fn read(reply: &[u8]) -> Result<Reply, AskError> {
    let Some(reply) = Replies::new(reply).next() else {
        return Ok(Reply::Nothing);
    };
    match reply.error() {
        Some(error) => Err(AskError::refused(error)),
        None => Ok(Reply::of(reply)),
    }
}

async fn in_time<T>(limit: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let done = tokio::time::timeout(limit, work).await;
    done.unwrap_or_else(|_elapsed| Err(io::ErrorKind::TimedOut.into()))
}
