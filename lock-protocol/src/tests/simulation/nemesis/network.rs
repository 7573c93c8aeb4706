//! The network between the clients and the server is cut, slow, or loses packets.

use lock_testing::Nanos;

use super::{LostPacket, MS, Simulation, Timed};
use crate::tests::simulation::link::{Heading, Purpose};

pub(super) fn net_cut(simulation: &mut Simulation, lane: usize) -> Nanos {
    for process in simulation.affected(lane) {
        if simulation.random.chance(50) {
            simulation.cut_all(process);
        } else {
            let purpose = *simulation.random.pick(&Purpose::ALL);
            if let Some(id) = simulation.processes[process].link(purpose) {
                simulation.cut(id);
            }
        }
    }
    simulation.millis(10, 500)
}

fn delay(simulation: &mut Simulation, process: usize, to_server: Nanos, to_client: Nanos) {
    let until = simulation.active_until();
    let network = &mut simulation.processes[process].network;
    (network.to_server, network.to_client) = (to_server, to_client);
    network.until = until;
    simulation.disturb(process, until + to_server + to_client);
}

pub(super) fn net_delay(simulation: &mut Simulation, lane: usize) -> Nanos {
    for process in simulation.affected(lane) {
        let half = simulation.millis(1, 125);
        delay(simulation, process, half, half);
    }
    simulation.millis(100, 600)
}

/// Commands and replies that arrive when the lease has expired or nearly expired.
pub(super) fn net_delay_long(simulation: &mut Simulation, lane: usize) -> Nanos {
    for process in simulation.affected(lane) {
        let (mut to_server, mut to_client) = (0, simulation.millis(300, 3_000));
        if simulation.random.chance(30) {
            std::mem::swap(&mut to_server, &mut to_client);
        }
        delay(simulation, process, to_server, to_client);
    }
    simulation.millis(500, 1_500)
}

fn mute(simulation: &mut Simulation, id: usize, heading: Heading, until: Nanos) {
    let pipe = simulation.links[id].pipe(heading);
    pipe.muted_until = pipe.muted_until.max(until);
}

/// Nothing arrives for a while. The packets arrive later, or after their sender has given up.
pub(super) fn net_black_hole(simulation: &mut Simulation, lane: usize) -> Nanos {
    let mut longest = 0;
    for process in simulation.affected(lane) {
        let span = simulation.millis(300, 4_000);
        longest = longest.max(span);
        let until = simulation.now + span;
        simulation.processes[process].network.black_hole_until = until;
        for id in simulation.processes[process].links.into_iter().flatten() {
            mute(simulation, id, Heading::ToServer, until);
            mute(simulation, id, Heading::ToClient, until);
        }
    }
    longest.min(1_500 * MS) + simulation.millis(30, 300)
}

/// One connection goes silent in one direction, and stays open.
pub(super) fn net_mute(simulation: &mut Simulation, lane: usize) -> Nanos {
    for process in simulation.affected(lane) {
        let purpose = *simulation.random.pick(&Purpose::ALL);
        let heading = *simulation
            .random
            .pick(&[Heading::ToServer, Heading::ToClient]);
        let until = simulation.now + simulation.millis(400, 5_000);
        if let Some(id) = simulation.processes[process].link(purpose) {
            mute(simulation, id, heading, until);
        }
    }
    simulation.millis(400, 1_500)
}

/// A subscription goes silent, and then breaks: all notifications of this time are lost.
pub(super) fn notifications_lost(simulation: &mut Simulation, lane: usize) -> Nanos {
    for process in simulation.affected(lane) {
        if let Some(id) = simulation.processes[process].link(Purpose::Subscription) {
            let at = simulation.now + simulation.millis(50, 1_000);
            mute(simulation, id, Heading::ToClient, at);
            simulation.push(at, Timed::Cut { link: id });
        }
    }
    simulation.millis(200, 1_200)
}

fn lose(simulation: &mut Simulation, lane: usize, what: LostPacket) -> Nanos {
    let until = simulation.active_until();
    for process in simulation.affected(lane) {
        simulation.processes[process].network.lose_next = Some(what);
        simulation.disturb(process, until);
    }
    simulation.millis(5, 150)
}

pub(super) fn net_lost_reply(simulation: &mut Simulation, lane: usize) -> Nanos {
    lose(simulation, lane, LostPacket::Reply)
}

pub(super) fn net_lost_request(simulation: &mut Simulation, lane: usize) -> Nanos {
    lose(simulation, lane, LostPacket::Request)
}

pub(super) fn net_refused(simulation: &mut Simulation, lane: usize) -> Nanos {
    let span = simulation.millis(100, 1_500);
    let until = simulation.now + span;
    for process in simulation.affected(lane) {
        simulation.processes[process].network.refused_until = until;
        simulation.disturb(process, until);
        simulation.cut_all(process);
    }
    span + simulation.millis(50, 300)
}

impl Simulation {
    fn cut_all(&mut self, process: usize) {
        for id in self.processes[process].links.into_iter().flatten() {
            self.cut(id);
        }
    }

    /// Returns the end of the last nemesis at work.
    fn active_until(&self) -> Nanos {
        let active = self.nemesis.lanes.iter().flatten();
        active.map(|active| active.until).max().unwrap_or(self.now)
    }
}
