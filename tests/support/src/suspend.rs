//! A suspended machine, as one process sees it.

use crate::page::SharedPage;
use crate::preload::Shim;
use crate::process::Helper;

/// Makes a process see its machine as suspended for some time. Linux only.
#[derive(Debug)]
pub struct SuspendedMachine {
    page: SharedPage,
    shim: Shim,
}

impl SuspendedMachine {
    /// Creates a machine that was not suspended yet.
    ///
    /// # Panics
    ///
    /// Panics if there is no C compiler to build the shim.
    #[track_caller]
    pub fn new() -> Self {
        let shim = Shim::build(concat!(
            include_str!("../shim/page.h"),
            include_str!("../shim/suspend.c")
        ));
        let page = SharedPage::new();
        let machine = Self { page, shim };
        machine.suspend_for(0);
        machine
    }

    /// Sets for how many seconds the processes on this machine see it as suspended.
    pub fn suspend_for(&self, seconds: u64) {
        self.page.write([seconds, !seconds]);
    }

    /// Puts a process on this machine.
    #[must_use]
    pub fn run(&self, helper: Helper) -> Helper {
        helper
            .preload(&self.shim)
            .env("LOCK_TEST_SUSPENDED", self.page.path())
    }
}

impl Default for SuspendedMachine {
    fn default() -> Self {
        Self::new()
    }
}
