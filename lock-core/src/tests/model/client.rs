//! The clients: a caller that asks, waits and holds, and the keeper behind it.
//!
//! The lease, the bookkeeping of an attempt and the timers of a waiter are the production code.
//! What `acquire.rs`, `keeper.rs` and `backend/redis` do between them is told again here, in
//! the same order and without the IO.

use std::time::Duration;

use super::network::{Delivered, Lane, Reply, Request};
use super::rules::{Mutation, Sight};
use super::state::{Asking, Holding, ModelGrant, ModelSlot, PendingRelease, Phase, Sent};
use super::turn::{Turn, channel};
use crate::backend::{Acquisition, EntryParams, ReleaseOutcome};
use crate::config::RETRY_INTERVAL;
use crate::protocol::backoff::Jitter;
use crate::protocol::clock::{Moment, ServerMs};
use crate::protocol::clock_sync::{ClockSync, grant_deadline};
use crate::protocol::fencing_token::FencingToken;
use crate::protocol::lease::{Lease, LeaseAction, deadline};
use crate::protocol::owner_id::OwnerId;
use crate::protocol::poll_schedule::{HolderExpiry, LocalPosition, PollSchedule};
use crate::protocol::ttl::whole_millis;
use crate::protocol::wire::Mode;

/// After a command without an answer: the first pause of a back-off.
pub(super) const PAUSE: Duration = Duration::from_millis(10);

impl Turn<'_> {
    pub(super) fn begin(&mut self, id: usize, waits: bool) {
        let now = self.state.now(id);
        let owner_id = self.state.new_owner_id(id);
        let waits_until = waits.then(|| now.plus(self.rules.wait));
        let acquisition = self.rules.acquisition(owner_id, waits_until);
        let client = self.client(id);
        client.phase = Phase::Asking(Asking {
            acquisition,
            sent: None,
            asked_again: false,
            slot: ModelSlot::default(),
            looked: now,
            next_look: now,
        });
        self.look(id);
    }

    pub(super) fn look(&mut self, id: usize) {
        let now = self.state.now(id);
        let (handover_lease, timeout) = (self.rules.handover_lease, self.rules.command_timeout);
        let client = self.client(id);
        let (clock_sync, floor_us) = (client.clock_sync(), client.floor_us);
        let Phase::Asking(asking) = &mut client.phase else {
            return;
        };
        let server_ms = clock_sync.server_ms_at(now);
        let not_after_ms = server_ms.plus(whole_millis(timeout));
        let acquisition = &mut asking.acquisition;
        acquisition.update_entry(EntryParams {
            mode: Mode::Subscribed,
            channel: &channel(id),
            lease: handover_lease,
            now,
            server_ms,
            command_timeout: timeout,
        });
        let copy = acquisition.sending(0, not_after_ms);
        let left = acquisition
            .waits_until
            .map_or(timeout, |end| end.since(now));
        asking.sent = Some(Sent {
            at: now,
            until: now.plus(timeout.min(left)),
            copy: Some(copy),
        });
        let request = Request::AcquireCommand {
            floor_us,
            not_after_ms,
            entry: acquisition.entry().cloned(),
            earlier: acquisition.earlier(),
        };
        let owner_id = acquisition.owner_id;
        self.send(id, Lane::Ask, owner_id, request);
    }

    pub(super) fn no_answer(&mut self, id: usize) {
        let now = self.state.now(id);
        let Some(asking) = self.asking(id) else {
            return;
        };
        let owner_id = asking.acquisition.owner_id;
        let Some(sent) = asking.sent.take() else {
            return;
        };
        // A renewal without an answer says nothing: asking will tell.
        asking.next_look = match sent.copy {
            Some(_) => now.plus(PAUSE),
            None => now,
        };
        let waits = asking.acquisition.waits_until.is_some();
        let asks_again = !waits && now < sent.until && !asking.asked_again;
        asking.asked_again |= asks_again;
        self.give_up_on(id, Lane::Ask, owner_id);
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

    /// Goes on under a new owner id; what the old one may have is taken back.
    fn rename(&mut self, id: usize) {
        let now = self.state.now(id);
        let owner_id = self.state.new_owner_id(id);
        let Some(asking) = self.asking(id) else {
            return;
        };
        let mut renamed = asking.acquisition.with_new_owner_id();
        renamed.owner_id = owner_id;
        let old = std::mem::replace(&mut asking.acquisition, renamed);
        asking.slot = ModelSlot::default();
        asking.next_look = now;
        self.sights.saw(Sight::GrantWasLetGo);
        self.abandon(id, old, false, None);
    }

    pub(super) fn give_up(&mut self, id: usize) {
        let Some(asking) = self.asking(id) else {
            return;
        };
        let acquisition = asking.acquisition.clone();
        self.give_up_on(id, Lane::Ask, acquisition.owner_id);
        self.finish(id);
        self.abandon(id, acquisition, false, None);
    }

    fn finish(&mut self, id: usize) {
        let client = self.client(id);
        client.told = None;
        client.phase = Phase::Done;
    }

    fn abandon(
        &mut self,
        id: usize,
        acquisition: Acquisition,
        was_held: bool,
        min_hold_until: Option<Moment>,
    ) {
        let (now, owner_id) = (self.state.now(id), acquisition.owner_id);
        self.forget_pushes(owner_id);
        if acquisition.is_open() {
            self.client(id).pending_releases.push(PendingRelease {
                acquisition,
                was_held,
                min_hold_until,
                sent: None,
                again_at: now,
            });
        } else {
            self.state.mark_final(owner_id);
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
        } else if let Some(holder_expires_at) = asking.slot.head.take() {
            let mut poll_schedule =
                PollSchedule::new(asking.looked, RETRY_INTERVAL, Jitter::seeded(0));
            poll_schedule.at_once(asking.next_look);
            poll_schedule.is_head(now, holder_expires_at);
            asking.next_look = poll_schedule.next();
        }
    }

    fn accept(&mut self, id: usize, grant: ModelGrant) {
        let (now, timeout) = (self.state.now(id), self.rules.command_timeout);
        let sights = self.sights;
        let Some(asking) = self.asking(id) else {
            return;
        };
        let until = grant
            .until
            .filter(|until| until.since(now) >= grant.lease / 2);
        if let Some(until) = until {
            let lease_config = asking.acquisition.lease_config;
            let lease = Lease::handed_over(lease_config, grant.received, grant.lease, until);
            sights.saw(Sight::HandedOverByPush);
            self.hold(id, grant.token, lease);
            return;
        }
        sights.saw(Sight::GrantNeededARenewal);
        let left = asking
            .acquisition
            .waits_until
            .map_or(timeout, |end| end.since(now));
        asking.sent = Some(Sent {
            at: now,
            until: now.plus(timeout.min(left)),
            copy: None,
        });
        let owner_id = asking.acquisition.owner_id;
        self.send(id, Lane::Ask, owner_id, Request::Renew);
    }

    fn hold(&mut self, id: usize, token: FencingToken, lease: Lease) {
        let now = self.state.now(id);
        let Some(asking) = self.asking(id) else {
            return;
        };
        let acquisition = asking.acquisition.clone();
        self.forget_pushes(acquisition.owner_id);
        if !self.state.beyond_promise {
            self.state.disorder.guards |= token.as_u64() <= self.state.last_guard_token;
            self.state.last_guard_token = token.as_u64();
        }
        self.client(id).phase = Phase::Holding(Holding {
            acquisition,
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
        if let LeaseAction::Renew { before } = holding.lease.next_action(now) {
            let limit = timeout.min(before.since(now));
            holding.renewing = Some((now, now.plus(limit)));
            let owner_id = holding.acquisition.owner_id;
            self.send(id, Lane::Keep, owner_id, Request::Renew);
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
        let owner_id = holding.acquisition.owner_id;
        self.give_up_on(id, Lane::Keep, owner_id);
    }

    /// The guard goes: because its holder is done, or because the lock is lost.
    pub(super) fn release(&mut self, id: usize) {
        let (now, sights, min_hold) = (self.state.now(id), self.sights, self.rules.min_hold);
        let Phase::Holding(holding) = &mut self.client(id).phase else {
            return;
        };
        if holding.lease.next_action(now) == LeaseAction::Done {
            sights.saw(Sight::LostAtTheDeadline);
        }
        holding.lease.release();
        let min_hold_until = min_hold.map(|shortest| holding.since.plus(shortest));
        let acquisition = holding.acquisition.clone();
        self.give_up_on(id, Lane::Keep, acquisition.owner_id);
        self.finish(id);
        self.abandon(id, acquisition, true, min_hold_until);
    }

    pub(super) fn cancel(&mut self, id: usize, at: usize) {
        let now = self.state.now(id);
        let until = now.plus(self.rules.command_timeout);
        let client = self.client(id);
        let floor_us = client.floor_us;
        let pending_release = &mut client.pending_releases[at];
        pending_release.sent = Some(until);
        let entries = pending_release.acquisition.entries();
        let keep = pending_release
            .min_hold_until
            .map_or(Duration::ZERO, |end| end.since(now));
        let request = Request::ReleaseCommand {
            floor_us,
            min_hold_ms: whole_millis(keep),
            entries,
        };
        let owner_id = pending_release.acquisition.owner_id;
        self.send(id, Lane::End, owner_id, request);
    }

    pub(super) fn no_answer_to_cancel(&mut self, id: usize, at: usize) {
        let now = self.state.now(id);
        self.state.left.silences -= 1;
        let pending_release = &mut self.client(id).pending_releases[at];
        pending_release.sent = None;
        pending_release.again_at = now.plus(PAUSE);
        let owner_id = pending_release.acquisition.owner_id;
        self.give_up_on(id, Lane::End, owner_id);
    }

    pub(super) fn notified(&mut self, id: usize, owner_id: OwnerId, told: Delivered) {
        let received = self.state.now(id);
        let from_receipt = self.rules.is(Mutation::DeadlineFromPush);
        let client = self.client(id);
        let (told_anchor, run_id) = (client.told, client.first.run_id);
        let Phase::Asking(asking) = &mut client.phase else {
            return;
        };
        if asking.acquisition.owner_id != owner_id {
            return;
        }
        match told {
            Delivered::ModelGrant {
                token,
                server_us,
                lease_ms,
            } => {
                let lease = Duration::from_millis(lease_ms);
                let until = if from_receipt {
                    Some(deadline(received, lease))
                } else {
                    grant_deadline(told_anchor, run_id, server_us, lease, received)
                };
                asking.slot.grant = Some(ModelGrant {
                    token,
                    received,
                    lease,
                    until,
                });
            }
            Delivered::Head { holder_ms } => {
                asking.slot.head = Some(received.plus(Duration::from_millis(holder_ms)));
            }
        }
    }

    /// A reply told the server's time.
    fn record_server_time(&mut self, id: usize, sent: Moment, server_us: u64) {
        let client = self.client(id);
        let run_id = client.first.run_id;
        let is_younger = client
            .told
            .is_none_or(|known| known.run_id != run_id || known.sent < sent);
        if is_younger && client.phase != Phase::Done {
            client.told = Some(ClockSync {
                sent,
                server_us,
                run_id,
            });
        }
    }

    /// The lease that a reply confirms.
    fn lease(
        &self,
        id: usize,
        acquisition: &Acquisition,
        sent: Moment,
        remaining_ms: u64,
    ) -> Lease {
        let counted_from = if self.rules.is(Mutation::DeadlineFromReply) {
            self.state.now(id)
        } else {
            sent
        };
        let remaining = Duration::from_millis(remaining_ms);
        if self.rules.is(Mutation::NoMargin) {
            let deadline = counted_from.plus(remaining);
            return Lease::handed_over(acquisition.lease_config, counted_from, remaining, deadline);
        }
        Lease::confirmed(acquisition.lease_config, counted_from, remaining)
    }

    /// An answer to the caller.
    pub(super) fn on_reply(&mut self, id: usize, reply: &Reply, server_us: u64) {
        let now = self.state.now(id);
        let pushes_only = self.rules.is(Mutation::PushesOnly);
        let Some(asking) = self.asking(id) else {
            return;
        };
        let Some(sent) = asking.sent.take() else {
            return;
        };
        if let Some(copy) = &sent.copy {
            asking.acquisition.answered(copy);
        }
        match reply {
            Reply::Held {
                token,
                remaining_ms,
            } => {
                let acquisition = asking.acquisition.clone();
                let lease = self.lease(id, &acquisition, sent.at, *remaining_ms);
                self.record_server_time(id, sent.at, server_us);
                if lease.is_valid(now) {
                    self.hold(id, *token, lease);
                } else if acquisition.waits_until.is_some() {
                    self.rename(id);
                } else {
                    self.give_up(id);
                }
                return;
            }
            Reply::Queued { rank, remaining_ms } => {
                let ends = now.plus(Duration::from_millis(*remaining_ms));
                let mut poll_schedule = PollSchedule::new(now, RETRY_INTERVAL, Jitter::seeded(0));
                poll_schedule.seen(
                    now,
                    *rank,
                    HolderExpiry::Native { ends },
                    None,
                    LocalPosition::First,
                );
                let seen_ms = ServerMs::from_micros(server_us);
                asking.acquisition.queued(seen_ms);
                asking.looked = now;
                asking.next_look = poll_schedule.next();
                if pushes_only && let Some(end) = asking.acquisition.waits_until {
                    asking.next_look = end;
                }
            }
            Reply::Busy => {
                asking.acquisition.out();
                self.give_up(id);
            }
            // Asked again at once: the refusal told the time, or that there was no grant.
            Reply::Late | Reply::NotOwner | Reply::ReleaseReply => asking.next_look = now,
        }
        self.record_server_time(id, sent.at, server_us);
        if *reply == Reply::Late {
            self.look(id);
        }
    }

    pub(super) fn apply_renewal(&mut self, id: usize, reply: &Reply, server_us: u64) {
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
        self.record_server_time(id, sent, server_us);
    }

    pub(super) fn apply_cancel(&mut self, id: usize, owner_id: OwnerId, server_us: u64) {
        let now = self.state.now(id);
        let confirmed_ms = ServerMs::from_micros(server_us);
        let at_once = self.rules.is(Mutation::SettledAtOnce);
        let pending_releases = &mut self.client(id).pending_releases;
        let Some(at) = pending_releases
            .iter()
            .position(|pending_release| pending_release.acquisition.owner_id == owner_id)
        else {
            return;
        };
        let pending_release = &mut pending_releases[at];
        pending_release.sent = None;
        pending_release
            .acquisition
            .cancel_confirmed(&ReleaseOutcome {
                was_owner: false,
                server_ms: confirmed_ms,
                more: false,
            });
        let pending = pending_release
            .acquisition
            .unconfirmed_until_ms()
            .filter(|_| !at_once);
        if let Some(until) = pending {
            let pause = Duration::from_millis(until.since(confirmed_ms) + 1);
            pending_release.again_at = now.plus(pause);
            self.sights.saw(Sight::CancelHadToWait);
        } else {
            pending_releases.remove(at);
            self.state.mark_final(owner_id);
        }
    }
}
