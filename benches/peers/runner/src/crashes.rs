//! The rows in which a process is killed.

use std::thread;
use std::time::{Duration, SystemTime};

use test_support::RedisServer;

use crate::program::{Program, Running, Start};
use crate::results::Failure;

/// The lease of the lock whose holder is killed.
const SHORT_TTL: Duration = Duration::from_secs(2);

/// The lease of the other locks: no lease ends during the measurement.
const LONG_TTL: Duration = Duration::from_secs(60);

/// The longest wait of a waiter.
const WAIT: Duration = Duration::from_secs(20);

/// The time from the event `waiting` until the server has the request of the waiter.
const ARRIVAL: Duration = Duration::from_millis(200);

/// Kills the waiter at the head of the queue, and lets the holder release. Returns the time from the
/// release until the next waiter has the lock, in milliseconds.
pub(crate) fn killed_waiter(
    server: &RedisServer,
    program: &Program,
    key: &str,
    round: usize,
) -> Result<Vec<f64>, Failure> {
    let run = |scenario| run(server, program, key, scenario, LONG_TTL);
    let holder = run("hold");
    holder.event("acquired")?;
    let killed = waiter(&run, round)?;
    let next = waiter(&run, round)?;
    killed.kill();
    holder.release();
    let released = holder.event("releasing")?;
    let acquired = next.event("acquired")?;
    Ok(vec![(acquired - released) / 1e3])
}

/// Kills the holder. Returns the times until the next waiter has the lock, in milliseconds: from the
/// end of the dead holder's lease, and from the kill.
pub(crate) fn killed_holder(
    server: &RedisServer,
    program: &Program,
    key: &str,
    round: usize,
) -> Result<Vec<f64>, Failure> {
    let run = |scenario| run(server, program, key, scenario, SHORT_TTL);
    let holder = run("hold");
    holder.event("acquired")?;
    let next = waiter(&run, round)?;
    let lease = lease_left(server);
    let killed = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    if next.has_event("acquired") {
        return Err(Failure::Failed(
            "the lease ended before the kill".to_owned(),
        ));
    }
    holder.kill();
    let acquired = next.event("acquired")?;
    let from_kill = acquired / 1e3 - killed.as_secs_f64() * 1e3;
    Ok(vec![from_kill - lease.as_secs_f64() * 1e3, from_kill])
}

/// Returns a pause of less than 200 ms that differs between rounds. A library that polls would
/// otherwise always be at the same point of its interval.
fn phase(round: usize) -> Duration {
    let millis = round * 61 % 200;
    Duration::from_millis(u64::try_from(millis).unwrap_or_default())
}

fn run(
    server: &RedisServer,
    program: &Program,
    key: &str,
    scenario: &'static str,
    ttl: Duration,
) -> Running {
    let url = server.url();
    let start = Start {
        scenario,
        url: &url,
        key,
        ttl,
        wait: WAIT,
        flags: Vec::new(),
        core: None,
    };
    program.start(&start)
}

/// Starts a waiter. Returns when its request has arrived at the server.
fn waiter(run: &impl Fn(&'static str) -> Running, round: usize) -> Result<Running, Failure> {
    let waiter = run("wait");
    waiter.event("waiting")?;
    thread::sleep(ARRIVAL + phase(round));
    Ok(waiter)
}

/// Returns the rest of the lease. The key of the lock is the one that lives longest, but not longer
/// than its ttl: libraries name their keys differently, and other keys live longer.
fn lease_left(server: &RedisServer) -> Duration {
    let keys = server.cli(&["KEYS", "*"]);
    let left = keys.array().iter().filter_map(|key| {
        let left = server.cli(&["PTTL", key.text()]).integer();
        u64::try_from(left).ok().map(Duration::from_millis)
    });
    left.filter(|left| *left <= SHORT_TTL)
        .max()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::phase;

    #[test]
    fn phases_are_spread_over_the_usual_intervals() {
        for interval in [50, 100, 200] {
            let mut phases: Vec<_> = (0..5)
                .map(|round| phase(round).as_millis() % interval)
                .collect();
            phases.sort_unstable();
            phases.dedup();
            assert!(
                phases.len() == 5 && phases[4] - phases[0] > interval / 2,
                "{phases:?}"
            );
        }
    }
}
