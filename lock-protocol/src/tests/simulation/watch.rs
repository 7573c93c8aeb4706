//! The checks that need to know the server's state and what disturbs each client, at each moment.

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::BuildHasherDefault;

use lock_testing::Nanos;

use super::link::SentCommand;
use super::nemesis::Setup;
use super::task::{CallerTask, Work};
use super::verdict::{FoundViolation, SimulatedCheck};
use super::{MS, Simulation};
use crate::lock_state::{AcquireReply, KeyValue, RenewReply};
use crate::owner_id::OwnerId;
use crate::tests::virtual_client::{Caller, Reply, Request};
use crate::wire::Mode;

/// A waiter learns of a handover by its notification. Without one it polls: after each new
/// subscription, or every 500 ms. Then the server and the network need a moment.
const NOTICED_WITHIN: Nanos = 600 * MS;

/// The longest sleep of the first waiter in a queue, and its growth with the rank.
const POLL_CAP: Nanos = 1_000 * MS;
const POLL_CAP_EACH: Nanos = 100 * MS;
/// The longest sleep of the first waiter of each process.
const LONGEST_POLL_CAP: Nanos = 5_000 * MS;
/// How much later than planned a waiter polls, also with a clock that is 1 % slow.
const LATE: Nanos = 250 * MS;
/// How long a waiter may remember a rank.
const MEMORY: Nanos = 10_000 * MS;

/// What the server did with one lock.
#[derive(Clone, Debug, Default)]
struct WatchedKey {
    free_since: Option<Nanos>,
    owner: Option<OwnerId>,
    /// The waiter that a release granted the lock, and when.
    handed: Option<(OwnerId, Nanos, Mode)>,
    /// The longest queue of late, and until when a waiter may remember it.
    longest_queue: usize,
    remembered_until: Nanos,
}

#[derive(Debug, Default)]
pub(super) struct Watch {
    keys: Vec<WatchedKey>,
    /// The owner ids whose cleanup was confirmed. The order of the set is never read.
    cleaned: HashSet<OwnerId, BuildHasherDefault<DefaultHasher>>,
    pub(super) found: Vec<FoundViolation>,
}

impl Watch {
    pub(super) fn new(keys: usize) -> Self {
        Self {
            keys: vec![WatchedKey::default(); keys],
            ..Self::default()
        }
    }

    /// Notes a queue of this length, which waiters may remember for a while.
    pub(super) fn note_queue(&mut self, key: usize, length: usize, until: Nanos, now: Nanos) {
        let watched = &mut self.keys[key];
        if length >= watched.longest_queue || now > watched.remembered_until {
            watched.longest_queue = length;
            watched.remembered_until = until;
        }
    }

    fn longest_free(&self, key: usize) -> Nanos {
        let waiters = self.keys[key].longest_queue as u64 + 1;
        let cap = POLL_CAP.max(POLL_CAP_EACH * waiters);
        cap.min(LONGEST_POLL_CAP) + LATE
    }
}

impl Simulation {
    /// Notes what expired since the last command for the lock.
    pub(super) fn before_execution(&mut self, key: usize) {
        let state = &self.server.states[key];
        let queued = state.queue.as_ref().map_or(0, |queue| queue.value.len());
        self.watch
            .note_queue(key, queued, self.now + MEMORY, self.now);
        let now_ms = self.server.now_ms(self.now);
        let expires_ms = state.key.as_ref().and_then(|value| value.expires_ms);
        let expired = expires_ms.filter(|end| *end < now_ms);
        let gone = expired.map(|end| self.server.when_expired(end).min(self.now));
        if let Some(gone) = gone
            && self.watch.keys[key].free_since.is_none()
        {
            self.check_handover(key, gone);
            let watched = &mut self.watch.keys[key];
            watched.free_since = Some(gone);
            watched.owner = None;
            watched.handed = None;
        }
    }

    pub(super) fn after_execution(&mut self, command: &SentCommand, reply: &Reply) {
        let key = command.key;
        self.check_finality(command, reply);
        let (is_free, owner) = match &self.server.states[key].key {
            None => (true, None),
            Some(value) => match &value.value {
                KeyValue::Native(owner) => (false, Some(owner.owner_id)),
                KeyValue::Shared(_) | KeyValue::Foreign(_) | KeyValue::OtherType(_) => {
                    (false, None)
                }
            },
        };
        if owner != self.watch.keys[key].owner {
            self.check_handover(key, self.now);
            let watched = &mut self.watch.keys[key];
            watched.owner = owner;
            let is_handed =
                |owner: &OwnerId| *owner != command.owner_id && *owner != OwnerId::nil();
            let known = |owner: &OwnerId| {
                let entry = self.channels.iter().find(|entry| entry.owner_id == *owner);
                entry.map_or(Mode::Polling, |entry| entry.mode)
            };
            let handed = owner.filter(is_handed);
            watched.handed = handed.map(|owner| (owner, self.now, known(&owner)));
            if watched.handed.is_some() {
                self.figures.handovers += 1;
            }
        }
        self.note_freedom(key, is_free);
    }

    /// Notes whether the lock is free now.
    pub(super) fn note_freedom(&mut self, key: usize, is_free: bool) {
        if is_free {
            self.watch.keys[key].free_since.get_or_insert(self.now);
        } else if let Some(since) = self.watch.keys[key].free_since {
            self.check_idle(key, since);
            self.watch.keys[key].free_since = None;
        }
    }

    /// Notes that the state of a lock was changed by no command of a client.
    pub(super) fn note_reset(&mut self, key: usize) {
        let now_ms = self.server.now_ms(self.now);
        let state = &mut self.server.states[key];
        state.expire(now_ms);
        let watched = &mut self.watch.keys[key];
        watched.handed = None;
        watched.owner = match state.key.as_ref().map(|value| &value.value) {
            Some(KeyValue::Native(owner)) => Some(owner.owner_id),
            _ => None,
        };
        watched.free_since = state.key.is_none().then_some(self.now);
    }

    /// Notes that a waiter knows that it holds the lock.
    pub(super) fn on_noticed(&mut self, key: usize, owner_id: OwnerId) {
        let handed = self.watch.keys[key].handed;
        if handed.is_some_and(|(owner, ..)| owner == owner_id) {
            self.check_handover_of(key, self.now, true);
            self.watch.keys[key].handed = None;
        }
    }

    pub(super) fn on_cleaned_up(&mut self, owner_id: OwnerId) {
        // After a failure, the cleanup was given up.
        if !self.is_failing {
            self.watch.cleaned.insert(owner_id);
        }
    }

    fn check_finality(&mut self, command: &SentCommand, reply: &Reply) {
        let is_present = match (&command.request, reply) {
            (Request::Acquire { .. }, Reply::Acquire(reply)) => !matches!(
                reply,
                AcquireReply::Late
                    | AcquireReply::Full { .. }
                    | AcquireReply::Busy { .. }
                    | AcquireReply::Foreign { .. }
            ),
            (Request::Renew { .. }, Reply::Renew(reply)) => *reply != RenewReply::NotOwner,
            _ => false,
        };
        // A lost key or a clock that is set back may bring it back.
        if is_present
            && self.config.setup == Setup::Durable
            && self.watch.cleaned.contains(&command.owner_id)
        {
            let text = format!("{} came back after its cleanup", command.owner_id.short());
            self.found(SimulatedCheck::Finality, command.key, self.now, text);
        }
    }

    fn calm_since(&self, process: usize) -> Nanos {
        let process = &self.processes[process];
        let mut since = process.calm_since.max(self.calm_since);
        for id in process.links.into_iter().flatten() {
            let link = &self.links[id];
            let muted = link.to_server.muted_until.max(link.to_client.muted_until);
            // What was on its way arrives a moment later.
            since = since.max(muted + 5 * MS);
        }
        since
    }

    fn check_handover(&mut self, key: usize, until: Nanos) {
        self.check_handover_of(key, until, false);
    }

    /// Checks whether a waiter has learned in time that it holds the lock.
    fn check_handover_of(&mut self, key: usize, until: Nanos, is_noticed: bool) {
        let Some((owner, at, mode)) = self.watch.keys[key].handed else {
            return;
        };
        for process in 0..self.processes.len() {
            let of = &self.processes[process];
            let from = at.max(self.calm_since(process));
            if !of.is_alive || until <= from + NOTICED_WITHIN {
                continue;
            }
            let is_it = of.tasks.iter().any(|task| {
                let waits = task.caller.acquiring().is_some() || is_noticed;
                let is_it = waits && task.key == key && task.caller.owner_id() == Some(owner);
                is_it && !is_outdated(task, mode)
            });
            if is_it {
                let ms = (until - from) / MS;
                let text = format!("process {process} did not notice a handover for {ms} ms");
                self.found(SimulatedCheck::Handover, key, from, text);
            }
        }
    }

    /// Checks whether an undisturbed waiter waited too long while the lock was free.
    pub(super) fn check_idle(&mut self, key: usize, since: Nanos) {
        let allowed = if self.config.setup == Setup::Durable {
            self.watch.longest_free(key)
        } else {
            // The lease may end earlier than its waiters know.
            LONGEST_POLL_CAP + LATE
        };
        if self.now <= since + allowed {
            return;
        }
        for process in 0..self.processes.len() {
            let of = &self.processes[process];
            let from = since.max(self.calm_since(process));
            if !of.is_alive || self.now <= from + allowed {
                continue;
            }
            let waits = of
                .tasks
                .iter()
                .filter(|task| task.is_waiter && task.key == key);
            let waits = waits.filter_map(|task| match task.work {
                Work::Acquiring { began, .. } => Some(began),
                _ => None,
            });
            let Some(began) = waits.min() else { continue };
            let from = from.max(began);
            if self.now > from + allowed {
                let ms = (self.now - from) / MS;
                let text = format!("process {process} waited for {ms} ms while the lock was free");
                self.found(SimulatedCheck::Idle, key, from, text);
            }
        }
    }

    /// Checks the lock of a waiter whose wait has ended.
    pub(super) fn check_idle_now(&mut self, key: usize) {
        self.before_execution(key);
        if let Some(since) = self.watch.keys[key].free_since {
            self.check_idle(key, since);
        }
    }

    pub(super) fn found(&mut self, check: SimulatedCheck, key: usize, from: Nanos, text: String) {
        let to = self.now;
        self.tell_about(key, || format!("VIOLATION {check:?}: {text}"));
        self.watch.found.push(FoundViolation {
            check,
            key,
            from,
            to,
            text,
            is_outside: false,
        });
    }
}

/// Returns whether the server granted the lock to an older entry of the waiter. A late copy of an
/// acquire may put it in the place of the newer one: then the waiter counts on a notification, and the
/// server on a poll.
fn is_outdated(task: &CallerTask, granted: Mode) -> bool {
    let newest = match &task.caller {
        Caller::Acquiring(acquiring) => acquiring.acquisition.sent().entry(),
        Caller::Holding(holding) => holding.request.entries.last(),
        Caller::Idle | Caller::Done | Caller::Crashed => None,
    };
    newest.is_some_and(|newest| newest.mode != granted)
}
