//! Ports that stay reserved while a server is down.

use std::fs::{self, File};
use std::net::TcpListener;

use crate::janitor;

/// Below every system's range for outgoing connections (Linux starts at 32768). Another client's
/// socket could take a port in that range while the server restarts. A client that reconnects in a
/// loop over loopback can even connect to itself. The ports ten thousand higher, which cluster
/// nodes use between each other, are outside of both ranges too.
const FIRST: u16 = 11_000;
const COUNT: u16 = 10_000;
/// The first and the last port that cluster nodes use between each other.
pub(crate) const BUS: (u16, u16) = (FIRST + 10_000, FIRST + 10_000 + COUNT - 1);

/// A port of 127.0.0.1 that no other test process on this machine chooses until this value is
/// dropped.
///
/// The reservation is a lock on a file and not a bound socket, because the server has to bind the
/// port. The kernel drops the lock when the process ends. Programs outside of these tests can still
/// take the port, so the code that starts a server must handle that.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    _reservation: File,
}

impl Port {
    pub(crate) fn reserve() -> Self {
        // Per user, because a process cannot open another user's file for writing.
        let user = rustix::process::getuid().as_raw();
        let directory = std::env::temp_dir().join(format!("lock-tests-ports-{user}"));
        fs::create_dir_all(&directory)
            .unwrap_or_else(|e| panic!("cannot create {}: {e}", directory.display()));

        let start = janitor::random() % u64::from(COUNT);
        let start = u16::try_from(start).expect("the number is less than COUNT");
        for step in 0..COUNT {
            let number = FIRST + (start + step) % COUNT;
            let path = directory.join(number.to_string());
            let file = File::options()
                .create(true)
                .write(true)
                .truncate(false)
                .open(&path)
                .unwrap_or_else(|e| panic!("cannot open {}: {e}", path.display()));
            if file.try_lock().is_ok() && TcpListener::bind(("127.0.0.1", number)).is_ok() {
                return Self {
                    number,
                    _reservation: file,
                };
            }
        }
        panic!("no free port from {FIRST} to {}", FIRST + COUNT - 1);
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}
