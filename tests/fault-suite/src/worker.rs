//! One client process: tasks that want locks, change the resource under them, and record it all.

use std::future::Future;
use std::io::{self, BufRead, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use lock_core::{Dialect, LockError, LockGuard, LockManager, LockRequest, LockWatch, Lost};
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinHandle, JoinSet};

use crate::event::{Call, Event, Kind, Nanos, Recorder, Stall, nanos, now};
use crate::history::{DROPPED, WAITS};
use crate::load::{self, Load};
use crate::resource::{Answer, Client, Pass};
use crate::spoken;
use test_support::Random;
use tests::shut_down;

/// Tasks of each process.
pub const TASKS: u32 = 8;

/// The locks that all tasks want.
pub const SHORT_KEYS: [&str; 4] = ["k0", "k1", "k2", "k3"];

/// The locks that are held for many times their ttl.
pub const LONG_KEYS: [&str; 4] = ["long0", "long1", "long2", "long3"];

/// Short, because a dead holder costs as much.
pub const TTL: Duration = Duration::from_secs(1);

/// How often one who waits looks by itself, where nobody tells it.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// How often a holder looks at its lease: often against the 250 ms that word of loss may take.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A validity that moved by less than this was not renewed in between.
const SAME: Nanos = 3_000_000;

/// The canary's step, and how late it may be before it is a stall.
const CANARY: Duration = Duration::from_millis(20);
const STALL: Duration = Duration::from_millis(80);

/// What the tasks of a process do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Some of each of the others.
    Mixed,
    /// Read, think, and write under the lock.
    Modify,
    /// Short sections, all tasks on four locks.
    Storm,
    /// Sections of five times the ttl.
    Long,
    /// Acquisitions, guards and releases dropped at any time.
    Cancel,
    /// Some wait, some only try.
    Try,
    /// The control: everybody changes one thing slowly, and writes also when the lock is lost.
    Late,
}

const WORKLOADS: [(Workload, &str); 7] = [
    (Workload::Mixed, "mixed"),
    (Workload::Modify, "modify"),
    (Workload::Storm, "storm"),
    (Workload::Long, "long"),
    (Workload::Cancel, "cancel"),
    (Workload::Try, "try"),
    (Workload::Late, "late"),
];

impl Workload {
    /// The workload of that name.
    pub fn named(name: &str) -> Option<Self> {
        let found = WORKLOADS.iter().find(|(_, known)| *known == name)?;
        Some(found.0)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        let found = WORKLOADS.iter().find(|(known, _)| *known == self);
        found.expect("all workloads are listed").1
    }

    /// All names.
    pub fn names() -> Vec<&'static str> {
        WORKLOADS.iter().map(|(_, name)| *name).collect()
    }

    /// What one task does.
    fn of_task(self, task: u32) -> Self {
        match (self, task) {
            (Self::Mixed, 0..=2) => Self::Storm,
            (Self::Mixed, 3) => Self::Modify,
            (Self::Mixed, 4) => Self::Cancel,
            (Self::Mixed, 5) => Self::Try,
            // Who holds a lock for a moment has no time to lose it.
            (Self::Mixed, 6) | (Self::Mixed | Self::Modify | Self::Cancel | Self::Try, 7) => {
                Self::Long
            }
            (pure, _) => pure,
        }
    }
}

/// What a worker is told when it is started.
#[derive(Clone, Debug)]
pub struct Orders {
    /// The lock server, or the proxy in front of it.
    pub url: String,
    /// The protected resource.
    pub resource: SocketAddr,
    /// Where to record.
    pub record: PathBuf,
    /// Its number.
    pub worker: u32,
    /// Of its random choices.
    pub seed: u64,
    /// What to do.
    pub workload: Workload,
    /// The manager's command timeout.
    pub command_timeout: Duration,
    /// And its dialect.
    pub dialect: Dialect,
}

impl Orders {
    /// As an argument.
    pub fn to_argument(&self) -> String {
        json!({
            "url": self.url,
            "resource": self.resource.to_string(),
            "record": self.record,
            "worker": self.worker,
            "seed": self.seed,
            "workload": self.workload.name(),
            "command_timeout_ms": nanos(self.command_timeout) / 1_000_000,
            "dialect": spoken::name(self.dialect),
        })
        .to_string()
    }

    /// Reads [`to_argument`](Self::to_argument) back.
    pub fn parse(argument: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(argument).ok()?;
        let text = |name: &str| value.get(name).and_then(Value::as_str);
        let number = |name: &str| value.get(name).and_then(Value::as_u64);
        Some(Self {
            url: text("url")?.to_owned(),
            resource: text("resource")?.parse().ok()?,
            record: text("record")?.into(),
            worker: u32::try_from(number("worker")?).ok()?,
            seed: number("seed")?,
            workload: Workload::named(text("workload")?)?,
            command_timeout: Duration::from_millis(number("command_timeout_ms")?),
            dialect: spoken::named(text("dialect")?)?,
        })
    }
}

/// Works until the input ends; then leaves in order. A line that comes in is a [`Load`], which it
/// takes on beside its work.
///
/// Says `{"ready":true}` when it has connected, `{"did":".."}` after each load, and `{"done":true}`
/// when all is released.
pub fn work(orders: &Orders) {
    load::listen_with_panics();
    let recorder = Arc::new(Recorder::to(&orders.record).expect("the runner made the folder"));
    let stop = Arc::new(Stop::default());
    let (tell, mut told) = mpsc::unbounded_channel();
    {
        let stop = Arc::clone(&stop);
        thread::spawn(move || {
            for line in io::stdin().lock().lines().map_while(Result::ok) {
                let _leaving = tell.send(line);
            }
            stop.set();
        });
    }
    watch_the_process(orders.worker, &recorder);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("the process may have two more threads");
    runtime.block_on(async {
        tokio::spawn(watch_the_runtime(orders.worker, Arc::clone(&recorder)));
        let Some(locks) = connect(orders, &stop).await else {
            return;
        };
        say(&json!({ "ready": true }));
        let mut crew = Crew {
            orders: orders.clone(),
            locks,
            recorder,
            holds: Arc::default(),
            stop,
            random: Random::new(orders.seed),
        };
        let mut tasks = JoinSet::new();
        for number in 0..TASKS {
            let workload = orders.workload.of_task(number);
            tasks.spawn(crew.task(number, workload).run());
        }
        while let Some(line) = told.recv().await {
            let load = Load::parse(&line).expect("the runner knows what there is");
            let mut crew = crew.fork();
            tasks.spawn(async move {
                crew.carry(load).await;
                say(&json!({ "did": line }));
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.expect("no task panics");
        }
        shut_down(&crew.locks).await;
    });
    say(&json!({ "done": true }));
}

fn say(record: &Value) {
    let mut out = io::stdout().lock();
    // A runner that is gone reads nothing, and this process ends with it.
    let _ = writeln!(out, "{record}").and_then(|()| out.flush());
}

/// That it is time to leave. Wakes whoever sleeps, and nobody before.
#[derive(Default)]
struct Stop {
    set: AtomicBool,
    told: Notify,
}

impl Stop {
    fn set(&self) {
        self.set.store(true, Ordering::Release);
        self.told.notify_waiters();
    }

    fn is_set(&self) -> bool {
        self.set.load(Ordering::Acquire)
    }

    async fn or_after(&self, span: Duration) {
        let told = self.told.notified();
        if !self.is_set() {
            let _told_or_over = tokio::time::timeout(span, told).await;
        }
    }
}

/// The server may be down just now.
async fn connect(orders: &Orders, stop: &Stop) -> Option<LockManager> {
    while !stop.is_set() {
        let builder = LockManager::builder()
            .command_timeout(orders.command_timeout)
            .retry_interval(LOOK_INTERVAL)
            .dialect(orders.dialect);
        if let Ok(locks) = builder.connect(&orders.url).await {
            return Some(locks);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    None
}

/// A thread of its own: late when the process was stopped or got no processor.
fn watch_the_process(worker: u32, recorder: &Arc<Recorder>) {
    let recorder = Arc::clone(recorder);
    thread::spawn(move || {
        let mut last = now();
        loop {
            thread::sleep(CANARY);
            last = sing(worker, &recorder, last);
        }
    });
}

/// A task among the others: late when the runtime is.
async fn watch_the_runtime(worker: u32, recorder: Arc<Recorder>) {
    let mut last = now();
    loop {
        tokio::time::sleep(CANARY).await;
        last = sing(worker, &recorder, last);
    }
}

fn sing(worker: u32, recorder: &Recorder, last: Nanos) -> Nanos {
    let to = now();
    if to - last > nanos(CANARY + STALL) {
        let stall = Stall {
            worker,
            from: last,
            to,
        };
        recorder.write(&stall.to_line());
    }
    to
}

/// A future that is given up after so many polls.
struct Polls<F> {
    future: F,
    left: usize,
}

impl<F: Future + Unpin> Future for Polls<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        Pin::new(&mut self.future).poll(cx).map(Some)
    }
}

/// Drops a future at one of its polls, or after a moment. `None` when it was dropped.
async fn drop_somewhere<F: Future>(future: F, random: &mut Random) -> Option<F::Output> {
    if random.chance(50) {
        let left = random.below(6);
        let future = pin!(future);
        // Where it does not get as far as that poll, it is dropped in time all the same.
        let polls = Polls { future, left };
        let bound = random.millis(1, 300);
        tokio::time::timeout(bound, polls).await.ok().flatten()
    } else {
        let bound = random.millis(0, 40);
        tokio::time::timeout(bound, future).await.ok()
    }
}

/// How a section ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Done,
    Lost,
}

/// What all that a process does has in common.
pub(super) struct Crew {
    pub(super) orders: Orders,
    pub(super) locks: LockManager,
    recorder: Arc<Recorder>,
    holds: Arc<AtomicU64>,
    stop: Arc<Stop>,
    pub(super) random: Random,
}

impl Crew {
    /// The same, with random choices of its own.
    pub(super) fn fork(&mut self) -> Self {
        Self {
            orders: self.orders.clone(),
            locks: self.locks.clone(),
            recorder: Arc::clone(&self.recorder),
            holds: Arc::clone(&self.holds),
            stop: Arc::clone(&self.stop),
            random: self.random.fork(),
        }
    }

    pub(super) fn task(&mut self, number: u32, workload: Workload) -> Task {
        Task {
            locks: self.locks.clone(),
            worker: self.orders.worker,
            number,
            command_timeout: self.orders.command_timeout,
            dialect: self.orders.dialect,
            workload,
            recorder: Arc::clone(&self.recorder),
            holds: Arc::clone(&self.holds),
            stop: Arc::clone(&self.stop),
            random: self.random.fork(),
            resource: Client::new(self.orders.resource, self.orders.worker),
        }
    }

    pub(super) fn is_told_to_leave(&self) -> bool {
        self.stop.is_set()
    }
}

pub(super) struct Task {
    locks: LockManager,
    worker: u32,
    number: u32,
    command_timeout: Duration,
    dialect: Dialect,
    workload: Workload,
    recorder: Arc<Recorder>,
    holds: Arc<AtomicU64>,
    stop: Arc<Stop>,
    random: Random,
    resource: Client,
}

/// What one task records of one acquisition.
struct Log {
    recorder: Arc<Recorder>,
    worker: u32,
    task: u32,
    hold: u64,
    key: &'static str,
    /// The last validity that was recorded.
    until: Nanos,
}

impl Log {
    /// For a task that attends to the same hold.
    fn copied(&self) -> Self {
        Self {
            recorder: Arc::clone(&self.recorder),
            ..*self
        }
    }

    fn event(&self, call: Call, kind: Kind) -> Event {
        Event {
            at: now(),
            worker: self.worker,
            task: self.task,
            hold: self.hold,
            call,
            kind,
            key: self.key.to_owned(),
            token: None,
            until: None,
            within: None,
            note: None,
        }
    }

    fn write(&self, event: &Event) {
        self.recorder.write(&event.to_line());
    }

    fn step(&self, call: Call, kind: Kind) {
        self.write(&self.event(call, kind));
    }

    fn noted(&self, call: Call, kind: Kind, note: &str) {
        let mut event = self.event(call, kind);
        event.note = Some(note.to_owned());
        self.write(&event);
    }

    fn failed(&self, call: Call, error: &LockError) {
        let kind = match error {
            // Whether it was carried out is settled in the background.
            LockError::Backend(_) => Kind::Info,
            _ => Kind::Fail,
        };
        self.noted(call, kind, &error.to_string());
    }

    fn held(&mut self, held: &LockWatch) {
        let mut event = self.event(Call::Acquire, Kind::Ok);
        event.token = held.fencing_token().map(u64::from);
        // The stamp is taken first, so that the true end is not before the recorded one.
        event.until = Some(event.at + nanos(held.remaining()));
        self.until = event.at;
        if let Some(until) = event.until {
            self.until = until;
        }
        self.write(&event);
    }

    /// Records until when it is valid, where that has changed.
    fn look(&mut self, held: &LockWatch) {
        let mut event = self.event(Call::Acquire, Kind::Seen);
        let remaining = held.remaining();
        let until = event.at + nanos(remaining);
        if !remaining.is_zero() && until > self.until + SAME {
            self.until = until;
            event.until = Some(until);
            self.write(&event);
        }
    }
}

/// An acquisition or a hold that is dropped with its runtime unless it is seen to its end.
struct Open {
    log: Log,
    held: Option<LockWatch>,
    is_over: AtomicBool,
}

impl Open {
    fn asking(log: &Log) -> Self {
        Self::new(log, None)
    }

    fn holding(log: &Log, held: &LockWatch) -> Self {
        Self::new(log, Some(held.clone()))
    }

    fn new(log: &Log, held: Option<LockWatch>) -> Self {
        Self {
            log: log.copied(),
            held,
            is_over: AtomicBool::new(false),
        }
    }

    fn over(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let call = match &self.held {
            _ if *self.is_over.get_mut() => return,
            None => Call::Acquire,
            // `run` drops what has lost its lock.
            Some(held) if held.is_lost() => return,
            Some(_) => {
                self.log.step(Call::Release, Kind::Invoke);
                Call::Release
            }
        };
        self.log.noted(call, Kind::Info, DROPPED);
    }
}

impl Task {
    pub(super) async fn run(mut self) {
        while !self.stop.is_set() {
            self.turn().await;
        }
    }

    /// One who only wants the lock, for a moment.
    pub(super) async fn call(mut self, key: &'static str) {
        let mut log = self.log(key);
        let request = self.locks.lock(key).ttl(TTL);
        let request = self.ask(&log, request, 1_500);
        match request.acquire().await {
            Ok(guard) => {
                log.held(&guard.watch());
                log.step(Call::Release, Kind::Invoke);
                drop(guard);
                log.noted(Call::Release, Kind::Info, DROPPED);
            }
            Err(error) => log.failed(Call::Acquire, &error),
        }
    }

    fn log(&self, key: &'static str) -> Log {
        Log {
            recorder: Arc::clone(&self.recorder),
            worker: self.worker,
            task: self.number,
            hold: self.holds.fetch_add(1, Ordering::Relaxed),
            key,
            until: 0,
        }
    }

    /// Records that it asks, and for how long: once, or up to so many milliseconds.
    fn ask(&mut self, log: &Log, request: LockRequest, longest: u64) -> LockRequest {
        let tries = match self.workload {
            Workload::Try => self.random.chance(50),
            Workload::Cancel => self.random.chance(25),
            _ => self.random.chance(3),
        };
        let (request, within) = if tries {
            (request, self.command_timeout)
        } else {
            let wait = self.random.millis(100, longest);
            (request.wait(wait), wait)
        };
        let mut asked = log.event(Call::Acquire, Kind::Invoke);
        asked.within = Some(nanos(within));
        asked.note = (!tries).then(|| WAITS.to_owned());
        log.write(&asked);
        request
    }

    async fn turn(&mut self) {
        let is_long = self.workload == Workload::Long;
        let keys: &[&str] = match self.workload {
            Workload::Long => &LONG_KEYS,
            Workload::Late => &SHORT_KEYS[..1],
            _ => &SHORT_KEYS,
        };
        let key = *self.random.pick(keys);
        let mut log = self.log(key);
        let ttl = if is_long && self.random.chance(50) {
            // Longer than what a hand-over gives, so that the first renewal has to extend it.
            spoken::longest_ttl(self.dialect)
        } else {
            TTL
        };
        let request = self.locks.lock(key).ttl(ttl);
        let request = self.ask(&log, request, 3_000);
        match self.workload {
            Workload::Cancel => self.cancelled(&mut log, request).await,
            _ if self.random.chance(25) => self.by_run(&mut log, request).await,
            _ => self.by_guard(&mut log, request).await,
        }
    }

    async fn by_guard(&mut self, log: &mut Log, request: LockRequest) {
        let answer = {
            let open = Open::asking(log);
            let answer = request.acquire().await;
            open.over();
            answer
        };
        match answer {
            Ok(guard) => self.hold(log, guard).await,
            Err(error) => self.refused(log, &error).await,
        }
    }

    async fn refused(&mut self, log: &Log, error: &LockError) {
        log.failed(Call::Acquire, error);
        // Neither a busy lock nor a server that is down is to be asked in a hot loop.
        let pause = self.random.millis(1, 15);
        tokio::time::sleep(pause).await;
    }

    async fn hold(&mut self, log: &mut Log, guard: LockGuard) {
        let held = guard.watch();
        log.held(&held);
        let end = {
            let open = Open::holding(log, &held);
            let end = self.section(log, &held, Some(&guard)).await;
            open.over();
            end
        };
        log.look(&held);
        log.step(Call::Release, Kind::Invoke);
        let how = if self.workload == Workload::Cancel {
            self.random.below(100)
        } else {
            self.random.below(200)
        };
        match how {
            // A dropped guard is released in the background.
            0..20 => {
                drop(guard);
                log.noted(Call::Release, Kind::Info, DROPPED);
            }
            20..40 => match drop_somewhere(guard.release(), &mut self.random).await {
                Some(Ok(())) => log.step(Call::Release, Kind::Ok),
                Some(Err(error)) => log.failed(Call::Release, &error),
                None => log.noted(Call::Release, Kind::Info, DROPPED),
            },
            _ => match guard.release().await {
                Ok(()) => log.step(Call::Release, Kind::Ok),
                Err(error) => log.failed(Call::Release, &error),
            },
        }
        if end == End::Lost {
            tokio::time::sleep(self.random.millis(1, 15)).await;
        }
    }

    async fn by_run(&mut self, log: &mut Log, request: LockRequest) {
        let mut began = false;
        let asking = Open::asking(log);
        let outcome = request
            .run(async |guard| {
                asking.over();
                began = true;
                let held = guard.watch();
                log.held(&held);
                let open = Open::holding(log, &held);
                let end = self.section(log, &held, None).await;
                open.over();
                log.look(&held);
                log.step(Call::Release, Kind::Invoke);
                end
            })
            .await;
        asking.over();
        match outcome {
            // Whether the release went well is only traced.
            Ok(_) => log.noted(Call::Release, Kind::Info, "by `run`"),
            Err(LockError::Lost { .. }) if began => log.step(Call::Lost, Kind::Ok),
            Err(error) => self.refused(log, &error).await,
        }
    }

    async fn cancelled(&mut self, log: &mut Log, request: LockRequest) {
        if self.random.chance(30) {
            return self.by_guard(log, request).await;
        }
        let answer = {
            let open = Open::asking(log);
            let answer = drop_somewhere(request.acquire(), &mut self.random).await;
            open.over();
            answer
        };
        match answer {
            Some(Ok(guard)) => self.hold(log, guard).await,
            Some(Err(error)) => self.refused(log, &error).await,
            None => log.noted(Call::Acquire, Kind::Info, DROPPED),
        }
    }

    /// Works under the lock until that is done, or until word comes that it is lost.
    async fn section(&mut self, log: &Log, held: &LockWatch, guard: Option<&LockGuard>) -> End {
        // Most stop when they are told. The others show what the resource is fenced for; one that
        // cannot refuse them must not have them.
        let token = held.fencing_token().map(u64::from);
        let is_stubborn =
            token.is_some() && (self.workload == Workload::Late || self.random.chance(25));
        let plan = self.plan();
        let pass = Pass {
            key: log.key,
            hold: log.hold,
            token,
        };
        let _looks = Attendant(tokio::spawn(keep_looking(log.copied(), held.clone())));
        let mut work = pin!(steps_of(
            &mut self.resource,
            log,
            &plan,
            pass,
            guard,
            &self.stop
        ));
        if guard.is_none() {
            // `run` hears of the loss, and drops this here.
            work.await;
            return End::Done;
        }
        // In a task of its own, which nothing but the word of loss wakes up.
        let mut heard = Attendant(tokio::spawn(hear(log.copied(), held.lost())));
        let is_lost = tokio::select! {
            biased;
            _ = &mut heard.0 => true,
            () = &mut work => false,
        };
        if !is_lost {
            return End::Done;
        }
        if is_stubborn {
            work.await;
        }
        End::Lost
    }

    fn plan(&mut self) -> Plan {
        let random = &mut self.random;
        match self.workload {
            // Five times the ttl. In half of them nothing but word of loss would end the pause.
            Workload::Long if random.chance(50) => Plan {
                updates: 1,
                think: TTL * 5,
                renew: random.chance(30),
            },
            Workload::Long => Plan {
                updates: 5 * 3,
                think: TTL / 3,
                renew: random.chance(30),
            },
            Workload::Modify => Plan {
                updates: 1 + random.below(2),
                think: random.millis(1, 20),
                renew: random.chance(5),
            },
            Workload::Late => Plan {
                updates: 1,
                think: random.millis(200, 400),
                renew: false,
            },
            // Some only take the lock and give it back.
            _ => Plan {
                updates: usize::from(random.chance(70)),
                think: Duration::ZERO,
                renew: random.chance(3),
            },
        }
    }
}

/// What is done under the lock.
struct Plan {
    updates: usize,
    /// Between the read and the write.
    think: Duration,
    /// Whether the lease is extended by hand.
    renew: bool,
}

/// A task that ends with whoever started it.
struct Attendant(JoinHandle<()>);

impl Drop for Attendant {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn hear(log: Log, lost: Lost) {
    lost.await;
    log.step(Call::Lost, Kind::Ok);
}

async fn keep_looking(mut log: Log, held: LockWatch) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        log.look(&held);
    }
}

async fn steps_of(
    resource: &mut Client,
    log: &Log,
    plan: &Plan,
    pass: Pass,
    guard: Option<&LockGuard>,
    stop: &Stop,
) {
    for _ in 0..plan.updates {
        if stop.is_set() {
            return;
        }
        log.step(Call::Write, Kind::Invoke);
        let Ok(done) = update(resource, pass, plan.think, stop).await else {
            // Without its runner a worker has no work.
            std::process::exit(3);
        };
        let kind = if done { Kind::Ok } else { Kind::Fail };
        log.step(Call::Write, kind);
        if !done {
            return;
        }
        if let (true, Some(guard)) = (plan.renew, guard) {
            log.step(Call::Renew, Kind::Invoke);
            match guard.renew().await {
                Ok(()) => log.step(Call::Renew, Kind::Ok),
                Err(error) => log.failed(Call::Renew, &error),
            }
        }
    }
}

/// False when the resource refused the token.
async fn update(
    resource: &mut Client,
    pass: Pass,
    think: Duration,
    stop: &Stop,
) -> io::Result<bool> {
    let Answer::Values { fenced, unfenced } = resource.read(pass).await? else {
        return Ok(false);
    };
    if !think.is_zero() {
        stop.or_after(think).await;
    }
    let answer = resource.write(pass, fenced + 1, unfenced + 1).await?;
    Ok(answer != Answer::Stale)
}
