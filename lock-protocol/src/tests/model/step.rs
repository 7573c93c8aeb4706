//! The possible next events: actions of clients, of the network, and failures.

use std::time::Duration;

use super::network::{Body, Message};
use super::rules::{FaultKind, Mutation, Rules, Sight};
use super::state::ModelState;
use super::turn::Turn;
use crate::acquisition::{AcquireConfig, AcquireOrigin, FailureClass};
use crate::backoff::Jitter;
use crate::kind::Kind;
use crate::lease::{LeaseAction, deadline};
use crate::lock_state::{AcquireReply, RenewReply};
use crate::mailbox::Notification;
use crate::owner_id::OwnerId;
use crate::tests::virtual_client::{Awaited, Caller, MessageLane, Reply, Request};
use crate::wire::WireNotification;

/// Far beyond every margin.
const JUMP_TICKS: i64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Event {
    /// Acquire without waiting.
    Try(usize),
    /// Acquire and wait.
    Wait(usize),
    /// An acquire, or the renewal that confirms a grant, got no reply in time.
    NoReply(usize),
    /// The caller drops its future.
    Quit(usize),
    Renew(usize),
    NoReplyToRenewal(usize),
    /// The holder of the exclusive lock becomes a reader.
    Downgrade(usize),
    /// The holder gives its lock away by a ticket.
    Give(usize),
    /// A client resumes the ticket.
    Resume(usize),
    Release(usize),
    /// The reply to the given pending release did not come in time.
    NoReplyToCancel(usize, usize),
    Crash(usize),
    /// Deliver the given message of the network.
    Deliver(usize),
    Duplicate(usize),
    Lose(usize),
    Snapshot,
    Restore,
    JumpForward,
    SetBack,
    Tick,
}

/// Lists all possible next actions. If the rules are prompt, time passes only when no urgent action is
/// left.
pub(super) fn actions(rules: &Rules, state: &ModelState, actions: &mut Vec<Event>) {
    for id in 0..state.clients.len() {
        client_actions(rules, state, id, actions);
    }
    for (at, _) in state.network.iter().enumerate() {
        actions.push(Event::Deliver(at));
    }
    let is_urgent = !actions.iter().all(|action| may_stay(rules, state, *action));
    for (at, message) in state.network.iter().enumerate() {
        if state.left.has(FaultKind::Loss) {
            actions.push(Event::Lose(at));
        }
        if state.left.has(FaultKind::Duplicate) && message.is_awaited_request() {
            actions.push(Event::Duplicate(at));
        }
    }
    let any_active = state.clients.iter().any(|client| !client.is_at_rest());
    if any_active && state.left.snapshots > 0 {
        actions.push(Event::Snapshot);
    }
    if any_active && state.ticks < rules.horizon {
        if state.left.has(FaultKind::Restore) && state.snapshot.is_some() {
            actions.push(Event::Restore);
        }
        if state.left.has(FaultKind::Jump) {
            actions.push(Event::JumpForward);
        }
        if state.left.has(FaultKind::Setback) {
            actions.push(Event::SetBack);
        }
    }
    // Before a client has begun, and after the last one has finished, time changes nothing.
    let all_idle = state
        .clients
        .iter()
        .all(|client| client.caller == Caller::Idle);
    let changes = any_active && !all_idle || rules.prompt && state.token().is_some();
    if changes && state.ticks < rules.horizon && !(rules.prompt && is_urgent) {
        actions.push(Event::Tick);
    }
}

/// Whether an action may be delayed under prompt rules, under which other actions are done at once.
fn may_stay(rules: &Rules, state: &ModelState, action: Event) -> bool {
    match action {
        Event::Try(_)
        | Event::Wait(_)
        | Event::Downgrade(_)
        | Event::Give(_)
        | Event::Resume(_)
        | Event::Quit(_)
        | Event::Crash(_) => true,
        Event::Release(id) => {
            let since = state.clients[id]
                .caller
                .holding()
                .map(|holding| holding.since);
            since.is_some_and(|since| state.now(id).since(since) < rules.ttl.as_duration())
        }
        _ => false,
    }
}

fn client_actions(rules: &Rules, state: &ModelState, id: usize, actions: &mut Vec<Event>) {
    let (now, client) = (state.now(id), &state.clients[id]);
    if state.ticket.is_some() && client.caller == Caller::Idle {
        actions.push(Event::Resume(id));
    }
    match &client.caller {
        Caller::Idle if state.ticks <= rules.begin_by => {
            if rules.may_try & (1 << id) != 0 {
                actions.push(Event::Try(id));
            }
            if rules.may_wait & (1 << id) != 0 {
                actions.push(Event::Wait(id));
            }
        }
        Caller::Acquiring(acquiring) => {
            let awaited = &acquiring.awaited;
            let may_lapse = now >= awaited.until() || !rules.prompt;
            if awaited.is_reply() && may_lapse && state.left.has(FaultKind::Silence) {
                actions.push(Event::NoReply(id));
            }
            if state.left.has(FaultKind::Quit) {
                actions.push(Event::Quit(id));
            }
        }
        Caller::Holding(holding) => {
            actions.push(Event::Release(id));
            if rules.may_downgrade & (1 << id) != 0 && holding.request.kind == Kind::Exclusive {
                actions.push(Event::Downgrade(id));
            }
            if rules.has_tickets && state.ticket.is_none() && !holding.lease.is_lost(now) {
                actions.push(Event::Give(id));
            }
            let next_action = holding.lease.clone().next_action(now);
            match holding.renewing {
                Some((_, until))
                    if state.left.has(FaultKind::Silence) && (now >= until || !rules.prompt) =>
                {
                    actions.push(Event::NoReplyToRenewal(id));
                }
                None if state.left.renewals > 0
                    && matches!(next_action, LeaseAction::Renew { .. }) =>
                {
                    actions.push(Event::Renew(id));
                }
                _ => {}
            }
        }
        Caller::Idle | Caller::Done | Caller::Crashed => {}
    }
    for (at, running) in client.manager.cleanups.iter().enumerate() {
        if running.until.is_some_and(|until| now >= until) && state.left.has(FaultKind::Silence) {
            actions.push(Event::NoReplyToCancel(id, at));
        }
    }
    let began = !matches!(client.caller, Caller::Idle) && !client.is_at_rest();
    if state.left.has(FaultKind::Crash) && began {
        actions.push(Event::Crash(id));
    }
}

impl Turn<'_> {
    pub(super) fn apply(mut self, action: Event) -> ModelState {
        match action {
            Event::Try(id) => self.begin(id, false),
            Event::Wait(id) => self.begin(id, true),
            Event::NoReply(id) => {
                self.spend(FaultKind::Silence);
                self.no_reply(id);
            }
            Event::Quit(id) => {
                self.spend(FaultKind::Quit);
                self.step(id, |step| step.drop_future());
            }
            Event::Renew(id) => {
                self.state.left.renewals -= 1;
                self.step(id, |step| step.renew());
            }
            Event::NoReplyToRenewal(id) => {
                self.spend(FaultKind::Silence);
                self.step(id, |step| step.on_no_renewal_reply());
            }
            Event::Downgrade(id) => {
                let config = self.rules.acquire_config(id, false, self.state.now(id));
                self.step(id, |step| step.downgrade(config));
            }
            Event::Give(id) => self.state.ticket = self.step(id, |step| step.give()),
            Event::Resume(id) => self.resume(id),
            Event::Release(id) => self.release(id),
            Event::NoReplyToCancel(id, at) => {
                self.spend(FaultKind::Silence);
                self.no_reply_to_cancel(id, at);
            }
            Event::Crash(id) => self.crash(id),
            Event::Deliver(at) => {
                let message = self.state.network.take(at);
                self.deliver(message);
            }
            Event::Duplicate(at) => {
                self.spend(FaultKind::Duplicate);
                let message = self.state.network.take(at);
                if let Body::Request { request, .. } = &message.body {
                    self.state.may_come_back |= matches!(request, Request::Acquire { .. });
                    let body = Body::Request {
                        request: request.clone(),
                        awaited: false,
                    };
                    self.state.network.send(Message {
                        body,
                        ..message.clone()
                    });
                }
                self.deliver(message);
            }
            Event::Lose(at) => {
                self.spend(FaultKind::Loss);
                self.state.network.take(at);
            }
            Event::Snapshot => {
                self.state.left.snapshots -= 1;
                self.state.snapshot = Some(self.state.lock_state.clone());
            }
            Event::Restore => self.restore(),
            Event::JumpForward => {
                self.spend(FaultKind::Jump);
                self.state.beyond_promise = true;
                self.move_clock(JUMP_TICKS);
            }
            Event::SetBack => {
                self.spend(FaultKind::Setback);
                self.state.may_come_back = true;
                self.move_clock(-JUMP_TICKS);
            }
            Event::Tick => self.tick(),
        }
        self.run_timers();
        if self.state.beyond_promise && self.state.holders() > 1 {
            self.sights.saw(Sight::TwoHoldersOutsideThePromise);
        }
        if !self.state.beyond_promise && self.state.holders() > 1 {
            self.sights.saw(Sight::Shared);
            let mut kinds = self.clients().zip(self.rules.kinds);
            if kinds
                .any(|(client, kind)| kind == Kind::Exclusive && client.caller.holding().is_some())
            {
                self.sights.saw(Sight::Downgraded);
            }
        }
        self.state.seal();
        self.state
    }

    pub(super) fn spend(&mut self, fault: FaultKind) {
        let state = &mut self.state;
        state.left.spend(fault);
        state.faults += 1;
        if state.faults == self.rules.most_faults {
            state.left.end_faults();
        }
    }

    fn begin(&mut self, id: usize, waits: bool) {
        let config = self.rules.acquire_config(id, waits, self.state.now(id));
        self.step(id, |step| step.start(config, Jitter::zero()));
    }

    /// Resumes the ticket. Another client may do so too.
    fn resume(&mut self, id: usize) {
        let Some(from) = self.state.ticket else {
            return;
        };
        let config = AcquireConfig {
            origin: AcquireOrigin::Exchange { from },
            ..self.rules.acquire_config(id, false, self.state.now(id))
        };
        self.step(id, |step| step.start(config, Jitter::zero()));
    }

    /// The connection breaks before the end of the command's time, or the time ends.
    fn no_reply(&mut self, id: usize) {
        let now = self.state.now(id);
        let acquiring = self.state.clients[id].caller.acquiring();
        let until = acquiring.map_or(now, |acquiring| acquiring.awaited.until());
        let class = class_of_silence(now >= until);
        self.step(id, |step| step.on_no_reply(class));
    }

    fn no_reply_to_cancel(&mut self, id: usize, at: usize) {
        let cleanups = &self.state.clients[id].manager.cleanups;
        let owner_id = cleanups[at].cleanup.request().owner_id;
        self.step(id, |step| {
            let class = FailureClass::TimedOut;
            let (manager, effects) = (&mut *step.manager, &mut *step.effects);
            manager.on_no_release_reply(owner_id, class, step.now, effects);
        });
    }

    pub(super) fn release(&mut self, id: usize) {
        let min_hold = self.rules.min_hold;
        let has_ended = self.step(id, |step| step.release(min_hold));
        if has_ended {
            self.sights.saw(Sight::LostAtTheDeadline);
        }
    }

    fn deliver(&mut self, message: Message) {
        let Message {
            client: id,
            lane,
            owner_id,
            body,
        } = message;
        match body {
            Body::Request { request, awaited } => {
                let reply = self.serve(owner_id, &request);
                let server_us = self.state.server_us();
                if awaited && lane == MessageLane::Release && !self.rules.prompt {
                    // Skips the reply's way back: a later reply would only cancel later, which is
                    // safer.
                    self.reply(id, lane, owner_id, reply, server_us);
                } else if awaited {
                    self.state.network.send(Message {
                        client: id,
                        lane,
                        owner_id,
                        body: Body::Reply { reply, server_us },
                    });
                }
            }
            Body::Published(message) => self.notify(id, owner_id, &message),
            Body::Reply { reply, server_us } => self.reply(id, lane, owner_id, reply, server_us),
        }
    }

    fn notify(&mut self, id: usize, owner_id: OwnerId, message: &WireNotification) {
        let from_receipt = self.rules.is(Mutation::DeadlineFromReceipt);
        let received = self.state.now(id);
        let client = &self.state.clients[id];
        if client.caller.acquiring().is_none() || client.caller.owner_id() != Some(owner_id) {
            return;
        }
        let clock_sync = client.manager.server_clock.youngest();
        let run_id = client.manager.first.run_id;
        let mut read = Notification::from_wire(message, clock_sync, run_id, received);
        if let Notification::Grant(grant) = &mut read
            && from_receipt
        {
            grant.until = Some(deadline(received, grant.lease));
        }
        let is_grant = matches!(read, Notification::Grant(_));
        self.step(id, |step| step.on_notification(read));
        if is_grant && self.state.clients[id].caller.holding().is_some() {
            self.sights.saw(Sight::HandedOverByNotification);
        }
    }

    fn reply(
        &mut self,
        id: usize,
        lane: MessageLane,
        owner_id: OwnerId,
        mut reply: Reply,
        mut us: u64,
    ) {
        let now = self.state.now(id);
        let rules = self.rules;
        let acquiring = self.state.clients[id].caller.acquiring();
        let resumes = acquiring.is_some_and(|it| it.acquisition.sent().is_exchange());
        if let (
            Reply::Acquire(AcquireReply::Held { remaining_ms, .. })
            | Reply::Renew(RenewReply::Held { remaining_ms, .. }),
            true,
        ) = (&mut reply, rules.is(Mutation::NoMargin))
        {
            *remaining_ms = without_margin(*remaining_ms);
        }
        if lane == MessageLane::Release && rules.is(Mutation::CancelFinalAtOnce) {
            us = u64::MAX;
        }
        self.step(id, |step| {
            if let Caller::Acquiring(acquiring) = &mut *step.caller
                && rules.is(Mutation::DeadlineFromReply)
                && let Awaited::Acquire { sent, .. } | Awaited::Renewal { sent, .. } =
                    &mut acquiring.awaited
            {
                *sent = now;
            }
            let is_callers = step.caller.owner_id() == Some(owner_id);
            match lane {
                MessageLane::Acquire => step.on_reply(reply, us),
                MessageLane::Renew => step.on_renewal_reply(&reply, us),
                MessageLane::Release if is_callers => step.on_reply(reply, us),
                MessageLane::Release => {
                    let (manager, effects) = (&mut *step.manager, &mut *step.effects);
                    manager.on_release_reply(owner_id, &reply, us, step.now, effects);
                }
            }
        });
        match self.state.clients[id].caller {
            Caller::Holding(_) if resumes => self.sights.saw(Sight::Resumed),
            Caller::Done if resumes => self.sights.saw(Sight::ResumeRefused),
            _ => {}
        }
    }
}

fn class_of_silence(has_timed_out: bool) -> FailureClass {
    if has_timed_out {
        FailureClass::TimedOut
    } else {
        FailureClass::Unreachable
    }
}

/// Returns a remaining time from which the client subtracts its margin in vain.
fn without_margin(remaining_ms: u64) -> u64 {
    let margin = Duration::from_millis(2);
    let whole = Duration::from_millis(remaining_ms) + margin;
    u64::try_from((whole * 100 / 99).as_millis()).expect("a short time") + 1
}
