//! A connection of `lockctl doctor` to one server.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::CertificateEnd;
use crate::redis::transport::{Expected, Push, Receiver, Subscribing, Transport};
use crate::sync::Mutex;
use lock_protocol::codec::MAX_ERROR_TEXT;
use lock_protocol::resp::{CommandBuf, OPERATOR_REPLY, Replies, Reply as Frame, ServerError};

/// A connection to one server. A question that gets no reply in the command timeout fails, and its late reply does no
/// harm.
pub struct Connection {
    /// The certificate that the server has shown.
    pub certificate: Option<CertificateEnd>,
    /// There are notifications in RESP3 only.
    pub speaks_resp3: bool,
    /// What the server said when it refused RESP3.
    pub refusal_of_resp3: Option<String>,
    transport: Transport,
    heard: Arc<Heard>,
    limit: Duration,
    /// How channels are subscribed.
    how: Subscribing,
}

/// What the server has sent without a command for it.
#[derive(Default)]
struct Heard {
    pushes: Mutex<VecDeque<Pushed>>,
    changed: Notify,
    has_ended: AtomicBool,
}

enum Pushed {
    Message,
    Subscribed(Arc<str>),
    Refused(Arc<str>, AskError),
}

/// More than a subscription and its message is not waited for.
const MOST_PUSHED: usize = 100;

impl Heard {
    fn add(&self, pushed: Pushed) {
        {
            let mut known = self.pushes.lock();
            if known.len() < MOST_PUSHED {
                known.push_back(pushed);
            }
        }
        self.changed.notify_one();
    }

    /// Waits for the next of them.
    async fn next(&self) -> io::Result<Pushed> {
        loop {
            let has_ended = self.has_ended.load(Ordering::Acquire);
            let next = self.pushes.lock().pop_front();
            match next {
                Some(pushed) => return Ok(pushed),
                None if has_ended => return Err(io::ErrorKind::UnexpectedEof.into()),
                None => self.changed.notified().await,
            }
        }
    }
}

impl Receiver for Heard {
    fn receive(&self, push: Push<'_>) {
        match push {
            Push::Message { .. } => self.add(Pushed::Message),
            Push::Subscribed(_, channel) => self.add(Pushed::Subscribed(channel)),
            Push::Refused(_, channel, error) => {
                self.add(Pushed::Refused(channel, AskError::refused(error)));
            }
            Push::Ended(..) => {}
        }
    }

    fn caught_up(&self) {}

    fn ended(&self, _is_flooded: bool) {
        self.has_ended.store(true, Ordering::Release);
        self.changed.notify_one();
    }
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
        // As they are: `lockctl` escapes them.
        let begin = |text: &str| text.chars().take(MAX_ERROR_TEXT).collect();
        Self::Refused {
            code: begin(error.code()),
            text: begin(&error.detail()),
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

    /// Returns the elements of a list; nothing for any other reply.
    #[must_use]
    pub fn items(&self) -> &[Self] {
        match self {
            Self::List(items) => items,
            _ => &[],
        }
    }
}

impl Connection {
    pub(super) fn new(transport: Transport, how: Subscribing, limit: Duration) -> Self {
        let heard = Arc::<Heard>::default();
        transport.receive_with(Arc::clone(&heard) as Arc<dyn Receiver>);
        Self {
            certificate: None,
            speaks_resp3: false,
            refusal_of_resp3: None,
            transport,
            heard,
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
        let commands = commands.iter().filter_map(|it| it.as_ref().split_first());
        let commands: Vec<_> = commands.collect();
        let write = |out: &mut Vec<u8>| {
            let mut out = CommandBuf::new(out);
            for (name, arguments) in &commands {
                let mut command = out.command(name.as_ref());
                for argument in *arguments {
                    command.arg(argument.as_ref());
                }
            }
        };
        let expected = Expected {
            replies: commands.len(),
            largest: OPERATOR_REPLY,
        };
        let replies = in_time(self.limit, self.transport.call(write, expected)).await?;
        let replies = Replies::new(&replies).map(|reply| reply.bytes().to_vec());
        Ok(replies.collect())
    }

    /// Subscribes to a channel. Only in RESP3.
    ///
    /// # Errors
    /// The server refused, the connection broke, or no reply came in time.
    ///
    /// # Cancel safety
    /// The channel may stay subscribed.
    pub async fn subscribe(&mut self, channel: &str) -> Result<(), AskError> {
        let wanted = (self.how, channel.into());
        self.transport.subscribe(Vec::new(), vec![wanted]);
        let confirmed = async {
            loop {
                match self.heard.next().await? {
                    Pushed::Subscribed(confirmed) if *confirmed == *channel => return Ok(Ok(())),
                    Pushed::Refused(refused, error) if *refused == *channel => {
                        return Ok(Err(error));
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
        let arriving = async {
            while !matches!(self.heard.next().await?, Pushed::Message) {}
            Ok(())
        };
        Ok(in_time(self.limit, arriving).await?)
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
