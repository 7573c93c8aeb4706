//! The beginning of a connection, before it carries operations.
//!
//! The client library logs in on the socket, which it only borrows: the version of the protocol, authentication, the
//! database and the name of the library, with everything that servers may say about these. After that [`ask`] sends
//! questions as any other command goes out, with a bound for each reply.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, ProtocolVersion, RedisConnectionInfo, RedisError};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::oneshot;

use super::dial::Stream;
use super::errors::{is_closed, may_refuse_protocol};
use crate::error::LockError;
use lock_protocol::resp::{CommandBuf, FrameScan, Malformed, OPERATOR_REPLY, Replies};

/// The bytes that are read at once. The replies to a handshake have some 6,000, most of them of `INFO`.
const READ: usize = 8 * 1024;

/// A socket, the version of the protocol that it speaks, and why that is not RESP3 if it was tried.
type LoggedIn = (Stream, ProtocolVersion, Option<RedisError>);

/// When a login in RESP3 is followed by one in RESP2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fallback {
    Never,
    AfterRefusal,
    /// Also if the connection ends, which is how some services refuse. A server that has accepted RESP3 before ends a
    /// connection for another reason, such as its number of clients, and must not be dialed twice as often for that.
    AfterRefusalOrEnd,
}

/// Dials and logs in. The inner error is that of the last login.
///
/// Services word the refusal in many ways, and some close the connection. So every refusal but that of a password leads
/// to the second attempt, and its error is the one that counts.
pub(super) async fn dial_and_log_in<D: Future<Output = Result<Stream, LockError>>>(
    dial: impl Fn() -> D,
    login: &RedisConnectionInfo,
    fallback: Fallback,
) -> Result<Result<LoggedIn, RedisError>, LockError> {
    let protocol = login.protocol();
    let error = match log_in(dial().await?, login).await {
        Ok(stream) => return Ok(Ok((stream, protocol, None))),
        Err(error) => error,
    };
    let falls_back = match fallback {
        Fallback::Never => false,
        Fallback::AfterRefusal => may_be_of_hello(&error, login),
        Fallback::AfterRefusalOrEnd => may_be_of_hello(&error, login) || is_closed(&error),
    };
    if !falls_back || !protocol.supports_resp3() {
        return Ok(Err(error));
    }
    let login = login.clone().set_protocol(ProtocolVersion::RESP2);
    let stream = log_in(dial().await?, &login).await;
    Ok(stream.map(|stream| (stream, ProtocolVersion::RESP2, Some(error))))
}

/// Returns whether a login in RESP3 may have failed because of the version of the protocol.
fn may_be_of_hello(error: &RedisError, login: &RedisConnectionInfo) -> bool {
    match error.code() {
        Some("WRONGPASS") => false,
        // Without a password it is the password that is missing.
        Some("NOAUTH") => login.password().is_some(),
        Some(_) => may_refuse_protocol(error),
        None => error.kind() == ErrorKind::RESP3NotSupported,
    }
}

/// Sends what the client library sends at the beginning of a connection. Returns the socket.
async fn log_in(stream: Stream, login: &RedisConnectionInfo) -> Result<Stream, RedisError> {
    let (back, returned) = oneshot::channel();
    let lent = Lent {
        stream: Some(stream),
        back: Some(back),
        sent: Frames::default(),
        received: Frames::default(),
    };
    // Without the client's own time limits: a dead server was seen to exceed them.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None);
    let (connection, driver) = MultiplexedConnection::new_with_config(login, lent, config).await?;
    drop((connection, driver));
    let returned = returned
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
    Ok(returned?)
}

/// Sends questions at once, and returns the replies to them: one for each.
///
/// # Errors
/// The connection broke, or the server sent something else than these replies.
pub(super) async fn ask(
    stream: &mut Stream,
    write: impl FnOnce(&mut CommandBuf<'_>),
) -> io::Result<Vec<u8>> {
    let mut questions = Vec::new();
    write(&mut CommandBuf::new(&mut questions));
    let expected = Replies::new(&questions).count();
    stream.write_all(&questions).await?;
    stream.flush().await?;
    let (mut replies, mut scan) = (Vec::new(), FrameScan::default());
    let (mut known, mut at) = (0, 0);
    while known < expected {
        replies.reserve(READ);
        if stream.read_buf(&mut replies).await? == 0 {
            return Err(closed());
        }
        while known < expected
            && let Some(len) = scan.scan(&replies[at..], OPERATOR_REPLY).map_err(invalid)?
        {
            at += len;
            known += 1;
        }
    }
    if at < replies.len() {
        return Err(unasked());
    }
    Ok(replies)
}

fn closed() -> io::Error {
    let text = "the server closed the connection";
    io::Error::new(io::ErrorKind::UnexpectedEof, text)
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn unasked() -> io::Error {
    invalid("the server sent a reply without a command")
}

/// Counts commands, or replies.
#[derive(Default)]
struct Frames {
    scan: FrameScan,
    /// The frame whose end isn't known.
    open: Vec<u8>,
    complete: usize,
    /// From here on, nobody can tell where a frame ends.
    is_lost: bool,
}

impl Frames {
    fn add(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        if self.is_lost {
            return Ok(());
        }
        self.open.extend_from_slice(bytes);
        loop {
            match self.scan.scan(&self.open, OPERATOR_REPLY) {
                Ok(Some(len)) => {
                    self.open.drain(..len);
                    self.complete += 1;
                }
                Ok(None) => return Ok(()),
                Err(error) => {
                    self.is_lost = true;
                    return Err(error);
                }
            }
        }
    }

    /// Returns the number of frames, if they are whole.
    fn count(&self) -> Option<usize> {
        (!self.is_lost && self.open.is_empty()).then_some(self.complete)
    }
}

/// A socket that the client library borrows for the login. It goes back when this is dropped.
///
/// The library reads as many bytes as there are. Those behind the reply to the last command would be lost with it, and
/// the replies to later commands would be read at the wrong place. So commands and replies are counted.
struct Lent {
    stream: Option<Stream>,
    back: Option<oneshot::Sender<io::Result<Stream>>>,
    sent: Frames,
    received: Frames,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let (Some(stream), Some(back)) = (self.stream.take(), self.back.take()) {
            let (sent, received) = (self.sent.count(), self.received.count());
            let is_in_step = sent.is_some() && sent == received;
            // Without a receiver the login has failed, and the socket is closed.
            let _returned = back.send(if is_in_step {
                Ok(stream)
            } else {
                Err(unasked())
            });
        }
    }
}

impl Lent {
    fn stream(&mut self) -> io::Result<&mut Stream> {
        self.stream
            .as_mut()
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl AsyncRead for Lent {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(self.stream()?).poll_read(cx, buffer)?;
        // The library reads without a bound, but it says better what is wrong with a reply that isn't one.
        if let Err(error @ Malformed::TooLarge { .. }) =
            self.received.add(&buffer.filled()[before..])
        {
            return Poll::Ready(Err(invalid(error)));
        }
        read.map(Ok)
    }
}

impl AsyncWrite for Lent {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(self.stream()?).poll_write(cx, bytes)?;
        if let Poll::Ready(written) = written {
            self.sent.add(&bytes[..written]).map_err(invalid)?;
        }
        written.map(Ok)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.stream()?).poll_flush(cx)
    }

    /// Leaves the socket open: it is only lent.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
