//! The task that sends what callers appended, reads, wakes the callers, and hands messages to the receiver.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};

use super::pushes::Pushed;
use super::{CAPACITY, End, LARGEST_KEPT, PUSH, ReadHalf, Receiver, Shared, State};
use crate::telemetry::PanicSource;
use lock_protocol::clock::{Clock, Moment};
use lock_protocol::resp::{FrameScan, LOCK_REPLY};

/// How many bytes and frames of messages are handled before the other tasks of the thread have their turn. It keeps
/// locks alive in a flood of messages: their renewals run on the same thread.
pub(super) const TURN_BYTES: usize = 64 * 1024;
const TURN_FRAMES: usize = 100;
/// The server floods this client if, within this time,
const WINDOW: Duration = Duration::from_millis(100);
/// it takes longer than this to read its messages,
const MOST_OF_WINDOW: Duration = Duration::from_millis(50);
/// and they have more bytes than this. Replies wait behind messages, so the connection ends. The next one serves callers
/// before it subscribes.
const MOST_BYTES: usize = 256 * 1024;

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
    /// What the receiver gets.
    pushed: Vec<Pushed>,
    /// The bytes and frames of messages since other tasks could run.
    turn: (usize, usize),
    /// `None` before the first message.
    window: Option<Window>,
    /// Messages took too much time, or one was too large.
    is_flooded: bool,
    /// The receiver has got something since it caught up.
    is_behind: bool,
}

/// What the messages cost that arrived since a moment.
struct Window {
    since: Moment,
    bytes: usize,
    spent: Duration,
}

impl Window {
    const fn at(since: Moment) -> Self {
        Self {
            since,
            bytes: 0,
            spent: Duration::ZERO,
        }
    }
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
            pushed: Vec::new(),
            turn: (0, 0),
            window: None,
            is_flooded: false,
            is_behind: false,
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

    /// Reads until the socket has no more bytes, or until it is the turn of other tasks. Returns only with an error.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        // Connections without messages don't pay for it.
        let before = self
            .window
            .as_ref()
            .map(|window| (window.bytes, Clock::System.now()));
        let failed = self.poll_read_all(cx);
        if let (Some((bytes, began)), Some(window)) = (before, &mut self.window)
            && window.bytes > bytes
        {
            let now = Clock::System.now();
            window.spent += now.since(began);
            if now.since(window.since) >= WINDOW {
                self.is_flooded = window.spent > MOST_OF_WINDOW && window.bytes > MOST_BYTES;
                *window = Window::at(now);
            }
        }
        if failed.is_pending() && self.is_flooded {
            let text = "the server sends more messages than this client can read";
            return Poll::Ready(io::Error::other(text));
        }
        failed
    }

    fn poll_read_all(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            if self.filled == self.buffer.len() {
                self.buffer.resize(self.filled.saturating_mul(2), 0);
            }
            let end = self.buffer.len().min(self.filled + TURN_BYTES);
            let mut free = ReadBuf::new(&mut self.buffer[self.filled..end]);
            let Poll::Ready(result) = Pin::new(&mut self.read).poll_read(cx, &mut free) else {
                self.turn = (0, 0);
                return Poll::Pending;
            };
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
            if self.turn.0 >= TURN_BYTES || self.turn.1 >= TURN_FRAMES {
                self.turn = (0, 0);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }

    /// Gives the complete replies to their callers, and the rest to the receiver.
    fn deliver(&mut self) -> io::Result<()> {
        let (delivery, result, others_wait, receiver) = {
            let mut state = self.shared.state.lock();
            let bytes = &self.buffer[..self.filled];
            let (delivery, result) = deliver(
                &mut state,
                &mut self.scan,
                bytes,
                &mut self.ready,
                &mut self.pushed,
            );
            let has_news = self.is_behind || !self.pushed.is_empty();
            let receiver = has_news.then(|| state.receiver.clone()).flatten();
            (delivery, result, !state.awaited.is_empty(), receiver)
        };
        self.is_flooded |= delivery.is_broken_by_push;
        if delivery.pushes > 0 {
            self.turn.0 += delivery.push_bytes;
            self.turn.1 += delivery.pushes;
            let window = self
                .window
                .get_or_insert_with(|| Window::at(Clock::System.now()));
            window.bytes += delivery.push_bytes;
        }
        if delivery.has_replied {
            self.shared.link.heard(others_wait);
        }
        let handed_over = receiver.map_or(Ok(()), |receiver| {
            self.hand_over(&*receiver, delivery.bytes)
        });
        self.pushed.clear();
        self.buffer.copy_within(delivery.bytes..self.filled, 0);
        self.filled -= delivery.bytes;
        if self.filled == 0 && self.buffer.len() > LARGEST_KEPT {
            self.buffer = vec![0; CAPACITY];
        }
        for waker in self.ready.drain(..) {
            self.shared.wake(Some(waker));
        }
        result.and(handed_over)
    }

    /// Gives the receiver what it gets of these bytes.
    fn hand_over(&mut self, receiver: &dyn Receiver, delivered: usize) -> io::Result<()> {
        let bytes = &self.buffer;
        let pushed = self.pushed.drain(..);
        let has_caught_up = delivered == self.filled;
        self.is_behind = !has_caught_up;
        let receiving = || {
            for pushed in pushed {
                let frame = &bytes[pushed.frame.clone()];
                if let Some(push) = pushed.read(frame) {
                    receiver.receive(push);
                }
            }
            if has_caught_up {
                receiver.caught_up();
            }
        };
        let reporter = &self.shared.link.report.reporter;
        // It runs observers, which are foreign code.
        let result = reporter.guarded(PanicSource::Worker, receiving);
        result.ok_or_else(|| io::Error::other("the receiver of the messages panicked"))
    }

    /// Ends the connection. Returns whether it was open: neither this side had closed it, nor had it failed before.
    fn fail(&mut self, error: &io::Error) -> bool {
        let (was_open, wakers, receiver) = {
            let mut state = self.shared.state.lock();
            let was_open = matches!(state.end, End::Open);
            (was_open, state.fail(error), state.receiver.take())
        };
        self.shared.write.shut_down();
        for waker in wakers {
            self.shared.wake(Some(waker));
        }
        if let Some(receiver) = receiver {
            receiver.ended(self.is_flooded);
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
    /// How many pushes there were, for the receiver or not, and their bytes.
    pushes: usize,
    push_bytes: usize,
    /// A push was too large, or unreadable.
    is_broken_by_push: bool,
}

/// Gives the complete replies in `bytes` to their callers, and collects the wakers of those that have all, and what is for
/// the receiver.
fn deliver(
    state: &mut State,
    scan: &mut FrameScan,
    bytes: &[u8],
    ready: &mut Vec<Waker>,
    pushed: &mut Vec<Pushed>,
) -> (Delivery, io::Result<()>) {
    let mut delivery = Delivery::default();
    while delivery.bytes < bytes.len() {
        let rest = &bytes[delivery.bytes..];
        let is_push = rest[0] == PUSH;
        // Also before the reply is complete: a caller that came in the meantime would get it.
        let largest = match state.largest_reply(rest[0]) {
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
            Err(malformed) => {
                delivery.is_broken_by_push = is_push;
                return (delivery, Err(invalid(malformed)));
            }
        };
        let frame = delivery.bytes..delivery.bytes + len;
        delivery.bytes += len;
        if is_push {
            delivery.pushes += 1;
            delivery.push_bytes += len;
            match state.pushed(&rest[..len], frame) {
                Ok(found) => pushed.extend(found),
                Err(text) => return (delivery, Err(invalid(text))),
            }
        } else {
            delivery.has_replied = true;
            pushed.extend(state.replied(&rest[..len], frame, ready));
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
