//! Opens sockets.

#[cfg(not(feature = "__tls"))]
use std::convert::Infallible as TlsClient;
use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
#[cfg(feature = "__tls")]
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use redis::RedisError;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, tcp};
#[cfg(unix)]
use tokio::net::{UnixStream, unix};
use tokio::task::JoinSet;
#[cfg(feature = "__tls")]
use tokio_rustls::client::TlsStream;

use super::deployment::NodeAddress;
#[cfg(feature = "__tls")]
use super::tls::TlsClient;
#[cfg(feature = "__tls")]
use super::tls::session::{self, TlsReadHalf, TlsWriteHalf};
#[cfg(feature = "__doctor")]
use super::tls::{Certificate, certificate_of};
use crate::error::LockError;
use lock_protocol::clock::Deadline;

/// The TLS client of a manager. Without the feature there is none.
pub(super) type SharedTls = Arc<TlsClient>;

/// A connected socket.
pub(super) enum Stream {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
    #[cfg(feature = "__tls")]
    Tls(Box<TlsStream<TcpStream>>),
}

/// The half of a socket that reads.
pub(super) enum ReadHalf {
    Tcp(tcp::OwnedReadHalf),
    #[cfg(unix)]
    Unix(unix::OwnedReadHalf),
    #[cfg(feature = "__tls")]
    Tls(Box<TlsReadHalf>),
}

/// The half of a socket that writes. Dropping it leaves the socket open for the other half, and for
/// the parent of a forked child: a shutdown would end the parent's connection too.
pub(super) struct WriteHalf {
    /// `None` only while it is dropped.
    half: Option<OpenWriteHalf>,
}

enum OpenWriteHalf {
    Tcp(tcp::OwnedWriteHalf),
    #[cfg(unix)]
    Unix(unix::OwnedWriteHalf),
    #[cfg(feature = "__tls")]
    Tls(TlsWriteHalf),
}

/// Load balancers and NAT gateways forget a connection after a few idle minutes and then drop its packets silently.
/// Without keepalive, the first call after a pause would time out.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// The most addresses of a name that are tried.
pub(super) const MAX_ADDRESSES: usize = 16;

/// Asks the system's resolver for the addresses of a host. A Unix socket has none.
pub(super) async fn resolve(address: &NodeAddress) -> io::Result<Vec<SocketAddr>> {
    let NodeAddress::Tcp(host, port) = address else {
        return Ok(Vec::new());
    };
    let mut found: Vec<SocketAddr> = Vec::new();
    for address in tokio::net::lookup_host((host.as_str(), *port)).await? {
        if !found.contains(&address) {
            found.push(address);
        }
    }
    if found.is_empty() {
        let text = "the host has no address";
        return Err(io::Error::new(io::ErrorKind::NotFound, text));
    }
    Ok(found)
}

/// Returns how long to wait for one of several servers before the next one is tried as well, so that all of them have a
/// part of the time that is left.
pub(super) fn stagger(longest: Duration, others: usize, deadline: Deadline) -> Duration {
    let shares = u32::try_from(others + 2).unwrap_or(u32::MAX);
    longest.min(deadline.left() / shares)
}

/// Opens a socket to the first of these addresses that accepts a connection, and begins TLS on it if there is a client for
/// it. An error of the socket is the inner one. `is_securing` is set during the TLS handshake.
pub(super) async fn dial(
    address: &NodeAddress,
    resolved: &[SocketAddr],
    tls: Option<&SharedTls>,
    is_securing: &AtomicBool,
) -> Result<Result<Stream, RedisError>, LockError> {
    let stream = match address {
        NodeAddress::Tcp(host, _) => match dial_tcp(resolved).await {
            Ok(stream) => return secured(host, stream, tls, is_securing).await.map(Ok),
            Err(error) => Err(error),
        },
        #[cfg(unix)]
        NodeAddress::Unix(path) => UnixStream::connect(path).await.map(Stream::Unix),
        #[cfg(not(unix))]
        NodeAddress::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
    };
    Ok(stream.map_err(RedisError::from))
}

async fn dial_tcp(resolved: &[SocketAddr]) -> io::Result<TcpStream> {
    let stream = first_connected(resolved).await?;
    // Without it, a command waits for the acknowledgment of the previous one.
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE_INTERVAL);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    Ok(stream)
}

#[cfg(feature = "__tls")]
async fn secured(
    host: &str,
    stream: TcpStream,
    tls: Option<&SharedTls>,
    is_securing: &AtomicBool,
) -> Result<Stream, LockError> {
    let Some(tls) = tls else {
        return Ok(Stream::Tcp(stream));
    };
    let config = tls.config().await;
    is_securing.store(true, Ordering::Relaxed);
    let secured = tls.connect(config, host, stream).await;
    is_securing.store(false, Ordering::Relaxed);
    Ok(Stream::Tls(Box::new(secured?)))
}

/// Without the feature there is no value of `SharedTls`.
#[cfg(not(feature = "__tls"))]
#[expect(clippy::unused_async, reason = "with TLS it waits for the handshake")]
async fn secured(
    _host: &str,
    stream: TcpStream,
    _tls: Option<&SharedTls>,
    _is_securing: &AtomicBool,
) -> Result<Stream, LockError> {
    Ok(Stream::Tcp(stream))
}

/// Connects to all addresses of a host at once. The first connection counts: an address that does not
/// answer must not cost the time of the others.
async fn first_connected(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    if let [address] = addresses {
        return TcpStream::connect(address).await;
    }
    let mut attempts = JoinSet::new();
    for address in addresses.iter().take(MAX_ADDRESSES) {
        attempts.spawn(TcpStream::connect(*address));
    }
    let mut failure = io::ErrorKind::NotFound.into();
    while let Some(attempt) = attempts.join_next().await {
        match attempt.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            #[cfg(unix)]
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
            #[cfg(feature = "__tls")]
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            #[cfg(unix)]
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
            #[cfg(feature = "__tls")]
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            #[cfg(unix)]
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
            #[cfg(feature = "__tls")]
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            #[cfg(unix)]
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            #[cfg(feature = "__tls")]
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

impl Stream {
    /// Returns the address to which it leads; `None` for a Unix socket.
    pub(super) fn peer(&self) -> Option<IpAddr> {
        let stream = match self {
            Self::Tcp(stream) => stream,
            #[cfg(unix)]
            Self::Unix(_) => return None,
            #[cfg(feature = "__tls")]
            Self::Tls(stream) => stream.get_ref().0,
        };
        stream.peer_addr().ok().map(|peer| peer.ip())
    }

    /// Returns the certificate that the server has shown, if there is TLS and rustls can read it.
    #[cfg(feature = "__doctor")]
    pub(super) fn certificate(&self) -> Option<Certificate<'static>> {
        match self {
            Self::Tls(stream) => certificate_of(stream),
            _ => None,
        }
    }

    pub(super) fn into_split(self) -> (ReadHalf, WriteHalf) {
        let (read, write) = match self {
            Self::Tcp(stream) => {
                let (read, write) = stream.into_split();
                (ReadHalf::Tcp(read), OpenWriteHalf::Tcp(write))
            }
            #[cfg(unix)]
            Self::Unix(stream) => {
                let (read, write) = stream.into_split();
                (ReadHalf::Unix(read), OpenWriteHalf::Unix(write))
            }
            #[cfg(feature = "__tls")]
            Self::Tls(stream) => {
                let (read, write) = session::split(*stream);
                (ReadHalf::Tls(Box::new(read)), OpenWriteHalf::Tls(write))
            }
        };
        (read, WriteHalf { half: Some(write) })
    }
}

impl AsyncRead for ReadHalf {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(half) => Pin::new(half).poll_read(cx, buffer),
            #[cfg(unix)]
            Self::Unix(half) => Pin::new(half).poll_read(cx, buffer),
            #[cfg(feature = "__tls")]
            Self::Tls(half) => Pin::new(half).poll_read(cx, buffer),
        }
    }
}

impl WriteHalf {
    /// Writes what the socket takes at once.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match &self.half {
            Some(OpenWriteHalf::Tcp(half)) => half.try_write(bytes),
            #[cfg(unix)]
            Some(OpenWriteHalf::Unix(half)) => half.try_write(bytes),
            #[cfg(feature = "__tls")]
            Some(OpenWriteHalf::Tls(half)) => half.try_write(bytes),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Waits until the socket takes more bytes.
    pub(super) fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.half {
            Some(OpenWriteHalf::Tcp(half)) => half.as_ref().poll_write_ready(cx),
            #[cfg(unix)]
            Some(OpenWriteHalf::Unix(half)) => half.as_ref().poll_write_ready(cx),
            #[cfg(feature = "__tls")]
            Some(OpenWriteHalf::Tls(half)) => half.poll_ready(cx),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    /// Returns whether written bytes wait for the socket. Only TLS keeps some.
    pub(super) fn is_unflushed(&self) -> bool {
        match &self.half {
            #[cfg(feature = "__tls")]
            Some(OpenWriteHalf::Tls(half)) => half.is_unflushed(),
            _ => false,
        }
    }

    /// Gives all written bytes to the socket.
    #[cfg(feature = "__tls")]
    pub(super) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.half {
            Some(OpenWriteHalf::Tls(half)) => half.poll_flush(cx),
            _ => Poll::Ready(Ok(())),
        }
    }

    /// The socket has all written bytes.
    #[cfg(not(feature = "__tls"))]
    #[expect(
        clippy::unused_self,
        reason = "with TLS, some bytes wait for the socket"
    )]
    pub(super) fn poll_flush(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Tells the server that no more commands come. Handles of a connection that failed may be kept
    /// for long, and the server must not wait for them.
    pub(super) fn shut_down(&self) {
        let socket = match &self.half {
            Some(OpenWriteHalf::Tcp(half)) => SockRef::from(half.as_ref()),
            #[cfg(unix)]
            Some(OpenWriteHalf::Unix(half)) => SockRef::from(half.as_ref()),
            #[cfg(feature = "__tls")]
            Some(OpenWriteHalf::Tls(half)) => return half.shut_down(),
            None => return,
        };
        // The server may have closed the socket already.
        let _shut_down = socket.shutdown(Shutdown::Write);
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        match self.half.take() {
            Some(OpenWriteHalf::Tcp(half)) => half.forget(),
            #[cfg(unix)]
            Some(OpenWriteHalf::Unix(half)) => half.forget(),
            #[cfg(feature = "__tls")]
            Some(OpenWriteHalf::Tls(half)) => half.forget(),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests;
