//! The server: the production lock state, its clock, and its channels.

use super::network::{Body, Delivered, Message, MessageLane, Reply, Request};
use super::rules::{Mutation, Sight};
use super::state::{Client, ClientPhase, Part, PendingRelease, client_of};
use super::turn::{Turn, channel};
use crate::protocol::clock::ServerMs;
use crate::protocol::fencing_token::FencingToken;
use crate::protocol::lock_state::{
    self, AcquireCommand, Env, Expiring, KeyValue, LockState, ReleaseCommand,
};
use crate::protocol::owner_id::OwnerId;
use crate::protocol::wire::{OwnerValue, WireNotification};

impl Turn<'_> {
    /// Executes a command on the server.
    pub(super) fn serve(&mut self, owner_id: OwnerId, request: &Request) -> Reply {
        let before = self.state.owner();
        let mut lock_state = LockState::clone(&self.state.lock_state);
        let (reply, notifications) = self.execute(&mut lock_state, owner_id, request);
        forget_far_ends(&mut lock_state);
        self.state.lock_state = Part::new(lock_state);
        let after = self.state.owner();
        self.watch(owner_id, request, before, after, &reply);
        let is_grant = after.map(|(_, token)| token) != before.map(|(_, token)| token);
        if let Some((_, token)) = after.filter(|_| is_grant) {
            self.state.disorder.grants |= token.as_u64() <= self.state.last_token;
            if token.as_u64() > self.state.last_token + 1 && self.state.last_token > 0 {
                self.sights.saw(Sight::TokenSeededAgain);
            }
            self.state.last_token = self.state.last_token.max(token.as_u64());
        }
        for notification in notifications {
            // Only a notification that a client awaits needs to be on its way.
            let owner_id_of = |client: &Part<Client>| {
                client
                    .acquiring()
                    .map(|acquiring| acquiring.acquisition.owner_id)
            };
            let mut awaiting = self.state.clients.iter().filter_map(owner_id_of);
            let awaited = awaiting.find(|owner_id| match notification {
                WireNotification::Grant { owner_id: to, .. } => to == *owner_id,
                WireNotification::Head { to, .. } => to == owner_id.short(),
            });
            if let Some(owner_id) = awaited {
                let client = client_of(owner_id);
                self.state.network.send(Message {
                    client,
                    lane: MessageLane::Acquire,
                    owner_id,
                    body: Body::WireNotification(Delivered::from(&notification)),
                });
            }
        }
        reply
    }

    fn watch(
        &self,
        owner_id: OwnerId,
        request: &Request,
        before: Option<(OwnerId, FencingToken)>,
        after: Option<(OwnerId, FencingToken)>,
        reply: &Reply,
    ) {
        let was_owner = before.is_some_and(|(owner, _)| owner == owner_id);
        match request {
            Request::Acquire { .. } if *reply == Reply::Late => {
                self.sights.saw(Sight::LateAcquireRefused);
            }
            Request::Acquire { .. } if self.state.is_final(owner_id) => {
                self.sights.saw(Sight::CancelledCameBack);
            }
            Request::Acquire { .. } if was_owner && before == after => {
                self.sights.saw(Sight::LostReplyRepeated);
            }
            Request::Renew if *reply == Reply::NotOwner => {
                self.sights.saw(Sight::RenewalRefused);
            }
            Request::Release { .. } if was_owner => {
                let pending_releases = &self.state.clients[client_of(owner_id)].pending_releases;
                let cancels = |pending_release: &PendingRelease| {
                    pending_release.acquisition.owner_id == owner_id && !pending_release.was_held
                };
                if pending_releases.iter().any(cancels) {
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
        let now_us = self.state.server_us();
        let has_subscriber = |name: &str| {
            let mut clients = self.state.clients.iter().enumerate();
            // Where liveness counts, the connection of a crashed machine stays open, and its channel
            // keeps a subscriber.
            clients.any(|(id, client)| {
                name == channel(id) && (self.rules.prompt || client.phase != ClientPhase::Crashed)
            })
        };
        let env = Env {
            now_us,
            has_subscriber: &has_subscriber,
        };
        let floor = |floor_us: u64| {
            if self.rules.is(Mutation::BareCounter) {
                0
            } else {
                floor_us
            }
        };
        match request {
            Request::Acquire {
                floor_us,
                not_after_ms,
                entry,
                earlier,
            } => {
                let command = AcquireCommand {
                    owner_id,
                    ttl_ms: self.rules.ttl.as_millis(),
                    floor_us: floor(*floor_us),
                    not_after_ms: if self.rules.is(Mutation::NoNotAfter) {
                        ServerMs::LAST
                    } else {
                        *not_after_ms
                    },
                    label: "",
                    entry: entry.as_ref(),
                    lead_us: 0,
                    earlier,
                };
                let (reply, notifications) = lock_state.acquire(&command, &env);
                (Reply::from(reply), notifications)
            }
            Request::Renew => {
                let ttl_ms = self.rules.ttl.as_millis();
                let renewed = lock_state.renew(owner_id, ttl_ms, env.now_ms());
                let reply = match renewed {
                    lock_state::RenewReply::Held {
                        token,
                        remaining_ms,
                    } => Reply::Held {
                        token,
                        remaining_ms,
                    },
                    lock_state::RenewReply::NotOwner => Reply::NotOwner,
                };
                if reply == Reply::NotOwner && self.rules.is(Mutation::RenewalRecreates) {
                    recreate(lock_state, owner_id, env.now_ms().plus(ttl_ms));
                }
                (reply, Vec::new())
            }
            Request::Release {
                floor_us,
                min_hold_ms,
                entries,
            } => {
                if self.rules.is(Mutation::PlainDelete) {
                    lock_state.key = None;
                }
                let command = ReleaseCommand {
                    owner_id,
                    floor_us: floor(*floor_us),
                    grace_ms: 0,
                    min_hold_ms: *min_hold_ms,
                    lead_us: 0,
                    entries,
                };
                let (_, notifications) = lock_state.release(&command, &env);
                (Reply::Released, notifications)
            }
        }
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
