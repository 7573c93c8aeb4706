//! The clients: a caller that asks, waits and holds, and the keeper behind it.
//!
//! The lease, the bookkeeping of an attempt and the timers of a waiter are the production code.
//! What `acquire.rs`, `keeper.rs` and `backend/redis` do between them is told again here, in
//! the same order and without the IO.

use std::time::Duration;

use super::network::{Lane, Reply, Request, Told};
use super::rules::{Mutation, Sight};
use super::state::{Asking, Ending, Grant, Holding, Phase, Sent, Slot};
use super::turn::{Turn, channel};
use crate::backend::{Attempt, Released, Stand};
use crate::clock::{Moment, ServerMs};
use crate::lease::{Anchor, Lease, Wish, deadline, granted_until};
use crate::nonce::Nonce;
use crate::options::RETRY_INTERVAL;
use crate::retry::Jitter;
use crate::token::FencingToken;
use crate::ttl::whole_millis;
use crate::wait::{Ahead, Looks, Standing};
use crate::wire::Mode;

/// After a command without an answer: the first pause of a back-off.
pub(super) const PAUSE: Duration = Duration::from_millis(10);

impl Turn<'_> {
    pub(super) fn begin(&mut self, id: usize, waits: bool) {
        let now = self.state.now(id);
        let nonce = self.state.new_nonce(id);
        let waits_until = waits.then(|| now.plus(self.rules.wait));
        let attempt = self.rules.attempt(nonce, waits_until);
        let client = self.client(id);
        client.phase = Phase::Asking(Asking {
            attempt,
            sent: None,
            asked_again: false,
            slot: Slot::default(),
            looked: now,
            next_look: now,
        });
        self.look(id);
    }

    pub(super) fn look(&mut self, id: usize) {
        let now = self.state.now(id);
        let (claim, timeout) = (self.rules.claim, self.rules.command_timeout);
        let client = self.client(id);
        let (anchor, floor_us) = (client.anchor(), client.floor_us);
        let Phase::Asking(asking) = &mut client.phase else {
            return;
        };
        let server_ms = anchor.server_ms_at(now);
        let not_after_ms = server_ms.plus(whole_millis(timeout));
        let attempt = &mut asking.attempt;
        attempt.stand(Stand {
            mode: Mode::Subscribed,
            channel: &channel(id),
            lease: claim,
            now,
            server_ms,
            command_timeout: timeout,
        });
        let copy = attempt.sending(0, not_after_ms);
        let left = attempt.waits_until.map_or(timeout, |end| end.since(now));
        asking.sent = Some(Sent {
            at: now,
            until: now.plus(timeout.min(left)),
            copy: Some(copy),
        });
        let request = Request::Acquire {
            floor_us,
            not_after_ms,
            entry: attempt.entry().cloned(),
            earlier: attempt.earlier(),
        };
        let nonce = attempt.nonce;
        self.send(id, Lane::Ask, nonce, request);
    }

    pub(super) fn no_answer(&mut self, id: usize) {
        let now = self.state.now(id);
        let Some(asking) = self.asking(id) else {
            return;
        };
        let nonce = asking.attempt.nonce;
        let Some(sent) = asking.sent.take() else {
            return;
        };
        // A renewal without an answer says nothing: asking will tell.
        asking.next_look = match sent.copy {
            Some(_) => now.plus(PAUSE),
            None => now,
        };
        let waits = asking.attempt.waits_until.is_some();
        let asks_again = !waits && now < sent.until && !asking.asked_again;
        asking.asked_again |= asks_again;
        self.give_up_on(id, Lane::Ask, nonce);
        if asks_again {
            self.look(id);
            if let Some(asking) = self.asking(id)
                && let Some(again) = &mut asking.sent
            {
                again.until = sent.until;
            }
        } else if !waits {
            self.give_up(id);
        }
    }

    /// Goes on under a new nonce; what the old one may have is taken back.
    fn rename(&mut self, id: usize) {
        let now = self.state.now(id);
        let nonce = self.state.new_nonce(id);
        let Some(asking) = self.asking(id) else {
            return;
        };
        let mut renamed = asking.attempt.renamed();
        renamed.nonce = nonce;
        let old = std::mem::replace(&mut asking.attempt, renamed);
        asking.slot = Slot::default();
        asking.next_look = now;
        self.sights.saw(Sight::GrantWasLetGo);
        self.abandon(id, old, false, None);
    }

    pub(super) fn give_up(&mut self, id: usize) {
        let Some(asking) = self.asking(id) else {
            return;
        };
        let attempt = asking.attempt.clone();
        self.give_up_on(id, Lane::Ask, attempt.nonce);
        self.finish(id);
        self.abandon(id, attempt, false, None);
    }

    fn finish(&mut self, id: usize) {
        let client = self.client(id);
        client.told = None;
        client.phase = Phase::Done;
    }

    fn abandon(&mut self, id: usize, attempt: Attempt, was_held: bool, keep_until: Option<Moment>) {
        let (now, nonce) = (self.state.now(id), attempt.nonce);
        self.forget_pushes(nonce);
        if attempt.is_open() {
            self.client(id).endings.push(Ending {
                attempt,
                was_held,
                keep_until,
                sent: None,
                again_at: now,
            });
        } else {
            self.state.settle(nonce);
        }
    }

    /// What was pushed is read as soon as no answer is awaited, the most important first.
    pub(super) fn wake(&mut self, id: usize) {
        let now = self.state.now(id);
        let Some(asking) = self.asking(id).filter(|asking| asking.sent.is_none()) else {
            return;
        };
        if let Some(grant) = asking.slot.grant.take() {
            self.accept(id, grant);
        } else if std::mem::take(&mut asking.slot.look) {
            asking.slot.head = None;
            asking.next_look = now;
        } else if let Some(holder_ends) = asking.slot.head.take() {
            let mut looks = Looks::new(asking.looked, RETRY_INTERVAL, Jitter::seeded(0));
            looks.at_once(asking.next_look);
            looks.is_head(now, holder_ends);
            asking.next_look = looks.next();
        }
    }

    fn accept(&mut self, id: usize, grant: Grant) {
        let (now, timeout) = (self.state.now(id), self.rules.command_timeout);
        let sights = self.sights;
        let Some(asking) = self.asking(id) else {
            return;
        };
        let until = grant
            .until
            .filter(|until| until.since(now) >= grant.lease / 2);
        if let Some(until) = until {
            let terms = asking.attempt.terms;
            let lease = Lease::handed_over(terms, grant.received, grant.lease, until);
            sights.saw(Sight::HandedOverByPush);
            self.hold(id, grant.token, lease);
            return;
        }
        sights.saw(Sight::GrantNeededARenewal);
        let left = asking
            .attempt
            .waits_until
            .map_or(timeout, |end| end.since(now));
        asking.sent = Some(Sent {
            at: now,
            until: now.plus(timeout.min(left)),
            copy: None,
        });
        let nonce = asking.attempt.nonce;
        self.send(id, Lane::Ask, nonce, Request::Renew);
    }

    fn hold(&mut self, id: usize, token: FencingToken, lease: Lease) {
        let now = self.state.now(id);
        let Some(asking) = self.asking(id) else {
            return;
        };
        let attempt = asking.attempt.clone();
        self.forget_pushes(attempt.nonce);
        if !self.state.beyond_promise {
            self.state.disorder.guards |= token.as_u64() <= self.state.last_guard_token;
            self.state.last_guard_token = token.as_u64();
        }
        self.client(id).phase = Phase::Holding(Holding {
            attempt,
            lease,
            since: now,
            renewing: None,
        });
    }

    // The keeper.

    pub(super) fn renew(&mut self, id: usize) {
        let (now, timeout) = (self.state.now(id), self.rules.command_timeout);
        self.state.left.renewals -= 1;
        let Phase::Holding(holding) = &mut self.client(id).phase else {
            return;
        };
        if let Wish::Renew { before } = holding.lease.wish(now) {
            let limit = timeout.min(before.since(now));
            holding.renewing = Some((now, now.plus(limit)));
            let nonce = holding.attempt.nonce;
            self.send(id, Lane::Keep, nonce, Request::Renew);
        }
    }

    pub(super) fn no_answer_to_renewal(&mut self, id: usize) {
        let now = self.state.now(id);
        self.state.left.silences -= 1;
        let Phase::Holding(holding) = &mut self.client(id).phase else {
            return;
        };
        holding.renewing = None;
        holding.lease.unanswered(now.plus(PAUSE));
        let nonce = holding.attempt.nonce;
        self.give_up_on(id, Lane::Keep, nonce);
    }

    /// The guard goes: because its holder is done, or because the lock is lost.
    pub(super) fn release(&mut self, id: usize) {
        let (now, sights, min_hold) = (self.state.now(id), self.sights, self.rules.min_hold);
        let Phase::Holding(holding) = &mut self.client(id).phase else {
            return;
        };
        if holding.lease.wish(now) == Wish::Nothing {
            sights.saw(Sight::LostAtTheDeadline);
        }
        holding.lease.release();
        let keep_until = min_hold.map(|shortest| holding.since.plus(shortest));
        let attempt = holding.attempt.clone();
        self.give_up_on(id, Lane::Keep, attempt.nonce);
        self.finish(id);
        self.abandon(id, attempt, true, keep_until);
    }

    pub(super) fn take_back(&mut self, id: usize, at: usize) {
        let now = self.state.now(id);
        let until = now.plus(self.rules.command_timeout);
        let client = self.client(id);
        let floor_us = client.floor_us;
        let ending = &mut client.endings[at];
        ending.sent = Some(until);
        let entries = ending.attempt.entries();
        let keep = ending
            .keep_until
            .map_or(Duration::ZERO, |end| end.since(now));
        let request = Request::Release {
            floor_us,
            keep_ms: whole_millis(keep),
            entries,
        };
        let nonce = ending.attempt.nonce;
        self.send(id, Lane::End, nonce, request);
    }

    pub(super) fn no_answer_to_cancel(&mut self, id: usize, at: usize) {
        let now = self.state.now(id);
        self.state.left.silences -= 1;
        let ending = &mut self.client(id).endings[at];
        ending.sent = None;
        ending.again_at = now.plus(PAUSE);
        let nonce = ending.attempt.nonce;
        self.give_up_on(id, Lane::End, nonce);
    }

    pub(super) fn pushed(&mut self, id: usize, nonce: Nonce, told: Told) {
        let received = self.state.now(id);
        let from_receipt = self.rules.is(Mutation::DeadlineFromPush);
        let client = self.client(id);
        let (told_anchor, incarnation) = (client.told, client.first.incarnation);
        let Phase::Asking(asking) = &mut client.phase else {
            return;
        };
        if asking.attempt.nonce != nonce {
            return;
        }
        match told {
            Told::Grant {
                token,
                server_us,
                lease_ms,
            } => {
                let lease = Duration::from_millis(lease_ms);
                let until = if from_receipt {
                    Some(deadline(received, lease))
                } else {
                    granted_until(told_anchor, incarnation, server_us, lease, received)
                };
                asking.slot.grant = Some(Grant {
                    token,
                    received,
                    lease,
                    until,
                });
            }
            Told::Head { holder_ms } => {
                asking.slot.head = Some(received.plus(Duration::from_millis(holder_ms)));
            }
        }
    }

    /// A reply told the server's time.
    fn told_time(&mut self, id: usize, sent: Moment, server_us: u64) {
        let client = self.client(id);
        let incarnation = client.first.incarnation;
        let is_younger = client
            .told
            .is_none_or(|known| known.incarnation != incarnation || known.sent < sent);
        if is_younger && client.phase != Phase::Done {
            client.told = Some(Anchor {
                sent,
                server_us,
                incarnation,
            });
        }
    }

    /// The lease that a reply confirms.
    fn lease(&self, id: usize, attempt: &Attempt, sent: Moment, remaining_ms: u64) -> Lease {
        let counted_from = if self.rules.is(Mutation::DeadlineFromReply) {
            self.state.now(id)
        } else {
            sent
        };
        let remaining = Duration::from_millis(remaining_ms);
        if self.rules.is(Mutation::NoMargin) {
            let deadline = counted_from.plus(remaining);
            return Lease::handed_over(attempt.terms, counted_from, remaining, deadline);
        }
        Lease::confirmed(attempt.terms, counted_from, remaining)
    }

    /// An answer to the caller.
    pub(super) fn answered(&mut self, id: usize, reply: &Reply, server_us: u64) {
        let now = self.state.now(id);
        let pushes_only = self.rules.is(Mutation::PushesOnly);
        let Some(asking) = self.asking(id) else {
            return;
        };
        let Some(sent) = asking.sent.take() else {
            return;
        };
        if let Some(copy) = &sent.copy {
            asking.attempt.answered(copy);
        }
        match reply {
            Reply::Held {
                token,
                remaining_ms,
            } => {
                let attempt = asking.attempt.clone();
                let lease = self.lease(id, &attempt, sent.at, *remaining_ms);
                self.told_time(id, sent.at, server_us);
                if lease.is_valid(now) {
                    self.hold(id, *token, lease);
                } else if attempt.waits_until.is_some() {
                    self.rename(id);
                } else {
                    self.give_up(id);
                }
                return;
            }
            Reply::Queued { rank, remaining_ms } => {
                let ends = now.plus(Duration::from_millis(*remaining_ms));
                let mut looks = Looks::new(now, RETRY_INTERVAL, Jitter::seeded(0));
                looks.seen(now, *rank, Ahead::Native { ends }, None, Standing::Foremost);
                let seen_ms = ServerMs::from_micros(server_us);
                asking.attempt.queued(seen_ms);
                asking.looked = now;
                asking.next_look = looks.next();
                if pushes_only && let Some(end) = asking.attempt.waits_until {
                    asking.next_look = end;
                }
            }
            Reply::Busy => {
                asking.attempt.out();
                self.give_up(id);
            }
            // Asked again at once: the refusal told the time, or that there was no grant.
            Reply::Late | Reply::NotOurs | Reply::Released => asking.next_look = now,
        }
        self.told_time(id, sent.at, server_us);
        if *reply == Reply::Late {
            self.look(id);
        }
    }

    pub(super) fn renewal_said(&mut self, id: usize, reply: &Reply, server_us: u64) {
        let (now, sights) = (self.state.now(id), self.sights);
        let Phase::Holding(holding) = &mut self.client(id).phase else {
            return;
        };
        let Some((sent, _)) = holding.renewing.take() else {
            return;
        };
        match reply {
            Reply::Held { remaining_ms, .. } => {
                let remaining = Duration::from_millis(*remaining_ms);
                let before = holding.lease.deadline();
                holding.lease.renewed(sent, remaining, now);
                if holding.lease.deadline() > before {
                    sights.saw(Sight::ClaimExtended);
                }
            }
            _ => holding.lease.refused(),
        }
        self.told_time(id, sent, server_us);
    }

    pub(super) fn cancel_said(&mut self, id: usize, nonce: Nonce, server_us: u64) {
        let now = self.state.now(id);
        let confirmed_ms = ServerMs::from_micros(server_us);
        let at_once = self.rules.is(Mutation::SettledAtOnce);
        let endings = &mut self.client(id).endings;
        let Some(at) = endings
            .iter()
            .position(|ending| ending.attempt.nonce == nonce)
        else {
            return;
        };
        let ending = &mut endings[at];
        ending.sent = None;
        ending.attempt.taken_back(&Released {
            was_ours: false,
            server_ms: confirmed_ms,
            more: false,
        });
        let pending = ending.attempt.unsettled_until_ms().filter(|_| !at_once);
        if let Some(until) = pending {
            let pause = Duration::from_millis(until.since(confirmed_ms) + 1);
            ending.again_at = now.plus(pause);
            self.sights.saw(Sight::CancelHadToWait);
        } else {
            endings.remove(at);
            self.state.settle(nonce);
        }
    }
}
