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
use redis::{AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo, RedisError};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::oneshot;

use super::dial::Stream;
use super::errors::{error_text, io_error, is_closed};
use super::transport::PUSH;
use crate::error::LockError;
use crate::error::texts::{backend_kind, text_of};
use lock_protocol::identity::Hello;
use lock_protocol::op::{Refusal, RefusalKind};
use lock_protocol::resp::{CommandBuf, FrameScan, LOCK_REPLY, Malformed, OPERATOR_REPLY, Replies};

/// The bytes that are read at once. The replies to a handshake have some 6,000, most of them of `INFO`.
const READ: usize = 8 * 1024;

/// A socket that has logged in.
pub(super) struct LoggedIn {
    pub(super) stream: Stream,
    pub(super) protocol: ProtocolVersion,
    /// What the server said of itself, in RESP3.
    pub(super) hello: Hello,
    /// Why this isn't RESP3, if it was tried.
    pub(super) refused_resp3: Option<LoginError>,
}

/// Why a login failed.
pub(super) struct LoginError {
    /// What the server replied to HELLO or AUTH, if that was an error. The client library drops most of it.
    pub(super) refusal: Option<Refusal>,
    /// What the client library says.
    pub(super) error: RedisError,
}

impl LoginError {
    /// Returns whether the server doesn't know RESP3. A server that asks for the password that HELLO has doesn't know
    /// HELLO.
    pub(super) fn is_of_resp3(&self, login: &RedisConnectionInfo) -> bool {
        let Some(refusal) = &self.refusal else {
            return false;
        };
        let is_asked_again = refusal.text.starts_with("NOAUTH") && login.password().is_some();
        login.protocol().supports_resp3() && (refusal.is_of_command() || is_asked_again)
    }

    /// Returns the reason, for a log line.
    pub(super) fn text(&self) -> String {
        match &self.refusal {
            Some(refusal) => text_of(refusal),
            None => error_text(&self.error),
        }
    }

    /// Returns the error for users. Begins with the context.
    pub(super) fn to_lock_error(&self, context: &str) -> LockError {
        match &self.refusal {
            Some(refusal) => {
                let text = format!("{context} ({})", text_of(refusal));
                LockError::backend(backend_kind(refusal.kind), text)
            }
            None => io_error(context, &self.error),
        }
    }
}

/// When a login in RESP3 is followed by one in RESP2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fallback {
    Never,
    AfterRefusal,
    /// Also if the connection ends, which is how some services refuse. A server that has accepted RESP3 before ends a
    /// connection for another reason, such as its number of clients, and must not be dialed twice as often for that.
    AfterRefusalOrEnd,
}

/// Dials and logs in, in RESP2 if the server refuses RESP3. The outer error comes from a dial, the inner one from the
/// last login.
///
/// Services refuse RESP3 in their own words, and some just close the connection. Therefore every refusal leads to a second
/// login, unless it is about the password or the number of clients, and the second login's error replaces the first.
pub(super) async fn dial_and_log_in<D: Future<Output = Result<Stream, LockError>>>(
    dial: impl Fn() -> D,
    login: &RedisConnectionInfo,
    fallback: Fallback,
) -> Result<Result<LoggedIn, LoginError>, LockError> {
    let protocol = login.protocol();
    let failed = match log_in(dial().await?, login).await {
        Ok((stream, hello)) => {
            return Ok(Ok(LoggedIn {
                stream,
                protocol,
                hello,
                refused_resp3: None,
            }));
        }
        Err(failed) => failed,
    };
    let may_be_of_resp3 = match &failed.refusal {
        Some(refusal) => {
            let is_of_another = [RefusalKind::Authentication, RefusalKind::TooManyClients];
            !is_of_another.contains(&refusal.kind) || failed.is_of_resp3(login)
        }
        None => fallback == Fallback::AfterRefusalOrEnd && is_closed(&failed.error),
    };
    if !protocol.supports_resp3() || fallback == Fallback::Never || !may_be_of_resp3 {
        return Ok(Err(failed));
    }
    let login = login.clone().set_protocol(ProtocolVersion::RESP2);
    let logged_in = log_in(dial().await?, &login).await;
    Ok(logged_in.map(|(stream, hello)| LoggedIn {
        stream,
        protocol: ProtocolVersion::RESP2,
        hello,
        refused_resp3: Some(failed),
    }))
}

/// Sends what the client library sends at the beginning of a connection. Returns the socket, and what the server said of
/// itself.
async fn log_in(
    stream: Stream,
    login: &RedisConnectionInfo,
) -> Result<(Stream, Hello), LoginError> {
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
    let connected = MultiplexedConnection::new_with_config(login, lent, config).await;
    // Whatever became of it, the socket is dropped by now, and comes back.
    let connected = connected.map(|(connection, driver)| drop((connection, driver)));
    let gone = || Err(io::Error::from(io::ErrorKind::BrokenPipe));
    let (stream, first) = returned.await.unwrap_or_else(|_| (gone(), None));
    let failed = match (connected, stream) {
        (Ok(()), Ok(stream)) => {
            let hello = first
                .as_deref()
                .and_then(|first| Replies::new(first).next());
            return Ok((stream, hello.map(Hello::read).unwrap_or_default()));
        }
        (Ok(()), Err(error)) => error.into(),
        (Err(error), _) => error,
    };
    // Without either of them, the first reply answers another command.
    let is_of_login = login.protocol().supports_resp3() || login.password().is_some();
    let refusal = first.filter(|_| is_of_login);
    Err(LoginError {
        refusal: refusal.and_then(|reply| refusal_of(&reply, login.password())),
        error: failed,
    })
}

/// Reads what the server says about the login.
fn refusal_of(reply: &[u8], password: Option<&str>) -> Option<Refusal> {
    let refusal = Refusal::of(Replies::new(reply).next()?.error()?);
    Some(hide_password(refusal, password.unwrap_or_default()))
}

/// The shortest beginning of a password that is hidden at the end of a text.
const SHORTEST_BEGINNING: usize = 4;

/// Hides the password in what a server says, which may repeat it, also as a text with escapes, or its beginning where the
/// text is cut off.
pub(super) fn hide_password(mut refusal: Refusal, password: &str) -> Refusal {
    let forms = [
        password.to_owned(),
        password.escape_debug().to_string(),
        password.escape_default().to_string(),
        // As Redis writes a text with escapes.
        password.as_bytes().escape_ascii().to_string(),
    ];
    for form in forms.iter().filter(|form| !form.is_empty()) {
        refusal.text = refusal.text.replace(form.as_str(), "***").into();
        refusal.text = without_beginning(&refusal.text, form).into();
    }
    refusal
}

/// Hides the beginning of a password at the end of a text. Dots, quotes and brackets may follow it.
fn without_beginning(text: &str, password: &str) -> String {
    let said = text.trim_end_matches(['.', '…', '\'', '"', '`', ')', ']', ' ']);
    let ends = password.char_indices().map(|(at, _)| at).rev();
    let beginnings = ends.map(|end| &password[..end]);
    let is_long = |it: &&str| it.chars().count() >= SHORTEST_BEGINNING;
    let found = beginnings
        .take_while(is_long)
        .find(|beginning| said.ends_with(beginning) || text.ends_with(beginning));
    match found {
        Some(beginning) => {
            let at = text.rfind(beginning).unwrap_or_default();
            format!("{}***{}", &text[..at], &text[at + beginning.len()..])
        }
        None => text.to_owned(),
    }
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
            if replies[at] == PUSH {
                return Err(unasked());
            }
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
    /// The first frame, if it is an error or a map.
    first: Option<Vec<u8>>,
    /// How many bytes have followed since nobody can tell where a frame ends.
    lost: Option<usize>,
}

impl Frames {
    fn add(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        if let Some(lost) = &mut self.lost {
            *lost = lost.saturating_add(bytes.len());
            let limit = LOCK_REPLY;
            return if *lost > limit {
                Err(Malformed::TooLarge { limit })
            } else {
                Ok(())
            };
        }
        self.open.extend_from_slice(bytes);
        loop {
            match self.scan.scan(&self.open, OPERATOR_REPLY) {
                Ok(Some(len)) => {
                    let frame = self.open.drain(..len);
                    let kind = frame.as_slice().first();
                    if self.complete == 0 && matches!(kind, Some(b'-' | b'!' | b'%')) {
                        self.first = Some(frame.as_slice().to_vec());
                    }
                    drop(frame);
                    self.complete += 1;
                }
                Ok(None) => return Ok(()),
                Err(error) => {
                    self.lost = Some(0);
                    return Err(error);
                }
            }
        }
    }

    /// Returns the number of frames, if they are whole.
    fn count(&self) -> Option<usize> {
        (self.lost.is_none() && self.open.is_empty()).then_some(self.complete)
    }
}

/// The socket, if nothing is left over, and the first reply, if it is an error or the map of `HELLO`.
type Returned = (io::Result<Stream>, Option<Vec<u8>>);

/// A socket that the client library borrows for the login. It goes back when this is dropped.
///
/// The library reads whatever bytes have arrived, and loses those behind the last reply that it waits for. Later replies
/// would then be read at the wrong place, so commands and replies are counted.
struct Lent {
    stream: Option<Stream>,
    back: Option<oneshot::Sender<Returned>>,
    sent: Frames,
    received: Frames,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let (Some(stream), Some(back)) = (self.stream.take(), self.back.take()) {
            let (sent, received) = (self.sent.count(), self.received.count());
            let is_in_step = sent.is_some() && sent == received;
            let stream = if is_in_step {
                Ok(stream)
            } else {
                Err(unasked())
            };
            // Without a receiver the caller has gone, and the socket is closed.
            let _returned = back.send((stream, self.received.first.take()));
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
        // The library has no bound of its own, but its error describes a malformed reply better than ours.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_counted_in_any_pieces() {
        let bytes = b"-ERR no\r\n%1\r\n+a\r\n:1\r\n+OK\r\n";
        for piece in 1..bytes.len() {
            let mut frames = Frames::default();
            for piece in bytes.chunks(piece) {
                frames.add(piece).unwrap();
            }
            assert_eq!(frames.count(), Some(3), "{piece}");
            assert_eq!(frames.first.as_deref(), Some(&b"-ERR no\r\n"[..]));
            frames.add(b"+O").unwrap();
            assert_eq!(frames.count(), None, "{piece}");
        }
    }

    #[test]
    fn password_is_hidden_where_the_text_is_cut_off() {
        let hidden = |text: &str| {
            let refusal = Refusal {
                kind: RefusalKind::Other,
                text: text.into(),
                redirect: None,
            };
            hide_password(refusal, "hunter2\"x").text.to_string()
        };
        for (text, shown) in [
            ("no: hunter2\"x", "no: ***"),
            ("no: hunter2\\\"x, or hunter2", "no: ***, or ***"),
            ("no: 'hunter2\\\"'", "no: '***\"'"),
            ("no: hunt", "no: ***"),
            ("no: 'hunter...", "no: '***..."),
            // Too short to be one, or not at the end.
            ("no: hun", "no: hun"),
            ("a hunter said no", "a hunter said no"),
        ] {
            assert_eq!(hidden(text), shown, "{text}");
        }
    }

    /// The reply to the last question would otherwise be given to the first operation.
    #[tokio::test]
    async fn push_is_no_reply_to_a_question() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut client = Stream::Tcp(tokio::net::TcpStream::connect(address).await.unwrap());
        let (mut server, _) = listener.accept().await.unwrap();
        server.write_all(b">1\r\n+x\r\n").await.unwrap();
        let asked = ask(&mut client, |out| drop(out.command("PING"))).await;
        assert_eq!(asked.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    /// The client library may take for a number what isn't one.
    #[test]
    fn bytes_after_a_malformed_frame_are_bounded() {
        let mut frames = Frames::default();
        assert_eq!(frames.add(b"$+9\r\n"), Err(Malformed::NotTheProtocol));
        assert_eq!(frames.add(&vec![b'x'; LOCK_REPLY]), Ok(()));
        assert_eq!(frames.count(), None);
        let limit = LOCK_REPLY;
        assert_eq!(frames.add(b"x"), Err(Malformed::TooLarge { limit }));
        assert!(frames.open.len() < 10);
    }
}
