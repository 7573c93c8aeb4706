//! One round's parts: a server, a proxy for each client process, the processes, and the resource.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lock_core::{Dialect, LockError, LockManager};

use crate::event::{Line, Nanos, nanos, now};
use crate::history::{Access, History, Hold, LONGEST_TTL, SLOTS, Sample, Stood};
use crate::load::Load;
use crate::resource::Resource;
use crate::spoken;
use crate::worker::{LONG_KEYS, Orders, SHORT_KEYS, TTL, Workload};
use test_support::FrozenClock;
use test_support::Proxy;
use test_support::Random;
use test_support::RedisServer;
use test_support::Scratch;
use test_support::{Connection, Reply};
use test_support::{Helper, Process};
use tests::shut_down;

/// Bound on the start and on the end of the workers: they wait 3 s at most for a lock, and the
/// longest lease is shorter.
const PATIENCE: Duration = Duration::from_secs(20);

/// How often the server is asked what it holds.
const SAMPLE_EVERY: Duration = Duration::from_millis(40);

/// A server that answers later than this is in a fault.
const ADMIN_PATIENCE: Duration = Duration::from_secs(2);

/// Beside the ttl: expiry is in whole milliseconds, and drift is nothing on one machine.
const ROUNDING: Duration = Duration::from_millis(300);

/// Of the keys of all locks: that of a manager of whom nothing else was asked.
const PREFIX: &str = "lock:";

/// How the server keeps its data and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Flavour {
    /// Every write is on disk before it is answered, so that a restart loses nothing.
    Durable,
    /// As durable, and the nemeses take data away.
    Forgetful,
    /// Nothing on disk, and the wall clock in the hand of the nemesis.
    Clock,
}

/// The commands of each second process time out after the default of the library, those of the
/// others sooner.
const SHORT_TIMEOUT: Duration = Duration::from_millis(300);
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1);

struct Client {
    number: u32,
    process: Process,
}

/// All that takes part in a round.
pub struct Stage {
    /// The lock server.
    pub server: RedisServer,
    /// In front of it, one for each process.
    pub proxies: Vec<Proxy>,
    clock: Option<(FrozenClock, AtomicI64)>,
    resource: Resource,
    records: Scratch,
    clients: Vec<Mutex<Option<Client>>>,
    next_worker: AtomicU32,
    deaths: Mutex<BTreeMap<u32, Nanos>>,
    worker: PathBuf,
    workload: Workload,
    /// What the clients speak.
    pub dialect: Dialect,
    seeds: Mutex<Random>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stage {
    /// Starts everything, and waits until all processes have connected.
    ///
    /// # Panics
    ///
    /// When one of them does not come up.
    pub fn start(
        flavour: Flavour,
        workload: Workload,
        dialect: Dialect,
        worker: &Path,
        mut random: Random,
    ) -> Self {
        let mut options = RedisServer::options();
        let clock = if flavour == Flavour::Clock {
            let time = SystemTime::now().duration_since(UNIX_EPOCH);
            let time = time.expect("the clock is set").as_micros();
            let clock = FrozenClock::at(u64::try_from(time).expect("this age"));
            clock.run_ahead_by(0);
            options = options.clock(&clock);
            Some((clock, AtomicI64::new(0)))
        } else {
            options = options.args(["--appendonly", "yes", "--appendfsync", "always"]);
            None
        };
        let server = options.start();
        let proxies = (0..SLOTS).map(|_| Proxy::in_front_of(&server)).collect();
        let stage = Self {
            server,
            proxies,
            clock,
            resource: Resource::start(),
            records: Scratch::new(),
            clients: (0..SLOTS).map(|_| Mutex::new(None)).collect(),
            next_worker: AtomicU32::new(0),
            deaths: Mutex::default(),
            worker: worker.to_owned(),
            workload,
            dialect,
            seeds: Mutex::new(random.fork()),
        };
        for slot in 0..stage.clients.len() {
            stage.spawn(slot);
        }
        for client in &stage.clients {
            let client = locked(client);
            let process = &client.as_ref().expect("it was just started").process;
            process.record(PATIENCE, |record| record.get("ready").is_some());
        }
        stage
    }

    /// Starts a process in a free place.
    pub fn spawn(&self, slot: usize) {
        let place = u32::try_from(slot).expect("there are four");
        let life = self.next_worker.fetch_add(1, Ordering::Relaxed);
        let number = life * SLOTS + place;
        let orders = Orders {
            url: self.proxies[slot].url(),
            resource: self.resource.address(),
            record: self.record(number),
            worker: number,
            seed: locked(&self.seeds).number(),
            workload: self.workload,
            command_timeout: if slot.is_multiple_of(2) {
                SHORT_TIMEOUT
            } else {
                DEFAULT_TIMEOUT
            },
            dialect: self.dialect,
        };
        let process = Helper::new(&self.worker).arg(orders.to_argument()).spawn();
        *locked(&self.clients[slot]) = Some(Client { number, process });
    }

    /// Kills the process in that place.
    pub fn kill(&self, slot: usize) {
        if let Some(client) = locked(&self.clients[slot]).take() {
            // Before the kill: what it believed after this moment it may not have believed.
            locked(&self.deaths).insert(client.number, now());
            client.process.kill9();
        }
    }

    /// Stops the process in that place.
    pub fn stop(&self, slot: usize) {
        if let Some(client) = &*locked(&self.clients[slot]) {
            client.process.stop();
        }
    }

    /// Gives the process in that place something to do besides.
    pub fn tell(&self, slot: usize, load: Load) {
        if let Some(client) = &*locked(&self.clients[slot]) {
            client.process.send_line(&load.to_string());
        }
    }

    /// How many loads the process in that place has carried out.
    pub fn carried(&self, slot: usize) -> usize {
        let client = locked(&self.clients[slot]);
        let lines = client.as_ref().map(|client| client.process.lines());
        let lines = lines.into_iter().flatten();
        lines.filter(|line| line.contains("did")).count()
    }

    /// Lets it go on.
    pub fn cont(&self, slot: usize) {
        if let Some(client) = &*locked(&self.clients[slot]) {
            client.process.cont();
        }
    }

    /// Moves the server's wall clock by so many milliseconds, from where it is.
    ///
    /// # Panics
    ///
    /// When the server has the machine's clock.
    pub fn move_clock(&self, by_ms: i64) {
        let (clock, offset) = self.clock.as_ref().expect("the flavour has a clock");
        let before = offset.fetch_add(by_ms * 1000, Ordering::Relaxed);
        clock.run_ahead_by(before + by_ms * 1000);
    }

    /// What the resource saw until now.
    pub fn accesses(&self) -> Vec<Access> {
        self.resource.accesses()
    }

    /// A connection past the proxies. None while the server is down or does not answer.
    pub fn admin(&self) -> Option<Admin> {
        let connection = self.server.connect().ok()?;
        connection.set_patience(ADMIN_PATIENCE).ok()?;
        Some(Admin(connection))
    }

    /// Has all processes leave, waits until the longest lease is over, and puts the record
    /// together.
    pub fn finish(self, samples: Sampler, ended: Nanos) -> History {
        let mut history = History {
            dialect: self.dialect,
            ended,
            ..History::default()
        };
        for client in self.clients.iter().map(locked) {
            if let Some(client) = &*client {
                client.process.close_stdin();
            }
        }
        let started = Instant::now();
        for client in &self.clients {
            let client = locked(client).take();
            let Some(Client { number, process }) = client else {
                continue;
            };
            let is_done = || process.lines().iter().any(|line| line.contains("done"));
            while !is_done() && started.elapsed() < PATIENCE {
                thread::sleep(Duration::from_millis(5));
            }
            if !is_done() {
                history.hung.push(number);
            }
            process.kill9();
        }
        history.samples = samples.end();
        let back = self.clock.as_ref().map_or(0, |(_, offset)| {
            // Keys live longer by what the clock was put back.
            offset.load(Ordering::Relaxed).min(0).unsigned_abs()
        });
        thread::sleep(LONGEST_TTL + ROUNDING + Duration::from_micros(back));
        let left = left_behind(&self.server, self.dialect);
        history.survivors = left.survivors;
        history.unexpiring = left.unexpiring;
        history.deaths.clone_from(&locked(&self.deaths));
        history.accesses = self.resource.accesses();
        for number in 0..self.next_worker.load(Ordering::Relaxed) * SLOTS {
            let text = fs::read_to_string(self.record(number)).unwrap_or_default();
            for line in text.lines() {
                match Line::parse(line) {
                    Some(Line::Event(event)) => history.events.push(event),
                    Some(Line::Stall(stall)) => history.stalls.push(stall),
                    // What a kill left of a line.
                    None => {}
                }
            }
        }
        history.sort();
        history
    }

    fn record(&self, worker: u32) -> PathBuf {
        self.records.path().join(format!("{worker}.jsonl"))
    }
}

/// What is there when everybody has left and the longest lease is over.
#[derive(Debug, Default)]
pub struct LeftBehind {
    /// Keys that ought to be gone.
    pub survivors: Vec<String>,
    /// Keys without an expiry, where the dialect cannot help it. That somebody asks for such a
    /// lock has to mend it; otherwise they are survivors too.
    pub unexpiring: Vec<String>,
}

/// Keys that ought to be gone: locks at once, and everything but the counters after one more
/// client has been at each lock.
pub fn left_behind(server: &RedisServer, dialect: Dialect) -> LeftBehind {
    let mut left = LeftBehind::default();
    for key in keys(server).into_iter().filter(|key| is_lock(key)) {
        let is_unexpiring = server.cli(&["PTTL", &key]) == Reply::Integer(-1);
        if is_unexpiring && spoken::may_leave_unexpiring(dialect) {
            left.unexpiring.push(key);
        } else {
            left.survivors.push(key);
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be built");
    if let Err(error) = runtime.block_on(visit(server, dialect, &mut left)) {
        let text = format!("a lock that nobody can take any more: {error}");
        left.survivors.push(text);
    }
    let has_counters = dialect.capabilities().fencing_token;
    let rest = keys(server).into_iter();
    left.survivors
        .extend(rest.filter(|key| !(has_counters && key.ends_with(":f"))));
    left
}

async fn visit(
    server: &RedisServer,
    dialect: Dialect,
    left: &mut LeftBehind,
) -> Result<(), LockError> {
    let builder = LockManager::builder().dialect(dialect);
    let locks = builder.connect(&server.url()).await?;
    // To have asked once has to be enough.
    for key in &left.unexpiring {
        let name = key.strip_prefix(PREFIX).unwrap_or(key);
        if locks.lock(name).ttl(TTL).try_acquire().await?.is_some() {
            left.survivors
                .push(format!("{key}, and yet it was given to somebody else"));
        }
    }
    if !left.unexpiring.is_empty() {
        tokio::time::sleep(TTL + ROUNDING).await;
        left.survivors
            .extend(keys(server).into_iter().filter(|key| is_lock(key)));
    }
    for key in SHORT_KEYS.iter().chain(&LONG_KEYS) {
        let request = locks.lock(*key).wait(PATIENCE / 2);
        request.acquire().await?.release().await?;
    }
    shut_down(&locks).await;
    Ok(())
}

fn is_lock(key: &str) -> bool {
    key.starts_with(PREFIX)
}

fn keys(server: &RedisServer) -> Vec<String> {
    let keys = server.cli(&["KEYS", "*"]);
    let keys = keys.array().iter().map(|key| key.text().to_owned());
    keys.collect()
}

/// A connection of the nemesis and of the sampler.
pub struct Admin(Connection);

impl Admin {
    /// Sends a command. None when there was no answer; errors of the server are answers.
    pub fn call(&mut self, words: &[&str]) -> Option<Reply> {
        self.0.call(words).ok()
    }

    /// Sends a command and does not wait.
    pub fn send(&mut self, words: &[&str]) {
        let _ = self.0.send(words);
    }
}

/// A thread that asks the server again and again what it holds.
pub struct Sampler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Sample>>,
}

impl Sampler {
    /// Starts it.
    pub fn start(stage: &Stage) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let address = stage.server.address();
        let dialect = stage.dialect;
        let thread = thread::spawn(move || {
            let mut samples = Vec::new();
            let mut connection = None;
            while !stopped.load(Ordering::Relaxed) {
                thread::sleep(SAMPLE_EVERY);
                let open = || {
                    let connection = Connection::open(address, None).ok()?;
                    connection.set_patience(ADMIN_PATIENCE).ok()?;
                    Some(connection)
                };
                let Some(mut asked) = connection.take().or_else(open) else {
                    continue;
                };
                if sample(&mut asked, dialect, &mut samples).is_some() {
                    connection = Some(asked);
                }
            }
            samples
        });
        Self { stop, thread }
    }

    fn end(self) -> Vec<Sample> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the sampler does not panic")
    }
}

/// How long each key lives still.
const EXPIRIES: &str = "local all = {} \
    for i, key in ipairs(KEYS) do all[i] = redis.call('PTTL', key) end \
    return all";

fn sample(connection: &mut Connection, dialect: Dialect, samples: &mut Vec<Sample>) -> Option<()> {
    let names = || SHORT_KEYS.iter().chain(&LONG_KEYS);
    let keys: Vec<String> = names().map(|name| format!("{PREFIX}{name}")).collect();
    let mut words = vec!["MGET".to_owned()];
    words.extend(keys.iter().cloned());
    let from = now();
    let reply = connection.call(&words).ok()?;
    let to = now();
    let Reply::Array(values) = reply else {
        // An error is an answer, but says nothing about the locks.
        return Some(());
    };
    let mut expiries = Vec::new();
    if spoken::may_leave_unexpiring(dialect) {
        let mut words = vec!["EVAL".to_owned(), EXPIRIES.to_owned()];
        words.push(keys.len().to_string());
        words.extend(keys);
        if let Reply::Array(told) = connection.call(&words).ok()? {
            expiries = told;
        }
    }
    for (number, (name, value)) in names().zip(values).enumerate() {
        let stood = match &value {
            Reply::Bulk(_) if expiries.get(number) == Some(&Reply::Integer(-1)) => {
                Stood::Unexpiring
            }
            Reply::Bulk(value) => {
                let value = String::from_utf8_lossy(value);
                let token = value.split(' ').nth(1).and_then(|token| token.parse().ok());
                Stood::Held { token }
            }
            _ => Stood::Free,
        };
        samples.push(Sample {
            from,
            to,
            key: (*name).to_owned(),
            stood,
        });
    }
    Some(())
}

/// For how long keys were held in the server by nobody: the holder had released before, or was
/// dead, or never got to know of it.
pub fn orphaned(history: &History) -> Nanos {
    let mut holds: BTreeMap<(&str, Option<u64>), Vec<&Hold>> = BTreeMap::new();
    let all = history.holds();
    for hold in &all {
        let same = holds.entry((&hold.key, hold.token)).or_default();
        same.push(hold);
    }
    let mut last: BTreeMap<&str, Nanos> = BTreeMap::new();
    let mut total = 0;
    for sample in &history.samples {
        let step = last
            .insert(&sample.key, sample.to)
            .map_or(0, |last| sample.to.saturating_sub(last));
        let token = match sample.stood {
            Stood::Free => continue,
            Stood::Held { token } => token,
            Stood::Unexpiring => None,
        };
        let holds_it = |hold: &&Hold| {
            // While it is being released the server cannot know yet.
            let released = hold.release_done.map(|(at, _)| at).or(hold.released);
            let died = history.deaths.get(&hold.worker).copied();
            // Without a token any hold of that time may be the one.
            let over = token.is_none().then_some(hold.until);
            let end = released.into_iter().chain(died).chain(over).min();
            let has_begun = token.is_some() || hold.asked <= sample.to;
            has_begun && end.is_none_or(|end| sample.from <= end)
        };
        let same = holds.get(&(sample.key.as_str(), token));
        if !same.is_some_and(|same| same.iter().any(holds_it)) {
            total += step.min(nanos(SAMPLE_EVERY) * 3);
        }
    }
    total
}
