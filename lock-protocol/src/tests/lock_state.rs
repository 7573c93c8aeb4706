//! Tests each rule of the lock state machine by its name.

use std::collections::BTreeMap;

use crate::clock::ServerMs;
use crate::fencing_token::FencingToken;
use crate::kind::Kind;
use crate::lock_state::*;
use crate::owner_id::OwnerId;
use crate::wire::{EntryKind, Mode, QueueEntry, WireNotification};

mod acquire;
mod exchange;
mod keys;
mod kinds;
mod once_per;
mod queue;

const TTL: u64 = 30_000;
const NOW: u64 = 1_000_000_000;

/// The ids differ in their first digits, which a head-of-queue notification carries.
fn owner_id(number: u128) -> OwnerId {
    OwnerId::from_number(number << 96)
}

/// The server time `ms` milliseconds after the start.
fn after(ms: u64) -> ServerMs {
    ServerMs::from_micros(NOW).plus(ms)
}

fn entry(number: u128) -> QueueEntry {
    QueueEntry {
        owner_id: owner_id(number),
        mode: Mode::Subscribed,
        lease_ms: 2_000,
        kind: EntryKind::Known(Kind::Exclusive),
        expires_at_ms: after(60_000),
        channel: format!("c{number}").into(),
        label: "waiter".into(),
    }
}

/// A plain release of an owner that has no queue entry.
fn release_request(number: u128) -> ReleaseCommand<'static> {
    ReleaseCommand {
        owner_id: owner_id(number),
        floor_us: NOW,
        grace_ms: 0,
        min_hold_ms: 0,
        done_ms: 0,
        lead_us: 0,
        label: "waiter",
        kind: Kind::Exclusive,
        entries: &[],
    }
}

fn renewal(owner_id: OwnerId, ttl_ms: u64) -> RenewCommand<'static> {
    RenewCommand {
        owner_id,
        ttl_ms,
        label: "waiter",
        kind: Kind::Exclusive,
    }
}

/// A lock state with a clock, and with channels that have no subscriber.
struct World {
    lock_state: LockState,
    now_us: u64,
    unheard: Vec<String>,
    notifications: Vec<WireNotification>,
    /// The kind of a caller that makes one attempt.
    kind: Kind,
}

impl World {
    fn new() -> Self {
        Self {
            lock_state: LockState::default(),
            now_us: NOW,
            unheard: Vec::new(),
            notifications: Vec::new(),
            kind: Kind::Exclusive,
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now_us += ms * 1000;
    }

    fn now_ms(&self) -> ServerMs {
        ServerMs::from_micros(self.now_us)
    }

    fn with<T>(
        &mut self,
        run: impl FnOnce(&mut LockState, &Env<'_>) -> (T, Vec<WireNotification>),
    ) -> T {
        let unheard = self.unheard.clone();
        let env = Env {
            now_us: self.now_us,
            has_subscriber: &|channel| !unheard.iter().any(|known| known == channel),
        };
        let (reply, notifications) = run(&mut self.lock_state, &env);
        self.notifications = notifications;
        reply
    }

    fn acquire(
        &mut self,
        number: u128,
        entry: Option<&QueueEntry>,
        earlier: &[QueueEntry],
    ) -> AcquireReply {
        self.acquire_within(None, number, entry, earlier)
    }

    /// Acquires for a caller that accepts only so many waiters before it.
    fn acquire_within(
        &mut self,
        max_queue: Option<u32>,
        number: u128,
        entry: Option<&QueueEntry>,
        earlier: &[QueueEntry],
    ) -> AcquireReply {
        let not_after_ms = self.now_ms().plus(1_000);
        let kind = match entry.map(|entry| &entry.kind) {
            Some(EntryKind::Known(kind)) => *kind,
            _ => self.kind,
        };
        self.with(|lock_state, env| {
            let command = AcquireCommand {
                owner_id: owner_id(number),
                ttl_ms: TTL,
                floor_us: NOW,
                not_after_ms,
                label: "waiter",
                entry,
                lead_us: 0,
                kind,
                purpose: Purpose::Acquire,
                earlier,
                max_queue,
            };
            lock_state.acquire(&command, env)
        })
    }

    fn try_acquire(&mut self, number: u128) -> AcquireReply {
        self.acquire(number, None, &[])
    }

    fn wait(&mut self, number: u128) -> AcquireReply {
        self.acquire(number, Some(&entry(number)), &[])
    }

    fn release(&mut self, number: u128) -> Verdict {
        self.release_by(&release_request(number))
    }

    fn release_by(&mut self, command: &ReleaseCommand<'_>) -> Verdict {
        let released = self.with(|lock_state, env| lock_state.release(command, env));
        assert!(!released.more, "{released:?}");
        released.verdict
    }

    fn owner(&mut self) -> Option<OwnerId> {
        self.lock_state.expire(self.now_ms());
        match &self.lock_state.key {
            Some(Expiring {
                value: KeyValue::Native(owner),
                ..
            }) => Some(owner.owner_id),
            _ => None,
        }
    }

    fn foreign(&mut self, expires_ms: Option<ServerMs>) {
        self.lock_state.key = Some(Expiring {
            value: KeyValue::Foreign("theirs".into()),
            expires_ms,
        });
    }
}

fn token(reply: &AcquireReply) -> FencingToken {
    match reply {
        AcquireReply::Held { token, .. } => *token,
        other => panic!("not held: {other:?}"),
    }
}

fn rank(reply: &AcquireReply) -> u64 {
    match reply {
        AcquireReply::Queued { rank, .. } => *rank,
        other => panic!("not queued: {other:?}"),
    }
}

/// Adds `count` entries at the end of the queue.
fn fill_queue(world: &mut World, count: u128, entry_of: impl Fn(u128) -> QueueEntry) {
    let queue = world.lock_state.queue.get_or_insert_with(|| Expiring {
        value: BTreeMap::new(),
        expires_ms: None,
    });
    let last = queue.value.last_key_value().map_or(0, |(score, _)| *score);
    for (score, number) in (last + 1..).zip(1_000..1_000 + count) {
        queue.value.insert(score, entry_of(number));
    }
}

fn unheard(number: u128) -> QueueEntry {
    QueueEntry {
        channel: "unheard".into(),
        ..entry(number)
    }
}

fn expired(number: u128) -> QueueEntry {
    QueueEntry {
        expires_at_ms: ServerMs::new(0),
        ..entry(number)
    }
}

fn queued(world: &World) -> usize {
    world
        .lock_state
        .queue
        .as_ref()
        .map_or(0, |queue| queue.value.len())
}
