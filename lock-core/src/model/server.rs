//! The server: the production table, its clock, and its channels.

use super::network::{Body, Lane, Message, Reply, Request, Told};
use super::rules::{Mutation, Sight};
use super::state::{Client, Ending, Part, Phase, client_of};
use super::turn::{Turn, channel};
use crate::clock::ServerMs;
use crate::nonce::Nonce;
use crate::table::{self, Acquire, Context, Held, Mortal, Release, Table};
use crate::token::FencingToken;
use crate::wire::{OwnerValue, Push};

impl Turn<'_> {
    /// The server carries out a command.
    pub(super) fn serve(&mut self, nonce: Nonce, request: &Request) -> Reply {
        let before = self.state.owner();
        let mut table = Table::clone(&self.state.table);
        let (reply, pushes) = self.carry_out(&mut table, nonce, request);
        forget_far_ends(&mut table);
        self.state.table = Part::new(table);
        let after = self.state.owner();
        self.watch(nonce, request, before, after, &reply);
        let is_grant = after.map(|(_, token)| token) != before.map(|(_, token)| token);
        if let Some((_, token)) = after.filter(|_| is_grant) {
            self.state.disorder.grants |= token.as_u64() <= self.state.last_token;
            if token.as_u64() > self.state.last_token + 1 && self.state.last_token > 0 {
                self.sights.saw(Sight::TokenSeededAgain);
            }
            self.state.last_token = self.state.last_token.max(token.as_u64());
        }
        for push in pushes {
            // Nobody hears the others, and what is not heard need not be on its way.
            let asked = |client: &Part<Client>| client.asking().map(|asking| asking.attempt.nonce);
            let mut asked = self.state.clients.iter().filter_map(asked);
            let awaited = asked.find(|nonce| match push {
                Push::Grant { nonce: to, .. } => to == *nonce,
                Push::Head { to, .. } => to == nonce.short(),
            });
            if let Some(nonce) = awaited {
                let client = client_of(nonce);
                self.state.network.send(Message {
                    client,
                    lane: Lane::Ask,
                    nonce,
                    body: Body::Push(Told::from(&push)),
                });
            }
        }
        reply
    }

    fn watch(
        &self,
        nonce: Nonce,
        request: &Request,
        before: Option<(Nonce, FencingToken)>,
        after: Option<(Nonce, FencingToken)>,
        reply: &Reply,
    ) {
        let had_it = before.is_some_and(|(owner, _)| owner == nonce);
        match request {
            Request::Acquire { .. } if *reply == Reply::Late => {
                self.sights.saw(Sight::LateCopyRefused);
            }
            Request::Acquire { .. } if self.state.is_settled(nonce) => {
                self.sights.saw(Sight::SettledCameBack);
            }
            Request::Acquire { .. } if had_it && before == after => {
                self.sights.saw(Sight::LostReplyAskedAgain);
            }
            Request::Renew if *reply == Reply::NotOurs => {
                self.sights.saw(Sight::RenewalRefused);
            }
            Request::Release { .. } if had_it => {
                let endings = &self.state.clients[client_of(nonce)].endings;
                let cancels = |ending: &Ending| ending.attempt.nonce == nonce && !ending.was_held;
                if endings.iter().any(cancels) {
                    self.sights.saw(Sight::CancelMetAGrant);
                }
            }
            _ => {}
        }
    }

    pub(super) fn carry_out(
        &self,
        table: &mut Table,
        nonce: Nonce,
        request: &Request,
    ) -> (Reply, Vec<Push>) {
        let now_us = self.state.server_us();
        let heard = |name: &str| {
            let mut clients = self.state.clients.iter().enumerate();
            // A machine without power closes nothing: where liveness counts it is heard on.
            clients.any(|(id, client)| {
                name == channel(id) && (self.rules.prompt || client.phase != Phase::Crashed)
            })
        };
        let at = Context {
            now_us,
            heard: &heard,
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
                let ask = Acquire {
                    nonce,
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
                let (answer, pushes) = table.acquire(&ask, &at);
                (Reply::from(answer), pushes)
            }
            Request::Renew => {
                let ttl_ms = self.rules.ttl.as_millis();
                let renewed = table.renew(nonce, ttl_ms, at.now_ms());
                let reply = match renewed {
                    table::Renewed::Held {
                        token,
                        remaining_ms,
                    } => Reply::Held {
                        token,
                        remaining_ms,
                    },
                    table::Renewed::NotOurs => Reply::NotOurs,
                };
                if reply == Reply::NotOurs && self.rules.is(Mutation::RenewalRecreates) {
                    recreate(table, nonce, at.now_ms().plus(ttl_ms));
                }
                (reply, Vec::new())
            }
            Request::Release {
                floor_us,
                keep_ms,
                entries,
            } => {
                if self.rules.is(Mutation::PlainDelete) {
                    table.key = None;
                }
                let call = Release {
                    nonce,
                    floor_us: floor(*floor_us),
                    grace_ms: 0,
                    keep_ms: *keep_ms,
                    lead_us: 0,
                    entries,
                };
                let (_, pushes) = table.release(&call, &at);
                (Reply::Released, pushes)
            }
        }
    }
}

/// The queue and the counter end far beyond the horizon; states that differ only in when are
/// one. So are those that differ in the scores of a queue but not in its order, and in when the
/// lock was granted, which only people read.
fn forget_far_ends(table: &mut Table) {
    if let Some(Mortal {
        it: Held::Native(owner),
        ..
    }) = &mut table.key
    {
        owner.since_ms = ServerMs::new(0);
    }
    if let Some(counter) = &mut table.counter {
        counter.expires_ms = None;
    }
    if let Some(queue) = &mut table.queue {
        queue.expires_ms = None;
        let entries = std::mem::take(&mut queue.it);
        queue.it = (1..).zip(entries.into_values()).collect();
    }
}

fn recreate(table: &mut Table, nonce: Nonce, expires_ms: ServerMs) {
    let counted = table.counter.as_ref().map_or(0, |counter| counter.it);
    if table.key.is_none() {
        table.key = Some(Mortal {
            it: Held::Native(OwnerValue {
                nonce,
                token: FencingToken::new(counted),
                since_ms: ServerMs::new(0),
                label: String::new(),
            }),
            expires_ms: Some(expires_ms),
        });
    }
}
