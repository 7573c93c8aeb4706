//! The messages on their way between the clients and the server.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::protocol::clock::ServerMs;
use crate::protocol::fencing_token::FencingToken;
use crate::protocol::lock_state::AcquireReply;
use crate::protocol::owner_id::OwnerId;
use crate::protocol::wire::{QueueEntry, WireNotification};

/// A command on its way to the server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Request {
    Acquire {
        floor_us: u64,
        not_after_ms: ServerMs,
        entry: Option<QueueEntry>,
        earlier: Vec<QueueEntry>,
    },
    Renew,
    Release {
        floor_us: u64,
        min_hold_ms: u64,
        entries: Vec<QueueEntry>,
    },
}

/// A reply on its way, with the fields that a client uses.
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
    Released,
}

/// The purpose of a command and its reply. A client has at most one of each at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum MessageLane {
    /// The caller acquires, polls or confirms a grant.
    Acquire,
    /// The background worker renews.
    Renew,
    /// The background worker releases or cancels.
    Release,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Body {
    /// `awaited` until its sender stops waiting for the reply.
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

/// A notification, with the fields of [`WireNotification`] that a client uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Delivered {
    Grant {
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
            } => Self::Grant {
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

/// A message from or to a client, about one of its owner ids.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Message {
    pub(super) client: usize,
    pub(super) lane: MessageLane,
    pub(super) owner_id: OwnerId,
    pub(super) body: Body,
}

impl Message {
    pub(super) fn is_awaited_request(&self) -> bool {
        matches!(self.body, Body::Request { awaited: true, .. })
    }
}

/// The messages on their way. They arrive in any order, at any later time, or never. So their order
/// is not kept, and two equal messages that no client awaits are one.
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

    /// Removes the replies to some requests, and marks the requests so that the server sends none.
    pub(super) fn forget_replies(&mut self, of: impl Fn(&Message) -> bool) {
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
    fn from(reply: AcquireReply) -> Self {
        match reply {
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
            AcquireReply::More => panic!("the model has too few clients for this"),
            AcquireReply::Foreign { found } => panic!("no client of the model writes a {found}"),
        }
    }
}
