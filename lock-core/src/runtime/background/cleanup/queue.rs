//! The open releases and cancels, by the way in which they are sent.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use lock_protocol::backoff::{Backoff, Jitter};
use lock_protocol::cleanup::Cleanup;
use lock_protocol::clock::Moment;

/// The releases in one pipeline: enough to make the round trip cheap, few enough for the server to
/// serve other clients in between.
const BATCH: usize = 128;
/// Batches in flight. Two would keep a near server busy; a distant one takes longer to reply.
const MAX_BATCHES: usize = 4;
/// Single tasks in flight.
const MAX_SINGLES: usize = 128;
/// Transactions in flight. They run one after another on their connection, and so do the renewals
/// of their dialect. More of them would only delay a renewal.
const MAX_SEQUENTIAL: usize = 2;

pub(super) struct CleanupQueue {
    pub(super) batched: VecDeque<Cleanup>,
    pub(super) singles: VecDeque<Cleanup>,
    pub(super) sequential: VecDeque<Cleanup>,
    pub(super) deferred: BTreeMap<(Moment, u64), Cleanup>,
    pub(super) next_number: u64,
    pub(super) batches_in_flight: usize,
    pub(super) singles_in_flight: usize,
    pub(super) sequential_in_flight: usize,
    /// After a whole batch failed, no other one goes out before this time.
    pub(super) resume_at: Option<Moment>,
    pub(super) backoff: Backoff,
    /// When expired tasks were last searched for.
    pub(super) checked_expiry_at: Moment,
}

/// The least interval between searches, because a search through many tasks takes time.
const CHECK_EXPIRY_EVERY: Duration = Duration::from_millis(500);

/// How a task is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Batch,
    Single,
    /// The release of a dialect without scripts: a transaction.
    Sequential,
}

/// Whether any task of a send got a result that is not a temporary failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Progress {
    None,
    Some,
}

impl CleanupQueue {
    pub(super) fn new(now: Moment) -> Self {
        Self {
            batched: VecDeque::new(),
            singles: VecDeque::new(),
            sequential: VecDeque::new(),
            deferred: BTreeMap::new(),
            next_number: 0,
            batches_in_flight: 0,
            singles_in_flight: 0,
            sequential_in_flight: 0,
            resume_at: None,
            backoff: Backoff::new(Jitter::from_os()),
            checked_expiry_at: now,
        }
    }

    pub(super) fn put(&mut self, task: Cleanup, lane: Lane) {
        match lane {
            Lane::Batch => self.batched.push_back(task),
            Lane::Single => self.singles.push_back(task),
            Lane::Sequential => self.sequential.push_back(task),
        }
    }

    pub(super) fn defer(&mut self, at: Moment, task: Cleanup) {
        self.next_number += 1;
        self.deferred.insert((at, self.next_number), task);
    }

    pub(super) fn take_due(&mut self, now: Moment) -> Vec<Cleanup> {
        let mut due = Vec::new();
        while let Some(first) = self.deferred.first_entry()
            && first.key().0 <= now
        {
            due.push(first.remove());
        }
        due
    }

    pub(super) fn take_batch(&mut self, now: Moment) -> Vec<Cleanup> {
        let is_paused = self.resume_at.is_some_and(|at| now < at);
        if is_paused || self.batches_in_flight == MAX_BATCHES {
            return Vec::new();
        }
        let count = self.batched.len().min(BATCH);
        let batch: Vec<_> = self.batched.drain(..count).collect();
        self.batches_in_flight += usize::from(count > 0);
        batch
    }

    /// Takes a task that is sent alone, with its lane.
    pub(super) fn take_single(&mut self) -> Option<(Lane, Cleanup)> {
        if self.sequential_in_flight < MAX_SEQUENTIAL
            && let Some(task) = self.sequential.pop_front()
        {
            self.sequential_in_flight += 1;
            return Some((Lane::Sequential, task));
        }
        if self.singles_in_flight == MAX_SINGLES {
            return None;
        }
        let task = self.singles.pop_front()?;
        self.singles_in_flight += 1;
        Some((Lane::Single, task))
    }

    /// Returns when the queue needs the thread again without a notification.
    pub(super) fn next_at(&self) -> Option<Moment> {
        let deferred = self.deferred.first_key_value().map(|((at, _), _)| *at);
        // While all batches are in flight, the end of one of them wakes the thread.
        let can_resume = !self.batched.is_empty() && self.batches_in_flight < MAX_BATCHES;
        let resumed = self.resume_at.filter(|_| can_resume);
        match (deferred, resumed) {
            (Some(deferred), Some(resumed)) => Some(deferred.min(resumed)),
            (one, other) => one.or(other),
        }
    }

    /// Records the end of a send. Returns tasks that need no release any more.
    pub(super) fn end_send(&mut self, lane: Lane, progress: Progress, now: Moment) -> Vec<Cleanup> {
        if progress == Progress::Some {
            self.backoff.reset();
            self.resume_at = None;
            return Vec::new();
        }
        if lane == Lane::Batch {
            let pause = self.backoff.pause();
            self.resume_at = Some(now.plus(pause));
        }
        self.take_expired(now)
    }

    /// Takes tasks that need no release any more, because their leases have expired. Used while the
    /// server is unreachable.
    fn take_expired(&mut self, now: Moment) -> Vec<Cleanup> {
        if now.since(self.checked_expiry_at) < CHECK_EXPIRY_EVERY {
            return Vec::new();
        }
        self.checked_expiry_at = now;
        let has_expired = |task: &Cleanup| task.has_expired(now);
        let mut expired = Vec::new();
        for queue in [&mut self.batched, &mut self.singles, &mut self.sequential] {
            // Usually there are none, and then nothing is moved.
            if !queue.iter().any(has_expired) {
                continue;
            }
            let (ended, rest) = std::mem::take(queue).into_iter().partition(has_expired);
            *queue = rest;
            expired.extend::<VecDeque<_>>(ended);
        }
        let ended: Vec<_> = self
            .deferred
            .iter()
            .filter(|(_, task)| has_expired(task))
            .map(|(at, _)| *at)
            .collect();
        expired.extend(ended.iter().filter_map(|at| self.deferred.remove(at)));
        expired
    }
}
