//! The server is paused, restarted, refuses commands, loses keys, or its clock is set.

use lock_testing::Nanos;

use super::{MS, Simulation};
use crate::lock_state::LockState;
use crate::tests::simulation::link::Purpose;
use crate::tests::simulation::server::Refusal;
use crate::tests::simulation::task::Work;

/// How long a waiter may believe what it knew before keys were lost or the clock was set.
pub(super) const MEMORY: Nanos = 15_000 * MS;

pub(super) fn server_pause(simulation: &mut Simulation, _lane: usize) -> Nanos {
    let span = simulation.millis(20, 500);
    pause(simulation, span);
    span + simulation.millis(10, 100)
}

pub(super) fn server_pause_long(simulation: &mut Simulation, _lane: usize) -> Nanos {
    let span = simulation.millis(1_100, 6_000);
    pause(simulation, span);
    span + simulation.millis(200, 900)
}

fn pause(simulation: &mut Simulation, span: Nanos) {
    let until = simulation.now + span;
    simulation.server.paused_until = simulation.server.paused_until.max(until);
    simulation.disturb_all(until + 50 * MS);
}

pub(super) fn commands_paused(simulation: &mut Simulation, _lane: usize) -> Nanos {
    let span = simulation.millis(100, 900);
    let until = simulation.now + span;
    simulation.server.commands_paused_until = until;
    simulation.disturb_all(until + 50 * MS);
    span + simulation.millis(20, 150)
}

fn restart(simulation: &mut Simulation, down: Nanos) {
    for id in simulation.server.open.clone() {
        simulation.kill_link(id);
    }
    simulation.server.run_id += 1;
    simulation.server.down_until = simulation.now + down;
    simulation.disturb_all(simulation.now + down);
}

/// The server forgets nothing.
pub(super) fn server_restart(simulation: &mut Simulation, _lane: usize) -> Nanos {
    let down = simulation.millis(0, 400);
    restart(simulation, down);
    down + simulation.millis(50, 600)
}

pub(super) fn callers_in_outage(simulation: &mut Simulation, _lane: usize) -> Nanos {
    let down = simulation.millis(400, 1_600);
    restart(simulation, down);
    for process in 0..simulation.processes.len() {
        for task in 0..simulation.processes[process].tasks.len() {
            let work = &mut simulation.processes[process].tasks[task].work;
            if let Work::Resting { until } = work {
                *until = (*until).min(simulation.now);
                simulation.plan(process, task);
            }
        }
    }
    down + simulation.millis(100, 600)
}

fn kill_connections(simulation: &mut Simulation, is_meant: fn(Purpose) -> bool) -> Nanos {
    for id in simulation.server.open.clone() {
        if is_meant(simulation.links[id].purpose) {
            simulation.kill_link(id);
        }
    }
    simulation.millis(20, 400)
}

pub(super) fn connections_killed(simulation: &mut Simulation, _lane: usize) -> Nanos {
    kill_connections(simulation, |purpose| purpose != Purpose::Subscription)
}

pub(super) fn subscribers_killed(simulation: &mut Simulation, _lane: usize) -> Nanos {
    kill_connections(simulation, |purpose| purpose == Purpose::Subscription)
}

fn refuse(simulation: &mut Simulation, refusal: Refusal) -> Nanos {
    let span = simulation.millis(100, 900);
    let until = simulation.now + span;
    simulation.server.refusal = Some((refusal, until));
    simulation.disturb_all(until);
    span + simulation.millis(30, 200)
}

pub(super) fn out_of_memory(simulation: &mut Simulation, _lane: usize) -> Nanos {
    refuse(simulation, Refusal::OutOfMemory)
}

pub(super) fn writes_refused(simulation: &mut Simulation, _lane: usize) -> Nanos {
    refuse(simulation, Refusal::Writes)
}

pub(super) fn all_refused(simulation: &mut Simulation, _lane: usize) -> Nanos {
    refuse(simulation, Refusal::All)
}

pub(super) fn max_clients(simulation: &mut Simulation, lane: usize) -> Nanos {
    connections_killed(simulation, lane);
    refuse(simulation, Refusal::Connections)
}

/// Notes that keys were lost or the clock was set, for all checks of waiters.
fn forget(simulation: &mut Simulation) {
    simulation.disturb_all(simulation.now + MEMORY);
    for key in 0..simulation.keys.len() {
        simulation.note_reset(key);
    }
}

pub(super) fn restart_empty(simulation: &mut Simulation, _lane: usize) -> Nanos {
    let down = simulation.millis(0, 300);
    restart(simulation, down);
    for state in &mut simulation.server.states {
        *state = LockState::default();
    }
    forget(simulation);
    down + simulation.millis(200, 900)
}

/// An earlier state is restored.
pub(super) fn restart_old(simulation: &mut Simulation, _lane: usize) -> Nanos {
    let states = simulation.server.states.clone();
    let earlier = std::mem::replace(&mut simulation.server.snapshot, states);
    restart(simulation, MS);
    simulation.server.states = earlier;
    forget(simulation);
    simulation.millis(50, 900)
}

pub(super) fn key_deleted(simulation: &mut Simulation, _lane: usize) -> Nanos {
    let key = simulation.random.below(simulation.keys.len());
    let state = &mut simulation.server.states[key];
    // An operator deletes the key. Eviction deletes any of the keys.
    match simulation.random.below(6) {
        0 => state.queue = None,
        1 => state.counter = None,
        _ => state.key = None,
    }
    simulation.tell_about(key, || "a key is deleted".to_owned());
    forget(simulation);
    simulation.millis(10, 400)
}

pub(super) fn flushall(simulation: &mut Simulation, _lane: usize) -> Nanos {
    for state in &mut simulation.server.states {
        *state = LockState::default();
    }
    forget(simulation);
    simulation.millis(100, 800)
}

pub(super) fn clock_forward(simulation: &mut Simulation, _lane: usize) -> Nanos {
    step_clock(simulation, 5, 2_500, 1)
}

pub(super) fn clock_back(simulation: &mut Simulation, _lane: usize) -> Nanos {
    step_clock(simulation, 5, 800, -1)
}

fn step_clock(simulation: &mut Simulation, from: u64, to: u64, sign: i64) -> Nanos {
    let by = simulation.millis(from, to) / 1_000;
    let by = i64::try_from(by).expect("the step is short");
    simulation.server.step_clock(sign * by);
    simulation.tell(|| format!("the server's clock is set by {} us", sign * by));
    forget(simulation);
    simulation.millis(200, 900)
}
