//! The resource that a lock protects, outside of the lock server. It refuses tokens that are lower than the
//! highest it has seen.

use lock_testing::{Access, AccessKind};

use super::process::number;
use super::sabotage::Sabotage;
use super::{MS, Simulation, Timed};

/// A write on its way to the resource.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingWrite {
    pub(super) process: usize,
    pub(super) task: usize,
    pub(super) acquisition: u64,
    key: usize,
    token: u64,
    value: u64,
}

/// The resource that a lock protects. It is not on the lock server.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FencedResource {
    value: u64,
    highest: u64,
}

impl Simulation {
    /// Reads or writes the resource. Returns its value, unless it refuses the token.
    pub(super) fn access(
        &mut self,
        index: usize,
        acquisition: u64,
        key: usize,
        token: u64,
        write: Option<u64>,
    ) -> Option<u64> {
        let resource = &mut self.resources[key];
        let is_stale =
            token < resource.highest && self.sabotage != Some(Sabotage::UnfencedResource);
        let kind = match (is_stale, write) {
            (true, Some(_)) => AccessKind::RefusedWrite,
            (true, None) => AccessKind::RefusedRead,
            (false, Some(value)) => AccessKind::Write { value },
            (false, None) => AccessKind::Read,
        };
        if !is_stale {
            resource.highest = resource.highest.max(token);
            resource.value = write.unwrap_or(resource.value);
        }
        let value = resource.value;
        let name = self.names[key].clone();
        let process = number(index);
        let access = Access::new(self.now, name, process, acquisition, Some(token), kind);
        self.tell_about(key, || access.to_string());
        self.history.accesses.push(access);
        self.figures.on_access(kind);
        (!is_stale).then_some(value)
    }

    /// The write arrives at the resource.
    pub(super) fn on_write(&mut self, number: usize) {
        let write = self.writes[number];
        let PendingWrite {
            process,
            acquisition,
            key,
            token,
            value,
            ..
        } = write;
        let accepted = self.access(process, acquisition, key, token, Some(value));
        let at = self.now + self.processes[process].latency;
        let is_accepted = accepted.is_some();
        self.push(
            at,
            Timed::Written {
                write: number,
                is_accepted,
            },
        );
    }

    pub(super) fn process_of_write(&self, write: usize) -> usize {
        self.writes[write].process
    }

    /// Sends a write to the resource. It may be delayed on its way.
    pub(super) fn send_write(&mut self, index: usize, task: usize, token: u64, value: u64) {
        let of = &self.processes[index].tasks[task];
        let write = PendingWrite {
            process: index,
            task,
            acquisition: of.acquisition,
            key: of.key,
            token,
            value,
        };
        let mut latency = self.processes[index].latency;
        if self.random.chance(4) {
            // A write that was delayed on its way.
            latency += self.random.number() % (4_000 * MS);
        }
        let number = self.writes.len();
        self.writes.push(write);
        self.push(self.now + latency, Timed::Write { write: number });
    }
}
