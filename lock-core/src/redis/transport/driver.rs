//! The task that sends what callers appended, reads, and wakes the callers.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use tokio::io::{AsyncRead, ReadBuf};

use super::{CAPACITY, End, LARGEST_KEPT, PUSH, ReadHalf, Shared, State};
use lock_protocol::resp::{FrameScan, LOCK_REPLY};

pub(super) struct Driver {
    shared: Arc<Shared>,
    read: ReadHalf,
    /// The bytes that were read and are not a complete reply yet are at its beginning.
    buffer: Vec<u8>,
    filled: usize,
    /// How far the incomplete reply at the beginning was looked at.
    scan: FrameScan,
    /// The callers whose replies are complete.
    ready: Vec<Waker>,
}

impl Driver {
    pub(super) fn new(shared: Arc<Shared>, read: ReadHalf) -> Self {
        Self {
            shared,
            read,
            buffer: vec![0; CAPACITY],
            filled: 0,
            scan: FrameScan::default(),
            ready: Vec::new(),
        }
    }

    /// Sends what callers appended. Returns an error if the connection failed, or if its last handle
    /// was dropped and the socket takes no more.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        loop {
            let waker = cx.waker().clone();
            let (buffer, is_closing, replaced) = {
                let mut state = self.shared.state.lock();
                let replaced = state.driver.replace(waker);
                let is_closing = !matches!(state.end, End::Open);
                if state.is_sending || state.out.is_empty() {
                    (None, is_closing, replaced)
                } else {
                    state.is_sending = true;
                    (Some(std::mem::take(&mut state.out)), is_closing, replaced)
                }
            };
            drop(replaced);
            let result = match buffer {
                Some(buffer) => {
                    let (sent, result) = self.send(&buffer, cx);
                    let is_left = self.shared.state.lock().give_back(buffer, sent);
                    if let Poll::Ready(Ok(())) = result
                        && (is_left || self.shared.write.is_unflushed())
                    {
                        continue;
                    }
                    result
                }
                None => self.shared.write.poll_flush(cx),
            };
            return match result {
                Poll::Ready(Err(error)) => Err(error),
                _ if is_closing => Err(io::ErrorKind::NotConnected.into()),
                Poll::Ready(Ok(())) | Poll::Pending => Ok(()),
            };
        }
    }

    /// Sends a buffer as far as the socket takes it. Returns how much was sent.
    fn send(&self, buffer: &[u8], cx: &mut Context<'_>) -> (usize, Poll<io::Result<()>>) {
        let mut sent = 0;
        while sent < buffer.len() {
            match self.shared.write.poll_ready(cx) {
                Poll::Ready(Ok(())) => {}
                other => return (sent, other),
            }
            match self.shared.write.try_write(&buffer[sent..]) {
                Ok(0) => return (sent, Poll::Ready(Err(io::ErrorKind::WriteZero.into()))),
                Ok(written) => sent += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return (sent, Poll::Ready(Err(error))),
            }
        }
        (sent, Poll::Ready(Ok(())))
    }

    /// Reads until the socket has no more bytes. Returns only with an error.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            if self.filled == self.buffer.len() {
                self.buffer.resize(self.filled.saturating_mul(2), 0);
            }
            let mut free = ReadBuf::new(&mut self.buffer[self.filled..]);
            let result = ready!(Pin::new(&mut self.read).poll_read(cx, &mut free));
            let read = free.filled().len();
            if let Err(error) = result {
                return Poll::Ready(error);
            }
            if read == 0 {
                let text = "the server closed the connection";
                return Poll::Ready(io::Error::new(io::ErrorKind::UnexpectedEof, text));
            }
            self.filled += read;
            if let Err(error) = self.deliver() {
                return Poll::Ready(error);
            }
        }
    }

    /// Gives the complete replies to their callers.
    fn deliver(&mut self) -> io::Result<()> {
        let (delivered, has_replied, result, others_wait) = {
            let mut state = self.shared.state.lock();
            let bytes = &self.buffer[..self.filled];
            let (delivery, result) = deliver(&mut state, &mut self.scan, bytes, &mut self.ready);
            let others_wait = !state.awaited.is_empty();
            (delivery.bytes, delivery.has_replied, result, others_wait)
        };
        if has_replied {
            self.shared.link.heard(others_wait);
        }
        self.buffer.copy_within(delivered..self.filled, 0);
        self.filled -= delivered;
        if self.filled == 0 && self.buffer.len() > LARGEST_KEPT {
            self.buffer = vec![0; CAPACITY];
        }
        for waker in self.ready.drain(..) {
            self.shared.wake(Some(waker));
        }
        result
    }

    /// Ends the connection. Returns whether it was open: neither this side had closed it, nor had it failed before.
    fn fail(&mut self, error: &io::Error) -> bool {
        let (was_open, wakers) = {
            let mut state = self.shared.state.lock();
            (matches!(state.end, End::Open), state.fail(error))
        };
        self.shared.write.shut_down();
        for waker in wakers {
            self.shared.wake(Some(waker));
        }
        was_open
    }
}

/// What became of received bytes.
#[derive(Default)]
struct Delivery {
    /// The number of bytes in complete frames.
    bytes: usize,
    /// One of the frames was a reply. A server that only pushes may have ceased to reply.
    has_replied: bool,
}

/// Gives the complete replies in `bytes` to their callers, and collects the wakers of those that have
/// all.
fn deliver(
    state: &mut State,
    scan: &mut FrameScan,
    bytes: &[u8],
    ready: &mut Vec<Waker>,
) -> (Delivery, io::Result<()>) {
    let mut delivery = Delivery::default();
    while delivery.bytes < bytes.len() {
        let rest = &bytes[delivery.bytes..];
        let is_push = rest[0] == PUSH;
        // Also before the reply is complete: a caller that came in the meantime would get it.
        let largest = match state.largest_reply() {
            _ if is_push => LOCK_REPLY,
            Some(largest) => largest,
            None => {
                return (
                    delivery,
                    Err(invalid("the server sent a reply without a command")),
                );
            }
        };
        let len = match scan.scan(rest, largest) {
            Ok(Some(len)) => len,
            Ok(None) => break,
            Err(malformed) => return (delivery, Err(invalid(malformed))),
        };
        delivery.bytes += len;
        if !is_push {
            delivery.has_replied = true;
            ready.extend(state.deliver(&rest[..len]));
        }
    }
    if state.is_finished() {
        return (delivery, Err(io::ErrorKind::NotConnected.into()));
    }
    (delivery, Ok(()))
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl Future for Driver {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let failed = match this.poll_send(cx) {
            Err(error) => Poll::Ready(error),
            Ok(()) => this.poll_read(cx),
        };
        // Reading makes TLS confirm a new key of the server.
        let failed = match failed {
            Poll::Pending if this.shared.write.is_unflushed() => match this.poll_send(cx) {
                Err(error) => Poll::Ready(error),
                Ok(()) => Poll::Pending,
            },
            failed => failed,
        };
        failed.map(|error| {
            if this.fail(&error) {
                this.shared.link.failed(&error);
            }
        })
    }
}

impl Drop for Driver {
    /// Also runs when the runtime ends. Then no reply comes any more.
    fn drop(&mut self) {
        // No thread of a forked child unlocks a mutex that was locked at the fork.
        if !self.shared.process.is_current() {
            return;
        }
        let text = "the runtime of the connection has ended";
        if self.fail(&io::Error::new(io::ErrorKind::NotConnected, text)) {
            self.shared.link.closed();
        }
    }
}
