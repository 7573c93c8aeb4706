//! The processes of the clients: their connections, their background worker, and their end.

use lock_testing::{Nanos, Stall};

use super::clock::SkewedClock;
use super::link::{ClientEnd, Heading, Packet, Purpose};
use super::nemesis::ProcessNetwork;
use super::server::channel_of;
use super::task::CallerTask;
use super::{MS, Simulation, Timed};
use crate::acquisition::Connectivity;
use crate::clock::Moment;
use crate::clock_sync::{ClockSync, ServerClock};
use crate::lease::HANDOVER_LEASE;
use crate::local_queue::LocalQueue;
use crate::owner_id::OwnerId;
use crate::tests::virtual_client::Manager;
use crate::wire::Mode;

/// A release of the background worker whose reply is awaited.
#[derive(Clone, Copy, Debug)]
pub(super) struct CleanupCall {
    pub(super) owner_id: OwnerId,
    pub(super) call: u64,
    pub(super) link: Option<usize>,
    pub(super) sent: Moment,
}

#[derive(Debug)]
pub(super) struct ClientProcess {
    pub(super) slot: usize,
    pub(super) is_alive: bool,
    pub(super) paused_until: Nanos,
    pub(super) clock: SkewedClock,
    pub(super) manager: Manager,
    pub(super) links: [Option<usize>; 3],
    /// How many attempts to connect have failed since the last one that did not.
    pub(super) dials: [u32; 3],
    /// The latest run id of the server. Connections to an earlier server process are dropped.
    pub(super) newest_run_id: u64,
    /// The run id of the server that sends notifications.
    pub(super) subscribed_to: Option<u64>,
    pub(super) tasks: Vec<CallerTask>,
    pub(super) queues: Vec<LocalQueue<usize>>,
    pub(super) cleanup_calls: Vec<CleanupCall>,
    /// The number of the worker's last timer, and its time.
    pub(super) worker_timer: u32,
    pub(super) worker_due: Nanos,
    pub(super) network: ProcessNetwork,
    /// Since when nothing disturbs the process. May be in the future.
    pub(super) calm_since: Nanos,
    pub(super) acquisitions: u64,
    /// The least time of a packet to the server.
    pub(super) latency: Nanos,
}

impl ClientProcess {
    pub(super) fn timeout_ns(&self) -> Nanos {
        lock_testing::nanos(self.manager.command_timeout)
    }

    /// Returns the connection of a purpose if it works.
    pub(super) fn link(&self, purpose: Purpose) -> Option<usize> {
        self.links[purpose as usize]
    }
}

impl Simulation {
    pub(super) fn spawn(&mut self, slot: usize, tasks: usize) {
        let index = self.processes.len();
        let keys = self.keys.len();
        let clock = SkewedClock::new(&mut self.random, self.sabotage);
        let first = ClockSync {
            sent: clock.at(self.now),
            server_us: 0,
            run_id: 0,
        };
        let timeout = *self.random.pick(&[200, 500, 500, 1_000]);
        let latency = 50_000 + self.random.number() % 400_000;
        let rest = self.config.rest;
        let tasks = (0..tasks).map(|_| CallerTask::new(self.now + self.random.number() % rest));
        let tasks = tasks.collect();
        self.processes.push(ClientProcess {
            slot,
            is_alive: true,
            paused_until: 0,
            clock,
            manager: Manager {
                channel: channel_of(index),
                first,
                server_clock: ServerClock::default(),
                floor_us: 0,
                connectivity: Connectivity::Down,
                origin: 0,
                mode: Mode::Polling,
                command_timeout: std::time::Duration::from_millis(timeout),
                handover_lease: HANDOVER_LEASE,
                cleanups: Vec::new(),
            },
            links: [None; 3],
            dials: [0; 3],
            newest_run_id: 0,
            subscribed_to: None,
            tasks,
            queues: (0..keys).map(|_| LocalQueue::default()).collect(),
            cleanup_calls: Vec::new(),
            worker_timer: 0,
            worker_due: Nanos::MAX,
            network: ProcessNetwork::default(),
            calm_since: self.now,
            acquisitions: 0,
            latency,
        });
        self.server.subscriptions.push(Vec::new());
        self.slots[slot] = index;
        for purpose in Purpose::ALL {
            self.push(
                self.now,
                Timed::Dial {
                    process: index,
                    purpose,
                },
            );
        }
        for task in 0..self.processes[index].tasks.len() {
            self.plan(index, task);
        }
    }

    /// Kills a process. Its connections close on the server after a moment.
    pub(super) fn kill(&mut self, index: usize) {
        let process = &mut self.processes[index];
        if !std::mem::replace(&mut process.is_alive, false) {
            return;
        }
        process.tasks.clear();
        process.queues.clear();
        process.cleanup_calls.clear();
        process.manager.cleanups.clear();
        self.history.deaths.insert(number(index), self.now);
        self.tell(|| format!("process {index} is killed"));
        for purpose in Purpose::ALL {
            if let Some(id) = self.processes[index].links[purpose as usize].take() {
                self.links[id].client = ClientEnd::Closed;
                self.links[id].to_client.packets.clear();
                self.send(id, Heading::ToServer, Packet::Fin);
            }
        }
    }

    /// Stops a process for a while, as SIGSTOP does.
    pub(super) fn pause(&mut self, index: usize, span: Nanos) {
        let process = &mut self.processes[index];
        if process.is_alive && process.paused_until <= self.now {
            process.paused_until = self.now + span;
            // Its timers and its sockets need a moment after that.
            let end = self.now + span + 5 * MS;
            process.calm_since = process.calm_since.max(end);
            self.history
                .stalls
                .push(Stall::new(number(index), self.now, end));
            self.tell(|| format!("process {index} stops for {} ms", span / MS));
        }
    }

    /// Notes that a process is disturbed until this time.
    pub(super) fn disturb(&mut self, index: usize, until: Nanos) {
        let process = &mut self.processes[index];
        process.calm_since = process.calm_since.max(until);
    }
}

pub(super) fn number(process: usize) -> u32 {
    u32::try_from(process).expect("there are few processes")
}
