//! Ports that stay reserved while a server is down.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::janitor;

/// Below every system's range for outgoing connections (Linux starts at 32768). Another client's
/// socket could take a port in that range while the server restarts. A client that reconnects in a
/// loop over loopback can even connect to itself. The ports ten thousand higher, which cluster
/// nodes use between each other, are outside of both ranges too.
const FIRST: u16 = 11_000;
const COUNT: u16 = 10_000;
/// The first and the last port that cluster nodes use between each other.
pub(crate) const BUS: (u16, u16) = (FIRST + 10_000, FIRST + 10_000 + COUNT - 1);

/// How long a port rests after its use. A manager that a finished test has left behind repeats its releases at its
/// server's address until the leases end, and another test's server would receive them.
const REST: Duration = Duration::from_secs(120);

/// A port of 127.0.0.1 that no other test process on this machine chooses until this value is
/// dropped, and has rested.
///
/// The reservation is a lock on a file and not a bound socket, because the server has to bind the
/// port. The kernel drops the lock when the process ends. Programs outside of these tests can still
/// take the port, so the code that starts a server must handle that.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    /// Modified whenever the port is used, so that its age tells how long the port has rested.
    reservation: File,
}

impl Drop for Port {
    fn drop(&mut self) {
        let _ = self.reservation.set_modified(SystemTime::now());
    }
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
        let numbers = || (0..COUNT).map(|step| FIRST + (start + step) % COUNT);
        let path = |number: u16| directory.join(number.to_string());
        let rested = numbers().filter(|number| has_rested(&path(*number)));
        let port = rested
            .chain(numbers())
            .find_map(|number| Self::at(number, &path(number)));
        port.unwrap_or_else(|| panic!("no free port from {FIRST} to {}", FIRST + COUNT - 1))
    }

    fn at(number: u16, path: &Path) -> Option<Self> {
        let reservation = File::options()
            .create(true)
            .write(true)
            .truncate(false)
            .open(path)
            .unwrap_or_else(|e| panic!("cannot open {}: {e}", path.display()));
        let is_free =
            reservation.try_lock().is_ok() && TcpListener::bind(("127.0.0.1", number)).is_ok();
        // Also for a process that is killed.
        let _ = reservation.set_modified(SystemTime::now());
        is_free.then_some(Self {
            number,
            reservation,
        })
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}

/// Returns whether a port was not used for some time.
fn has_rested(path: &Path) -> bool {
    let used = fs::metadata(path).and_then(|metadata| metadata.modified());
    used.is_ok_and(|used| used.elapsed().is_ok_and(|ago| ago > REST)) || !path.exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_rests_after_its_use() {
        let path = std::env::temp_dir().join(format!("port-{}", janitor::random()));
        assert!(has_rested(&path));
        // No program listens there.
        drop(Port::at(FIRST - 1, &path).expect("the port is free"));
        assert!(!has_rested(&path));
        let long_ago = SystemTime::now() - 2 * REST;
        let file = File::options().write(true).open(&path).unwrap();
        file.set_modified(long_ago).unwrap();
        assert!(has_rested(&path));
        fs::remove_file(&path).unwrap();
    }
}
