//! Client processes are paused and killed, and clients of other kinds appear.

use std::collections::BTreeMap;

use lock_testing::Nanos;

use super::{MS, Simulation, Timed};
use crate::fencing_token::FencingToken;
use crate::kind::Kind;
use crate::lock_state::{Expiring, KeyValue};
use crate::owner_id::OwnerId;
use crate::tests::simulation::link::{Heading, Packet, Purpose};
use crate::tests::simulation::task::{CallLane, Work};
use crate::wire::{EntryKind, Mode, QueueEntry, WireNotification};

/// More than one call of the server removes.
const DEAD: usize = 150;

pub(super) fn client_pause(simulation: &mut Simulation, lane: usize) -> Nanos {
    let mut longest = 0;
    for process in simulation.affected(lane) {
        let span = simulation.millis(20, 700);
        longest = longest.max(span);
        simulation.pause(process, span);
    }
    longest + simulation.millis(20, 200)
}

pub(super) fn client_pause_long(simulation: &mut Simulation, _lane: usize) -> Nanos {
    let span = simulation.millis(1_300, 9_000);
    if let Some(process) = simulation.one_process() {
        simulation.pause(process, span);
    }
    span
}

pub(super) fn client_kill(simulation: &mut Simulation, _lane: usize) -> Nanos {
    if let Some(process) = simulation.one_process() {
        simulation.replace(process);
    }
    simulation.millis(300, 1_200)
}

/// Killed while its commands and their replies are in flight.
pub(super) fn client_kill_midway(simulation: &mut Simulation, _lane: usize) -> Nanos {
    if let Some(process) = simulation.one_process() {
        let delay = simulation.millis(20, 250);
        let after = simulation.millis(20, 400);
        let until = simulation.now + after;
        let network = &mut simulation.processes[process].network;
        (network.to_server, network.to_client) = (delay, delay);
        network.until = until;
        simulation.disturb(process, until + delay);
        simulation.push(until, Timed::Kill { process });
    }
    simulation.millis(300, 1_200)
}

/// All futures and guards of a process are dropped at the same time, and its connection ends.
pub(super) fn runtimes_dropped(simulation: &mut Simulation, _lane: usize) -> Nanos {
    if let Some(process) = simulation.one_process() {
        simulation.drop_all(process, true);
        if let Some(id) = simulation.processes[process].link(Purpose::Callers) {
            simulation.break_link(id);
        }
    }
    simulation.millis(100, 600)
}

pub(super) fn guards_dropped(simulation: &mut Simulation, lane: usize) -> Nanos {
    for process in simulation.affected(lane) {
        simulation.drop_all(process, false);
    }
    simulation.millis(100, 600)
}

/// Entries of dead waiters are in the queues, before and between the living waiters.
pub(super) fn dead_waiters(simulation: &mut Simulation, _lane: usize) -> Nanos {
    let now_ms = simulation.server.now_ms(simulation.now);
    for key in 0..simulation.keys.len() {
        simulation.before_execution(key);
        let state = &mut simulation.server.states[key];
        state.expire(now_ms);
        if state.key.is_none() {
            continue;
        }
        let random = &mut simulation.random;
        let queue = state.queue.get_or_insert(Expiring {
            value: BTreeMap::new(),
            expires_ms: Some(now_ms.plus(60_000)),
        });
        let mut entries: Vec<_> = std::mem::take(&mut queue.value).into_values().collect();
        for _ in 0..DEAD {
            let entry = QueueEntry {
                owner_id: Simulation::new_owner_id(random),
                mode: Mode::Subscribed,
                kind: EntryKind::Known(Kind::Exclusive),
                lease_ms: 1_000,
                expires_at_ms: now_ms.plus(60_000),
                channel: "dead".into(),
                label: "".into(),
            };
            entries.insert(random.below(entries.len() + 1), entry);
        }
        let length = entries.len();
        queue.value = (1..).zip(entries).collect();
        let (now, until) = (simulation.now, simulation.now + 60_000 * MS);
        simulation.watch.note_queue(key, length, until, now);
    }
    if let Some(process) = simulation.one_process() {
        simulation.replace(process);
    }
    simulation.millis(400, 1_500)
}

/// Publishes forged notifications, as a client that may read and publish all of them.
pub(super) fn notifications_forged(simulation: &mut Simulation, _lane: usize) -> Nanos {
    simulation.nemesis.records_notifications = true;
    let known = simulation.nemesis.published.len();
    let first = known.saturating_sub(50);
    simulation.nemesis.published.drain(..first);
    for _ in 0..10.min(known) {
        let known = simulation.nemesis.published.len();
        let number = simulation.random.below(known);
        let (process, mut message) = simulation.nemesis.published[number].clone();
        forge(simulation, &mut message);
        let links = simulation.server.subscriptions[process].clone();
        for id in links {
            simulation.send(id, Heading::ToClient, Packet::Notify(message.clone()));
        }
    }
    simulation.millis(1, 30)
}

fn forge(simulation: &mut Simulation, message: &mut WireNotification) {
    let now_us = simulation.server.now_us(simulation.now);
    let random = &mut simulation.random;
    let number = match random.below(5) {
        0 => 0,
        1 => 1_000,
        2 => now_us,
        3 => u64::MAX,
        _ => random.number(),
    };
    let what = random.below(5);
    match message {
        WireNotification::Grant {
            token,
            server_us,
            lease_ms,
            ..
        } => match what {
            // A replay.
            0 => {}
            1 => *token = FencingToken::new(number),
            2 => *server_us = number,
            3 => *lease_ms = number,
            // As plausible as possible, for the same recipient.
            _ => {
                *token = FencingToken::new(now_us);
                *server_us = now_us;
                *lease_ms = 2_000;
            }
        },
        WireNotification::Head {
            server_us,
            holder_ms,
            ..
        } => match what {
            0 | 1 => {}
            2 => *server_us = number,
            _ => *holder_ms = number,
        },
    }
}

/// A client of another library takes a free key, and deletes it later.
pub(super) fn foreign_holder(simulation: &mut Simulation, _lane: usize) -> Nanos {
    let key = simulation.random.below(simulation.keys.len());
    let now_ms = simulation.server.now_ms(simulation.now);
    simulation.before_execution(key);
    simulation.server.states[key].expire(now_ms);
    if simulation.server.states[key].key.is_none() {
        let number = simulation.random.number();
        let span = simulation.millis(5, 900);
        let has_expiry = simulation.random.chance(70);
        let ttl_ms = (span / MS).saturating_mul(1 + number % 2) + 1;
        simulation.server.states[key].key = Some(Expiring {
            value: KeyValue::Foreign(format!("foreign-{number}")),
            expires_ms: has_expiry.then(|| now_ms.plus(ttl_ms)),
        });
        simulation.note_freedom(key, false);
        simulation.tell_about(key, || "a foreign client takes the key".to_owned());
        let at = simulation.now + span;
        simulation.push(at, Timed::ForeignEnd { key, number });
    }
    simulation.millis(20, 300)
}

impl Simulation {
    /// The foreign client deletes its key.
    pub(in crate::tests::simulation) fn end_foreign(&mut self, key: usize, number: u64) {
        self.before_execution(key);
        let now_ms = self.server.now_ms(self.now);
        let state = &mut self.server.states[key];
        state.expire(now_ms);
        let own = KeyValue::Foreign(format!("foreign-{number}"));
        if state.key.as_ref().is_some_and(|value| value.value == own) {
            state.key = None;
            self.note_freedom(key, true);
            self.tell_about(key, || "the foreign client deletes the key".to_owned());
        }
    }

    /// Kills a process, and starts another one in its slot later.
    pub(in crate::tests::simulation) fn replace(&mut self, process: usize) {
        let slot = self.processes[process].slot;
        if self.processes[process].is_alive {
            self.kill(process);
            self.figures.deaths += 1;
            let after = self.millis(0, 500);
            self.push(self.now + after, Timed::Spawn { slot });
        }
    }

    fn drop_all(&mut self, process: usize, with_futures: bool) {
        for task in 0..self.processes[process].tasks.len() {
            match &self.processes[process].tasks[task].work {
                Work::Holding(_) => self.end_section_by(process, task, true),
                Work::Acquiring { .. } if with_futures => {
                    self.step(process, task, |step| step.drop_future());
                }
                Work::Releasing(_) if with_futures => self.drop_release(process, task),
                _ => {}
            }
        }
    }

    fn drop_release(&mut self, process: usize, task: usize) {
        let of = &mut self.processes[process].tasks[task];
        if let Work::Releasing(releasing) = &mut of.work {
            releasing.drop_at = self.now;
            of.calls[CallLane::Release as usize] = None;
            self.on_releasing_due(process, task);
        }
    }
}

#[test]
fn forged_messages_keep_their_recipient() {
    let mut simulation = Simulation::new(1, None);
    let owner_id = OwnerId::from_number(7);
    for _ in 0..100 {
        let mut message = WireNotification::Grant {
            owner_id,
            token: FencingToken::new(1),
            server_us: 1,
            lease_ms: 1,
        };
        forge(&mut simulation, &mut message);
        assert!(matches!(message, WireNotification::Grant { owner_id: to, .. } if to == owner_id));
    }
}
