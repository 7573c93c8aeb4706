//! Sends commands over one connection and gives each caller its replies.
//!
//! Callers write their commands into one buffer. A caller that finds the connection idle sends its
//! command itself. In a burst, the others only append, and the driver sends all their commands with one
//! write. The driver is a task of the runtime that opened the connection. It reads, cuts the bytes into
//! replies, and wakes the callers, which read their replies from the bytes. Messages and the confirmations of subscriptions
//! go to a receiver (`pushes`). A flood of them ends the connection, because replies wait behind it.
//!
//! The multiplexed connection of the `redis` crate does the same for any command. This transport serves
//! the commands of a lock at less than half of its cost: see `docs/performance.md`.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::dial::{ReadHalf, Stream, WriteHalf};
use super::link::Link;
use crate::sync::{Mutex, Process, assert_no_mutex_held};

mod driver;
mod pushes;

use driver::Driver;
use pushes::Awaited;

pub(super) use pushes::{Push, Receiver, Subscribed, Subscribing};

/// The capacity of a new buffer. The commands of a lock have about 400 bytes.
const CAPACITY: usize = 4096;
/// A buffer that grew beyond this size in a burst is not kept.
const LARGEST_KEPT: usize = 256 * 1024;

/// Begins a message or a confirmation, rather than an ordinary reply.
pub(super) const PUSH: u8 = b'>';

/// A connection that carries commands of many callers.
pub(super) struct Transport {
    shared: Arc<Shared>,
}

struct Shared {
    write: WriteHalf,
    state: Mutex<State>,
    link: Arc<Link>,
    process: Process,
}

/// The callers, and the commands that are not sent yet.
struct State {
    /// Commands that are written, but not sent yet.
    out: Vec<u8>,
    /// A caller sends its commands at this moment; those in `out` come later.
    is_sending: bool,
    /// What the server has not answered completely, in the order of the commands.
    awaited: VecDeque<Awaited>,
    /// The ends of subscriptions that count as refused, although the error may have been for a caller behind them.
    refused_ends: Vec<Subscribed>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Gets what doesn't answer a caller.
    receiver: Option<Arc<dyn Receiver>>,
    /// Wakes the driver.
    driver: Option<Waker>,
    /// No more commands are sent. The connection ends with the last caller that waits.
    is_given_up: bool,
    end: End,
}

/// Whether the connection still works.
enum End {
    Open,
    /// The last handle was dropped.
    Closing,
    /// It failed, with the kind and the text of the error.
    Failed(io::ErrorKind, String),
}

/// The replies to some commands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    pub(super) replies: usize,
    /// The most bytes of a reply. A longer one ends the connection.
    pub(super) largest: usize,
}

/// The place of one caller.
struct Slot {
    replies: Vec<u8>,
    /// The number of replies that are still to come.
    missing: usize,
    /// The most bytes of a reply.
    largest: usize,
    /// The caller has stopped waiting.
    is_abandoned: bool,
    waker: Option<Waker>,
}

impl Transport {
    /// Starts the driver on the current runtime.
    pub(super) fn start(stream: Stream, link: Arc<Link>) -> Self {
        let (read, write) = stream.into_split();
        let shared = Arc::new(Shared {
            write,
            state: Mutex::new(State::new()),
            link,
            process: Process::current(),
        });
        assert_no_mutex_held();
        tokio::spawn(Driver::new(Arc::clone(&shared), read));
        Self { shared }
    }

    /// Sends the commands that `write` appends to the buffer, and waits for the replies to them.
    /// Returns the bytes of the replies. Without commands there is no reply, and nothing is sent.
    ///
    /// # Cancel safety
    /// Dropping the future drops the replies. The commands are sent if the future was polled, unless
    /// the connection breaks before.
    pub(super) fn call<W: FnMut(&mut Vec<u8>) + Unpin>(
        &self,
        write: W,
        expected: Expected,
    ) -> Exchange<'_, W> {
        Exchange {
            shared: &self.shared,
            state: ExchangeState::Unsent { write, expected },
        }
    }

    /// Gives everything to this receiver that doesn't answer a caller, until another one takes its place. After the end
    /// of the connection, the receiver learns of it at once.
    pub(super) fn receive_with(&self, receiver: Arc<dyn Receiver>) {
        let ended = {
            let mut state = self.shared.state.lock();
            if state.check_open().is_ok() {
                state.receiver.replace(receiver)
            } else {
                Some(receiver)
            }
        };
        if let Some(ended) = ended {
            ended.ended(false);
        }
    }

    /// Ends and begins subscriptions. The receiver learns what becomes of those that begin.
    pub(super) fn subscribe(&self, ending: Vec<Subscribed>, beginning: Vec<Subscribed>) {
        if ending.is_empty() && beginning.is_empty() {
            return;
        }
        let driver = {
            let mut state = self.shared.state.lock();
            state.subscribe(ending, beginning);
            state.driver.take()
        };
        self.shared.wake(driver);
    }

    /// Ends the connection as soon as no caller waits for a reply. Nobody may send commands after that: whatever the
    /// server still sends is not read.
    pub(super) fn give_up(&self) {
        let driver = {
            let mut state = self.shared.state.lock();
            state.is_given_up = true;
            state.end_if_finished()
        };
        self.shared.wake(driver);
    }
}

impl Transport {
    /// Ends the connection. Callers that wait for a reply get an error.
    pub(super) fn abort(&self) {
        let text = "the connection was given up";
        let error = io::Error::new(io::ErrorKind::ConnectionAborted, text);
        let (wakers, driver) = {
            let mut state = self.shared.state.lock();
            let wakers = state.fail(&error);
            (wakers, state.driver.take())
        };
        self.shared.write.shut_down();
        for waker in wakers {
            self.shared.wake(Some(waker));
        }
        self.shared.wake(driver);
    }
}

impl Drop for Transport {
    fn drop(&mut self) {
        // No thread of a forked child unlocks a mutex that was locked at the fork.
        if !self.shared.process.is_current() {
            return;
        }
        let driver = {
            let mut state = self.shared.state.lock();
            if matches!(state.end, End::Open) {
                state.end = End::Closing;
            }
            state.driver.take()
        };
        self.shared.link.closed();
        self.shared.wake(driver);
    }
}

impl State {
    fn new() -> Self {
        Self {
            out: Vec::with_capacity(CAPACITY),
            is_sending: false,
            awaited: VecDeque::new(),
            refused_ends: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            receiver: None,
            driver: None,
            is_given_up: false,
            end: End::Open,
        }
    }

    fn check_open(&self) -> io::Result<()> {
        match &self.end {
            End::Open => Ok(()),
            End::Closing => Err(io::ErrorKind::NotConnected.into()),
            End::Failed(kind, text) => Err(io::Error::new(*kind, text.clone())),
        }
    }

    /// Adds a caller. Its command has to be in the buffer.
    fn enter(&mut self, expected: Expected, waker: Waker) -> usize {
        let slot = Slot {
            replies: Vec::new(),
            missing: expected.replies,
            largest: expected.largest,
            is_abandoned: false,
            waker: Some(waker),
        };
        let at = if let Some(at) = self.free.pop() {
            self.slots[at] = slot;
            at
        } else {
            self.slots.push(slot);
            self.slots.len() - 1
        };
        self.awaited.push_back(Awaited::Caller(at));
        at
    }

    /// Gives a reply to the caller in a slot. Returns whether that was its last one; then its waker is added to `ready`, if
    /// the caller still waits.
    fn deliver(&mut self, at: usize, reply: &[u8], ready: &mut Vec<Waker>) -> bool {
        let slot = &mut self.slots[at];
        slot.missing -= 1;
        if !slot.is_abandoned {
            slot.replies.extend_from_slice(reply);
        }
        if slot.missing > 0 {
            return false;
        }
        ready.extend(slot.waker.take());
        if slot.is_abandoned {
            self.free.push(at);
        }
        true
    }

    /// Returns whether the connection was given up, and nobody waits for a reply.
    fn is_finished(&self) -> bool {
        let waits = |entry: &Awaited| match entry {
            Awaited::Caller(at) => !self.slots[*at].is_abandoned,
            Awaited::Subscribe(..) | Awaited::Unsubscribe(..) => false,
        };
        self.is_given_up && !self.awaited.iter().any(waits)
    }

    /// Makes the driver end a connection that is finished. Returns its waker.
    fn end_if_finished(&mut self) -> Option<Waker> {
        if !self.is_finished() {
            return None;
        }
        if matches!(self.end, End::Open) {
            self.end = End::Closing;
        }
        self.driver.take()
    }

    /// Ends the connection. Returns the wakers of all callers that wait. The first error counts.
    fn fail(&mut self, error: &io::Error) -> Vec<Waker> {
        if !matches!(self.end, End::Failed(..)) {
            self.end = End::Failed(error.kind(), error.to_string());
        }
        let slots = &mut self.slots;
        self.awaited
            .iter()
            .filter_map(|entry| match entry {
                Awaited::Caller(at) => slots[*at].waker.take(),
                Awaited::Subscribe(..) | Awaited::Unsubscribe(..) => None,
            })
            .collect()
    }

    /// Gives a buffer back after its commands were sent, except for those from `sent` on. Returns
    /// whether commands are left for the driver.
    fn give_back(&mut self, mut buffer: Vec<u8>, sent: usize) -> bool {
        self.is_sending = false;
        if sent < buffer.len() {
            // Its rest goes before the commands that came meanwhile.
            buffer.drain(..sent);
            buffer.extend_from_slice(&self.out);
            self.out = buffer;
            return true;
        }
        if !self.out.is_empty() {
            return true;
        }
        if buffer.capacity() <= LARGEST_KEPT {
            buffer.clear();
            self.out = buffer;
        }
        false
    }
}

impl Shared {
    /// Wakes a task. A waker is foreign code: no mutex may be held.
    fn wake(&self, waker: Option<Waker>) {
        if let Some(waker) = waker {
            self.link.report.reporter.waking(|| waker.wake());
        }
    }

    /// Sends a buffer at once. What does not fit into the socket's buffer is left to the driver, and
    /// so is an error: the driver meets it again.
    fn send(&self, buffer: Vec<u8>) {
        let mut sent = 0;
        while sent < buffer.len() {
            match self.write.try_write(&buffer[sent..]) {
                Ok(0) | Err(_) => break,
                Ok(written) => sent += written,
            }
        }
        let driver = {
            let mut state = self.state.lock();
            let is_left = state.give_back(buffer, sent) || self.write.is_unflushed();
            is_left.then(|| state.driver.take()).flatten()
        };
        self.wake(driver);
    }
}

/// Sends commands and waits for their replies.
#[must_use = "futures do nothing unless polled"]
pub(super) struct Exchange<'a, W> {
    shared: &'a Shared,
    state: ExchangeState<W>,
}

enum ExchangeState<W> {
    Unsent { write: W, expected: Expected },
    Sent { slot: usize },
    Done,
}

impl<W: FnMut(&mut Vec<u8>) + Unpin> Future for Exchange<'_, W> {
    type Output = io::Result<Vec<u8>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        match &mut this.state {
            // No reply would end the wait.
            ExchangeState::Unsent { expected, .. } if expected.replies == 0 => {
                this.state = ExchangeState::Done;
                Poll::Ready(Ok(Vec::new()))
            }
            ExchangeState::Unsent { write, expected } => {
                let waker = cx.waker().clone();
                match this.shared.begin(write, *expected, waker) {
                    Ok(slot) => {
                        this.state = ExchangeState::Sent { slot };
                        Poll::Pending
                    }
                    Err(error) => {
                        this.state = ExchangeState::Done;
                        Poll::Ready(Err(error))
                    }
                }
            }
            ExchangeState::Sent { slot } => {
                let (result, replaced) = this.shared.check(*slot, cx.waker().clone());
                if result.is_ready() {
                    this.state = ExchangeState::Done;
                }
                // Foreign code, which may panic: the slot may be another caller's by now.
                drop(replaced);
                result
            }
            ExchangeState::Done => Poll::Pending,
        }
    }
}

impl Shared {
    /// Writes the commands, and sends them if the connection is idle. Returns the caller's slot.
    fn begin(
        &self,
        write: &mut impl FnMut(&mut Vec<u8>),
        expected: Expected,
        waker: Waker,
    ) -> io::Result<usize> {
        let (slot, direct, driver) = {
            let mut state = self.state.lock();
            if let Err(error) = state.check_open() {
                drop(state);
                drop(waker);
                return Err(error);
            }
            let is_idle = state.awaited.is_empty() && !state.is_sending && state.out.is_empty();
            write(&mut state.out);
            let slot = state.enter(expected, waker);
            if is_idle {
                state.is_sending = true;
                (slot, Some(std::mem::take(&mut state.out)), None)
            } else if state.is_sending {
                (slot, None, None)
            } else {
                (slot, None, state.driver.take())
            }
        };
        if let Some(buffer) = direct {
            self.send(buffer);
        }
        self.wake(driver);
        Ok(slot)
    }

    /// Returns the replies if they are complete, and a waker to drop. The caller that gets replies or
    /// an error must not use the slot again.
    fn check(&self, slot: usize, waker: Waker) -> (Poll<io::Result<Vec<u8>>>, Option<Waker>) {
        let mut state = self.state.lock();
        let place = &mut state.slots[slot];
        if place.missing == 0 {
            let replies = std::mem::take(&mut place.replies);
            state.free.push(slot);
            (Poll::Ready(Ok(replies)), Some(waker))
        } else if let Err(error) = state.check_open() {
            // The slot stays in `awaited`: nothing is delivered any more.
            (Poll::Ready(Err(error)), Some(waker))
        } else {
            let replaced = state.slots[slot].waker.replace(waker);
            (Poll::Pending, replaced)
        }
    }

    /// Forgets a caller that has stopped waiting.
    fn abandon(&self, slot: usize) {
        let dropped = {
            let mut state = self.state.lock();
            let place = &mut state.slots[slot];
            let waker = place.waker.take();
            let replies = std::mem::take(&mut place.replies);
            if place.missing == 0 {
                state.free.push(slot);
            } else {
                place.is_abandoned = true;
            }
            (waker, replies, state.end_if_finished())
        };
        let (waker, replies, driver) = dropped;
        drop((waker, replies));
        self.wake(driver);
    }
}

impl<W> Drop for Exchange<'_, W> {
    fn drop(&mut self) {
        if let ExchangeState::Sent { slot } = self.state
            && self.shared.process.is_current()
        {
            self.shared.abandon(slot);
        }
    }
}

#[cfg(test)]
mod tests;
