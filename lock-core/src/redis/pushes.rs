//! The only reader of messages: a connection on which a server sends what nobody asked for at that moment.
//!
//! It serves the subscriptions to a server and to a Sentinel. In RESP3, messages and confirmations travel between
//! ordinary replies, and each of them has to find what it belongs to. The client library takes a confirmation for the
//! reply to another command, so this connection is read by us.
//!
//! # Who owns what
//!
//! The caller owns the connection and polls [`next`](Pushes::next). [`subscribe`](Pushes::subscribe),
//! [`unsubscribe`](Pushes::unsubscribe) and [`send`](Pushes::send) only append to a buffer; the bytes leave while
//! `next` is polled. Each of these commands has one entry in `awaited` until the server has answered it:
//!
//! | Entry | Answered by |
//! |---|---|
//! | a subscription | its confirmation, or an error |
//! | the end of a subscription | its confirmation, or an error |
//! | a command of the caller, or the heartbeat's `PING` | an ordinary reply, or an error |
//!
//! # How frames are told apart
//!
//! | Frame | Means | Becomes |
//! |---|---|---|
//! | `>` `message`, `smessage` | a client has published | [`Push::Message`] |
//! | `>` `subscribe`, `ssubscribe` | answers the subscription to *this channel*, wherever it is in the queue | [`Push::Subscribed`] |
//! | `>` `unsubscribe`, `sunsubscribe` | answers our own unsubscription from this channel, if one is awaited | [`Push::Other`] |
//! | the same, without one | the server ended it: the channel's slot has moved | [`Push::Ended`] |
//! | any other `>` | nothing of ours | [`Push::Other`] |
//! | an error | answers the oldest entry of all, and no other | [`Push::Refused`], [`Push::Reply`] |
//! | any other reply | answers the oldest *command*: a subscription never has such a reply | [`Push::Reply`] |
//!
//! A server answers in the order of the commands, so an error belongs to the oldest entry. Confirmations name their
//! channel, so they don't depend on the order.
//!
//! # The heartbeat
//!
//! A `PING` goes out each time the interval has passed, whatever else arrives or is sent. Only its own reply counts:
//! messages show that somebody publishes, not that the server still answers us. The connection is broken when the
//! reply to a `PING` takes longer than the time limit, or when other commands are awaited and none of them was
//! answered for that long.
//!
//! # Bounds
//!
//! | What | Bound | Beyond it |
//! |---|---|---|
//! | a message, a confirmation | [`LOCK_REPLY`] | the connection is broken |
//! | a reply | what the caller of `send` expects | the connection is broken |
//! | unread bytes | one frame and one chunk | the socket is not read |
//! | work before the other tasks of the thread run | [`TURN_BYTES`], [`TURN_FRAMES`] | `next` yields |
//!
//! The last bound is what keeps locks alive in a flood: their renewals run on the same thread. Each byte is scanned
//! once, however small the pieces are in which a frame arrives.
//!
//! # Cancel safety
//!
//! `next` may be dropped at any time. Everything that it has read, scanned or half written is in [`Pushes`] and not in
//! the future.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::dial::Stream;
use lock_protocol::resp::{CommandBuf, FrameScan, LOCK_REPLY, Replies, Reply, ServerError};

/// How many bytes are read at once.
const CHUNK: usize = 16 * 1024;
/// How many bytes, and how many frames, are handled before the other tasks of the thread have their turn.
const TURN_BYTES: usize = 64 * 1024;
const TURN_FRAMES: usize = 100;

/// How a channel is subscribed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subscribing {
    Classic,
    /// In a cluster: the channel lives where its slot lives.
    Sharded,
}

/// How a connection shows that it still works.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heartbeat {
    /// The time between two `PING`s.
    pub(super) interval: Duration,
    /// How long the server may take to answer.
    pub(super) limit: Duration,
}

/// What the server has sent.
#[derive(Debug)]
pub(super) enum Push<'a, T> {
    /// A client has published this text.
    Message {
        channel: &'a [u8],
        text: &'a [u8],
    },
    /// The server has confirmed a subscription.
    Subscribed(Subscribing, Arc<str>),
    /// The server has refused a subscription.
    Refused(Subscribing, Arc<str>, ServerError<'a>),
    /// The server has ended a subscription that nobody here has ended: the channel's slot has moved.
    Ended(Subscribing, &'a [u8]),
    /// The reply to the command with this tag.
    Reply(T, Reply<'a>),
    Other,
}

/// A command that the server has not answered.
enum Awaited<T> {
    Subscribe(Subscribing, Arc<str>),
    Unsubscribe(Subscribing, Arc<str>),
    Command { tag: T, largest: usize },
    Ping,
}

impl<T> Awaited<T> {
    /// Returns the most bytes of the ordinary reply to it, if it has one.
    fn largest(&self) -> Option<usize> {
        match self {
            Self::Subscribe(..) | Self::Unsubscribe(..) => None,
            Self::Command { largest, .. } => Some(*largest),
            Self::Ping => Some(LOCK_REPLY),
        }
    }
}

/// A connection that receives messages.
pub(super) struct Pushes<T> {
    stream: Stream,
    /// What is not written yet begins at `written`.
    out: Vec<u8>,
    written: usize,
    awaited: VecDeque<Awaited<T>>,
    /// The bytes from `read` to `filled` are not handled yet. The frame that `next` returned lies in front of them.
    buffer: Vec<u8>,
    read: usize,
    filled: usize,
    scan: FrameScan,
    clocks: Option<Clocks>,
    /// The bytes and frames that were handled since another task could run.
    turn: (usize, usize),
}

/// The times of a connection with a heartbeat.
struct Clocks {
    heartbeat: Heartbeat,
    /// When the next `PING` goes out.
    ping_at: Instant,
    /// When the `PING` without a reply was sent.
    pinged_at: Option<Instant>,
    /// Since when commands are awaited without the answer to one of them.
    silent_since: Option<Instant>,
    sleep: Pin<Box<Sleep>>,
}

impl Clocks {
    fn new(heartbeat: Heartbeat) -> Self {
        let ping_at = Instant::now() + heartbeat.interval;
        Self {
            heartbeat,
            ping_at,
            pinged_at: None,
            silent_since: None,
            sleep: Box::pin(tokio::time::sleep_until(ping_at)),
        }
    }

    /// Returns when the connection is broken, if nothing is answered until then.
    fn broken_at(&self) -> Option<Instant> {
        let since = self.pinged_at.into_iter().chain(self.silent_since).min();
        since.map(|since| since + self.heartbeat.limit)
    }
}

impl<T> Pushes<T> {
    /// Nothing may be awaited on the connection. Without a heartbeat, the caller has to notice that it is broken.
    pub(super) fn new(stream: Stream, heartbeat: Option<Heartbeat>) -> Self {
        Self {
            stream,
            out: Vec::new(),
            written: 0,
            awaited: VecDeque::new(),
            buffer: Vec::new(),
            read: 0,
            filled: 0,
            scan: FrameScan::default(),
            clocks: heartbeat.map(Clocks::new),
            turn: (0, 0),
        }
    }

    /// Subscribes to a channel. [`next`](Self::next) sends the command, and later returns its confirmation.
    pub(super) fn subscribe(&mut self, how: Subscribing, channel: Arc<str>) {
        let command = match how {
            Subscribing::Classic => "SUBSCRIBE",
            Subscribing::Sharded => "SSUBSCRIBE",
        };
        let entry = Awaited::Subscribe(how, Arc::clone(&channel));
        self.append(entry, |out| {
            out.command(command).arg(channel);
        });
    }

    /// Ends a subscription.
    pub(super) fn unsubscribe(&mut self, how: Subscribing, channel: Arc<str>) {
        let command = match how {
            Subscribing::Classic => "UNSUBSCRIBE",
            Subscribing::Sharded => "SUNSUBSCRIBE",
        };
        let entry = Awaited::Unsubscribe(how, Arc::clone(&channel));
        self.append(entry, |out| {
            out.command(command).arg(channel);
        });
    }

    /// Sends one command that has an ordinary reply of at most `largest` bytes, which comes back with the tag.
    pub(super) fn send(&mut self, tag: T, largest: usize, write: impl FnOnce(&mut CommandBuf<'_>)) {
        self.append(Awaited::Command { tag, largest }, write);
    }

    fn append(&mut self, entry: Awaited<T>, write: impl FnOnce(&mut CommandBuf<'_>)) {
        write(&mut CommandBuf::new(&mut self.out));
        self.awaited.push_back(entry);
        if let Some(clocks) = &mut self.clocks {
            clocks.silent_since.get_or_insert_with(Instant::now);
        }
    }

    /// Returns whether bytes have arrived that `next` has not returned yet.
    pub(super) fn has_unread(&self) -> bool {
        self.read < self.filled
    }

    /// Sends what is buffered, and waits for the next frame. The connection must not be used after an error.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> io::Result<Push<'_, T>> {
        let frame = loop {
            if let Some(len) = self.next_frame()? {
                break self.read..self.read + len;
            }
            poll_fn(|cx| self.poll_io(cx)).await?;
        };
        if self.turn.0 >= TURN_BYTES || self.turn.1 >= TURN_FRAMES {
            self.turn = (0, 0);
            tokio::task::yield_now().await;
        }
        // No await follows: whatever is taken from here on is returned.
        self.turn = (self.turn.0 + frame.len(), self.turn.1 + 1);
        self.read = frame.end;
        let Some(reply) = Replies::new(&self.buffer[frame]).next() else {
            return Ok(Push::Other);
        };
        match push_of(reply) {
            Some(pushed) => Ok(on_push(&mut self.awaited, self.clocks.as_mut(), &pushed)),
            None => on_reply(&mut self.awaited, self.clocks.as_mut(), reply),
        }
    }

    /// Returns the length of the next frame, if it has arrived. The frame stays unread.
    fn next_frame(&mut self) -> io::Result<Option<usize>> {
        let unread = &self.buffer[self.read..self.filled];
        let Some(first) = unread.first() else {
            return Ok(None);
        };
        let of_command = || self.awaited.iter().find_map(Awaited::largest);
        let largest = match first {
            b'>' => LOCK_REPLY,
            _ => of_command().unwrap_or(LOCK_REPLY),
        };
        // The scan begins anew behind a frame, so a `next` that is dropped now finds the same frame again.
        let scanned = self.scan.scan(unread, largest);
        scanned.map_err(|malformed| io::Error::new(io::ErrorKind::InvalidData, malformed))
    }

    /// Writes, reads some bytes, and looks at the time. Ready when bytes have arrived.
    fn poll_io(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // First, so that a flood doesn't postpone it.
        self.poll_clocks(cx)?;
        self.poll_write(cx)?;
        let read = self.poll_read(cx);
        if read.is_pending() {
            self.turn = (0, 0);
            // Reading makes TLS confirm a new key of the server.
            self.poll_write(cx)?;
        }
        read
    }

    /// Sends a `PING` when it is time, and fails when an answer is overdue.
    fn poll_clocks(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let Some(clocks) = &mut self.clocks else {
            return Ok(());
        };
        loop {
            let now = Instant::now();
            let broken_at = clocks.broken_at();
            if broken_at.is_some_and(|at| at <= now) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if clocks.pinged_at.is_none() && clocks.ping_at <= now {
                CommandBuf::new(&mut self.out).command("PING");
                self.awaited.push_back(Awaited::Ping);
                clocks.pinged_at = Some(now);
                clocks.ping_at = now + clocks.heartbeat.interval;
                clocks.silent_since.get_or_insert(now);
                continue;
            }
            let ping_at = clocks.pinged_at.is_none().then_some(clocks.ping_at);
            let next = broken_at.into_iter().chain(ping_at).min();
            let Some(next) = next else { return Ok(()) };
            if clocks.sleep.deadline() != next {
                clocks.sleep.as_mut().reset(next);
            }
            if clocks.sleep.as_mut().poll(cx).is_pending() {
                return Ok(());
            }
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while self.written < self.out.len() {
            let unwritten = &self.out[self.written..];
            match Pin::new(&mut self.stream).poll_write(cx, unwritten) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(written)) => self.written += written,
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => return Ok(()),
            }
        }
        if self.written > 0 {
            // Many subscriptions at once need a large buffer, and seldom come.
            self.out = Vec::new();
            self.written = 0;
        }
        match Pin::new(&mut self.stream).poll_flush(cx) {
            Poll::Ready(flushed) => flushed,
            Poll::Pending => Ok(()),
        }
    }

    /// Reads one chunk behind the unread bytes, which are part of one frame.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.buffer.copy_within(self.read..self.filled, 0);
        self.filled -= self.read;
        self.read = 0;
        if self.buffer.len() != self.filled + CHUNK {
            self.buffer.resize(self.filled + CHUNK, 0);
            // A long frame is over.
            self.buffer.shrink_to(self.filled + 4 * CHUNK);
        }
        let mut free = ReadBuf::new(&mut self.buffer[self.filled..]);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut free))?;
        let len = free.filled().len();
        if len == 0 {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        self.filled += len;
        Poll::Ready(Ok(()))
    }
}

/// A frame that the server sends without a command, or that confirms one.
struct Pushed<'a> {
    kind: &'a [u8],
    channel: &'a [u8],
    text: &'a [u8],
}

fn push_of(reply: Reply<'_>) -> Option<Pushed<'_>> {
    let mut items = reply.is_push().then(|| reply.items())??;
    let mut text = || {
        let item = items.next();
        let text = item.and_then(|item| item.text().or_else(|| item.status()));
        text.unwrap_or_default()
    };
    Some(Pushed {
        kind: text(),
        channel: text(),
        text: text(),
    })
}

fn on_push<'a, T>(
    awaited: &mut VecDeque<Awaited<T>>,
    clocks: Option<&mut Clocks>,
    pushed: &Pushed<'a>,
) -> Push<'a, T> {
    let Pushed {
        kind,
        channel,
        text,
    } = *pushed;
    let how = match kind.first() {
        Some(b's') if kind != b"subscribe" => Subscribing::Sharded,
        _ => Subscribing::Classic,
    };
    let confirms = |entry: &Awaited<T>| match (kind, entry) {
        (b"subscribe" | b"ssubscribe", Awaited::Subscribe(by, name))
        | (b"unsubscribe" | b"sunsubscribe", Awaited::Unsubscribe(by, name)) => {
            *by == how && name.as_bytes() == channel
        }
        _ => false,
    };
    match kind {
        b"message" | b"smessage" => Push::Message { channel, text },
        b"subscribe" | b"ssubscribe" | b"unsubscribe" | b"sunsubscribe" => {
            let confirmed = awaited.iter().position(confirms);
            let confirmed = confirmed.and_then(|at| awaited.remove(at));
            if confirmed.is_some() {
                answered(awaited, clocks);
            }
            match confirmed {
                Some(Awaited::Subscribe(how, name)) => Push::Subscribed(how, name),
                None if kind.ends_with(b"unsubscribe") => Push::Ended(how, channel),
                _ => Push::Other,
            }
        }
        _ => Push::Other,
    }
}

fn on_reply<'a, T>(
    awaited: &mut VecDeque<Awaited<T>>,
    mut clocks: Option<&mut Clocks>,
    reply: Reply<'a>,
) -> io::Result<Push<'a, T>> {
    let error = reply.error();
    let at = if error.is_some() {
        0
    } else {
        let command = awaited.iter().position(|it| it.largest().is_some());
        command.ok_or_else(|| {
            let text = "the server sent a reply without a command";
            io::Error::new(io::ErrorKind::InvalidData, text)
        })?
    };
    let Some(entry) = awaited.remove(at) else {
        // The last words of a server that ends the connection, for example.
        return Ok(Push::Other);
    };
    if let (Awaited::Ping, Some(clocks)) = (&entry, &mut clocks) {
        // An error too: a user may lack the right to run PING.
        clocks.pinged_at = None;
    }
    answered(awaited, clocks);
    Ok(match (entry, error) {
        (Awaited::Subscribe(how, channel), Some(error)) => Push::Refused(how, channel, error),
        (Awaited::Command { tag, .. }, _) => Push::Reply(tag, reply),
        _ => Push::Other,
    })
}

/// Starts the time of the next command without an answer.
fn answered<T>(awaited: &VecDeque<Awaited<T>>, clocks: Option<&mut Clocks>) {
    if let Some(clocks) = clocks {
        clocks.silent_since = (!awaited.is_empty()).then(Instant::now);
    }
}

#[cfg(test)]
mod tests;
