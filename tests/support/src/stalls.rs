//! How long this process was kept from running, because the machine was busy.
//!
//! A thread sleeps in short ticks, and adds up by how much it wakes up too late. The library may have been kept from
//! running for as long, so that this time is no delay of the library: the limits of tests are longer by it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(5);
/// How exactly an idle machine keeps the time of a sleep.
const EXACTNESS: Duration = Duration::from_millis(1);

/// In microseconds.
static TOTAL: AtomicU64 = AtomicU64::new(0);
/// How many values count. Without any, the thread sleeps, because benches count the wake-ups of a process.
static COUNTING: AtomicUsize = AtomicUsize::new(0);

/// The time in which this process was kept from running, from a moment on.
#[derive(Debug)]
pub struct Stalls {
    before: Duration,
}

impl Stalls {
    /// Begins to count.
    pub fn from_now() -> Self {
        static THREAD: OnceLock<Thread> = OnceLock::new();
        let thread = THREAD.get_or_init(|| thread::spawn(measure).thread().clone());
        if COUNTING.fetch_add(1, Ordering::AcqRel) == 0 {
            thread.unpark();
        }
        Self { before: total() }
    }

    /// Returns the time so far.
    pub fn so_far(&self) -> Duration {
        total().saturating_sub(self.before)
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        COUNTING.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Measures a time that has an upper bound.
///
/// The bound is longer by [`stalled`](Self::stalled).
#[derive(Debug)]
pub struct Stopwatch {
    begun: Instant,
    stalls: Stalls,
}

impl Stopwatch {
    /// Begins to measure.
    pub fn start() -> Self {
        Self {
            begun: Instant::now(),
            stalls: Stalls::from_now(),
        }
    }

    /// Returns the time since the start.
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Returns for how long this process was kept from running since the start. Blocks for two ticks, in which the
    /// thread that measures adds the last one.
    pub fn stalled(&self) -> Duration {
        thread::sleep(TICK * 2);
        self.stalls.so_far()
    }
}

fn total() -> Duration {
    Duration::from_micros(TOTAL.load(Ordering::Relaxed))
}

fn measure() {
    loop {
        if COUNTING.load(Ordering::Acquire) == 0 {
            thread::park();
            continue;
        }
        let begun = Instant::now();
        thread::sleep(TICK);
        let late = begun.elapsed().saturating_sub(TICK);
        if late > EXACTNESS {
            let late = u64::try_from(late.as_micros()).unwrap_or(u64::MAX);
            TOTAL.fetch_add(late, Ordering::Relaxed);
        }
    }
}
