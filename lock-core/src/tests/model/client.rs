//! The clients: a caller that acquires, waits and holds, and the background worker behind it.
//!
//! The lease, the bookkeeping of an acquisition and the timers of a waiter are the production code.
//! This file repeats what `runtime/waiter`, `runtime/background` and `backend/redis` do between them,
//! in the same order and without the IO.

use std::time::Duration;

use super::network::{MessageLane, Request};
use super::rules::Sight;
use super::state::{Acquiring, ClientPhase, Holding, ModelGrant, ModelSlot, PendingRelease, Sent};
use super::turn::{Turn, channel};
use crate::backend::{Acquisition, EntryParams};
use crate::config::RETRY_INTERVAL;
use crate::protocol::backoff::Jitter;
use crate::protocol::clock::Moment;
use crate::protocol::fencing_token::FencingToken;
use crate::protocol::lease::{Lease, LeaseAction};
use crate::protocol::poll_schedule::PollSchedule;
use crate::protocol::ttl::whole_millis;
use crate::protocol::wire::Mode;

/// The first pause of the backoff after a command without a reply.
pub(super) const PAUSE: Duration = Duration::from_millis(10);

impl Turn<'_> {
    pub(super) fn begin(&mut self, id: usize, waits: bool) {
        let now = self.state.now(id);
        let owner_id = self.state.new_owner_id(id);
        let waits_until = waits.then(|| now.plus(self.rules.wait));
        let acquisition = self.rules.acquisition(owner_id, waits_until);
        let client = self.client(id);
        client.phase = ClientPhase::Acquiring(Acquiring {
            acquisition,
            sent: None,
            was_repeated: false,
            slot: ModelSlot::default(),
            polled_at: now,
            next_poll: now,
        });
        self.poll(id);
    }

    pub(super) fn poll(&mut self, id: usize) {
        let now = self.state.now(id);
        let (handover_lease, timeout) = (self.rules.handover_lease, self.rules.command_timeout);
        let client = self.client(id);
        let (clock_sync, floor_us) = (client.clock_sync(), client.floor_us);
        let ClientPhase::Acquiring(acquiring) = &mut client.phase else {
            return;
        };
        let server_ms = clock_sync.server_ms_at(now);
        let not_after_ms = server_ms.plus(whole_millis(timeout));
        let acquisition = &mut acquiring.acquisition;
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
        acquiring.sent = Some(Sent {
            at: now,
            until: now.plus(timeout.min(left)),
            copy: Some(copy),
        });
        let request = Request::Acquire {
            floor_us,
            not_after_ms,
            entry: acquisition.entry().cloned(),
            earlier: acquisition.earlier(),
        };
        let owner_id = acquisition.owner_id;
        self.send(id, MessageLane::Acquire, owner_id, request);
    }

    pub(super) fn no_reply(&mut self, id: usize) {
        let now = self.state.now(id);
        let Some(acquiring) = self.acquiring(id) else {
            return;
        };
        let owner_id = acquiring.acquisition.owner_id;
        let Some(sent) = acquiring.sent.take() else {
            return;
        };
        // A renewal without a reply says nothing about the grant, so the client polls at once.
        acquiring.next_poll = match sent.copy {
            Some(_) => now.plus(PAUSE),
            None => now,
        };
        let waits = acquiring.acquisition.waits_until.is_some();
        let repeats = !waits && now < sent.until && !acquiring.was_repeated;
        acquiring.was_repeated |= repeats;
        self.stop_awaiting(id, MessageLane::Acquire, owner_id);
        if repeats {
            self.poll(id);
            if let Some(acquiring) = self.acquiring(id)
                && let Some(again) = &mut acquiring.sent
            {
                again.until = sent.until;
            }
        } else if !waits {
            self.give_up(id);
        }
    }

    /// Continues under a new owner id, and cancels whatever the old one may hold.
    pub(super) fn change_owner_id(&mut self, id: usize) {
        let now = self.state.now(id);
        let owner_id = self.state.new_owner_id(id);
        let Some(acquiring) = self.acquiring(id) else {
            return;
        };
        let mut renamed = acquiring.acquisition.with_new_owner_id();
        renamed.owner_id = owner_id;
        let old = std::mem::replace(&mut acquiring.acquisition, renamed);
        acquiring.slot = ModelSlot::default();
        acquiring.next_poll = now;
        self.sights.saw(Sight::GrantWasGivenUp);
        self.abandon(id, old, false, None);
    }

    pub(super) fn give_up(&mut self, id: usize) {
        let Some(acquiring) = self.acquiring(id) else {
            return;
        };
        let acquisition = acquiring.acquisition.clone();
        self.stop_awaiting(id, MessageLane::Acquire, acquisition.owner_id);
        self.finish(id);
        self.abandon(id, acquisition, false, None);
    }

    fn finish(&mut self, id: usize) {
        let client = self.client(id);
        client.latest = None;
        client.phase = ClientPhase::Done;
    }

    fn abandon(
        &mut self,
        id: usize,
        acquisition: Acquisition,
        was_held: bool,
        min_hold_until: Option<Moment>,
    ) {
        let (now, owner_id) = (self.state.now(id), acquisition.owner_id);
        self.forget_notifications(owner_id);
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

    /// Handles notifications as soon as no reply is awaited, the most important first.
    pub(super) fn wake(&mut self, id: usize) {
        let now = self.state.now(id);
        let Some(acquiring) = self
            .acquiring(id)
            .filter(|acquiring| acquiring.sent.is_none())
        else {
            return;
        };
        if let Some(grant) = acquiring.slot.grant.take() {
            self.accept(id, grant);
        } else if std::mem::take(&mut acquiring.slot.poll) {
            acquiring.slot.head = None;
            acquiring.next_poll = now;
        } else if let Some(holder_expires_at) = acquiring.slot.head.take() {
            let mut poll_schedule =
                PollSchedule::new(acquiring.polled_at, RETRY_INTERVAL, Jitter::seeded(0));
            poll_schedule.at_once(acquiring.next_poll);
            poll_schedule.is_head(now, holder_expires_at);
            acquiring.next_poll = poll_schedule.next();
        }
    }

    fn accept(&mut self, id: usize, grant: ModelGrant) {
        let (now, timeout) = (self.state.now(id), self.rules.command_timeout);
        let sights = self.sights;
        let Some(acquiring) = self.acquiring(id) else {
            return;
        };
        let until = grant
            .until
            .filter(|until| until.since(now) >= grant.lease / 2);
        if let Some(until) = until {
            let lease_config = acquiring.acquisition.lease_config;
            let lease = Lease::handed_over(lease_config, grant.received, grant.lease, until);
            sights.saw(Sight::HandedOverByNotification);
            self.hold(id, grant.token, lease);
            return;
        }
        sights.saw(Sight::GrantNeededARenewal);
        let left = acquiring
            .acquisition
            .waits_until
            .map_or(timeout, |end| end.since(now));
        acquiring.sent = Some(Sent {
            at: now,
            until: now.plus(timeout.min(left)),
            copy: None,
        });
        let owner_id = acquiring.acquisition.owner_id;
        self.send(id, MessageLane::Acquire, owner_id, Request::Renew);
    }

    pub(super) fn hold(&mut self, id: usize, token: FencingToken, lease: Lease) {
        let now = self.state.now(id);
        let Some(acquiring) = self.acquiring(id) else {
            return;
        };
        let acquisition = acquiring.acquisition.clone();
        self.forget_notifications(acquisition.owner_id);
        if !self.state.beyond_promise {
            self.state.disorder.guards |= token.as_u64() <= self.state.last_guard_token;
            self.state.last_guard_token = token.as_u64();
        }
        self.client(id).phase = ClientPhase::Holding(Holding {
            acquisition,
            lease,
            since: now,
            renewing: None,
        });
    }

    // The background worker.

    pub(super) fn renew(&mut self, id: usize) {
        let (now, timeout) = (self.state.now(id), self.rules.command_timeout);
        self.state.left.renewals -= 1;
        let ClientPhase::Holding(holding) = &mut self.client(id).phase else {
            return;
        };
        if let LeaseAction::Renew { before } = holding.lease.next_action(now) {
            let limit = timeout.min(before.since(now));
            holding.renewing = Some((now, now.plus(limit)));
            let owner_id = holding.acquisition.owner_id;
            self.send(id, MessageLane::Renew, owner_id, Request::Renew);
        }
    }

    pub(super) fn no_reply_to_renewal(&mut self, id: usize) {
        let now = self.state.now(id);
        self.state.left.silences -= 1;
        let ClientPhase::Holding(holding) = &mut self.client(id).phase else {
            return;
        };
        holding.renewing = None;
        holding.lease.unanswered(now.plus(PAUSE));
        let owner_id = holding.acquisition.owner_id;
        self.stop_awaiting(id, MessageLane::Renew, owner_id);
    }

    /// Drops the guard: its holder has finished, or the lock is lost.
    pub(super) fn release(&mut self, id: usize) {
        let (now, sights, min_hold) = (self.state.now(id), self.sights, self.rules.min_hold);
        let ClientPhase::Holding(holding) = &mut self.client(id).phase else {
            return;
        };
        if holding.lease.next_action(now) == LeaseAction::Done {
            sights.saw(Sight::LostAtTheDeadline);
        }
        holding.lease.release();
        let min_hold_until = min_hold.map(|shortest| holding.since.plus(shortest));
        let acquisition = holding.acquisition.clone();
        self.stop_awaiting(id, MessageLane::Renew, acquisition.owner_id);
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
        let request = Request::Release {
            floor_us,
            min_hold_ms: whole_millis(keep),
            entries,
        };
        let owner_id = pending_release.acquisition.owner_id;
        self.send(id, MessageLane::Release, owner_id, request);
    }

    pub(super) fn no_reply_to_cancel(&mut self, id: usize, at: usize) {
        let now = self.state.now(id);
        self.state.left.silences -= 1;
        let pending_release = &mut self.client(id).pending_releases[at];
        pending_release.sent = None;
        pending_release.again_at = now.plus(PAUSE);
        let owner_id = pending_release.acquisition.owner_id;
        self.stop_awaiting(id, MessageLane::Release, owner_id);
    }
}
