//! A race in which processes of both sides are killed and stopped at any moment.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use test_support::{Helper, Random, RedisServer};

use super::Options;
use super::table::ms;
use crate::clients::{ClientKind, ClientProcess, GuardedCounter, Section};
use crate::dialects::REDISSON;

/// The lease of all locks: how long a killed holder keeps the others waiting.
const TTL: Duration = Duration::from_secs(2);

/// Between the end of a lease and the next section, on a busy machine.
const SLACK: Duration = Duration::from_secs(1);

/// The longest stop: shorter than the lease, so that no holder loses its lock.
const LONGEST_STOP_MS: u64 = 1_200;

/// The number of processes of lock-core. There is one of each version of Redisson.
const OURS: usize = 3;

/// The kinds of faults.
#[derive(Clone, Copy, Debug)]
pub(super) struct Storm {
    pub(super) name: &'static str,
    scheme: &'static str,
    time: Duration,
    /// Whether processes are stopped too, and subscriptions cut.
    is_mixed: bool,
}

impl Storm {
    /// Returns the storms of a scheme.
    pub(super) fn all(scheme: &'static str, full: bool) -> Vec<Self> {
        let time = Duration::from_secs(if full { 60 } else { 20 });
        let kills = Self {
            name: "kill -9 at any moment, leases of 2 s",
            scheme,
            time,
            is_mixed: false,
        };
        let mixed = Self {
            name: "kill -9, SIGSTOP of at most 1.2 s, subscriptions cut, leases of 2 s",
            is_mixed: true,
            ..kills
        };
        // The quick run has one storm.
        if full && scheme != REDISSON {
            vec![kills, mixed]
        } else {
            vec![kills]
        }
    }

    /// Runs the storm with all versions of Redisson, and describes its result.
    ///
    /// # Errors
    /// Fails if an update is lost, a process fails, or the counter stands still for too long.
    pub(super) fn run(&self, options: &Options, clients: &[&str]) -> Result<String, String> {
        let server = [RedisServer::start()];
        let counter = GuardedCounter::new(&server, "orders").ttl(TTL);
        let mut kinds = Vec::new();
        for client in clients {
            let program = Helper::new(options.programs.join(client));
            kinds.push((
                false,
                ClientKind::new(client, program.env("SCHEME", self.scheme)),
            ));
        }
        for _ in 0..OURS {
            let program = Helper::new(options.ours.join("interop-worker"));
            kinds.push((
                true,
                ClientKind::new("lock-core", program.env("DIALECT", self.scheme)),
            ));
        }
        // The line is in the pipe before the process reads it.
        let start = |number: usize| {
            let process = counter.start(&kinds[number].1, number);
            process.go();
            process
        };
        let mut running: Vec<ClientProcess> = (0..kinds.len()).map(start).collect();
        for process in &running {
            process.ready()?;
        }
        let mut result = StormResult::default();
        let mut random = Random::new(u64::from(std::process::id()));
        let began = Instant::now();
        while began.elapsed() < self.time {
            thread::sleep(random.millis(500, 1500));
            let number = random.below(running.len());
            let kind = if self.is_mixed { random.below(4) } else { 3 };
            match kind {
                0 => {
                    running[number].freeze();
                    thread::sleep(random.millis(100, LONGEST_STOP_MS));
                    running[number].thaw();
                    result.stops += 1;
                    continue;
                }
                1 => {
                    server[0].cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
                    result.cuts += 1;
                    continue;
                }
                _ => {}
            }
            if running[number].has_ended() {
                running[number].done()?;
                return Err(format!("{} ended by itself", running[number].name()));
            }
            running[number].kill();
            result.killed[usize::from(kinds[number].0)] += 1;
            let killed = std::mem::replace(&mut running[number], start(number));
            result.sections.extend(killed.written());
        }
        for process in &running {
            process.stop();
        }
        for process in &running {
            process.done()?;
            result.sections.extend(process.written());
        }
        result.check(counter.count()?)?;
        Ok(result.describe())
    }
}

/// What the processes printed.
#[derive(Debug, Default)]
struct StormResult {
    sections: Vec<Section>,
    /// The killed processes of Redisson and of lock-core.
    killed: [usize; 2],
    stops: usize,
    cuts: usize,
}

impl StormResult {
    /// Compares the numbers that the processes wrote with the final counter.
    fn check(&self, counter: u64) -> Result<(), String> {
        let written: BTreeSet<u64> = self.sections.iter().map(|section| section.count).collect();
        let lost = self.sections.len() - written.len();
        if lost > 0 {
            return Err(format!("{lost} numbers were written twice"));
        }
        let highest = written.last().copied().unwrap_or(0);
        let kills = self.killed.iter().sum::<usize>() as u64;
        // A process that is killed between its write and its line leaves a gap.
        let gaps = counter.saturating_sub(written.len() as u64);
        if counter < highest || gaps > kills {
            return Err(format!(
                "the counter is {counter} after {} sections, of which one wrote {highest}, and \
                 {kills} kills",
                written.len()
            ));
        }
        let pause = self.longest_pause();
        if pause > TTL + SLACK {
            return Err(format!("the longest pause is {}", ms(pause)));
        }
        Ok(())
    }

    fn longest_pause(&self) -> Duration {
        let mut ends: Vec<u64> = self.sections.iter().map(|section| section.ended).collect();
        ends.sort_unstable();
        let pauses = ends.windows(2).map(|pair| pair[1] - pair[0]);
        Duration::from_micros(pauses.max().unwrap_or(0))
    }

    fn describe(&self) -> String {
        let [theirs, ours] = self.killed;
        let others = match (self.stops, self.cuts) {
            (0, 0) => String::new(),
            (stops, cuts) => format!(", {stops} stopped, all subscriptions cut {cuts} times"),
        };
        format!(
            "{} sections, {theirs} processes of Redisson and {ours} of ours killed{others}: 0 \
             updates lost, longest pause {}",
            self.sections.len(),
            ms(self.longest_pause())
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(sections: &[(u64, u64)], kills: usize) -> StormResult {
        let section = |&(count, millis): &(u64, u64)| Section {
            count,
            ended: millis * 1000,
        };
        StormResult {
            sections: sections.iter().map(section).collect(),
            killed: [kills, 0],
            stops: 0,
            cuts: 0,
        }
    }

    #[test]
    fn number_that_is_written_twice_is_a_lost_update() {
        let fault = result(&[(1, 1), (2, 2), (2, 3)], 1).check(2).unwrap_err();
        assert!(fault.contains("twice"), "{fault}");
    }

    #[test]
    fn each_kill_may_hide_one_number() {
        let sections = [(1, 1), (3, 3)];
        assert_eq!(result(&sections, 1).check(3), Ok(()));
        assert_eq!(result(&sections, 2).check(4), Ok(()));
        assert!(result(&sections, 0).check(3).is_err());
        assert!(result(&sections, 1).check(4).is_err());
        assert!(result(&sections, 9).check(2).is_err());
    }

    #[test]
    fn pause_longer_than_a_lease_is_a_fault() {
        let sections = [(2, 4_000), (1, 1)];
        let result = result(&sections, 0);
        assert_eq!(result.longest_pause(), Duration::from_millis(3_999));
        assert!(result.check(2).is_err());
    }
}
