//! The server: the production lock state, its clock, and its channels.

use super::network::{Body, Message};
use super::rules::{Mutation, Sight};
use super::state::{Breach, Part, channel, client_of};
use super::turn::Turn;
use crate::cleanup::ReleaseSubject;
use crate::clock::ServerMs;
use crate::fencing_token::FencingToken;
use crate::lock_state::{AcquireReply, Env, Expiring, KeyValue, LockState, RenewReply};
use crate::owner_id::OwnerId;
use crate::tests::virtual_client::{Caller, MessageLane, Reply, Request};
use crate::wire::{OwnerValue, WireNotification};

impl Turn<'_> {
    /// Executes a command on the server.
    pub(super) fn serve(&mut self, owner_id: OwnerId, request: &Request) -> Reply {
        let (before, token_before) = (self.state.owner(), self.state.token());
        let mut lock_state = LockState::clone(&self.state.lock_state);
        let (reply, notifications) = self.execute(&mut lock_state, owner_id, request);
        forget_far_ends(&mut lock_state);
        self.state.lock_state = Part::new(lock_state);
        let (after, token) = (self.state.owner(), self.state.token());
        self.watch(owner_id, request, before, after, &reply);
        if let Some(token) = token.filter(|token| token_before != Some(*token)) {
            let is_old = token.as_u64() <= self.state.last_token;
            self.state.breaches.record(Breach::GrantOrder, is_old);
            if token.as_u64() > self.state.last_token + 1 && self.state.last_token > 0 {
                self.sights.saw(Sight::TokenSeededAgain);
            }
            self.state.last_token = self.state.last_token.max(token.as_u64());
        }
        for notification in notifications {
            // Only a notification that a client awaits needs to be on its way.
            let mut acquiring = self.clients().filter_map(|client| {
                client.caller.acquiring()?;
                client.caller.owner_id()
            });
            let awaited = acquiring.find(|owner_id| match notification {
                WireNotification::Grant { owner_id: to, .. } => to == *owner_id,
                WireNotification::Head { to, .. } => to == owner_id.short(),
            });
            drop(acquiring);
            if let Some(owner_id) = awaited {
                self.state.network.send(Message {
                    client: client_of(owner_id),
                    lane: MessageLane::Acquire,
                    owner_id,
                    body: Body::Published(notification),
                });
            }
        }
        reply
    }

    fn watch(
        &self,
        owner_id: OwnerId,
        request: &Request,
        before: Option<OwnerId>,
        after: Option<OwnerId>,
        reply: &Reply,
    ) {
        let was_owner = before == Some(owner_id);
        match (request, reply) {
            (Request::Acquire { .. }, Reply::Acquire(AcquireReply::Late)) => {
                self.sights.saw(Sight::LateAcquireRefused);
            }
            (Request::Acquire { .. }, _) if self.state.is_final(owner_id) => {
                self.sights.saw(Sight::CancelledCameBack);
            }
            (Request::Acquire { .. }, _) if was_owner && before == after => {
                self.sights.saw(Sight::LostReplyRepeated);
            }
            (Request::Renew { .. }, Reply::Renew(RenewReply::NotOwner)) => {
                self.sights.saw(Sight::RenewalRefused);
            }
            (Request::Release { .. }, _) if was_owner => {
                let manager = &self.state.clients[client_of(owner_id)].manager;
                let cancels = manager.cleanups.iter().any(|running| {
                    let request = running.cleanup.request();
                    request.owner_id == owner_id && request.subject == ReleaseSubject::Acquire
                });
                if cancels {
                    self.sights.saw(Sight::CancelMetAGrant);
                }
            }
            _ => {}
        }
    }

    pub(super) fn execute(
        &self,
        lock_state: &mut LockState,
        owner_id: OwnerId,
        request: &Request,
    ) -> (Reply, Vec<WireNotification>) {
        let has_subscriber = |name: &str| {
            let mut clients = self.clients().enumerate();
            // Where liveness counts, the connection of a crashed machine stays open, and its channel
            // keeps a subscriber.
            clients.any(|(id, client)| {
                *name == *channel(id) && (self.rules.prompt || client.caller != Caller::Crashed)
            })
        };
        let env = Env {
            now_us: self.state.server_us(),
            has_subscriber: &has_subscriber,
        };
        let mut request = request.clone();
        match &mut request {
            Request::Acquire {
                floor_us,
                not_after_ms,
                ..
            } => {
                if self.rules.is(Mutation::BareCounter) {
                    *floor_us = 0;
                }
                if self.rules.is(Mutation::NoNotAfter) {
                    *not_after_ms = ServerMs::LAST;
                }
            }
            Request::Release { floor_us, .. } => {
                if self.rules.is(Mutation::BareCounter) {
                    *floor_us = 0;
                }
                if self.rules.is(Mutation::PlainDelete) {
                    lock_state.key = None;
                }
            }
            Request::Renew { .. } => {}
        }
        let (reply, notifications) = request.execute(lock_state, owner_id, &env);
        if reply == Reply::Renew(RenewReply::NotOwner) && self.rules.is(Mutation::RenewalRecreates)
        {
            let ttl_ms = self.rules.ttl.as_millis();
            recreate(lock_state, owner_id, env.now_ms().plus(ttl_ms));
        }
        (reply, notifications)
    }
}

/// Unifies states that differ only in values that have no effect before the horizon: the expiry of
/// the queue and of the counter, the scores of a queue with the same order, and the time of the grant,
/// which only people read.
fn forget_far_ends(lock_state: &mut LockState) {
    if let Some(Expiring {
        value: KeyValue::Native(owner),
        ..
    }) = &mut lock_state.key
    {
        owner.since_ms = ServerMs::new(0);
    }
    if let Some(Expiring {
        value: KeyValue::Shared(group),
        ..
    }) = &mut lock_state.key
    {
        group.since_ms = ServerMs::new(0);
    }
    if let Some(counter) = &mut lock_state.counter {
        counter.expires_ms = None;
    }
    if let Some(queue) = &mut lock_state.queue {
        queue.expires_ms = None;
        let entries = std::mem::take(&mut queue.value);
        queue.value = (1..).zip(entries.into_values()).collect();
    }
}

fn recreate(lock_state: &mut LockState, owner_id: OwnerId, expires_ms: ServerMs) {
    let counted = lock_state
        .counter
        .as_ref()
        .map_or(0, |counter| counter.value);
    if lock_state.key.is_none() {
        lock_state.key = Some(Expiring {
            value: KeyValue::Native(OwnerValue {
                owner_id,
                token: FencingToken::new(counted),
                since_ms: ServerMs::new(0),
                label: String::new(),
            }),
            expires_ms: Some(expires_ms),
        });
    }
}
