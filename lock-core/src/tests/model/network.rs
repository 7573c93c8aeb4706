//! What is on its way between the clients and the server.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::protocol::clock::ServerMs;
use crate::protocol::fencing_token::FencingToken;
use crate::protocol::lock_state::AcquireReply;
use crate::protocol::owner_id::OwnerId;
use crate::protocol::wire::{QueueEntry, WireNotification};

/// A command on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Request {
    AcquireCommand {
        floor_us: u64,
        not_after_ms: ServerMs,
        entry: Option<QueueEntry>,
        earlier: Vec<QueueEntry>,
    },
    Renew,
    ReleaseCommand {
        floor_us: u64,
        min_hold_ms: u64,
        entries: Vec<QueueEntry>,
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
    NotOwner,
    ReleaseReply,
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
    WireNotification(Delivered),
}

/// A push, in the words of [`Push`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Delivered {
    ModelGrant {
        token: FencingToken,
        server_us: u64,
        lease_ms: u64,
    },
    Head {
        holder_ms: u64,
    },
}

impl From<&WireNotification> for Delivered {
    fn from(notification: &WireNotification) -> Self {
        match *notification {
            WireNotification::Grant {
                token,
                server_us,
                lease_ms,
                ..
            } => Self::ModelGrant {
                token,
                server_us,
                lease_ms,
            },
            WireNotification::Head { holder_ms, .. } => Self::Head { holder_ms },
        }
    }
}

pub(super) fn fingerprint(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// From or to a client, about one of its owner ids.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Message {
    pub(super) client: usize,
    pub(super) lane: Lane,
    pub(super) owner_id: OwnerId,
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

impl From<AcquireReply> for Reply {
    fn from(answer: AcquireReply) -> Self {
        match answer {
            AcquireReply::Late => Self::Late,
            AcquireReply::Held {
                token,
                remaining_ms,
            } => Self::Held {
                token,
                remaining_ms,
            },
            AcquireReply::Queued { rank, holder } => Self::Queued {
                rank,
                remaining_ms: holder.remaining_ms.unwrap_or(0),
            },
            AcquireReply::Busy { .. } => Self::Busy,
            AcquireReply::More => panic!("there are not that many clients"),
            AcquireReply::Foreign { found } => panic!("nobody writes a {found} here"),
        }
    }
}
