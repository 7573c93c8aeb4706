//! Clocks of this process, moments on them, and moments on a server's clock.

use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

/// A moment on one [`Clock`], in nanoseconds since an origin that only that clock knows.
///
/// All arithmetic saturates, so a deadline far in the future means "never" and does not panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(
    // One more than the nanoseconds, so that an `Option` of a moment is no larger: each waiter has several.
    NonZeroU64,
);

impl Moment {
    pub const fn from_millis(ms: u64) -> Self {
        Self::from_nanos(ms * 1_000_000)
    }

    pub const fn from_nanos(nanos: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(nanos))
    }

    pub const fn as_nanos(self) -> u64 {
        self.0.get() - 1
    }

    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos(span)))
    }

    pub fn minus(self, span: Duration) -> Self {
        Self::from_nanos(self.as_nanos().saturating_sub(nanos(span)))
    }

    /// Adds a signed number of microseconds, which is the unit of server times.
    pub(crate) fn shifted_us(self, us: i64) -> Self {
        let span = Duration::from_micros(us.unsigned_abs());
        if us < 0 {
            self.minus(span)
        } else {
            self.plus(span)
        }
    }

    /// How long after `earlier` this moment is. Zero when it is not after `earlier`.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.get().saturating_sub(earlier.0.get()))
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// A moment on a server's clock, in milliseconds since the epoch.
///
/// All arithmetic saturates, because a key may hold any number that another client wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerMs(u64);

impl ServerMs {
    pub const LAST: Self = Self(u64::MAX);

    pub const fn new(ms: u64) -> Self {
        Self(ms)
    }

    pub const fn from_micros(us: u64) -> Self {
        Self(us / 1000)
    }

    pub const fn as_u64(self) -> u64 {
        self.0
    }

    pub const fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// How many milliseconds after `earlier` this moment is. Zero when it is not after `earlier`.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for ServerMs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The clock by which a store counts its leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The machine's clock. On Linux and Android it is `CLOCK_BOOTTIME`, which continues while the
    /// machine is suspended. The server's clock continues too, so the lease may end meanwhile.
    System,
    /// tokio's clock, which tests may pause and advance.
    Tokio,
}

impl Clock {
    pub fn now(self) -> Moment {
        match self {
            Self::System => system_now(),
            Self::Tokio => Moment::from_nanos(nanos(
                tokio::time::Instant::now().duration_since(tokio_origin()),
            )),
        }
    }
}

/// The moment by which an operation has to end.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    clock: Clock,
    at: Moment,
}

impl Deadline {
    pub fn after(clock: Clock, limit: Duration) -> Self {
        Self::at(clock, clock.now().plus(limit))
    }

    /// The deadline at a moment on this clock.
    pub const fn at(clock: Clock, at: Moment) -> Self {
        Self { clock, at }
    }

    pub fn left(self) -> Duration {
        self.left_at(self.clock.now())
    }

    /// As [`left`](Self::left), at a time that the caller has just read.
    pub fn left_at(self, now: Moment) -> Duration {
        self.at.since(now)
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn system_now() -> Moment {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    Moment::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn system_now() -> Moment {
    static ORIGIN: std::sync::LazyLock<std::time::Instant> =
        std::sync::LazyLock::new(std::time::Instant::now);
    Moment::from_nanos(nanos(ORIGIN.elapsed()))
}

/// The origin of all moments on tokio's clock. One origin serves every runtime, because a paused
/// clock starts at the real time of the pause. A moment before the origin reads as the origin.
fn tokio_origin() -> tokio::time::Instant {
    static ORIGIN: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(|| {
        // A runtime may have paused its clock before this line runs.
        let now = std::time::Instant::now();
        now.checked_sub(Duration::from_secs(3600)).unwrap_or(now)
    });
    tokio::time::Instant::from_std(*ORIGIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moment_arithmetic_saturates() {
        let moment = Moment::from_millis(5);
        assert_eq!(
            moment.plus(Duration::MAX).plus(Duration::MAX),
            Moment::from_nanos(u64::MAX)
        );
        assert_eq!(moment.minus(Duration::MAX), Moment::from_nanos(0));
        assert_eq!(moment.since(Moment::from_millis(9)), Duration::ZERO);
        assert_eq!(moment.shifted_us(-2_000), Moment::from_millis(3));
        assert_eq!(moment.shifted_us(i64::MIN), Moment::from_nanos(0));
        assert_eq!(ServerMs::LAST.plus(1), ServerMs::LAST);
        assert_eq!(ServerMs::new(1).since(ServerMs::LAST), 0);
        assert_eq!(ServerMs::from_micros(5_999), ServerMs::new(5));
    }

    #[test]
    fn system_clock_moves_forward() {
        let before = Clock::System.now();
        std::thread::sleep(Duration::from_millis(2));
        assert!(Clock::System.now().since(before) >= Duration::from_millis(2));
    }

    #[tokio::test(start_paused = true)]
    async fn tokio_clock_can_be_paused() {
        let before = Clock::Tokio.now();
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(Clock::Tokio.now().since(before), Duration::from_secs(7));
    }
}
