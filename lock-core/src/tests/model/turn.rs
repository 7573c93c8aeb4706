//! One step from a state to the next, and the operations that all kinds of steps share.

use super::network::{Body, Message, MessageLane, Request};
use super::rules::{Rules, Sights};
use super::state::{Acquiring, Client, ClientPhase, ModelState};
use crate::protocol::owner_id::OwnerId;

/// A state and the step that is applied to it.
pub(super) struct Turn<'a> {
    pub(super) rules: &'a Rules,
    pub(super) sights: &'a Sights,
    pub(super) state: ModelState,
}

impl Turn<'_> {
    pub(super) fn client(&mut self, id: usize) -> &mut Client {
        self.state.clients[id].change()
    }

    pub(super) fn acquiring(&mut self, id: usize) -> Option<&mut Acquiring> {
        // Checked before the change, because a part that is only read stays shared.
        self.state.clients[id].acquiring()?;
        match &mut self.client(id).phase {
            ClientPhase::Acquiring(acquiring) => Some(acquiring),
            _ => None,
        }
    }

    pub(super) fn expire(&mut self) {
        let now_ms = self.state.server_ms();
        self.state.lock_state.change().expire(now_ms);
    }

    /// Removes the notifications to an owner id that no client awaits any more.
    pub(super) fn forget_notifications(&mut self, owner_id: OwnerId) {
        let network = &mut self.state.network;
        network.keep(|message| {
            message.owner_id != owner_id || !matches!(message.body, Body::WireNotification(_))
        });
    }

    pub(super) fn stop_awaiting(&mut self, id: usize, lane: MessageLane, owner_id: OwnerId) {
        self.state.network.forget_replies(|message| {
            message.client == id
                && message.lane == lane
                && message.owner_id == owner_id
                && !matches!(message.body, Body::WireNotification(_))
        });
    }

    pub(super) fn send(
        &mut self,
        client: usize,
        lane: MessageLane,
        owner_id: OwnerId,
        request: Request,
    ) {
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

/// The notification channel of a client.
pub(super) fn channel(id: usize) -> String {
    format!("c{id}")
}
