//! One step from a state to the next, and what all kinds of steps share.

use super::network::{Body, Lane, Message, Request};
use super::rules::{Rules, Sights};
use super::state::{Asking, Client, Phase, State};
use crate::nonce::Nonce;

/// One step from a state.
pub(super) struct Turn<'a> {
    pub(super) rules: &'a Rules,
    pub(super) sights: &'a Sights,
    pub(super) state: State,
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
        self.state.table.change().expire(now_ms);
    }

    /// Nobody hears them any more.
    pub(super) fn forget_pushes(&mut self, nonce: Nonce) {
        let network = &mut self.state.network;
        network.keep(|message| message.nonce != nonce || !matches!(message.body, Body::Push(_)));
    }

    pub(super) fn give_up_on(&mut self, id: usize, lane: Lane, nonce: Nonce) {
        self.state.network.forget_answers(|message| {
            message.client == id
                && message.lane == lane
                && message.nonce == nonce
                && !matches!(message.body, Body::Push(_))
        });
    }

    pub(super) fn send(&mut self, client: usize, lane: Lane, nonce: Nonce, request: Request) {
        self.state.network.send(Message {
            client,
            lane,
            nonce,
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
