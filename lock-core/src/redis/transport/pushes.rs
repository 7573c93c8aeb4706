//! What a server sends on a connection that no caller waits for at that moment: messages, and the confirmations of
//! subscriptions.
//!
//! In RESP3 these travel between ordinary replies, and each of them has to find what it belongs to. A subscription and
//! the end of one have no ordinary reply. They stand in the queue of the callers until the server has answered them:
//!
//! | Entry | Answered by |
//! |---|---|
//! | a caller | its ordinary replies and errors, in the order of the callers |
//! | a subscription, the end of one | its confirmation, or an error |
//!
//! | Frame | Means | The receiver gets |
//! |---|---|---|
//! | `>` `message`, `smessage` | a client has published | [`Push::Message`] |
//! | `>` `subscribe`, `ssubscribe` | answers the subscription to *this channel*, wherever it is in the queue | [`Push::Subscribed`] |
//! | the same, and none is awaited | the replies came in another order than the commands | nothing: the connection ends |
//! | `>` `unsubscribe`, `sunsubscribe` | answers our own unsubscription from this channel, if one is awaited | nothing |
//! | the same, for an end that counts as refused | the replies came in another order than the commands | nothing: the connection ends |
//! | the same, and none is awaited | the server ended it: the channel's slot has moved | [`Push::Ended`] |
//! | any other `>` | nothing of ours | nothing |
//! | an error | answers the oldest entry of all, and no other | [`Push::Refused`], if that is a subscription |
//! | any other reply | answers the oldest entry, which has to be a caller: a subscription never has such a reply | nothing |
//!
//! A server answers in the order of the commands. Confirmations name their channel, so they don't depend on it. An ordinary
//! reply while a subscription is the oldest entry ends the connection, because nobody can tell whose it is. So does a
//! confirmation that comes after the refusal: the error was meant for a caller behind it, who would now get the reply to
//! another caller's command. A proxy that refuses commands by itself may answer so.

use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;

use lock_protocol::resp::{CommandBuf, LOCK_REPLY, Replies, Reply, ServerError};

use super::State;

/// How a channel is subscribed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::redis) enum Subscribing {
    Classic,
    /// In a cluster: the channel lives where its slot lives.
    Sharded,
}

impl Subscribing {
    const fn commands(self) -> (&'static str, &'static str) {
        match self {
            Self::Classic => ("SUBSCRIBE", "UNSUBSCRIBE"),
            Self::Sharded => ("SSUBSCRIBE", "SUNSUBSCRIBE"),
        }
    }
}

/// A channel, as the server knows it.
pub(in crate::redis) type Subscribed = (Subscribing, Arc<str>);

/// The most ends of subscriptions that are remembered as refused. Few are sent at a time.
const MOST_REFUSED_ENDS: usize = 64;

/// What the server has sent.
#[derive(Debug)]
pub(in crate::redis) enum Push<'a> {
    /// A client has published this text.
    Message { channel: &'a [u8], text: &'a [u8] },
    /// The server has confirmed a subscription.
    Subscribed(Subscribing, Arc<str>),
    /// The server has refused a subscription.
    Refused(Subscribing, Arc<str>, ServerError<'a>),
    /// The server has ended a subscription that nobody here has ended: the channel's slot has moved.
    Ended(Subscribing, &'a [u8]),
}

/// Receives what a server sends on a connection. Its methods run on the task that reads the connection, so they must
/// neither block nor take long. A panic ends the connection.
pub(in crate::redis) trait Receiver: Send + Sync {
    fn receive(&self, push: Push<'_>);

    /// Called after it has received something, when nothing that has arrived is left.
    fn caught_up(&self);

    /// Called when the connection has ended, or has another receiver. `is_flooded` says that the server sent more messages
    /// than could be read, or too large a one.
    fn ended(&self, is_flooded: bool);
}

/// What waits for the server.
#[derive(Debug)]
pub(super) enum Awaited {
    /// The caller in this slot.
    Caller(usize),
    Subscribe(Subscribing, Arc<str>),
    Unsubscribe(Subscribing, Arc<str>),
}

/// A frame for the receiver.
pub(super) struct Pushed {
    event: Event,
    /// Its place among the bytes that were read.
    pub(super) frame: Range<usize>,
}

enum Event {
    Message,
    Subscribed(Subscribing, Arc<str>),
    Refused(Subscribing, Arc<str>),
    Ended(Subscribing),
}

impl Pushed {
    /// Returns what the receiver gets, from the bytes of the frame.
    pub(super) fn read(self, frame: &[u8]) -> Option<Push<'_>> {
        let reply = Replies::new(frame).next()?;
        Some(match self.event {
            Event::Subscribed(how, channel) => Push::Subscribed(how, channel),
            Event::Refused(how, channel) => Push::Refused(how, channel, reply.error()?),
            Event::Message => {
                let Words { channel, text, .. } = Words::of(reply)?;
                Push::Message { channel, text }
            }
            Event::Ended(how) => Push::Ended(how, Words::of(reply)?.channel),
        })
    }
}

/// The words of a message or a confirmation.
struct Words<'a> {
    kind: &'a [u8],
    channel: &'a [u8],
    text: &'a [u8],
}

impl<'a> Words<'a> {
    fn of(reply: Reply<'a>) -> Option<Self> {
        let mut items = reply.is_push().then(|| reply.items())??;
        let mut text = || {
            let item = items.next();
            let text = item.and_then(|item| item.text().or_else(|| item.status()));
            text.unwrap_or_default()
        };
        Some(Self {
            kind: text(),
            channel: text(),
            text: text(),
        })
    }
}

impl State {
    /// Appends the commands that end and begin subscriptions.
    pub(super) fn subscribe(&mut self, ending: Vec<Subscribed>, beginning: Vec<Subscribed>) {
        for (how, channel) in ending {
            CommandBuf::new(&mut self.out)
                .command(how.commands().1)
                .arg(&*channel);
            self.awaited.push_back(Awaited::Unsubscribe(how, channel));
        }
        for (how, channel) in beginning {
            CommandBuf::new(&mut self.out)
                .command(how.commands().0)
                .arg(&*channel);
            self.awaited.push_back(Awaited::Subscribe(how, channel));
        }
    }

    /// Returns the most bytes of the next ordinary reply, which begins with this byte; `None` if nothing waits for it.
    pub(super) fn largest_reply(&self, first: u8) -> Option<usize> {
        match self.awaited.front()? {
            Awaited::Caller(slot) => Some(self.slots[*slot].largest),
            _ => matches!(first, b'-' | b'!').then_some(LOCK_REPLY),
        }
    }

    /// Gives an ordinary reply to what it answers. Returns the frame if that is for the receiver.
    pub(super) fn replied(
        &mut self,
        reply: &[u8],
        frame: Range<usize>,
        ready: &mut Vec<Waker>,
    ) -> Option<Pushed> {
        if let Some(Awaited::Caller(slot)) = self.awaited.front() {
            if self.deliver(*slot, reply, ready) {
                self.awaited.pop_front();
            }
            return None;
        }
        match self.awaited.pop_front()? {
            Awaited::Subscribe(how, channel) => Some(Pushed {
                event: Event::Refused(how, channel),
                frame,
            }),
            Awaited::Unsubscribe(how, channel) => {
                // Without a caller behind it, the error was for nobody else.
                if self.awaited.is_empty() {
                    self.refused_ends.clear();
                } else if self.refused_ends.len() < MOST_REFUSED_ENDS {
                    self.refused_ends.push((how, channel));
                }
                None
            }
            Awaited::Caller(_) => None,
        }
    }

    /// Finds out what a message or a confirmation means. Returns it if it is for the receiver, and an error if the replies
    /// behind it can't be told apart.
    pub(super) fn pushed(
        &mut self,
        bytes: &[u8],
        frame: Range<usize>,
    ) -> Result<Option<Pushed>, &'static str> {
        let words = Replies::new(bytes).next().and_then(Words::of);
        let Some(Words { kind, channel, .. }) = words else {
            return Ok(None);
        };
        let how = match kind {
            b"smessage" | b"ssubscribe" | b"sunsubscribe" => Subscribing::Sharded,
            _ => Subscribing::Classic,
        };
        let event = match kind {
            b"message" | b"smessage" => Event::Message,
            b"subscribe" | b"ssubscribe" => match self.confirmed(true, how, channel) {
                Some(channel) => Event::Subscribed(how, channel),
                None => return Err("the server confirmed a subscription that nobody awaits"),
            },
            b"unsubscribe" | b"sunsubscribe" => {
                if self.confirmed(false, how, channel).is_some() {
                    return Ok(None);
                }
                let is_this = |(by, name): &Subscribed| *by == how && name.as_bytes() == channel;
                if self.refused_ends.iter().any(is_this) {
                    return Err("the server confirmed the end of a subscription after its refusal");
                }
                Event::Ended(how)
            }
            _ => return Ok(None),
        };
        Ok(Some(Pushed { event, frame }))
    }

    /// Removes the entry that a confirmation answers. Returns its channel, if the confirmation is awaited.
    fn confirmed(&mut self, begins: bool, how: Subscribing, channel: &[u8]) -> Option<Arc<str>> {
        let answers = |entry: &Awaited| {
            let (is_beginning, by, name) = match entry {
                Awaited::Subscribe(by, name) => (true, by, name),
                Awaited::Unsubscribe(by, name) => (false, by, name),
                Awaited::Caller(_) => return false,
            };
            is_beginning == begins && *by == how && name.as_bytes() == channel
        };
        let at = self.awaited.iter().position(answers)?;
        match self.awaited.remove(at)? {
            Awaited::Subscribe(_, name) | Awaited::Unsubscribe(_, name) => Some(name),
            Awaited::Caller(_) => None,
        }
    }
}
