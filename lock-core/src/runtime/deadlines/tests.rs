use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use super::*;
use crate::runtime::held_lock::tests::{held, held_in};
use lock_protocol::dialect::{Dialect, RedissonLock};

/// The stress tests end after this many rounds, or after this time.
const ROUNDS: usize = 20_000;
const STRESS: Duration = Duration::from_millis(500);

fn at(ms: u64) -> Moment {
    Moment::from_millis(ms)
}

fn deadlines() -> Arc<Deadlines> {
    Arc::new(Deadlines::new(Clock::System, Arc::default()))
}

/// Returns whether somebody has woken the worker since the last call.
fn was_woken(deadlines: &Deadlines) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    pin!(deadlines.wake.notified()).poll(&mut cx).is_ready()
}

/// Forgets what is left of taken locks, without putting them back.
fn forget(taken: Taken) -> usize {
    let mut count = 0;
    let _none = taken.filter_map(|_, _| {
        count += 1;
        None::<()>
    });
    count
}

/// Returns the places of all locks in this part.
fn slots(deadlines: &Deadlines) -> usize {
    let slots = |shard: &Mutex<Shard>| shard.lock().unscheduled.len();
    deadlines.shards.iter().map(slots).sum()
}

#[test]
fn unscheduled_locks_stay_until_the_first_deadline_comes() {
    let deadlines = deadlines();
    assert_eq!(deadlines.next(), None);
    let locks: Vec<_> = (0..50).map(|_| held(60_000)).collect();
    for (held, due) in locks.iter().zip(100..) {
        deadlines.put(at(due), held);
    }
    assert!(was_woken(&deadlines));
    assert_eq!(forget(deadlines.take_due(at(99))), 0);
    assert_eq!(deadlines.next(), Some(at(100)));
    assert!(matches!(locks[49].place.get(), Where::Slot(_)));
    deadlines.remove(&locks[7]);
    assert_eq!(Arc::strong_count(&locks[7]), 1);
    assert_eq!(forget(deadlines.take_due(at(101))), 2);
    assert_eq!(locks[1].place.get(), Where::Taken);
    for held in &locks[8..] {
        assert!(matches!(held.place.get(), Where::Scheduled(_)));
    }
    assert_eq!((slots(&deadlines), deadlines.next()), (0, Some(at(102))));
    deadlines.remove(&locks[2]);
    assert_eq!(forget(deadlines.take_due(at(102))), 0);
    assert_eq!(deadlines.next(), Some(at(103)));
    assert_eq!(forget(deadlines.take_due(at(1_000))), 46);
    assert_eq!(deadlines.next(), None);
}

#[test]
fn put_replaces_the_deadline() {
    let deadlines = deadlines();
    let held = held(60_000);
    for due in [300, 100, 200] {
        deadlines.put(at(due), &held);
    }
    // The first deadline of an unscheduled lock was lower once, so the worker looks early.
    assert_eq!(forget(deadlines.take_due(at(99))), 0);
    assert_eq!(deadlines.next(), Some(at(100)));
    assert_eq!(forget(deadlines.take_due(at(150))), 0);
    assert_eq!(held.place.get(), Where::Scheduled(at(200)));
    for due in [300, 100, 200] {
        deadlines.put(at(due), &held);
        assert_eq!(held.place.get(), Where::Scheduled(at(due)));
    }
    assert_eq!(forget(deadlines.take_due(at(199))), 0);
    assert_eq!(deadlines.next(), Some(at(200)));
    assert_eq!(forget(deadlines.take_due(at(200))), 1);
    deadlines.put(Moment::from_nanos(u64::MAX), &held);
    assert_eq!(held.place.get(), Where::Scheduled(Place::LAST));
    assert_eq!(forget(deadlines.take_due(Place::LAST)), 1);
    assert_eq!(Arc::strong_count(&held), 1);
}

/// A guard of a long section renews its lock by itself, or the worker has had it. Then it is worth a search.
#[test]
fn short_sections_are_not_scheduled_and_wake_nobody() {
    let deadlines = deadlines();
    deadlines.put(at(100), &held(60_000));
    assert!(was_woken(&deadlines));
    assert_eq!(forget(deadlines.take_due(at(0))), 0);
    for _ in 0..1_000 {
        let held = held(60_000);
        deadlines.put(at(200), &held);
        deadlines.put(at(300), &held);
        assert!(matches!(held.place.get(), Where::Slot(_)));
        held.release();
        deadlines.remove(&held);
        assert_eq!(held.place.get(), Where::Nowhere);
        assert_eq!(Arc::strong_count(&held), 1);
    }
    assert!(!was_woken(&deadlines));
    assert!(slots(&deadlines) <= SHARDS + 1, "{}", slots(&deadlines));
    deadlines.put(at(99), &held(60_000));
    assert!(was_woken(&deadlines), "for the earlier deadline");
}

/// A guard may be released while the worker has its lock.
#[test]
fn released_lock_is_not_put_back() {
    let deadlines = deadlines();
    let locks = [held(60_000), held(60_000), held(60_000)];
    for held in &locks {
        deadlines.put(at(1), held);
    }
    let taken = deadlines.take_due(at(1));
    deadlines.put(at(2), &locks[0]);
    for held in &locks {
        held.release();
    }
    // Without the remove of the guard.
    for held in &locks[..2] {
        deadlines.put(at(3), held);
    }
    drop(taken);
    for held in &locks {
        assert_eq!(held.place.get(), Where::Nowhere);
        assert_eq!(Arc::strong_count(held), 1);
    }
}

#[test]
fn locks_are_taken_wherever_they_are() {
    let deadlines = deadlines();
    let redisson = Dialect::Redisson {
        lock: RedissonLock::Plain,
    };
    let mut locks: Vec<_> = (0..40).map(|_| held_in(redisson)).collect();
    locks.push(held(60_000));
    for held in &locks[..20] {
        deadlines.put(at(100), held);
    }
    drop(deadlines.take_due(at(99)));
    deadlines.put(at(1), &locks[19]);
    drop(deadlines.take_due(at(1)));
    assert_eq!(forget(deadlines.take_of(&HashSet::new())), 0);
    for held in &locks {
        deadlines.put(at(200), held);
    }
    let keys = HashSet::from([locks[0].key.text()]);
    let mut dues = Vec::new();
    let _none = deadlines.take_of(&keys).filter_map(|due, _| {
        dues.push(due);
        None::<()>
    });
    assert_eq!(dues, [at(200); 40]);
    assert_eq!(forget(deadlines.take_of(&keys)), 0);
    for held in &locks {
        deadlines.put(at(200), held);
    }
    assert_eq!(forget(deadlines.take_all()), 41);
    for held in &locks {
        assert_eq!(held.place.get(), Where::Taken);
        assert_eq!(Arc::strong_count(held), 1);
    }
}

#[test]
fn panic_puts_back_what_was_not_handled() {
    let deadlines = deadlines();
    let locks = [(); 10].map(|()| held(60_000));
    for held in &locks {
        deadlines.put(at(1), held);
    }
    assert!(was_woken(&deadlines));
    let mut turns = 0;
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let due = deadlines.take_due(at(1));
        drop(due.filter_map(|_, held| {
            turns += 1;
            assert!(turns < 6, "the panic of a test");
            if turns == 1 {
                deadlines.remove(held);
            }
            (turns > 1).then_some(turns)
        }));
    }));
    assert!(panicked.is_err());
    assert!(was_woken(&deadlines));
    let soon = Clock::System.now().plus(*RETRY.start());
    assert_eq!(forget(deadlines.take_due(soon)), 9);
}

#[test]
fn rest_of_a_split_is_put_back() {
    let deadlines = deadlines();
    let locks = [(); 10].map(|()| held(60_000));
    for held in &locks {
        deadlines.put(at(1), held);
    }
    let mut next = 0;
    let mut taken = deadlines.take_due(at(1)).filter_map(|_, _| {
        next += 3;
        Some(next % 10)
    });
    taken.sort_descending();
    let last = taken.split_last(4);
    let numbers: Vec<_> = last.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [0, 1, 2, 3], "the last one first");
    let mut handled = 0;
    let _none = last.filter_map(|_, _| {
        handled += 1;
        None::<()>
    });
    drop(taken);
    let soon = Clock::System.now().plus(*RETRY.start());
    assert_eq!((handled, forget(deadlines.take_due(soon))), (4, 6));
}

/// Runs `other` on a thread of its own while `here` runs on this one, once for each lock and until the time is over.
/// `here` calls its last argument when `other` may begin, which returns when it does.
fn race(
    locks: &[Arc<HeldLock>],
    other: impl Fn(usize, &Arc<HeldLock>) + Sync,
    mut here: impl FnMut(usize, &Arc<HeldLock>, &dyn Fn()),
    mut check: impl FnMut(&Arc<HeldLock>),
) {
    let [may_begin, began, ended] = [const { AtomicUsize::new(0) }; 3];
    let has_ended = AtomicBool::new(false);
    let reaches = |number: &AtomicUsize, least| {
        for spins in 1.. {
            if number.load(Ordering::Acquire) >= least {
                return;
            }
            if spins % 1_000 == 0 {
                std::thread::yield_now();
            }
        }
    };
    let started = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let played = catch_unwind(AssertUnwindSafe(|| {
                for (round, held) in locks.iter().enumerate() {
                    reaches(&may_begin, round + 1);
                    if has_ended.load(Ordering::Acquire) {
                        return;
                    }
                    began.store(round + 1, Ordering::Release);
                    other(round, held);
                    ended.store(round + 1, Ordering::Release);
                }
            }));
            // This one has to end, whatever the other did.
            began.store(ROUNDS, Ordering::Release);
            ended.store(ROUNDS, Ordering::Release);
            if let Err(payload) = played {
                std::panic::resume_unwind(payload);
            }
        });
        let played = catch_unwind(AssertUnwindSafe(|| {
            for (round, held) in locks.iter().enumerate() {
                if started.elapsed() > STRESS {
                    return;
                }
                here(round, held, &|| {
                    may_begin.store(round + 1, Ordering::Release);
                    reaches(&began, round + 1);
                });
                reaches(&ended, round + 1);
                check(held);
            }
        }));
        // The other thread has to end, whatever this one did.
        has_ended.store(true, Ordering::Release);
        may_begin.store(ROUNDS, Ordering::Release);
        if let Err(payload) = played {
            std::panic::resume_unwind(payload);
        }
    });
}

/// Waits for a moment whose length depends on the round, from none to some microseconds.
fn spin(round: usize) {
    for _ in 0..round % 64 * 10 {
        std::hint::spin_loop();
    }
}

/// The first proof.
#[test]
fn lock_that_is_released_while_it_is_put_does_not_stay() {
    let deadlines = deadlines();
    let locks: Vec<_> = (0..ROUNDS).map(|_| held(60_000)).collect();
    race(
        &locks,
        |_, held| deadlines.put(at(2), held),
        |round, held, begin| {
            if round % 2 == 0 {
                begin();
                held.release();
                deadlines.remove(held);
            } else {
                // The other thread waits for the mutex, and has done what it does before that.
                let mut shard = deadlines.shard(held).lock();
                begin();
                spin(round);
                held.release();
                let removed = shard.remove(held);
                drop(shard);
                drop(removed);
            }
        },
        |held| {
            assert_eq!(held.place.get(), Where::Nowhere);
            assert_eq!(Arc::strong_count(held), 1);
        },
    );
}

/// The second proof.
#[test]
fn deadline_that_is_put_while_the_worker_looks_is_not_missed() {
    let deadlines = deadlines();
    let locks: Vec<_> = (0..ROUNDS).map(|_| held(60_000)).collect();
    // Two of four were scheduled before.
    for held in locks.chunks(2).step_by(2).flatten() {
        deadlines.put(at(1), held);
    }
    forget(deadlines.take_due(at(1)));
    let earlier = held(60_000);
    // A put wakes nobody if there is an earlier deadline, and this one is gone when the worker looks.
    let rely_on_earlier = || {
        deadlines.put(at(5), &earlier);
        deadlines.remove(&earlier);
        was_woken(&deadlines);
    };
    rely_on_earlier();
    let planned = Mutex::new(None);
    let put = |held: &Arc<HeldLock>| deadlines.put(at(10), held);
    let look = || {
        forget(deadlines.take_due(at(6)));
        *planned.lock() = deadlines.next();
    };
    race(
        &locks,
        |round, held| if round % 2 == 0 { put(held) } else { look() },
        |round, held, begin| {
            let last = deadlines.shards.last().unwrap();
            if round % 2 == 0 {
                // The other thread waits before it writes the deadline.
                let shard = deadlines.shard(held).lock();
                begin();
                spin(round);
                drop(shard);
                look();
            } else if std::ptr::eq(last, deadlines.shard(held)) {
                begin();
                put(held);
            } else {
                // The other thread waits after it has looked at the shard of the lock.
                let shard = last.lock();
                begin();
                spin(round);
                put(held);
                drop(shard);
            }
        },
        |held| {
            let is_planned = planned.lock().is_some_and(|moment| moment <= at(10));
            assert!(is_planned || was_woken(&deadlines));
            if matches!(held.place.get(), Where::Slot(_)) {
                let first = deadlines.first_unscheduled.load(Ordering::Relaxed);
                assert!(first <= at(10).as_nanos());
            }
            deadlines.remove(held);
            rely_on_earlier();
        },
    );
}

/// A caller's renewal may fail while the worker has the lock, and wants a retry before the deadline that the worker knows.
#[test]
fn lock_that_was_put_in_the_meantime_keeps_its_new_deadline() {
    let deadlines = deadlines();
    let held = held(60_000);
    deadlines.put(at(100), &held);
    let taken = deadlines.take_all();
    deadlines.put(at(50), &held);
    taken.put_back(|due, _| due);
    assert_eq!(forget(deadlines.take_due(at(50))), 1);
}
