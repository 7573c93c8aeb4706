//! What the kernel knows of a process.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::figures::percent;

/// Returns the processor time of this process until now, with that of its ended threads.
#[must_use]
pub fn own_processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}

/// Returns the processor time of all threads of another process that are running.
///
/// # Panics
///
/// Panics if the process is gone, or if this is not Linux.
#[must_use]
pub fn processor_time_of(pid: u32) -> Duration {
    let nanos = threads(pid).filter_map(|thread| {
        let stat = fs::read_to_string(thread.join("schedstat")).ok()?;
        stat.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}

/// Returns how often the threads of a process went to sleep, without the calling thread.
///
/// # Panics
///
/// Panics if the process is gone, or if this is not Linux.
#[must_use]
pub fn sleeps(pid: u32) -> u64 {
    let this_thread = fs::read_link("/proc/thread-self").expect("this is Linux");
    threads(pid)
        .filter(|thread| thread.file_name() != this_thread.file_name())
        .filter_map(|thread| number(thread.join("status"), "voluntary_ctxt_switches:"))
        .sum()
}

/// Returns the resident memory of a process in bytes.
///
/// # Panics
///
/// Panics if the process is gone, or if this is not Linux.
#[must_use]
pub fn resident_bytes(pid: u32) -> u64 {
    let kib = number(PathBuf::from(format!("/proc/{pid}/status")), "VmRSS:");
    kib.expect("the process runs") * 1024
}

fn threads(pid: u32) -> impl Iterator<Item = PathBuf> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("the process runs");
    threads.filter_map(|thread| Some(thread.ok()?.path()))
}

fn number(file: PathBuf, field: &str) -> Option<u64> {
    let status = fs::read_to_string(file).ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(field))?;
    value.trim().trim_end_matches(" kB").parse().ok()
}

/// Measures the processor time of this process and of a server.
#[derive(Debug)]
pub struct Processors {
    server: u32,
    started: Instant,
    before: [Duration; 2],
}

/// Processor time, and the time in which it was used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// The time that passed.
    pub elapsed: Duration,
    /// The processor time of this process.
    pub client: Duration,
    /// The processor time of the server.
    pub server: Duration,
}

impl Processors {
    /// Begins a measurement.
    ///
    /// # Panics
    ///
    /// Panics if the server is gone, or if this is not Linux.
    #[must_use]
    pub fn start(server: u32) -> Self {
        Self {
            server,
            before: [own_processor_time(), processor_time_of(server)],
            started: Instant::now(),
        }
    }

    /// Ends the measurement.
    ///
    /// # Panics
    ///
    /// Panics if the server is gone.
    #[must_use]
    pub fn stop(&self) -> Usage {
        let elapsed = self.started.elapsed();
        let [client, server] = self.before;
        Usage {
            elapsed,
            client: own_processor_time().saturating_sub(client),
            server: processor_time_of(self.server).saturating_sub(server),
        }
    }
}

impl Usage {
    /// Adds another measurement.
    pub fn add(&mut self, other: Usage) {
        self.elapsed += other.elapsed;
        self.client += other.client;
        self.server += other.server;
    }

    /// Returns the client's processor time in percent of one core.
    #[must_use]
    pub fn client_percent(&self) -> f64 {
        percent(self.client, self.elapsed)
    }

    /// Returns the server's processor time in percent of one core.
    #[must_use]
    pub fn server_percent(&self) -> f64 {
        percent(self.server, self.elapsed)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{own_processor_time, processor_time_of, resident_bytes, sleeps};

    #[test]
    fn processor_time_grows_with_work() {
        let times = || [own_processor_time(), processor_time_of(std::process::id())];
        let before = times();
        let started = Instant::now();
        // The kernel updates the counter of a running thread at its next tick.
        while times()
            .iter()
            .zip(&before)
            .any(|(now, before)| now == before)
        {
            assert!(started.elapsed() < Duration::from_secs(10));
        }
    }

    #[test]
    fn a_thread_that_waits_is_counted_as_asleep() {
        let pid = std::process::id();
        let before = sleeps(pid);
        let sleeper = std::thread::spawn(|| {
            for _ in 0..5 {
                std::thread::sleep(Duration::from_millis(1));
            }
            let (done, wait) = std::sync::mpsc::channel::<()>();
            drop(wait);
            done
        });
        let started = Instant::now();
        while sleeps(pid) < before + 5 && !sleeper.is_finished() {
            assert!(started.elapsed() < Duration::from_secs(10));
            std::thread::yield_now();
        }
        drop(sleeper.join());
    }

    #[test]
    fn resident_memory_is_more_than_nothing() {
        assert!(resident_bytes(std::process::id()) > 100_000);
    }
}
