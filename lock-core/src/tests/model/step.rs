//! The possible next events: actions of clients, of the network, and failures.

use super::client::PAUSE;
use super::network::{Body, Message, MessageLane, Reply, Request};
use super::rules::{Mutation, Rules, Sight};
use super::state::{Client, ClientPhase, ModelState, Part, TICK_US};
use super::turn::Turn;
use crate::protocol::lease::LeaseAction;
use crate::protocol::lock_state::LockState;

/// Far beyond every margin.
const JUMP_TICKS: i64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
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
pub(super) fn actions(rules: &Rules, state: &ModelState, actions: &mut Vec<Action>) {
    for id in 0..state.clients.len() {
        client_actions(rules, state, id, actions);
    }
    for (at, _) in state.network.iter().enumerate() {
        actions.push(Action::Deliver(at));
    }
    let is_urgent = !actions.iter().all(|action| may_stay(rules, state, *action));
    for (at, message) in state.network.iter().enumerate() {
        if state.left.losses > 0 {
            actions.push(Action::Lose(at));
        }
        if state.left.duplicates > 0 && message.is_awaited_request() {
            actions.push(Action::Duplicate(at));
        }
    }
    let any_active = state.clients.iter().any(|client| !client.is_at_rest());
    if any_active && state.left.snapshots > 0 {
        actions.push(Action::Snapshot);
    }
    if any_active && state.ticks < rules.horizon {
        if state.left.restores > 0 && state.snapshot.is_some() {
            actions.push(Action::Restore);
        }
        if state.left.jumps > 0 {
            actions.push(Action::JumpForward);
        }
        if state.left.setbacks > 0 {
            actions.push(Action::SetBack);
        }
    }
    // Before a client has begun, and after the last one has finished, time changes nothing.
    let all_idle = state
        .clients
        .iter()
        .all(|client| client.phase == ClientPhase::Idle);
    let changes = any_active && !all_idle || rules.prompt && state.owner().is_some();
    if changes && state.ticks < rules.horizon && !(rules.prompt && is_urgent) {
        actions.push(Action::Tick);
    }
}

/// Whether an action may be delayed under prompt rules, under which other actions are done at once.
fn may_stay(rules: &Rules, state: &ModelState, action: Action) -> bool {
    match action {
        Action::Try(_) | Action::Wait(_) | Action::Quit(_) | Action::Crash(_) => true,
        Action::Release(id) => {
            let since = state.clients[id].holding().map(|holding| holding.since);
            since.is_some_and(|since| state.now(id).since(since) < rules.ttl.as_duration())
        }
        _ => false,
    }
}

fn client_actions(rules: &Rules, state: &ModelState, id: usize, actions: &mut Vec<Action>) {
    let (now, client) = (state.now(id), &state.clients[id]);
    match &client.phase {
        ClientPhase::Idle if state.ticks <= rules.begin_by => {
            if rules.may_try & (1 << id) != 0 {
                actions.push(Action::Try(id));
            }
            if rules.may_wait & (1 << id) != 0 {
                actions.push(Action::Wait(id));
            }
        }
        ClientPhase::Acquiring(acquiring) => {
            let sent = acquiring.sent.as_ref();
            if sent.is_some_and(|sent| now >= sent.until || !rules.prompt)
                && state.left.silences > 0
            {
                actions.push(Action::NoReply(id));
            }
            if state.left.quits > 0 {
                actions.push(Action::Quit(id));
            }
        }
        ClientPhase::Holding(holding) => {
            actions.push(Action::Release(id));
            let next_action = holding.lease.clone().next_action(now);
            match holding.renewing {
                Some((_, until)) if state.left.silences > 0 && (now >= until || !rules.prompt) => {
                    actions.push(Action::NoReplyToRenewal(id));
                }
                None if state.left.renewals > 0
                    && matches!(next_action, LeaseAction::Renew { .. }) =>
                {
                    actions.push(Action::Renew(id));
                }
                _ => {}
            }
        }
        ClientPhase::Idle | ClientPhase::Done | ClientPhase::Crashed => {}
    }
    for (at, pending_release) in client.pending_releases.iter().enumerate() {
        match pending_release.sent {
            Some(until) if now >= until && state.left.silences > 0 => {
                actions.push(Action::NoReplyToCancel(id, at));
            }
            _ => {}
        }
    }
    let began = !matches!(client.phase, ClientPhase::Idle) && !client.is_at_rest();
    if state.left.crashes > 0 && began {
        actions.push(Action::Crash(id));
    }
}

impl Turn<'_> {
    pub(super) fn apply(mut self, action: Action) -> ModelState {
        match action {
            Action::Try(id) => self.begin(id, false),
            Action::Wait(id) => self.begin(id, true),
            Action::NoReply(id) => {
                self.state.left.silences -= 1;
                self.no_reply(id);
                self.wake(id);
            }
            Action::Quit(id) => {
                self.state.left.quits -= 1;
                self.give_up(id);
            }
            Action::Renew(id) => self.renew(id),
            Action::NoReplyToRenewal(id) => self.no_reply_to_renewal(id),
            Action::Release(id) => self.release(id),
            Action::NoReplyToCancel(id, at) => self.no_reply_to_cancel(id, at),
            Action::Crash(id) => self.crash(id),
            Action::Deliver(at) => {
                let message = self.state.network.take(at);
                self.deliver(message);
            }
            Action::Duplicate(at) => {
                self.state.left.duplicates -= 1;
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
            Action::Lose(at) => {
                self.state.left.losses -= 1;
                self.state.network.take(at);
            }
            Action::Snapshot => {
                self.state.left.snapshots -= 1;
                self.state.snapshot = Some(self.state.lock_state.clone());
            }
            Action::Restore => self.restore(),
            Action::JumpForward => {
                self.state.left.jumps -= 1;
                self.state.beyond_promise = true;
                self.move_clock(JUMP_TICKS);
            }
            Action::SetBack => {
                self.state.left.setbacks -= 1;
                self.state.may_come_back = true;
                self.move_clock(-JUMP_TICKS);
            }
            Action::Tick => self.tick(),
        }
        self.run_timers();
        if self.state.beyond_promise && self.state.holders() > 1 {
            self.sights.saw(Sight::TwoHoldersOutsideThePromise);
        }
        self.state.seal();
        self.state
    }

    // Time and failures.

    /// Runs the timers of the clients as soon as they are due. A late client is the same as a client
    /// whose commands take longer to arrive, which the model explores.
    fn run_timers(&mut self) {
        for id in 0..self.state.clients.len() {
            let now = self.state.now(id);
            if let Some(acquiring) = self
                .acquiring(id)
                .filter(|acquiring| acquiring.sent.is_none())
            {
                if acquiring
                    .acquisition
                    .waits_until
                    .is_some_and(|end| now >= end)
                {
                    self.give_up(id);
                } else if now >= acquiring.next_poll {
                    self.poll(id);
                }
            }
            let holding = self.state.clients[id].holding();
            if holding.is_some_and(|holding| holding.lease.is_lost(now)) {
                self.release(id);
            }
            for at in 0..self.state.clients[id].pending_releases.len() {
                let pending_release = &self.state.clients[id].pending_releases[at];
                if pending_release.sent.is_none() && now >= pending_release.again_at {
                    self.cancel(id, at);
                }
            }
        }
    }

    fn tick(&mut self) {
        let before = self.state.owner();
        self.state.ticks += 1;
        self.expire();
        if let (Some((owner_id, _)), None) = (before, self.state.owner()) {
            let holds = |client: &Part<Client>| {
                let holding = client.holding();
                holding.is_some_and(|holding| holding.acquisition.owner_id == owner_id)
            };
            if !self.state.clients.iter().any(holds) {
                self.sights.saw(Sight::HandoverLeaseExpired);
            }
        }
        self.forget_late_copies();
        let waits = |client: &Part<Client>| {
            let acquiring = client.acquiring();
            acquiring.is_some_and(|acquiring| acquiring.acquisition.waits_until.is_some())
        };
        let is_waste = self.state.owner().is_none() && self.state.clients.iter().any(waits);
        if self.rules.prompt {
            self.state.free_ticks = if is_waste {
                self.state.free_ticks + 1
            } else {
                0
            };
        }
    }

    fn move_clock(&mut self, ticks: i64) {
        let tick_us = i64::try_from(TICK_US).expect("a tick is short");
        self.state.moved_us += ticks * tick_us;
        self.expire();
    }

    /// Forgets copies of an acquire that no client awaits and that the server refuses as late. The
    /// server refuses them for ever unless its clock is set back.
    fn forget_late_copies(&mut self) {
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
            let is_late = reply == Reply::Late && lock_state == *self.state.lock_state;
            if is_late {
                self.sights.saw(Sight::LateAcquireRefused);
            }
            !is_late
        });
        self.state.network = network;
    }

    /// Kills a process. Its connections close, and the commands that it sent still arrive.
    fn crash(&mut self, id: usize) {
        self.state.left.crashes -= 1;
        let client = self.client(id);
        client.phase = ClientPhase::Crashed;
        client.pending_releases.clear();
        let of_it = |message: &Message| message.client == id;
        self.state.network.forget_replies(of_it);
    }

    /// Restarts the server. All connections end, with all messages on them. The restart takes a while.
    fn restore(&mut self) {
        self.state.left.restores -= 1;
        self.state.may_come_back = true;
        self.state.beyond_promise = true;
        self.state.ticks += 1;
        self.state.life += 1;
        self.state.network.clear();
        if let Some(lock_state) = self.state.snapshot.take() {
            self.state.lock_state = lock_state;
        }
        self.expire();
        for id in 0..self.state.clients.len() {
            let (now, first) = (self.state.now(id), self.state.clock_sync(id));
            let keep_floor = self.rules.is(Mutation::FloorKept);
            let client = self.client(id);
            if client.is_at_rest() {
                continue;
            }
            client.first = first;
            if !keep_floor {
                client.floor_us = first.server_us;
            }
            for pending_release in &mut client.pending_releases {
                if pending_release.sent.take().is_some() {
                    pending_release.again_at = now.plus(PAUSE);
                }
            }
            if let ClientPhase::Acquiring(acquiring) = &mut client.phase {
                acquiring.slot.poll = acquiring.acquisition.waits_until.is_some();
            }
            if let ClientPhase::Holding(holding) = &mut client.phase
                && holding.renewing.take().is_some()
            {
                holding.lease.unanswered(now.plus(PAUSE));
            }
            if self
                .acquiring(id)
                .is_some_and(|acquiring| acquiring.sent.is_some())
            {
                self.no_reply(id);
            }
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
                    self.apply_cancel(id, owner_id, server_us);
                } else if awaited {
                    self.state.network.send(Message {
                        client: id,
                        lane,
                        owner_id,
                        body: Body::Reply { reply, server_us },
                    });
                }
            }
            Body::WireNotification(delivered) => {
                self.notified(id, owner_id, delivered);
                self.wake(id);
            }
            Body::Reply { reply, server_us } => match lane {
                MessageLane::Acquire => {
                    self.on_reply(id, &reply, server_us);
                    self.wake(id);
                }
                MessageLane::Renew => self.apply_renewal(id, &reply, server_us),
                MessageLane::Release => self.apply_cancel(id, owner_id, server_us),
            },
        }
    }
}
