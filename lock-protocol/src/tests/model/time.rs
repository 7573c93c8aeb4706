//! The passing of time, and the failures of processes and of the server.

use super::network::{Body, Message};
use super::rules::{FaultKind, Mutation, Sight};
use super::state::{Breach, Client, Part, TICK_US};
use super::turn::Turn;
use crate::acquisition::FailureClass;
use crate::lock_state::{AcquireReply, LockState};
use crate::mailbox::Notification;
use crate::owner_id::OwnerId;
use crate::tests::virtual_client::{Caller, Reply, Request};

impl Turn<'_> {
    /// Runs the timers of the clients as soon as they are due. A late client is the same as a client
    /// whose commands take longer to arrive, which the model explores.
    pub(super) fn run_timers(&mut self) {
        for id in 0..self.state.clients.len() {
            let now = self.state.now(id);
            let is_due = |client: &Client| {
                let acquiring = client.caller.acquiring();
                acquiring.is_some_and(|acquiring| {
                    !acquiring.awaited.is_reply() && acquiring.awaited.until() <= now
                })
            };
            while is_due(&self.state.clients[id]) {
                self.step(id, |step| step.on_pause_end());
            }
            let holding = self.state.clients[id].caller.holding();
            if let Some(holding) = holding.filter(|holding| holding.lease.is_lost(now)) {
                let is_early = holding.lease.deadline().is_none_or(|end| now < end);
                let mut owners = self.state.owners();
                let is_owner = owners.any(|owner_id| owner_id == holding.request.owner_id);
                drop(owners);
                let is_breach = is_early && is_owner;
                self.state.breaches.record(Breach::EarlyLoss, is_breach);
                self.release(id);
            }
            let next_cleanup = self.state.clients[id].manager.next_cleanup(now);
            if next_cleanup.is_some_and(|at| at <= now) {
                self.run_cleanups(id);
            }
        }
    }

    pub(super) fn tick(&mut self) {
        let before = self.state.owner();
        self.state.ticks += 1;
        self.expire();
        if let (Some(owner_id), None) = (before, self.state.owner()) {
            let holds = |client: &Part<Client>| {
                client.caller.holding().is_some() && client.caller.owner_id() == Some(owner_id)
            };
            if !self.clients().any(holds) {
                self.sights.saw(Sight::HandoverLeaseExpired);
            }
        }
        self.forget_late_copies();
        let is_waste =
            self.state.is_free_for_the_next() && self.clients().any(|client| client.waits());
        if self.rules.prompt {
            self.state.free_ticks = if is_waste {
                self.state.free_ticks + 1
            } else {
                0
            };
        }
    }

    pub(super) fn move_clock(&mut self, ticks: i64) {
        let tick_us = i64::try_from(TICK_US).expect("a tick is short");
        self.state.moved_us += ticks * tick_us;
        self.expire();
    }

    /// Forgets copies of an acquire that no client awaits and that the server refuses as late. The
    /// server refuses them for ever unless its clock is set back.
    pub(super) fn forget_late_copies(&mut self) {
        if self.rules.budget.setbacks > 0 {
            return;
        }
        let mut network = std::mem::take(&mut self.state.network);
        network.keep(|message| {
            let Body::Request {
                request: request @ Request::Acquire { .. },
                awaited: false,
            } = &message.body
            else {
                return true;
            };
            let mut lock_state = LockState::clone(&self.state.lock_state);
            let (reply, _) = self.execute(&mut lock_state, message.owner_id, request);
            let is_late =
                reply == Reply::Acquire(AcquireReply::Late) && lock_state == *self.state.lock_state;
            if is_late {
                self.sights.saw(Sight::LateAcquireRefused);
            }
            !is_late
        });
        self.state.network = network;
    }

    /// Kills a process. Its connections close, and the commands that it sent still arrive.
    pub(super) fn crash(&mut self, id: usize) {
        self.spend(FaultKind::Crash);
        let client = self.client(id);
        client.caller = Caller::Crashed;
        client.manager.cleanups.clear();
        let of_it = |message: &Message| message.client == id;
        self.state.network.forget_replies(of_it);
    }

    /// Restarts the server. All connections end, with all messages on them. The restart takes a while.
    pub(super) fn restore(&mut self) {
        self.spend(FaultKind::Restore);
        self.state.may_come_back = true;
        self.state.beyond_promise = true;
        self.state.ticks += 1;
        self.state.life += 1;
        self.state.network.clear();
        if let Some(lock_state) = self.state.snapshot.take() {
            self.state.lock_state = lock_state;
        }
        self.expire();
        if self.state.server_us() <= self.state.last_token {
            // The new clock is behind the last grant, so the order of tokens is not promised.
            self.state.last_token = 0;
        }
        for id in 0..self.state.clients.len() {
            if self.state.clients[id].is_at_rest() {
                continue;
            }
            let first = self.state.clock_sync(id);
            let keep_floor = self.rules.is(Mutation::FloorKept);
            self.step(id, |step| {
                let floor_us = step.manager.floor_us;
                step.manager.reconnect(first);
                if keep_floor {
                    step.manager.floor_us = floor_us;
                }
                let broken = FailureClass::Unreachable;
                let in_flight = step.manager.cleanups.iter();
                let in_flight: Vec<OwnerId> = in_flight
                    .filter(|running| running.until.is_some())
                    .map(|running| running.cleanup.request().owner_id)
                    .collect();
                for owner_id in in_flight {
                    let (manager, effects) = (&mut *step.manager, &mut *step.effects);
                    manager.on_no_release_reply(owner_id, broken, step.now, effects);
                }
                step.on_no_renewal_reply();
                if step.command_until().is_some() {
                    step.on_no_reply(broken);
                }
                step.on_notification(Notification::Poll);
            });
        }
    }
}
