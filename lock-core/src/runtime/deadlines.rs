//! When the background worker has to act on each held lock: for the next renewal, or for the end of the lease.
//!
//! Callers put their locks in and remove them, on any thread. The worker takes the locks that are due, acts on them,
//! and puts them back with their next deadline.
//!
//! # Two parts
//!
//! Most critical sections end before a third of their lease, when the first renewal is due. Such a section must not
//! wake the worker, search a tree, or wait for a mutex that all callers share. So the locks are spread over shards by their
//! owner ids, and each shard has a mutex and two parts:
//!
//! | Part | Holds | A put or a remove costs |
//! |---|---|---|
//! | unscheduled | locks that the worker hasn't had yet, in slots, in no order | a few instructions |
//! | scheduled | the others, ordered by deadline | a search in a tree |
//!
//! When the first deadline of an unscheduled lock comes, the worker moves all unscheduled locks into the schedule.
//!
//! # The place of a lock
//!
//! Each [`HeldLock`] keeps its [`Place`], so that a remove needs no search. Only who has the mutex of the lock's shard
//! reads or writes it.
//!
//! | Place | Event | Next |
//! |---|---|---|
//! | nowhere | put | a slot |
//! | a slot | put | the same slot, with the new deadline |
//! | a slot | the first deadline of an unscheduled lock has come | scheduled |
//! | a slot, scheduled | taken | taken |
//! | taken, scheduled | put | scheduled, with the new deadline |
//! | any | removed, or put after the release | nowhere |
//!
//! # First proof: no released lock stays
//!
//! The worker may be about to put a lock back while its guard releases it. The guard *writes "released"* and then
//! *looks at the place*, under the mutex of the shard. The worker, under the same mutex, *writes the place* and *reads
//! "released"*. One of these two critical sections comes first. If it is the worker's, the guard finds the lock and
//! removes it. If it is the guard's, then "released" was written before it, so the worker reads it, and removes the lock
//! itself. The proof breaks if `put` reads "released" before it has the mutex, or if a guard removes its lock before it
//! releases it.
//!
//! # Second proof: no deadline is missed
//!
//! [`next_wakeup`](Deadlines::next_wakeup) is when the worker looks again. The worker *stores [`NOT_PLANNED`]* and then
//! *looks at the shards*, each under its mutex; it lowers `next_wakeup` to the first deadline that it has seen, and
//! sleeps until then. Whoever puts a lock *writes the deadline*, under the mutex of its shard, and then *reads
//! `next_wakeup`*; if that is later than the deadline, it wakes the worker, which looks again. If the deadline was written
//! before the worker looked at this shard, the worker has seen it. If it was written after that, `NOT_PLANNED` was stored
//! before, so the writer reads `NOT_PLANNED`, or what the worker has lowered it to since. The worker doesn't sleep longer
//! than that, so either the writer wakes it, or it wakes early enough anyway. The proof breaks if the worker looks first
//! and stores then, if a writer reads first and writes then, or if a writer lowers `next_wakeup` itself: a second one
//! would rely on a wakeup that the first one has yet to send.
//!
//! [`first_unscheduled`](Deadlines::first_unscheduled) says when the unscheduled locks move. It is part of the deadline
//! that a writer writes, so it is lowered under the same mutex; and the worker stores its own `NOT_PLANNED` there before
//! it looks, and reads it after that.
//!
//! Both proofs order the threads by the mutexes of the shards alone: what a thread has stored before it unlocks a mutex,
//! the next thread to lock it can't miss. So the atomics are `Relaxed`, and `SeqCst` would prove nothing more.
//!
//! # A panic loses no lock
//!
//! What is taken is in neither part, so a panic of the worker would leave it without renewals. Therefore it comes in a
//! [`Taken`], whose drop puts back whatever nobody has dealt with.
//!
//! # Foreign code
//!
//! A shard's mutex is held only to move data, and comes before the mutex of a held lock, which says whether the lock is
//! released: nothing here may be called under the latter. The last reference to a lock is dropped after that, since its
//! drop may drop wakers.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::runtime::held_lock::HeldLock;
use crate::sync::Mutex;
use lock_protocol::clock::{Clock, Moment};
use lock_protocol::lease::RETRY;
use lock_protocol::owner_id::OwnerId;

/// Enough that callers on many cores seldom meet.
const SHARDS: usize = 16;

/// Any deadline is earlier.
const NOT_PLANNED: u64 = u64::MAX;

/// The deadlines of a manager's held locks.
pub(super) struct Deadlines {
    clock: Clock,
    /// Wakes the worker.
    wake: Arc<Notify>,
    /// When the worker looks again, in nanoseconds; [`NOT_PLANNED`] while it looks, or if there is no deadline.
    next_wakeup: AtomicU64,
    /// No unscheduled lock has an earlier deadline, in nanoseconds.
    first_unscheduled: AtomicU64,
    shards: [Mutex<Shard>; SHARDS],
}

impl Deadlines {
    pub(super) fn new(clock: Clock, wake: Arc<Notify>) -> Self {
        Self {
            clock,
            wake,
            next_wakeup: AtomicU64::new(NOT_PLANNED),
            first_unscheduled: AtomicU64::new(NOT_PLANNED),
            shards: Default::default(),
        }
    }

    /// Sets the deadline of a lock, and wakes the worker if it would sleep longer. Removes a lock that is released.
    pub(super) fn put(&self, due: Moment, held: &Arc<HeldLock>) {
        self.put_unless(due, held, |_| false);
    }

    /// Puts back a lock that was taken, unless it has got an earlier deadline since.
    fn put_back(&self, due: Moment, held: &Arc<HeldLock>) {
        self.put_unless(due, held, |known| known <= due);
    }

    fn put_unless(&self, due: Moment, held: &Arc<HeldLock>, stays: impl Fn(Moment) -> bool) {
        {
            let mut shard = self.shard(held).lock();
            if shard.deadline_of(held).is_some_and(stays) {
                return;
            }
            // Under the mutex: see the first proof. The caller has another reference, so this drops no waker.
            if held.is_released() {
                shard.remove(held);
                return;
            }
            let part = shard.put(due, held);
            if part == Part::Unscheduled {
                lower(&self.first_unscheduled, due.as_nanos());
            }
        }
        // After the deadline is written: see the second proof.
        if due.as_nanos() < self.next_wakeup.load(Ordering::Relaxed) {
            self.wake.notify_one();
        }
    }

    /// Forgets a lock. A guard releases its lock before it calls this: see the first proof.
    pub(super) fn remove(&self, held: &HeldLock) {
        let removed = self.shard(held).lock().remove(held);
        drop(removed);
    }

    /// Takes the locks whose deadlines have come.
    pub(super) fn take_due(self: &Arc<Self>, now: Moment) -> Taken {
        let moves = self.first_unscheduled.load(Ordering::Relaxed) <= now.as_nanos();
        // Before the look: see the second proof.
        if moves {
            self.first_unscheduled.store(NOT_PLANNED, Ordering::Relaxed);
        }
        self.next_wakeup.store(NOT_PLANNED, Ordering::Relaxed);
        let mut due = Taken::of(self);
        for shard in &self.shards {
            let mut shard = shard.lock();
            if moves {
                shard.schedule_all();
            }
            shard.take_due(now, &mut due.locks);
            if let Some(first) = shard.first_scheduled() {
                lower(&self.next_wakeup, first.as_nanos());
            }
        }
        let first_unscheduled = self.first_unscheduled.load(Ordering::Relaxed);
        lower(&self.next_wakeup, first_unscheduled);
        due
    }

    /// Takes all locks.
    pub(super) fn take_all(self: &Arc<Self>) -> Taken {
        self.take_where(|_| true)
    }

    /// Takes the locks that messages about the releases of these keys concern.
    pub(super) fn take_of(self: &Arc<Self>, keys: &HashSet<Arc<str>>) -> Taken {
        self.take_where(|held| held.is_released_in(keys))
    }

    fn take_where(self: &Arc<Self>, is_chosen: impl Fn(&HeldLock) -> bool) -> Taken {
        let mut chosen = Taken::of(self);
        for shard in &self.shards {
            shard.lock().take_where(&is_chosen, &mut chosen.locks);
        }
        chosen
    }

    /// Returns when the worker has to look again.
    pub(super) fn next(&self) -> Option<Moment> {
        match self.next_wakeup.load(Ordering::Relaxed) {
            NOT_PLANNED => None,
            nanos => Some(Moment::from_nanos(nanos)),
        }
    }

    /// Returns the age of the oldest lock of each template. Those that the worker has taken are left out.
    pub(super) fn oldest(&self, now: Moment) -> BTreeMap<&'static str, Duration> {
        let mut ages = BTreeMap::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let unscheduled = shard.unscheduled.iter().flatten().map(|(_, held)| held);
            for held in unscheduled.chain(shard.scheduled.values()) {
                held.add_age(now, &mut ages);
            }
        }
        ages
    }

    fn shard(&self, held: &HeldLock) -> &Mutex<Shard> {
        let [low, ..] = held.owner_id.random_bits().to_le_bytes();
        &self.shards[usize::from(low) % SHARDS]
    }
}

/// Lowers a moment. Most callers find it early enough, and only read.
fn lower(moment: &AtomicU64, nanos: u64) {
    if nanos < moment.load(Ordering::Relaxed) {
        moment.fetch_min(nanos, Ordering::Relaxed);
    }
}

/// Where a held lock is among the deadlines, in the lowest two bits, and its slot or its deadline in the others.
#[derive(Debug, Default)]
pub(super) struct Place(AtomicU64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Nowhere,
    /// The worker has it.
    Taken,
    Slot(usize),
    Scheduled(Moment),
}

impl Place {
    const TAKEN: u64 = 1;
    const SLOT: u64 = 2;
    const SCHEDULED: u64 = 3;

    /// The last deadline that fits: after 146 years.
    const LAST: Moment = Moment::from_nanos(u64::MAX >> 2);

    fn get(&self) -> Where {
        let place = self.0.load(Ordering::Relaxed);
        let value = place >> 2;
        match place & 3 {
            Self::TAKEN => Where::Taken,
            Self::SLOT => Where::Slot(usize::try_from(value).unwrap_or(usize::MAX)),
            Self::SCHEDULED => Where::Scheduled(Moment::from_nanos(value)),
            _ => Where::Nowhere,
        }
    }

    fn set(&self, place: Where) {
        let place = match place {
            Where::Nowhere => 0,
            Where::Taken => Self::TAKEN,
            Where::Slot(slot) => (slot as u64) << 2 | Self::SLOT,
            Where::Scheduled(due) => due.as_nanos() << 2 | Self::SCHEDULED,
        };
        self.0.store(place, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Unscheduled,
    Scheduled,
}

#[derive(Default)]
struct Shard {
    unscheduled: Vec<Option<(Moment, Arc<HeldLock>)>>,
    /// The slots without a lock.
    free: Vec<usize>,
    scheduled: BTreeMap<(Moment, OwnerId), Arc<HeldLock>>,
}

impl Shard {
    fn put(&mut self, due: Moment, held: &Arc<HeldLock>) -> Part {
        match held.place.get() {
            Where::Nowhere => {
                let slot = self.free.pop().unwrap_or(self.unscheduled.len());
                if slot == self.unscheduled.len() {
                    self.unscheduled.push(None);
                }
                self.unscheduled[slot] = Some((due, Arc::clone(held)));
                held.place.set(Where::Slot(slot));
                return Part::Unscheduled;
            }
            Where::Slot(slot) => {
                self.unscheduled[slot] = Some((due, Arc::clone(held)));
                return Part::Unscheduled;
            }
            Where::Taken => {}
            Where::Scheduled(before) => drop(self.scheduled.remove(&(before, held.owner_id))),
        }
        self.schedule(due, Arc::clone(held));
        Part::Scheduled
    }

    fn deadline_of(&self, held: &HeldLock) -> Option<Moment> {
        match held.place.get() {
            Where::Nowhere | Where::Taken => None,
            Where::Slot(slot) => self.unscheduled[slot].as_ref().map(|(due, _)| *due),
            Where::Scheduled(due) => Some(due),
        }
    }

    fn schedule(&mut self, due: Moment, held: Arc<HeldLock>) {
        let due = due.min(Place::LAST);
        held.place.set(Where::Scheduled(due));
        self.scheduled.insert((due, held.owner_id), held);
    }

    /// Moves the locks out of their slots.
    fn schedule_all(&mut self) {
        self.free.clear();
        for (due, held) in std::mem::take(&mut self.unscheduled).into_iter().flatten() {
            self.schedule(due, held);
        }
    }

    /// Removes a lock. The caller drops the result outside of the mutex.
    fn remove(&mut self, held: &HeldLock) -> Option<Arc<HeldLock>> {
        let removed = match held.place.get() {
            Where::Nowhere | Where::Taken => None,
            Where::Slot(slot) => {
                self.free.push(slot);
                self.unscheduled[slot].take().map(|(_, held)| held)
            }
            Where::Scheduled(due) => self.scheduled.remove(&(due, held.owner_id)),
        };
        held.place.set(Where::Nowhere);
        removed
    }

    fn first_scheduled(&self) -> Option<Moment> {
        self.scheduled.first_key_value().map(|((due, _), _)| *due)
    }

    fn take_due(&mut self, now: Moment, taken: &mut Vec<(Moment, Arc<HeldLock>)>) {
        while let Some(first) = self.scheduled.first_entry()
            && first.key().0 <= now
        {
            let ((due, _), held) = first.remove_entry();
            held.place.set(Where::Taken);
            taken.push((due, held));
        }
    }

    fn take_where(
        &mut self,
        is_chosen: impl Fn(&HeldLock) -> bool,
        taken: &mut Vec<(Moment, Arc<HeldLock>)>,
    ) {
        for (at, slot) in self.unscheduled.iter_mut().enumerate() {
            if let Some((due, held)) = slot.take_if(|(_, held)| is_chosen(held)) {
                held.place.set(Where::Taken);
                self.free.push(at);
                taken.push((due, held));
            }
        }
        self.scheduled.retain(|(due, _), held| {
            let is_chosen = is_chosen(held);
            if is_chosen {
                held.place.set(Where::Taken);
                taken.push((*due, Arc::clone(held)));
            }
            !is_chosen
        });
    }
}

/// Locks that were taken, each with a value: its deadline at first. The drop puts those that are left back, to be due
/// soon.
pub(super) struct Taken<T: Copy = Moment> {
    deadlines: Arc<Deadlines>,
    locks: Vec<(T, Arc<HeldLock>)>,
}

impl<T: Copy> Taken<T> {
    fn of(deadlines: &Arc<Deadlines>) -> Self {
        Self {
            deadlines: Arc::clone(deadlines),
            locks: Vec::new(),
        }
    }

    /// Calls `handle` with each lock, from the last to the first. Keeps those for which it returns a value.
    pub(super) fn filter_map<U: Copy>(
        mut self,
        mut handle: impl FnMut(T, &Arc<HeldLock>) -> Option<U>,
    ) -> Taken<U> {
        let mut kept = Taken::of(&self.deadlines);
        // A lock leaves `self` after its turn: a panic in it finds each lock in one of both.
        while let Some((value, held)) = self.locks.last() {
            let value = handle(*value, held);
            let handled = self.locks.pop();
            if let (Some(value), Some((_, held))) = (value, handled) {
                kept.locks.push((value, held));
            }
        }
        kept
    }

    /// Puts each lock back, with the deadline that `next` returns.
    pub(super) fn put_back(self, mut next: impl FnMut(T, &Arc<HeldLock>) -> Moment) {
        let deadlines = Arc::clone(&self.deadlines);
        let _none = self.filter_map(|value, held| {
            deadlines.put_back(next(value, held), held);
            None::<()>
        });
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, (T, Arc<HeldLock>)> {
        self.locks.iter()
    }

    /// Orders the locks by their values, the greatest first.
    pub(super) fn sort_descending(&mut self)
    where
        T: Ord,
    {
        self.locks
            .sort_by_key(|(value, _)| std::cmp::Reverse(*value));
    }

    /// Moves the last locks, this many, into a part of their own. There the last one comes first.
    pub(super) fn split_last(&mut self, count: usize) -> Self {
        let mut last = Self::of(&self.deadlines);
        last.locks = self.locks.split_off(self.locks.len().saturating_sub(count));
        last.locks.reverse();
        last
    }
}

impl<T: Copy> Drop for Taken<T> {
    fn drop(&mut self) {
        for (_, held) in self.locks.drain(..) {
            let again_at = self.deadlines.clock.now().plus(*RETRY.start());
            self.deadlines.put_back(again_at, &held);
        }
    }
}

#[cfg(test)]
mod tests;
