//! The clients, the network and the server of the model.

use super::*;

use crate::clock::ServerMs;
use crate::lock_state::*;
use crate::owner_id::OwnerId;
use crate::wire::{EntryKind, Mode, OwnerValue, QueueEntry, WireNotification};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    Idle,
    /// A command is on its way, or its reply was lost.
    Asking,
    /// In the queue of one lock.
    Waiting,
    /// The body runs.
    Using,
    Done,
    Crashed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Client {
    pub(super) phase: Phase,
    /// Each attempt has an owner id of its own for each lock.
    pub(super) attempt: u8,
    /// Until which tick each lock is certainly held.
    pub(super) held: [Option<u8>; NAMES],
    /// The tick after which no command of the attempt takes effect.
    pub(super) not_after: u8,
    /// Attempts that are cancelled until this tick has passed.
    pub(super) cleanups: BTreeSet<(u8, u8)>,
    /// Attempts that can have nothing on the server any more.
    pub(super) ended: BTreeSet<u8>,
    pub(super) has_used: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Body {
    Acquire {
        wanted: Vec<usize>,
        not_after: u8,
    },
    Release,
    /// The locks that the command got, counted from its send.
    Acquired {
        locks: Vec<usize>,
        is_queued: bool,
    },
    Released {
        at: u8,
    },
    Granted {
        lock: usize,
        until: u8,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Message {
    pub(super) client: usize,
    pub(super) attempt: u8,
    pub(super) sent: u8,
    pub(super) body: Body,
}

impl Message {
    pub(super) fn is_reply(&self) -> bool {
        matches!(self.body, Body::Acquired { .. } | Body::Released { .. })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) now: u8,
    pub(super) locks: [LockState; NAMES],
    pub(super) clients: [Client; CLIENTS],
    pub(super) network: BTreeSet<Message>,
    pub(super) lost_replies: u8,
    pub(super) copies: u8,
    pub(super) crashes: u8,
    pub(super) has_waited: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    Tick,
    Begin(usize),
    /// Sends the command for the missing locks again: no reply came, or a poll is due.
    Ask(usize),
    EndBody(usize),
    Cancel(usize, u8),
    Crash(usize),
    Deliver(Message),
    /// Delivers a message that arrives once more later.
    DeliverCopy(Message),
    Lose(Message),
}

pub(super) fn owner_id(client: usize, attempt: u8, lock: usize) -> OwnerId {
    let number = (client as u128 + 1) * 100 + u128::from(attempt) * 10 + lock as u128;
    OwnerId::from_number(number << 96)
}

pub(super) fn time_ms(tick: u8) -> ServerMs {
    ServerMs::from_micros(START_US).plus(u64::from(tick) * TICK_MS)
}

impl SetModel {
    pub(super) fn entry(&self, client: usize, attempt: u8, lock: usize) -> QueueEntry {
        QueueEntry {
            owner_id: owner_id(client, attempt, lock),
            mode: Mode::Subscribed,
            kind: EntryKind::Known(self.kinds[client]),
            lease_ms: u64::from(TTL) * TICK_MS,
            expires_at_ms: time_ms(ENTRY_LIFE),
            channel: format!("c{client}").into(),
            label: "set".into(),
        }
    }
}

impl State {
    pub(super) fn env<T>(&self, run: impl FnOnce(&Env<'_>) -> T) -> T {
        let dead: Vec<String> = (0..CLIENTS)
            .filter(|id| self.clients[*id].phase == Phase::Crashed)
            .map(|id| format!("c{id}"))
            .collect();
        run(&Env {
            now_us: START_US + u64::from(self.now) * TICK_MS * 1_000,
            has_subscriber: &|channel| !dead.iter().any(|dead| dead == channel),
        })
    }

    pub(super) fn notify(&mut self, lock: usize, notifications: &[WireNotification]) {
        for notification in notifications {
            // The next poll replaces a notification to the head of the queue.
            let WireNotification::Grant {
                owner_id: to,
                lease_ms,
                ..
            } = notification
            else {
                continue;
            };
            for client in 0..CLIENTS {
                let attempt = self.clients[client].attempt;
                if owner_id(client, attempt, lock) == *to {
                    let ticks = u8::try_from(lease_ms / TICK_MS).unwrap();
                    let until = self.now + ticks;
                    self.send(client, Body::Granted { lock, until });
                }
            }
        }
    }

    pub(super) fn send(&mut self, client: usize, body: Body) {
        let (attempt, sent) = (self.clients[client].attempt, self.now);
        self.network.insert(Message {
            client,
            attempt,
            sent,
            body,
        });
    }

    /// Executes the command of a set as the server does.
    pub(super) fn acquire_all(
        &mut self,
        model: &SetModel,
        message: &Message,
        wanted: &[usize],
        not_after: u8,
    ) {
        let &Message {
            client,
            attempt,
            sent,
            ..
        } = message;
        if self.now > not_after {
            return;
        }
        let waits = model.waits[client];
        let (mut locks, mut is_queued) = (Vec::new(), false);
        for &lock in wanted {
            let entry = model.entry(client, attempt, lock);
            let command = AcquireCommand {
                owner_id: owner_id(client, attempt, lock),
                ttl_ms: u64::from(TTL) * TICK_MS,
                floor_us: START_US,
                not_after_ms: time_ms(not_after),
                label: "set",
                entry: waits.then_some(&entry),
                lead_us: 0,
                kind: model.kinds[client],
                purpose: Purpose::Acquire,
                earlier: &[],
                max_queue: None,
            };
            let mut state = self.locks[lock].clone();
            let (reply, notifications) = self.env(|env| state.acquire(&command, env));
            self.locks[lock] = state;
            self.notify(lock, &notifications);
            if matches!(reply, AcquireReply::Held { .. }) {
                locks.push(lock);
                continue;
            }
            is_queued = waits;
            if !waits {
                // Undone: also what an earlier copy had got.
                for lock in 0..NAMES {
                    self.release(model, client, attempt, lock);
                }
                locks.clear();
            }
            break;
        }
        let body = Body::Acquired { locks, is_queued };
        self.network.insert(Message {
            client,
            attempt,
            sent,
            body,
        });
    }

    pub(super) fn release(&mut self, model: &SetModel, client: usize, attempt: u8, lock: usize) {
        let entries = [model.entry(client, attempt, lock)];
        let command = ReleaseCommand {
            owner_id: owner_id(client, attempt, lock),
            floor_us: START_US,
            grace_ms: 0,
            min_hold_ms: 0,
            done_ms: 0,
            lead_us: 0,
            label: "set",
            kind: model.kinds[client],
            entries: &entries,
        };
        let mut state = self.locks[lock].clone();
        let (_, notifications) = self.env(|env| state.release(&command, env));
        self.locks[lock] = state;
        self.notify(lock, &notifications);
    }

    pub(super) fn deliver(&mut self, model: &SetModel, message: &Message) {
        let &Message {
            client,
            attempt,
            sent,
            ..
        } = message;
        match &message.body {
            Body::Acquire { wanted, not_after } => {
                self.acquire_all(model, message, wanted, *not_after);
            }
            Body::Release => {
                for &lock in &model.orders[client] {
                    self.release(model, client, attempt, lock);
                }
                let body = Body::Released { at: self.now };
                self.network.insert(Message {
                    client,
                    attempt,
                    sent,
                    body,
                });
            }
            Body::Released { at } => {
                let client = &mut self.clients[client];
                // Until then, a copy of the acquire may still take effect.
                if client
                    .cleanups
                    .iter()
                    .any(|(of, until)| *of == attempt && at > until)
                {
                    client.cleanups.retain(|(of, _)| *of != attempt);
                    client.ended.insert(attempt);
                }
            }
            Body::Acquired { locks, is_queued } => {
                let until = sent + TTL;
                self.take(model, client, attempt, locks, until);
                let one = &mut self.clients[client];
                if one.attempt == attempt && one.phase == Phase::Asking {
                    if *is_queued {
                        one.phase = Phase::Waiting;
                        self.has_waited |= one.held.iter().any(Option::is_some);
                    } else if !model.waits[client] {
                        self.give_up(client);
                    }
                }
            }
            Body::Granted { lock, until } => {
                self.take(model, client, attempt, &[*lock], *until);
                let one = &self.clients[client];
                if one.attempt == attempt && one.phase == Phase::Waiting {
                    self.ask(model, client);
                }
            }
        }
    }

    /// Records locks that the client got. The body begins when none is missing.
    pub(super) fn take(
        &mut self,
        _: &SetModel,
        client: usize,
        attempt: u8,
        locks: &[usize],
        until: u8,
    ) {
        let now = self.now;
        let one = &mut self.clients[client];
        if one.attempt != attempt || !matches!(one.phase, Phase::Asking | Phase::Waiting) {
            return;
        }
        for &lock in locks {
            one.held[lock] = Some(one.held[lock].map_or(until, |known| known.max(until)));
        }
        if one
            .held
            .iter()
            .all(|until| until.is_some_and(|until| now < until))
        {
            one.phase = Phase::Using;
            one.has_used = true;
        }
    }

    pub(super) fn ask(&mut self, model: &SetModel, client: usize) {
        let not_after = self.now + LIFE;
        let one = &mut self.clients[client];
        one.phase = Phase::Asking;
        one.not_after = not_after;
        let order = model.orders[client].into_iter();
        let wanted: Vec<_> = order.filter(|lock| one.held[*lock].is_none()).collect();
        self.send(client, Body::Acquire { wanted, not_after });
    }

    /// Releases the attempt until none of its commands can take effect.
    pub(super) fn give_up(&mut self, client: usize) {
        let one = &mut self.clients[client];
        one.cleanups.insert((one.attempt, one.not_after));
        one.held = [None; NAMES];
        one.phase = Phase::Done;
        self.send(client, Body::Release);
    }

    pub(super) fn tick(&mut self, model: &SetModel) {
        self.now += 1;
        for client in 0..CLIENTS {
            let one = &self.clients[client];
            let is_lost = one.held.iter().flatten().any(|until| self.now >= *until);
            if is_lost && one.phase != Phase::Crashed {
                let begins_again = one.phase != Phase::Using && one.attempt == 0;
                self.give_up(client);
                if begins_again {
                    self.clients[client].attempt += 1;
                    self.ask(model, client);
                }
            }
        }
    }

    pub(super) fn owner(&self, lock: usize, client: usize) -> bool {
        self.on_server(lock).iter().any(|(of, _)| *of == client)
    }

    /// The clients that hold a lock on the server now, and their attempts.
    pub(super) fn on_server(&self, lock: usize) -> Vec<(usize, u8)> {
        let mut state = self.locks[lock].clone();
        state.expire(time_ms(self.now));
        let all = (0..CLIENTS).flat_map(|client| (0..2).map(move |attempt| (client, attempt)));
        all.filter(|(client, attempt)| {
            let id = owner_id(*client, *attempt, lock);
            let is_owner = matches!(
                &state.key,
                Some(Expiring { value: KeyValue::Native(OwnerValue { owner_id, .. }), .. }) if *owner_id == id
            );
            let mut members = state.holders.iter().flat_map(|holders| holders.value.keys());
            let is_member = matches!(&state.key, Some(Expiring { value: KeyValue::Shared(_), .. }))
                && members.any(|member| member.owner_id == id);
            is_owner || is_member
        })
        .collect()
    }

    pub(super) fn is_queued(&self, lock: usize, client: usize) -> bool {
        let attempt = self.clients[client].attempt;
        let entries = self.locks[lock]
            .queue
            .iter()
            .flat_map(|queue| queue.value.values());
        let id = owner_id(client, attempt, lock);
        entries.into_iter().any(|entry| entry.owner_id == id)
    }

    pub(super) fn uses(&self, client: usize) -> bool {
        let one = &self.clients[client];
        one.phase == Phase::Using && one.held.iter().flatten().all(|until| self.now < *until)
    }
}
