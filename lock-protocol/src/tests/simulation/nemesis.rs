//! The faults. Each nemesis works for about two seconds. Two of them may work at the same time.

use lock_testing::{Nanos, nanos};

use super::figures::Figures;
use super::task::Work;
use super::{MS, Simulation, Timed};
use crate::wire::WireNotification;

mod clients;
mod network;
mod server;

/// What an episode may do to the server. Lost keys and a changed clock are never in the same episode:
/// the order of tokens needs one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setup {
    /// The server keeps all keys, and its clock is monotonic.
    Durable,
    /// The server loses keys.
    Forgetful,
    /// The server's clock is set forward and back.
    Clock,
}

/// A packet that is lost together with its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LostPacket {
    Request,
    Reply,
}

/// The network between one process and the server.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ProcessNetwork {
    /// Additional latencies until a time.
    pub(super) to_server: Nanos,
    pub(super) to_client: Nanos,
    pub(super) until: Nanos,
    /// Nothing arrives over a new connection until this time.
    pub(super) black_hole_until: Nanos,
    pub(super) refused_until: Nanos,
    pub(super) lose_next: Option<LostPacket>,
}

/// A fault.
struct Nemesis {
    name: &'static str,
    /// `None` for any setup.
    setup: Option<Setup>,
    is_outside: bool,
    /// How long after it a guard can be valid that it affected.
    effect: fn(&Simulation) -> Nanos,
    /// Acts once, and returns the pause until it acts again.
    act: fn(&mut Simulation, usize) -> Nanos,
}

const fn any(name: &'static str, act: fn(&mut Simulation, usize) -> Nanos) -> Nemesis {
    Nemesis {
        name,
        setup: None,
        is_outside: false,
        effect: longest_ttl,
        act,
    }
}

const fn forgetful(name: &'static str, act: fn(&mut Simulation, usize) -> Nanos) -> Nemesis {
    Nemesis {
        name,
        setup: Some(Setup::Forgetful),
        is_outside: true,
        effect: longest_ttl,
        act,
    }
}

pub(super) const NEMESES: usize = 35;

const ALL: [Nemesis; NEMESES] = [
    any("client-pause", clients::client_pause),
    any("client-pause-long", clients::client_pause_long),
    any("client-kill", clients::client_kill),
    any("client-kill-midway", clients::client_kill_midway),
    any("runtimes-dropped", clients::runtimes_dropped),
    any("guards-dropped", clients::guards_dropped),
    any("dead-waiters", clients::dead_waiters),
    any("notifications-forged", clients::notifications_forged),
    any("foreign-holder", clients::foreign_holder),
    any("server-pause", server::server_pause),
    any("server-pause-long", server::server_pause_long),
    any("server-restart", server::server_restart),
    any("callers-in-outage", server::callers_in_outage),
    any("connections-killed", server::connections_killed),
    any("subscribers-killed", server::subscribers_killed),
    any("commands-paused", server::commands_paused),
    any("out-of-memory", server::out_of_memory),
    any("writes-refused", server::writes_refused),
    any("all-refused", server::all_refused),
    any("max-clients", server::max_clients),
    any("net-cut", network::net_cut),
    any("net-delay", network::net_delay),
    any("net-delay-long", network::net_delay_long),
    any("net-black-hole", network::net_black_hole),
    any("net-lost-reply", network::net_lost_reply),
    any("net-lost-request", network::net_lost_request),
    any("net-mute", network::net_mute),
    any("notifications-lost", network::notifications_lost),
    any("net-refused", network::net_refused),
    forgetful("restart-empty", server::restart_empty),
    forgetful("restart-old", server::restart_old),
    forgetful("key-deleted", server::key_deleted),
    forgetful("flushall", server::flushall),
    Nemesis {
        is_outside: true,
        // A waiter whose process is stopped over the step reads its grant later, and judges the end of the lease by what
        // it knew of the server's clock before.
        effect: |_| server::MEMORY,
        ..clock("clock-forward", server::clock_forward)
    },
    clock("clock-back", server::clock_back),
];

const fn clock(name: &'static str, act: fn(&mut Simulation, usize) -> Nanos) -> Nemesis {
    Nemesis {
        name,
        setup: Some(Setup::Clock),
        is_outside: false,
        effect: longest_ttl,
        act,
    }
}

fn longest_ttl(simulation: &Simulation) -> Nanos {
    simulation.config.longest_ttl()
}

/// The names of all nemeses.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|nemesis| nemesis.name)
}

/// One use of a nemesis.
#[derive(Clone, Copy, Debug)]
pub(super) struct SimulatedFault {
    pub(super) from: Nanos,
    pub(super) to: Nanos,
    pub(super) is_outside: bool,
    /// Until when a guard that it affected can be valid.
    pub(super) matters_until: Nanos,
}

/// A nemesis at work.
#[derive(Clone, Debug)]
struct ActiveNemesis {
    number: usize,
    until: Nanos,
    /// The processes that it disturbs, by their slots.
    slots: Vec<usize>,
}

#[derive(Debug, Default)]
pub(super) struct Nemeses {
    lanes: [Option<ActiveNemesis>; 2],
    pub(super) faults: Vec<SimulatedFault>,
    /// Whether a client reads all notifications.
    pub(super) records_notifications: bool,
    pub(super) published: Vec<(usize, WireNotification)>,
}

impl Nemeses {
    /// Counts an operation that overlaps the faults at work.
    pub(super) fn on_operation(&self, figures: &mut Figures) {
        for active in self.lanes.iter().flatten() {
            figures.nemeses[active.number].operations += 1;
        }
    }
}

impl Simulation {
    pub(super) fn on_nemesis(&mut self, lane: usize) {
        let Some(active) = &self.nemesis.lanes[lane] else {
            return self.begin_nemesis(lane);
        };
        let (number, until) = (active.number, active.until);
        if self.now >= until {
            self.nemesis.lanes[lane] = None;
            for process in &mut self.processes {
                process.network.lose_next = None;
            }
            self.nemesis.records_notifications = false;
            self.nemesis.published.clear();
            self.tell(|| format!("FAULT {} is over", ALL[number].name));
            let rest = self.random.millis(500, 6_000);
            self.push(self.now + nanos(rest), Timed::Nemesis { lane });
            return;
        }
        let pause = (ALL[number].act)(self, lane);
        let at = (self.now + pause.max(MS)).min(until);
        self.push(at, Timed::Nemesis { lane });
    }

    fn begin_nemesis(&mut self, lane: usize) {
        if self.is_ending {
            return;
        }
        let setup = self.config.setup;
        let fits = |number: &usize| ALL[*number].setup.is_none_or(|needed| needed == setup);
        let all: Vec<usize> = (0..NEMESES).filter(fits).collect();
        let special: Vec<usize> = all
            .iter()
            .copied()
            .filter(|number| ALL[*number].setup.is_some())
            .collect();
        let number = if !special.is_empty() && self.random.chance(40) {
            *self.random.pick(&special)
        } else {
            *self.random.pick(&all)
        };
        let until = self.now + nanos(self.random.millis(300, 2_500));
        let slots = self.random.some(self.slots.len(), self.slots.len());
        self.tell(|| format!("FAULT {} begins on {slots:?}", ALL[number].name));
        self.nemesis.faults.push(SimulatedFault {
            from: self.now,
            to: until,
            is_outside: ALL[number].is_outside,
            matters_until: until + (ALL[number].effect)(self),
        });
        let uses = &mut self.figures.nemeses[number];
        uses.times += 1;
        let tasks = self.processes.iter().flat_map(|process| &process.tasks);
        let open = tasks.filter(|task| !matches!(task.work, Work::Resting { .. } | Work::Stopped));
        uses.operations += open.count() as u64;
        self.nemesis.lanes[lane] = Some(ActiveNemesis {
            number,
            until,
            slots,
        });
        self.push(self.now, Timed::Nemesis { lane });
    }

    fn active(&self, lane: usize) -> &ActiveNemesis {
        let active = &self.nemesis.lanes[lane];
        active.as_ref().expect("it acts only while it works")
    }

    /// Returns the living processes that the nemesis disturbs.
    fn affected(&self, lane: usize) -> Vec<usize> {
        let slots = self.active(lane).slots.iter();
        let processes = slots.map(|slot| self.slots[*slot]);
        processes
            .filter(|process| self.processes[*process].is_alive)
            .collect()
    }

    /// Returns one living process.
    fn one_process(&mut self) -> Option<usize> {
        let process = *self.random.pick(&self.slots);
        self.processes[process].is_alive.then_some(process)
    }

    /// Returns a random time between two numbers of milliseconds.
    fn millis(&mut self, from: u64, to: u64) -> Nanos {
        nanos(self.random.millis(from, to))
    }

    /// Notes that all processes are disturbed until this time.
    pub(super) fn disturb_all(&mut self, until: Nanos) {
        self.calm_since = self.calm_since.max(until);
    }
}
