//! How a process connects, what it receives, and when it gives a connection up.

use lock_testing::{Nanos, nanos};

use super::link::{Addressee, ClientEnd, Heading, Packet, Purpose};
use super::sabotage::Sabotage;
use super::task::{CallLane, Work};
use super::{MS, Simulation, Timed};
use crate::acquisition::{Connectivity, FailureClass};
use crate::backoff::Backoff;
use crate::clock::Moment;
use crate::clock_sync::ClockSync;
use crate::mailbox::Notification;
use crate::tests::virtual_client::{Awaited, Caller};
use crate::wire::{Mode, WireNotification};

/// The interval of the pings of a subscription, as in lock-core.
const HEARTBEAT: Nanos = 3_000 * MS;

impl Simulation {
    pub(super) fn dial(&mut self, process: usize, purpose: Purpose) {
        let of = &self.processes[process];
        if !of.is_alive || of.links[purpose as usize].is_some() {
            return;
        }
        let timeout = of
            .clock
            .when(of.clock.at(self.now).plus(of.manager.command_timeout));
        let id = self.open_link(process, purpose);
        self.processes[process].links[purpose as usize] = Some(id);
        self.push(timeout, Timed::DialTimeout { link: id });
    }

    pub(super) fn on_dial_timeout(&mut self, id: usize) {
        if let ClientEnd::Dialing { .. } = self.links[id].client {
            self.break_link(id);
        }
    }

    pub(super) fn on_heartbeat(&mut self, id: usize) {
        let ClientEnd::Up { .. } = self.links[id].client else {
            return;
        };
        if self.links[id].pinged.is_some() {
            return self.break_link(id);
        }
        let process = &self.processes[self.links[id].process];
        let now = process.clock.at(self.now);
        let timeout = process
            .clock
            .when(now.plus(process.manager.command_timeout));
        self.links[id].pinged = Some(now);
        self.send(id, Heading::ToServer, Packet::Ping);
        self.push(timeout, Timed::Heartbeat { link: id });
    }

    /// Gives a connection up, and connects again after a pause.
    pub(super) fn break_link(&mut self, id: usize) {
        let (index, purpose) = (self.links[id].process, self.links[id].purpose);
        if self.links[id].client == ClientEnd::Closed {
            return;
        }
        let was_up = self.links[id].first().is_some();
        self.links[id].client = ClientEnd::Closed;
        self.links[id].to_client.packets.clear();
        self.send(id, Heading::ToServer, Packet::Fin);
        let process = &mut self.processes[index];
        process.links[purpose as usize] = None;
        if was_up {
            process.dials[purpose as usize] = 0;
        }
        process.dials[purpose as usize] += 1;
        let pause = nanos(Backoff::after(process.dials[purpose as usize]));
        let pause = pause - self.random.number() % (pause / 4);
        self.disturb(index, self.now + pause);
        self.push(
            self.now + pause,
            Timed::Dial {
                process: index,
                purpose,
            },
        );
        self.tell(|| format!("process {index} gives up its connection for {purpose:?}"));
        if !was_up {
            return;
        }
        self.fail_calls(index, id);
        if purpose == Purpose::Subscription {
            self.processes[index].subscribed_to = None;
            self.poll_all(index);
        }
    }

    fn fail_calls(&mut self, process: usize, id: usize) {
        for task in 0..self.processes[process].tasks.len() {
            for lane in CallLane::ALL {
                let call = self.processes[process].tasks[task].calls[lane as usize];
                if let Some(call) = call.filter(|call| call.link == Some(id)) {
                    let addressee = Addressee::Task(task, lane.lane());
                    self.on_failure(process, addressee, call.call, FailureClass::Unreachable);
                }
            }
        }
        let calls = self.processes[process].cleanup_calls.clone();
        for call in calls.iter().filter(|call| call.link == Some(id)) {
            let addressee = Addressee::Cleanup(call.owner_id);
            self.on_failure(process, addressee, call.call, FailureClass::Unreachable);
        }
    }

    pub(super) fn at_client(&mut self, id: usize, packet: Packet) {
        let index = self.links[id].process;
        if self.links[id].client == ClientEnd::Closed || !self.processes[index].is_alive {
            return;
        }
        match packet {
            Packet::Welcome { server_us, run_id } => self.on_welcome(id, server_us, run_id),
            Packet::Reply {
                call,
                addressee,
                result,
                server_us,
            } => {
                self.links[id].silent_since = None;
                match result {
                    Ok(reply) => self.on_reply(index, id, addressee, call, &reply, server_us),
                    Err(class) => self.on_failure(index, addressee, call, class),
                }
            }
            Packet::Notify(notification) => self.on_notification(index, &notification),
            Packet::Pong => {
                self.links[id].pinged = None;
                self.push(self.now + HEARTBEAT, Timed::Heartbeat { link: id });
            }
            Packet::Fin => self.break_link(id),
            Packet::Hello | Packet::Command(_) | Packet::Ping => {}
        }
    }

    fn on_welcome(&mut self, id: usize, server_us: u64, run_id: u64) {
        let ClientEnd::Dialing { sent } = self.links[id].client else {
            return;
        };
        let first = ClockSync {
            sent,
            server_us,
            run_id,
        };
        let (index, purpose) = (self.links[id].process, self.links[id].purpose);
        self.links[id].client = ClientEnd::Up { first };
        self.disturb(index, self.now);
        let process = &mut self.processes[index];
        process.dials[purpose as usize] = 0;
        if process.newest_run_id != run_id {
            process.newest_run_id = run_id;
            let links = process.links;
            for other in links.into_iter().flatten() {
                let known = self.links[other].first();
                if known.is_some_and(|first| first.run_id != run_id) {
                    self.break_link(other);
                }
            }
        }
        match purpose {
            Purpose::Callers => self.on_callers_connected(index),
            Purpose::Worker => self.plan_worker(index),
            Purpose::Subscription => {
                self.processes[index].subscribed_to = Some(run_id);
                self.push(self.now + HEARTBEAT, Timed::Heartbeat { link: id });
                self.poll_all(index);
            }
        }
    }

    fn on_callers_connected(&mut self, index: usize) {
        for task in 0..self.processes[index].tasks.len() {
            let of = &self.processes[index].tasks[task];
            let waits = of
                .caller
                .acquiring()
                .is_some_and(|acquiring| matches!(acquiring.awaited, Awaited::Connection { .. }));
            if let Work::Connecting { .. } = of.work {
                self.begin_acquire(index, task);
            } else if waits {
                self.step(index, task, |step| step.on_connected());
            }
        }
    }

    /// Makes all waiters poll: notifications may have been lost.
    fn poll_all(&mut self, index: usize) {
        if self.sabotage == Some(Sabotage::SilentResubscription) {
            return;
        }
        for task in 0..self.processes[index].tasks.len() {
            let of = &self.processes[index].tasks[task];
            if of.is_waiter && of.caller.acquiring().is_some() {
                self.step(index, task, |step| step.on_notification(Notification::Poll));
            }
        }
    }

    fn on_notification(&mut self, index: usize, message: &WireNotification) {
        let process = &self.processes[index];
        let Some(run_id) = process.subscribed_to else {
            return;
        };
        let received = process.clock.at(self.now);
        let youngest = process.manager.server_clock.youngest();
        let mut read = Notification::from_wire(message, youngest, run_id, received);
        match (self.sabotage, &mut read) {
            (Some(Sabotage::GrantFromArrival), Notification::Grant(grant)) => {
                grant.until = Some(received.plus(grant.lease * 49 / 50));
            }
            (Some(Sabotage::DeafWaiters), _) => return,
            _ => {}
        }
        for task in 0..self.processes[index].tasks.len() {
            let of = &self.processes[index].tasks[task];
            let (true, Caller::Acquiring(acquiring)) = (of.is_waiter, &of.caller) else {
                continue;
            };
            let owner_id = acquiring.acquisition.sent().owner_id;
            let is_for_it = match message {
                WireNotification::Grant { owner_id: to, .. } => *to == owner_id,
                WireNotification::Head { to, .. } => *to == owner_id.short(),
            };
            if is_for_it {
                self.tell(|| format!("process {index}, task {task}: {read:?}"));
                self.figures.note_notification(&read);
                self.step(index, task, |step| step.on_notification(read));
            }
        }
    }

    /// Sets what a step reads of the connection: its clock sync, its floor, and whether waiters get
    /// notifications.
    pub(super) fn use_link(&mut self, index: usize, purpose: Purpose) {
        let process = &mut self.processes[index];
        let first = process.links[purpose as usize].and_then(|id| self.links[id].first());
        let manager = &mut process.manager;
        let Some(first) = first else {
            manager.connectivity = Connectivity::Down;
            return;
        };
        manager.connectivity = Connectivity::Up;
        manager.first = first;
        manager.floor_us = first.server_us;
        manager.origin = process.links[purpose as usize].map_or(0, |id| id as u64 + 1);
        manager.mode = if process.subscribed_to == Some(first.run_id) {
            Mode::Subscribed
        } else {
            Mode::Polling
        };
    }

    /// Notes a command without a reply.
    pub(super) fn on_silence(&mut self, index: usize, link: Option<usize>, sent: Moment) {
        let Some(id) = link else { return };
        let process = &self.processes[index];
        let (now, patience) = (process.clock.at(self.now), process.timeout_ns());
        if self.links[id].first().is_some() && self.links[id].is_broken_by(sent, now, patience) {
            self.break_link(id);
        }
    }
}
