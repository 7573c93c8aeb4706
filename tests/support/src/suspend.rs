//! A suspended machine, as one process sees it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::janitor::Scratch;
use crate::preload::Shim;
use crate::process::Helper;

/// Makes a process see its machine as suspended for some time. Linux only.
#[derive(Debug)]
pub struct SuspendedMachine {
    page: File,
    path: PathBuf,
    shim: Shim,
    // The processes keep their mapping of the page.
    _directory: Scratch,
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
        let directory = Scratch::new();
        let path = directory.path().join("suspended");
        let page = File::create_new(&path).expect("the scratch directory is new");
        page.set_len(4096)
            .expect("the scratch directory is writable");
        let machine = Self {
            page,
            path,
            shim,
            _directory: directory,
        };
        machine.suspend_for(0);
        machine
    }

    /// Sets for how many seconds the processes on this machine see it as suspended.
    pub fn suspend_for(&self, seconds: u64) {
        let words = [seconds, !seconds];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.page
            .write_all_at(&bytes, 0)
            .expect("the page exists at its full size");
    }

    /// Puts a process on this machine.
    #[must_use]
    pub fn run(&self, helper: Helper) -> Helper {
        helper
            .preload(&self.shim)
            .env("LOCK_TEST_SUSPENDED", self.path.as_os_str())
    }
}

impl Default for SuspendedMachine {
    fn default() -> Self {
        Self::new()
    }
}
