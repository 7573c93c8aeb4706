//! What is on its way between the clients and the server.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::clock::ServerMs;
use crate::nonce::Nonce;
use crate::table::Answer;
use crate::token::FencingToken;
use crate::wire::{Entry, Push};

/// A command on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Request {
    Acquire {
        floor_us: u64,
        not_after_ms: ServerMs,
        entry: Option<Entry>,
        earlier: Vec<Entry>,
    },
    Renew,
    Release {
        floor_us: u64,
        keep_ms: u64,
        entries: Vec<Entry>,
    },
}

/// An answer on its way, with what a client uses of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Reply {
    Late,
    Held {
        token: FencingToken,
        remaining_ms: u64,
    },
    Queued {
        rank: u64,
        remaining_ms: u64,
    },
    Busy,
    NotOurs,
    Released,
}

/// Which of its conversations with the server a client has a command or an answer in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    /// The caller asks, looks or confirms.
    Ask,
    /// The keeper renews.
    Keep,
    /// Something is taken back.
    End,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Body {
    /// `awaited` until its sender gives up on the answer.
    Request {
        request: Request,
        awaited: bool,
    },
    Reply {
        reply: Reply,
        server_us: u64,
    },
    Push(Told),
}

/// A push, in the words of [`Push`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Told {
    Grant {
        token: FencingToken,
        server_us: u64,
        lease_ms: u64,
    },
    Head {
        holder_ms: u64,
    },
}

impl From<&Push> for Told {
    fn from(push: &Push) -> Self {
        match *push {
            Push::Grant {
                token,
                server_us,
                lease_ms,
                ..
            } => Self::Grant {
                token,
                server_us,
                lease_ms,
            },
            Push::Head { holder_ms, .. } => Self::Head { holder_ms },
        }
    }
}

pub(super) fn fingerprint(it: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    it.hash(&mut hasher);
    hasher.finish()
}

/// From or to a client, about one of its nonces.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Message {
    pub(super) client: usize,
    pub(super) lane: Lane,
    pub(super) nonce: Nonce,
    pub(super) body: Body,
}

impl Message {
    pub(super) fn is_awaited_request(&self) -> bool {
        matches!(self.body, Body::Request { awaited: true, .. })
    }
}

/// Messages on their way. They arrive in any order, any time later, or never: so the order in
/// which they were sent is not kept, and two equal ones that nobody awaits are one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Network(Vec<(u64, Arc<Message>)>);

impl Hash for Network {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for (fingerprint, _) in &self.0 {
            state.write_u64(*fingerprint);
        }
    }
}

impl Network {
    pub(super) fn send(&mut self, message: Message) {
        let fingerprint = fingerprint(&message);
        self.put(fingerprint, Arc::new(message));
    }

    fn put(&mut self, fingerprint: u64, message: Arc<Message>) {
        let at = self.0.partition_point(|(other, _)| *other < fingerprint);
        if self
            .0
            .get(at)
            .is_none_or(|(other, _)| *other != fingerprint)
        {
            self.0.insert(at, (fingerprint, message));
        }
    }

    pub(super) fn take(&mut self, at: usize) -> Message {
        Arc::unwrap_or_clone(self.0.remove(at).1)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Message> {
        self.0.iter().map(|(_, message)| &**message)
    }

    pub(super) fn keep(&mut self, mut keeps: impl FnMut(&Message) -> bool) {
        self.0.retain(|(_, message)| keeps(message));
    }

    /// Takes away the answers to some requests, and makes it so that none will be sent.
    pub(super) fn forget_answers(&mut self, of: impl Fn(&Message) -> bool) {
        let messages = std::mem::take(&mut self.0);
        for (fingerprint, message) in messages {
            if !of(&message) {
                self.put(fingerprint, message);
                continue;
            }
            let mut message = Arc::unwrap_or_clone(message);
            if let Body::Request { awaited, .. } = &mut message.body {
                *awaited = false;
                self.send(message);
            }
        }
    }
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Late => Self::Late,
            Answer::Held {
                token,
                remaining_ms,
            } => Self::Held {
                token,
                remaining_ms,
            },
            Answer::Queued { rank, holder } => Self::Queued {
                rank,
                remaining_ms: holder.remaining_ms.unwrap_or(0),
            },
            Answer::Busy { .. } => Self::Busy,
            Answer::More => panic!("there are not that many clients"),
            Answer::Foreign { found } => panic!("nobody writes a {found} here"),
        }
    }
}
