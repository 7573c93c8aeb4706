//! One step from a state to the next, and what all kinds of steps share.

use super::network::{Body, Lane, Message, Request};
use super::rules::{Rules, Sights};
use super::state::{Asking, Client, ModelState, Phase};
use crate::protocol::owner_id::OwnerId;

/// One step from a state.
pub(super) struct Turn<'a> {
    pub(super) rules: &'a Rules,
    pub(super) sights: &'a Sights,
    pub(super) state: ModelState,
}

impl Turn<'_> {
    pub(super) fn client(&mut self, id: usize) -> &mut Client {
        self.state.clients[id].change()
    }

    pub(super) fn asking(&mut self, id: usize) -> Option<&mut Asking> {
        // Looked at first: what is only looked at stays shared.
        self.state.clients[id].asking()?;
        match &mut self.client(id).phase {
            Phase::Asking(asking) => Some(asking),
            _ => None,
        }
    }

    pub(super) fn expire(&mut self) {
        let now_ms = self.state.server_ms();
        self.state.lock_state.change().expire(now_ms);
    }

    /// Nobody hears them any more.
    pub(super) fn forget_pushes(&mut self, owner_id: OwnerId) {
        let network = &mut self.state.network;
        network.keep(|message| {
            message.owner_id != owner_id || !matches!(message.body, Body::WireNotification(_))
        });
    }

    pub(super) fn give_up_on(&mut self, id: usize, lane: Lane, owner_id: OwnerId) {
        self.state.network.forget_answers(|message| {
            message.client == id
                && message.lane == lane
                && message.owner_id == owner_id
                && !matches!(message.body, Body::WireNotification(_))
        });
    }

    pub(super) fn send(&mut self, client: usize, lane: Lane, owner_id: OwnerId, request: Request) {
        self.state.network.send(Message {
            client,
            lane,
            owner_id,
            body: Body::Request {
                request,
                awaited: true,
            },
        });
    }
}

/// Where a client is pushed to.
pub(super) fn channel(id: usize) -> String {
    format!("c{id}")
}
