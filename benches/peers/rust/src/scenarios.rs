//! The scenarios of the contract.

use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::raw::RawPair;
use crate::{About, Arguments, Fault, Library};

/// Prints one record, at once.
fn print(record: &Value) {
    let mut out = std::io::stdout().lock();
    // The runner may be gone, and then nothing can be reported.
    let _ = writeln!(out, "{record}").and_then(|()| out.flush());
}

fn event(name: &str) {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    // Microseconds, with a fraction.
    let time = since.as_secs_f64() * 1e6;
    print(&json!({ "event": name, "unix_us": time }));
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The versions of all packages of this workspace.
const LOCK_FILE: &str = include_str!("../../Cargo.lock");

pub(crate) fn about(about: &About) {
    print(&json!({
        "name": about.name,
        "version": version(about.name),
        "language": "Rust",
        "kind": about.kind,
        "notes": about.notes,
    }));
}

/// Returns the version of a package in Cargo.lock.
fn version(package: &str) -> Option<&'static str> {
    let name = format!("name = \"{package}\"\n");
    let (_, rest) = LOCK_FILE.split_once(&name)?;
    rest.strip_prefix("version = \"")?.split('"').next()
}

/// Alternates blocks of raw pairs and blocks of uncontended sections.
pub(crate) async fn pair<L: Library>(arguments: &Arguments) -> Result<(), Fault> {
    let library = L::connect(arguments).await?;
    let mut raw = library.raw(arguments).await?;
    let warm_up = arguments.blocks / 10;
    let [mut raw_times, mut lock_times] = [Vec::new(), Vec::new()];
    for block in 0..warm_up + arguments.blocks {
        // Each side is the first in every second block.
        let [raw_time, lock_time] = if block % 2 == 0 {
            let first = raw_block(&mut raw, arguments.block).await?;
            [first, lock_block(&library, arguments.block).await?]
        } else {
            let first = lock_block(&library, arguments.block).await?;
            [raw_block(&mut raw, arguments.block).await?, first]
        };
        if block >= warm_up {
            raw_times.push(micros(raw_time) / f64::from(arguments.block));
            lock_times.push(micros(lock_time) / f64::from(arguments.block));
        }
    }
    print(&json!({ "raw_us": raw_times, "lock_us": lock_times }));
    Ok(())
}

async fn raw_block(raw: &mut impl RawPair, pairs: u32) -> Result<Duration, Fault> {
    let started = Instant::now();
    for _ in 0..pairs {
        raw.pair().await?;
    }
    Ok(started.elapsed())
}

async fn lock_block(library: &impl Library, pairs: u32) -> Result<Duration, Fault> {
    let started = Instant::now();
    for _ in 0..pairs {
        library.section(async {}).await?;
    }
    Ok(started.elapsed())
}

/// When the sections acquired and released, in their order.
#[derive(Debug, Default)]
struct Sections(Mutex<Vec<Section>>);

#[derive(Clone, Copy, Debug)]
struct Section {
    acquired: Instant,
    releasing: Option<Instant>,
}

impl Sections {
    fn lock(&self) -> MutexGuard<'_, Vec<Section>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of the section.
    fn acquired(&self, acquired: Instant) -> usize {
        let mut sections = self.lock();
        sections.push(Section {
            acquired,
            releasing: None,
        });
        sections.len() - 1
    }

    fn releasing(&self, number: usize) {
        let mut sections = self.lock();
        sections[number].releasing = Some(Instant::now());
    }

    /// Returns the times from each release call to the next acquire, in microseconds.
    fn handoffs(&self) -> Result<Vec<f64>, Fault> {
        let sections = self.lock();
        let handoff = |pair: &[Section]| {
            let released = pair[0].releasing.filter(|at| *at <= pair[1].acquired);
            let released = released.ok_or("two tasks held the lock at the same time")?;
            Ok(micros(pair[1].acquired - released))
        };
        sections.windows(2).map(handoff).collect()
    }
}

/// Runs sections of one lock in several tasks.
pub(crate) async fn contend<L: Library>(arguments: &Arguments) -> Result<(), Fault> {
    let mut libraries = vec![L::connect(arguments).await?];
    for number in 1..arguments.tasks {
        libraries.push(if arguments.separate_clients {
            L::connect(arguments).await?
        } else {
            libraries[number - 1].clone()
        });
    }
    let sections = Arc::new(Sections::default());
    let (count, hold) = (arguments.sections, arguments.hold);
    let started = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for library in libraries {
        let sections = Arc::clone(&sections);
        tasks.spawn(async move {
            let mut waits = Vec::with_capacity(count);
            for _ in 0..count {
                let begin = Instant::now();
                let sections = Arc::clone(&sections);
                let body = async move {
                    let acquired = Instant::now();
                    let number = sections.acquired(acquired);
                    work(hold).await;
                    sections.releasing(number);
                    acquired
                };
                let acquired = library.section(body).await?;
                waits.push(micros(acquired - begin));
            }
            Ok::<_, Fault>(waits)
        });
    }
    let mut waits = Vec::new();
    while let Some(task) = tasks.join_next().await {
        waits.extend(task??);
    }
    print(&json!({
        "total_us": micros(started.elapsed()),
        "wait_us": waits,
        "handoff_us": sections.handoffs()?,
    }));
    Ok(())
}

/// Sleeps for this time. The timer of tokio counts whole milliseconds: 1 ms becomes 2 ms, which the
/// sleeps of the other languages do not.
async fn work(time: Duration) {
    let sleep = tokio::task::spawn_blocking(move || std::thread::sleep(time));
    sleep.await.expect("a sleep does not panic");
}

/// Holds the lock until a line arrives, stdin closes or the time is over.
pub(crate) async fn hold<L: Library>(arguments: &Arguments) -> Result<(), Fault> {
    let library = L::connect(arguments).await?;
    let longest = Some(arguments.hold).filter(|hold| !hold.is_zero());
    let body = async move {
        event("acquired");
        let mut line = String::new();
        let mut input = BufReader::new(tokio::io::stdin());
        let line = input.read_line(&mut line);
        match longest {
            Some(longest) => drop(tokio::time::timeout(longest, line).await),
            None => drop(line.await),
        }
        event("releasing");
    };
    library.section(body).await?;
    event("released");
    Ok(())
}

/// Waits for the lock, and releases it at once.
pub(crate) async fn wait<L: Library>(arguments: &Arguments) -> Result<(), Fault> {
    let library = L::connect(arguments).await?;
    event("waiting");
    library.section(async { event("acquired") }).await
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{Sections, version};

    #[test]
    fn version_is_that_of_the_lock_file() {
        assert_eq!(version("redis-lock"), Some("0.5.1"));
        assert_eq!(version("redis-loc"), None);
    }

    #[test]
    fn handoffs_are_from_a_release_to_the_next_acquire() {
        let sections = Sections::default();
        let number = sections.acquired(Instant::now());
        sections.releasing(number);
        sections.acquired(Instant::now() + Duration::from_secs(1));
        let handoffs = sections.handoffs().unwrap();
        assert_eq!(handoffs.len(), 1);
        assert!(handoffs[0] > 900_000.0);
    }

    #[test]
    fn handoffs_refuse_two_holders() {
        let sections = Sections::default();
        sections.acquired(Instant::now());
        sections.acquired(Instant::now());
        assert!(sections.handoffs().is_err());
    }
}
