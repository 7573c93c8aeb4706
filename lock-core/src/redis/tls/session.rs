//! The two halves of a TLS connection. They share the state of the session, and each has a half of the
//! socket.
//!
//! A mutex guards the state only while bytes are encrypted, decrypted or given to the socket. Nothing
//! waits under it.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use redis::io::tcp::socket2::SockRef;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::{TcpStream, tcp};
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConnection;

use crate::sync::Mutex;

/// The longest record of TLS, with its header.
const RECORD: usize = 16 * 1024 + 512;

struct TlsSession {
    state: Mutex<SessionState>,
}

struct SessionState {
    connection: ClientConnection,
    /// Encrypted bytes that the socket has not taken yet.
    sealed: Vec<u8>,
}

/// The half that reads.
pub(in crate::redis) struct TlsReadHalf {
    socket: tcp::OwnedReadHalf,
    session: Arc<TlsSession>,
    /// A place for encrypted bytes.
    sealed: Box<[u8]>,
    /// Decrypted bytes that no caller has taken yet, from `taken` on.
    plain: Vec<u8>,
    taken: usize,
    has_ended: bool,
}

/// The half that writes.
pub(in crate::redis) struct TlsWriteHalf {
    socket: tcp::OwnedWriteHalf,
    session: Arc<TlsSession>,
}

/// Splits a connection after its handshake.
pub(in crate::redis) fn split(stream: TlsStream<TcpStream>) -> (TlsReadHalf, TlsWriteHalf) {
    let (socket, connection) = stream.into_inner();
    let (read, write) = socket.into_split();
    let session = Arc::new(TlsSession {
        state: Mutex::new(SessionState {
            connection,
            sealed: Vec::new(),
        }),
    });
    let read = TlsReadHalf {
        socket: read,
        session: Arc::clone(&session),
        sealed: vec![0; RECORD].into(),
        plain: Vec::new(),
        taken: 0,
        has_ended: false,
    };
    let write = TlsWriteHalf {
        socket: write,
        session,
    };
    (read, write)
}

impl SessionState {
    /// Moves what the session has to send to the encrypted bytes.
    fn seal(&mut self) -> io::Result<()> {
        while self.connection.wants_write() {
            self.connection.write_tls(&mut self.sealed)?;
        }
        Ok(())
    }

    /// Gives the encrypted bytes to the socket. Returns `WouldBlock` if it does not take all.
    fn flush(&mut self, socket: &tcp::OwnedWriteHalf) -> io::Result<()> {
        let mut sent = 0;
        let result = loop {
            if sent == self.sealed.len() {
                break Ok(());
            }
            match socket.try_write(&self.sealed[sent..]) {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => sent += written,
                Err(error) => break Err(error),
            }
        };
        self.sealed.drain(..sent);
        result
    }

    /// Decrypts bytes, and appends them to `plain`. Returns whether the server has closed the session.
    fn open(&mut self, mut sealed: &[u8], plain: &mut Vec<u8>) -> io::Result<bool> {
        loop {
            let state = self
                .connection
                .process_new_packets()
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            let len = state.plaintext_bytes_to_read();
            if len > 0 {
                let start = plain.len();
                plain.resize(start + len, 0);
                self.connection.reader().read_exact(&mut plain[start..])?;
            }
            if state.peer_has_closed() {
                return Ok(true);
            }
            if sealed.is_empty() {
                return Ok(false);
            }
            self.connection.read_tls(&mut sealed)?;
        }
    }
}

impl AsyncRead for TlsReadHalf {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if this.taken < this.plain.len() {
                let len = buffer.remaining().min(this.plain.len() - this.taken);
                buffer.put_slice(&this.plain[this.taken..this.taken + len]);
                this.taken += len;
                return Poll::Ready(Ok(()));
            }
            this.plain.clear();
            this.taken = 0;
            if this.has_ended {
                return Poll::Ready(Ok(()));
            }
            // The handshake may have read more than its own messages.
            this.has_ended = this.session.state.lock().open(&[], &mut this.plain)?;
            if !this.plain.is_empty() || this.has_ended {
                continue;
            }
            let mut sealed = ReadBuf::new(&mut this.sealed);
            ready!(Pin::new(&mut this.socket).poll_read(cx, &mut sealed))?;
            let sealed = sealed.filled();
            let mut state = this.session.state.lock();
            this.has_ended = sealed.is_empty() || state.open(sealed, &mut this.plain)?;
            // A new key of the server is confirmed. The driver sends it.
            state.seal()?;
        }
    }
}

impl TlsWriteHalf {
    /// Encrypts bytes, and gives them to the socket. The bytes count as written when they are encrypted:
    /// [`poll_flush`](Self::poll_flush) sends the rest.
    pub(in crate::redis) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.session.state.lock();
        state.flush(&self.socket)?;
        let written = state.connection.writer().write(bytes)?;
        state.seal()?;
        match state.flush(&self.socket) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(written),
        }
    }

    /// Returns whether encrypted bytes wait for the socket.
    pub(in crate::redis) fn is_unflushed(&self) -> bool {
        !self.session.state.lock().sealed.is_empty()
    }

    /// Gives all encrypted bytes to the socket.
    pub(in crate::redis) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.is_unflushed() {
            ready!(self.poll_ready(cx))?;
            match self.session.state.lock().flush(&self.socket) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    return Poll::Ready(Err(error));
                }
                _ => {}
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Waits until the socket takes more bytes.
    pub(in crate::redis) fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.as_ref().poll_write_ready(cx)
    }

    /// Tells the server that no more commands come.
    pub(in crate::redis) fn shut_down(&self) {
        {
            let mut state = self.session.state.lock();
            state.connection.send_close_notify();
            // The server may have closed the socket already.
            let _sealed = state.seal();
            let _sent = state.flush(&self.socket);
        }
        let _shut_down = SockRef::from(self.socket.as_ref()).shutdown(Shutdown::Write);
    }

    /// Leaves the socket open for the other half, and for the parent of a forked child.
    pub(in crate::redis) fn forget(self) {
        self.socket.forget();
    }
}
