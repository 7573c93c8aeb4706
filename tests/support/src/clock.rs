//! A server's wall clock that the test controls.

use std::ffi::OsString;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::page::SharedPage;
use crate::preload::Shim;

const FROZEN: u64 = 1;
const RUNNING: u64 = 2;

/// A clock that stands still until the test moves it forward or backward.
///
/// With [`ServerOptions::clock`](crate::ServerOptions::clock) the server uses it as the time of
/// day: for TIME and for expiry, but not for the event loop. Several servers may share one clock.
/// Linux only, because the library must be preloaded into the server.
#[derive(Debug)]
pub struct FrozenClock {
    page: SharedPage,
    micros: Mutex<u64>,
}

impl FrozenClock {
    /// Creates a clock that stands at this many microseconds since 1970.
    ///
    /// # Panics
    ///
    /// Panics if there is no C compiler to build the shim.
    #[track_caller]
    pub fn at(micros: u64) -> Self {
        // Built here, so that a failure is reported by the test and not by the server.
        shim();
        let clock = Self {
            page: SharedPage::new(),
            micros: Mutex::new(0),
        };
        clock.set(micros);
        clock
    }

    /// Returns the current time of the clock, in microseconds since 1970.
    pub fn micros(&self) -> u64 {
        *self.micros.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the clock to this many microseconds since 1970, earlier or later. Commands that are
    /// sent after this call see the new time.
    pub fn set(&self, micros: u64) {
        let mut current = self.micros.lock().unwrap_or_else(PoisonError::into_inner);
        *current = micros;
        self.write(FROZEN, micros);
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.set(self.micros() + micros_of(by));
    }

    /// Moves the clock backward.
    ///
    /// # Panics
    ///
    /// Panics if the result is before 1970.
    #[track_caller]
    pub fn rewind(&self, by: Duration) {
        let target = self.micros().checked_sub(micros_of(by));
        self.set(target.expect("no server supports a time before 1970"));
    }

    /// Lets the clock run: from now on it is the machine's clock, ahead by this many microseconds,
    /// or behind if negative. A later [`set`](Self::set) freezes it again.
    pub fn run_ahead_by(&self, micros: i64) {
        let _current = self.micros.lock().unwrap_or_else(PoisonError::into_inner);
        self.write(RUNNING, micros.cast_unsigned());
    }

    /// Returns the environment variables that the server needs.
    pub(crate) fn environment(&self) -> [(OsString, OsString); 2] {
        let page = ("LOCK_TEST_CLOCK".into(), self.page.path());
        [shim().preload(), page]
    }

    fn write(&self, mode: u64, value: u64) {
        self.page.write([mode, value, mode ^ !value]);
    }
}

fn micros_of(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("the duration fits in 64 bits")
}

/// Returns the shim, which is built at the first use.
#[track_caller]
fn shim() -> &'static Shim {
    static SHIM: OnceLock<Shim> = OnceLock::new();
    SHIM.get_or_init(|| {
        Shim::build(concat!(
            include_str!("../shim/page.h"),
            include_str!("../shim/clock.c")
        ))
    })
}
