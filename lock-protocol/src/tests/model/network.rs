//! The messages on their way between the clients and the server.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::owner_id::OwnerId;
use crate::tests::virtual_client::{MessageLane, Reply, Request};
use crate::wire::WireNotification;

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
    Published(WireNotification),
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
