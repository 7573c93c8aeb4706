//! The rows that one program measures alone.

use std::process;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use test_support::monitor::{Command, Recording};
use test_support::{Connection, Proxy, RedisServer};

use crate::crashes;
use crate::figures::Row;
use crate::program::{Program, Start};
use crate::results::Failure;
use crate::stats::{median, percentile, ratio};

/// Long compared with every section: no lock is lost, and no library renews within a section.
const TTL: Duration = Duration::from_secs(30);

/// The longest wait of `contended`, `handoff` and `commands`.
const WAIT: Duration = Duration::from_secs(60);

/// What the proxy adds to each round trip. It hides how the scheduler places processes on cores.
const ADDED: Duration = Duration::from_millis(1);

/// In the rows `handoff` and `commands` all tasks arrive while the first one holds the lock.
const LONG_HOLD: Duration = Duration::from_millis(5);

/// Commands that set up a connection or a server. A client sends them once, and not for a section.
const SETUP: [&str; 14] = [
    "AUTH", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "ECHO", "FUNCTION", "HELLO", "INFO", "PING",
    "QUIT", "ROLE", "SCRIPT", "SELECT",
];

/// The environment of all measurements.
pub(crate) struct Bench {
    pub(crate) server: RedisServer,
    proxy: Proxy,
    /// The core for the row `pair`, and the list of all cores.
    cores: Option<(String, String)>,
    is_quick: bool,
}

impl Bench {
    pub(crate) fn start(is_quick: bool) -> Self {
        let server = RedisServer::start();
        let proxy = Proxy::in_front_of(&server);
        proxy.delay_round_trip(ADDED);
        let cores = cores().filter(|_| has_taskset());
        Self {
            server,
            proxy,
            cores,
            is_quick,
        }
    }

    pub(crate) fn is_pinned(&self) -> bool {
        self.cores.is_some()
    }

    /// Measures one row of one program. Returns a value for each figure of the row.
    pub(crate) fn measure(
        &self,
        program: &Program,
        row: Row,
        round: usize,
    ) -> Result<Vec<f64>, Failure> {
        self.server.cli(&["FLUSHALL"]);
        // No colon: one library does not allow it.
        let key = format!("{}-{}-{round}", program.name, row.name());
        match row {
            Row::Pair => self.pair(program, &key),
            Row::Contended => self.contended(program, &key),
            Row::Handoff(tasks) => self.handoff(program, &key, tasks),
            Row::Commands(tasks) => self.commands(program, &key, tasks),
            Row::KilledWaiter => crashes::killed_waiter(&self.server, program, &key, round),
            Row::KilledHolder => crashes::killed_holder(&self.server, program, &key, round),
        }
    }

    fn pair(&self, program: &Program, key: &str) -> Result<Vec<f64>, Failure> {
        let (blocks, block) = if self.is_quick { (10, 20) } else { (60, 100) };
        let url = self.server.url();
        let core = self.cores.as_ref().map(|(one, _)| one.as_str());
        let start = Start {
            scenario: "pair",
            url: &url,
            key,
            ttl: TTL,
            wait: WAIT,
            flags: vec![("--blocks", blocks), ("--block", block)],
            core,
        };
        self.pin(|(one, _)| one);
        let record = program.start(&start).record();
        self.pin(|(_, all)| all);
        let record = record?;
        let (raw, lock) = (numbers(&record, "raw_us")?, numbers(&record, "lock_us")?);
        let times = (ratio(&raw, &lock), median(&lock), median(&raw));
        let (Some(ratio), Some(lock), Some(raw)) = times else {
            return Err(Failure::Failed("printed no times".to_owned()));
        };
        Ok(vec![ratio, lock, raw])
    }

    fn contended(&self, program: &Program, key: &str) -> Result<Vec<f64>, Failure> {
        let (tasks, sections) = if self.is_quick { (4, 5) } else { (8, 25) };
        let hold = Duration::from_millis(1);
        let record = self.contend(program, key, &self.server.url(), (tasks, sections, hold))?;
        let waits = numbers(&record, "wait_us")?;
        let total = record["total_us"].as_f64();
        let waits = [50, 99, 100].map(|percent| percentile(&waits, percent));
        let [Some(p50), Some(p99), Some(longest)] = waits else {
            return Err(Failure::Failed("printed no waits".to_owned()));
        };
        let total = total.ok_or_else(|| Failure::Failed("printed no total".to_owned()))?;
        Ok([total, p50, p99, longest]
            .map(|micros| micros / 1e3)
            .to_vec())
    }

    /// Each task has one section, so that each hand-off is to another task.
    fn handoff(&self, program: &Program, key: &str, tasks: usize) -> Result<Vec<f64>, Failure> {
        let tasks = if self.is_quick { tasks.min(20) } else { tasks };
        let before = self.round_trip()?;
        let record = self.contend(program, key, &self.proxy.url(), (tasks, 1, LONG_HOLD))?;
        let round_trip = f64::midpoint(before, self.round_trip()?);
        let handoff = median(&numbers(&record, "handoff_us")?);
        let handoff = handoff.ok_or_else(|| Failure::Failed("printed no hand-offs".to_owned()))?;
        Ok(vec![handoff / round_trip])
    }

    /// Ten tasks have five sections, so that the start of the program costs little. With 100 tasks it
    /// costs little anyway.
    fn commands(&self, program: &Program, key: &str, tasks: usize) -> Result<Vec<f64>, Failure> {
        let tasks = if self.is_quick { tasks.min(20) } else { tasks };
        let sections = if tasks <= 10 { 5 } else { 1 };
        let monitor = self.server.monitor();
        let record = self.contend(
            program,
            key,
            &self.server.url(),
            (tasks, sections, LONG_HOLD),
        );
        let recording = monitor.stop();
        record?;
        let sections = count(tasks * sections);
        Ok(vec![count(sent_for_sections(&recording, key)) / sections])
    }

    fn contend(
        &self,
        program: &Program,
        key: &str,
        url: &str,
        (tasks, sections, hold): (usize, usize, Duration),
    ) -> Result<Value, Failure> {
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let hold = u64::try_from(hold.as_micros()).unwrap_or(u64::MAX);
        let start = Start {
            scenario: "contend",
            url,
            key,
            ttl: TTL,
            wait: if self.is_quick { WAIT / 4 } else { WAIT },
            flags: vec![
                ("--tasks", number(tasks)),
                ("--sections", number(sections)),
                ("--hold-us", hold),
            ],
            core: None,
        };
        program.start(&start).record()
    }

    /// Returns the median time of a PING through the proxy, in microseconds. Each one comes after a
    /// pause, as a hand-off comes after a section.
    fn round_trip(&self) -> Result<f64, Failure> {
        let fault = |e: std::io::Error| Failure::Failed(format!("PING through the proxy: {e}"));
        let mut connection = Connection::open(self.proxy.address(), None).map_err(fault)?;
        let mut times = Vec::new();
        for _ in 0..30 {
            thread::sleep(LONG_HOLD);
            let started = Instant::now();
            connection.call(&["PING"]).map_err(fault)?;
            times.push(started.elapsed().as_secs_f64() * 1e6);
        }
        median(&times).ok_or_else(|| Failure::Failed("no PING".to_owned()))
    }

    /// Moves the server to some cores.
    fn pin(&self, choose: impl FnOnce(&(String, String)) -> &String) {
        if let Some(cores) = &self.cores {
            let pid = self.server.pid().to_string();
            let mut command = process::Command::new("taskset");
            command.args(["-a", "-p", "-c", choose(cores), &pid]);
            // Its result shows in the figures: without the pin, a pair takes several times as long.
            let _ = command.output();
        }
    }
}

/// Returns the number of commands that clients sent for their sections. A command of a script is none.
/// The sections begin with the first command about the key: before, a program may warm up.
fn sent_for_sections(recording: &Recording, key: &str) -> usize {
    let is_about_key = |command: &Command| command.words.iter().any(|word| word.contains(key));
    let sent = recording.from_clients();
    let sent = sent.skip_while(|command| !is_about_key(command));
    sent.filter(|command| !SETUP.contains(&command.name().as_str()))
        .count()
}

fn numbers(record: &Value, field: &str) -> Result<Vec<f64>, Failure> {
    let values = record[field].as_array();
    let numbers = values.map(|values| values.iter().filter_map(Value::as_f64).collect());
    numbers.ok_or_else(|| Failure::Failed(format!("printed no `{field}`")))
}

fn count(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

fn has_taskset() -> bool {
    process::Command::new("taskset")
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Returns the last core that this process may use, and all of them. Systems run their own work on the
/// first one.
fn cores() -> Option<(String, String)> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let all = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?
        .trim();
    let last = all.rsplit([',', '-']).next()?;
    Some((last.to_owned(), all.to_owned()))
}

#[cfg(test)]
mod tests {
    use test_support::RedisServer;

    use super::sent_for_sections;

    #[test]
    fn sent_for_sections_counts_neither_scripts_nor_the_start() {
        let server = RedisServer::start();
        let monitor = server.monitor();
        server.cli(&["SET", "warm-up", "1"]);
        server.cli(&["SET", "lock:key", "1"]);
        server.cli(&["CLIENT", "SETNAME", "key"]);
        server.cli(&["SUBSCRIBE", "channel"]);
        let script = "redis.call('GET', 'lock:key') return redis.call('DEL', 'lock:key')";
        server.cli(&["EVAL", script, "0"]);
        assert_eq!(sent_for_sections(&monitor.stop(), "key"), 3);
    }
}
