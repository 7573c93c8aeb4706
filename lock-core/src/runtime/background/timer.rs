//! Sleeps until a moment of the worker's clock.
//!
//! The clock of leases continues while the machine is suspended, and tokio's timers stand still. On Linux
//! a timer of that clock wakes the thread, exactly when it is needed. Elsewhere the thread looks at the
//! clock a few times a second.

use std::time::Duration;

use lock_protocol::clock::{Clock, Moment};

/// Without a timer that counts suspension, a wakeup this often notices it.
const LONGEST_SLEEP: Duration = Duration::from_millis(200);

pub(super) struct Timer {
    clock: Clock,
    #[cfg(all(feature = "redis", any(target_os = "linux", target_os = "android")))]
    boottime: Option<boottime::BoottimeTimer>,
}

impl Timer {
    /// Creates a timer for the current runtime.
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            clock,
            #[cfg(all(feature = "redis", any(target_os = "linux", target_os = "android")))]
            boottime: match clock {
                Clock::System => boottime::BoottimeTimer::new().ok(),
                Clock::Tokio => None,
            },
        }
    }

    pub(super) async fn sleep_until(&self, at: Moment) {
        #[cfg(all(feature = "redis", any(target_os = "linux", target_os = "android")))]
        if let Some(timer) = &self.boottime
            && timer.sleep_until(at).await.is_ok()
        {
            return;
        }
        self.sleep_in_parts(at).await;
    }

    async fn sleep_in_parts(&self, at: Moment) {
        loop {
            let left = at.since(self.clock.now());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(LONGEST_SLEEP)).await;
        }
    }
}

#[cfg(all(feature = "redis", any(target_os = "linux", target_os = "android")))]
mod boottime {
    use std::io;
    use std::os::fd::OwnedFd;

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    use lock_protocol::clock::Moment;

    /// A timer of `CLOCK_BOOTTIME`, which [`Clock::System`](lock_protocol::clock::Clock) reads.
    pub(super) struct BoottimeTimer(AsyncFd<OwnedFd>);

    impl BoottimeTimer {
        #[expect(
            deprecated,
            reason = "the replacement is unsafe; an `OwnedFd` that nothing else uses is safe"
        )]
        pub(super) fn new() -> io::Result<Self> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let fd = timerfd_create(TimerfdClockId::Boottime, flags)?;
            Ok(Self(AsyncFd::with_interest(fd, Interest::READABLE)?))
        }

        pub(super) async fn sleep_until(&self, at: Moment) -> io::Result<()> {
            const NANOS: u64 = 1_000_000_000;
            // Zero would disarm the timer.
            let nanos = at.as_nanos().max(1);
            let expiry = Itimerspec {
                it_interval: Timespec {
                    tv_sec: 0,
                    tv_nsec: 0,
                },
                it_value: Timespec {
                    tv_sec: i64::try_from(nanos / NANOS).unwrap_or(i64::MAX),
                    tv_nsec: i64::try_from(nanos % NANOS).unwrap_or(0),
                },
            };
            timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &expiry)?;
            let expirations = |fd: &OwnedFd| Ok(rustix::io::read(fd, &mut [0; 8])?);
            self.0.async_io(Interest::READABLE, expirations).await?;
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn sleep_ends_at_the_moment() {
        let timer = Timer::new(Clock::System);
        for ms in [20, 1, 0] {
            let at = Clock::System.now().plus(Duration::from_millis(ms));
            // An earlier sleep that was dropped leaves nothing behind.
            let dropped = timer.sleep_until(at.minus(Duration::from_millis(5)));
            let _elapsed = tokio::time::timeout(Duration::ZERO, dropped).await;
            timer.sleep_until(at).await;
            assert!(Clock::System.now() >= at);
        }
        let at = Clock::System.now().plus(Duration::from_millis(20));
        timer.sleep_in_parts(at).await;
        assert!(Clock::System.now() >= at);
        timer.sleep_until(Moment::from_nanos(0)).await;
    }
}
