//! The clock of all records: the machine's boot clock, which all processes share. It is also the
//! clock of a recorder on a server, see [`lock_testing::RecordClock::Lease`].

use lock_testing::Nanos;
use rustix::time::ClockId;

/// Returns the current moment on the clock of all records.
pub fn now() -> Nanos {
    let now = rustix::time::clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).expect("the machine was booted");
    let nanos = u64::try_from(now.tv_nsec).expect("a part of a second");
    seconds * 1_000_000_000 + nanos
}
