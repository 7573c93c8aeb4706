//! One step from a state to the next, and the operations that all kinds of steps share.

use super::network::{Body, Message};
use super::rules::{Mutation, Rules, Sight, Sights};
use super::state::{Breach, Client, ModelState, Part};
use crate::owner_id::OwnerId;
use crate::tests::virtual_client::{Awaited, Caller, ClientStep, Effect, MessageLane};

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

    pub(super) fn expire(&mut self) {
        let now_ms = self.state.server_ms();
        self.state.lock_state.change().expire(now_ms);
    }

    /// Runs one step of a client, and does to the world what the step asks for.
    pub(super) fn step<T>(
        &mut self,
        id: usize,
        step: impl FnOnce(&mut ClientStep<'_, super::state::LonePeers>) -> T,
    ) -> T {
        let now = self.state.now(id);
        let notifications_only = self.rules.is(Mutation::NotificationsOnly);
        let mut effects = Vec::new();
        let client = self.state.clients[id].change();
        let Client {
            manager,
            caller,
            peers,
            owner_ids,
        } = client;
        let mut next_owner_id = || super::state::next_owner_id(id, owner_ids);
        let result = step(&mut ClientStep {
            now,
            caller,
            manager,
            peers,
            effects: &mut effects,
            next_owner_id: &mut next_owner_id,
        });
        if let Caller::Acquiring(acquiring) = &mut client.caller
            && let Awaited::Notification { until } = &mut acquiring.awaited
            && notifications_only
            && let Some(end) = acquiring.acquisition.sent().waits_until
        {
            *until = end;
        }
        for effect in effects {
            self.perform(id, effect);
        }
        result
    }

    pub(super) fn perform(&mut self, id: usize, effect: Effect) {
        match effect {
            Effect::Send {
                lane,
                owner_id,
                request,
            } => self.state.network.send(Message {
                client: id,
                lane,
                owner_id,
                body: Body::Request {
                    request,
                    awaited: true,
                },
            }),
            Effect::StopAwaiting { lane, owner_id } => self.stop_awaiting(id, lane, owner_id),
            Effect::StopListening { owner_id } => self.state.network.keep(|message| {
                message.owner_id != owner_id || !matches!(message.body, Body::Published(_))
            }),
            Effect::Acquired { token } => {
                let now = self.state.now(id);
                let holding = self.state.clients[id].caller.holding();
                let is_late = holding.is_none_or(|holding| !holding.lease.is_valid(now));
                self.state.breaches.record(Breach::LateGuard, is_late);
                if !self.state.beyond_promise {
                    let token = token.as_u64();
                    // The holders of a group share its token.
                    let holding = self.state.clients[id].caller.holding();
                    let is_shared = holding.is_some_and(|held| held.request.kind.is_shared());
                    let is_old = token < self.state.last_guard_token
                        || token == self.state.last_guard_token && !is_shared;
                    self.state.breaches.record(Breach::GuardOrder, is_old);
                    self.state.last_guard_token = token;
                }
            }
            Effect::NotAcquired(_) => {}
            Effect::StartedOver => self.sights.saw(Sight::GrantWasGivenUp),
            Effect::Confirms => self.sights.saw(Sight::GrantNeededARenewal),
            Effect::Extended => self.sights.saw(Sight::HandoverLeaseExtended),
            Effect::CancelRepeated => self.sights.saw(Sight::CancelHadToWait),
            Effect::CleanedUp { owner_id } => self.state.mark_final(owner_id),
        }
    }

    fn stop_awaiting(&mut self, id: usize, lane: MessageLane, owner_id: OwnerId) {
        self.state.network.forget_replies(|message| {
            message.client == id
                && message.lane == lane
                && message.owner_id == owner_id
                && !matches!(message.body, Body::Published(_))
        });
    }

    /// Runs the background worker's cleanups that are due.
    pub(super) fn run_cleanups(&mut self, id: usize) {
        self.step(id, |step| {
            step.manager.run_cleanups(step.now, step.effects);
        });
    }

    pub(super) fn clients(&self) -> impl Iterator<Item = &Part<Client>> {
        self.state.clients.iter()
    }
}
