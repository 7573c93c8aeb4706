//! One task: it acquires, works, and releases, again and again.

use std::future::Future;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use lock_core::dialect::Dialect;
use lock_core::{LockError, LockGuard, LockManager, LockRequest, LockWatch};
use lock_testing::{AcquisitionRecord as Log, Call, Kind, Recorder, nanos};
use test_support::Random;
use tokio::task::JoinHandle;

use super::record::{LastSafe, PendingHold};
use super::section::Section;
use super::ticket::Tickets;
use super::{LONG_KEYS, SHORT_KEYS, Stop, TTL};
use crate::dialects;
use crate::history::{COMPLETES, PERIOD, WAITS};
use crate::resource::{Client, Pass};
use crate::workload::Workload;

/// How often a holder checks its lease: often, compared with the 250 ms limit for the report of a
/// loss.
const RECORD_EVERY: Duration = Duration::from_millis(20);

/// How a critical section ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Done,
    Lost,
}

pub(crate) struct Task {
    pub(super) locks: LockManager,
    pub(super) command_timeout: Duration,
    pub(super) dialect: Dialect,
    pub(super) workload: Workload,
    /// What the current section does.
    pub(super) section: Section,
    pub(super) recorder: Recorder,
    pub(super) stop: Arc<Stop>,
    pub(super) random: Random,
    pub(super) resource: Client,
    /// The number of the process, and its record.
    pub(super) worker: u32,
    pub(super) record: PathBuf,
    pub(super) tickets: Tickets,
}

impl Task {
    pub(crate) async fn run(mut self) {
        while !self.stop.is_set() {
            self.turn().await;
        }
    }

    /// Runs a caller that acquires the lock only for a moment.
    pub(crate) async fn call(mut self, key: &'static str) {
        let log = self.recorder.begin(key);
        let request = self.locks.lock(key).ttl(TTL);
        let request = self.request(&log, request, 1_500);
        match request.acquire().await {
            Ok(guard) => {
                log.granted(&guard.watch());
                log.step(Call::Release, Kind::Invoke);
                drop(guard);
                log.step(Call::Release, Kind::Dropped);
            }
            Err(error) => log.failed(Call::Acquire, &error),
        }
    }

    /// Records the beginning of an acquisition and its limit: one attempt, or up to this many
    /// milliseconds.
    fn request(&mut self, log: &Log, request: LockRequest, longest: u64) -> LockRequest {
        let tries = match self.workload {
            Workload::Try | Workload::Outage => self.random.chance(50),
            Workload::Cancel => self.random.chance(25),
            _ => self.random.chance(3),
        };
        let (mut request, mut within) = if tries {
            (request.wait(Duration::ZERO), self.command_timeout)
        } else {
            let wait = self.random.millis(100, longest);
            (request.wait(wait), wait)
        };
        if self.workload == Workload::Outage && self.random.chance(75) {
            let outage_wait = self.random.millis(0, 5_000);
            request = request.outage_wait(outage_wait);
            within = if tries {
                within.max(outage_wait)
            } else {
                within + outage_wait
            };
        }
        // Where there are groups, there is a queue.
        let has_queue = matches!(self.workload, Workload::ReadWrite | Workload::Permits);
        if has_queue && self.random.chance(20) {
            request = request.max_queue(*self.random.pick(&[0, 2]));
        }
        let mut invoke = log.event(Call::Acquire, Kind::Invoke);
        invoke.limit = Some(nanos(within));
        invoke.note = (!tries).then(|| WAITS.into());
        log.write(invoke);
        request
    }

    async fn turn(&mut self) {
        match self.workload {
            Workload::Elections => return Box::pin(self.campaign()).await,
            Workload::Observe => return Box::pin(self.observe()).await,
            _ => {}
        }
        let is_long = self.workload == Workload::Long;
        let keys: &[&str] = match self.workload {
            Workload::Long => &LONG_KEYS,
            Workload::Late => &SHORT_KEYS[..1],
            _ => &SHORT_KEYS,
        };
        if self.workload == Workload::Sets {
            return self.transfer().await;
        }
        if self.workload == Workload::Tickets && self.random.chance(50) && self.resume().await {
            return;
        }
        let key = *self.random.pick(keys);
        let log = self.recorder.begin(key);
        let ttl = if is_long && self.random.chance(50) {
            // Longer than the handover lease, so that the first renewal has to extend it.
            dialects::longest_ttl(self.dialect)
        } else {
            TTL
        };
        let (kind, section) = Section::choose(self.workload, &mut self.random);
        self.section = section;
        let request = self.locks.lock(key).ttl(ttl).kind(kind);
        let request = self.request(&log, request, 3_000);
        match self.workload {
            Workload::Once => self.by_guard(&log, request.once_per(PERIOD)).await,
            Workload::ReadWrite | Workload::Permits if self.random.chance(25) => {
                self.cancelled(&log, request).await;
            }
            Workload::Cancel => self.cancelled(&log, request).await,
            _ if self.random.chance(25) => self.by_run(&log, request).await,
            _ => self.by_guard(&log, request).await,
        }
    }

    async fn by_guard(&mut self, log: &Log, request: LockRequest) {
        let answer = {
            let open = log.pending(Call::Acquire);
            let answer = request.acquire().await;
            open.finish();
            answer
        };
        match answer {
            Ok(guard) => self.hold(log, guard).await,
            Err(error) => self.refused(log, &error).await,
        }
    }

    pub(super) async fn refused(&mut self, log: &Log, error: &LockError) {
        log.failed(Call::Acquire, error);
        // A held lock or an unreachable server must not be retried in a hot loop.
        let longest = if error.is_done() { 200 } else { 15 };
        let pause = self.random.millis(1, longest);
        tokio::time::sleep(pause).await;
    }

    pub(super) async fn hold(&mut self, log: &Log, guard: LockGuard) {
        let held = guard.watch();
        log.granted(&held);
        let end = {
            let open = PendingHold::new(log, &held);
            let end = self.section(log, &held, Some(&guard)).await;
            open.finish();
            end
        };
        log.lease(&held);
        if self.section == Section::WritePair && self.random.chance(30) {
            return self.downgrade(log, guard).await;
        }
        if self.workload == Workload::Tickets && self.random.chance(50) {
            return self.hand_over(log, guard).await;
        }
        if self.workload == Workload::Once && end == End::Done && self.random.chance(60) {
            return self.complete(log, guard).await;
        }
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
                log.step(Call::Release, Kind::Dropped);
            }
            20..40 => match drop_somewhere(guard.release(), &mut self.random).await {
                Some(Ok(())) => log.step(Call::Release, Kind::Ok),
                Some(Err(error)) => log.failed(Call::Release, &error),
                None => log.step(Call::Release, Kind::Dropped),
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

    /// Releases the lock of a job that has succeeded.
    async fn complete(&mut self, log: &Log, guard: LockGuard) {
        let mut invoke = log.event(Call::Release, Kind::Invoke);
        invoke.note = Some(COMPLETES.into());
        log.write(invoke);
        let completing = guard.complete();
        let outcome = if self.random.chance(10) {
            drop_somewhere(completing, &mut self.random).await
        } else {
            Some(completing.await)
        };
        match outcome {
            Some(Ok(())) => log.step(Call::Release, Kind::Ok),
            Some(Err(error)) => log.failed(Call::Release, &error),
            None => log.step(Call::Release, Kind::Dropped),
        }
    }

    async fn by_run(&mut self, log: &Log, request: LockRequest) {
        let mut began = false;
        let acquiring = log.pending(Call::Acquire);
        let outcome = request
            .run(async |guard| {
                acquiring.finish();
                began = true;
                let held = guard.watch();
                log.granted(&held);
                let open = PendingHold::new(log, &held);
                let end = self.section(log, &held, None).await;
                open.finish();
                log.lease(&held);
                log.step(Call::Release, Kind::Invoke);
                end
            })
            .await;
        acquiring.finish();
        match outcome {
            // The result of the release is only traced.
            Ok(_) => log.step(Call::Release, Kind::Info),
            Err(LockError::Lost { .. }) if began => log.step(Call::Lost, Kind::Ok),
            Err(error) => self.refused(log, &error).await,
        }
    }

    async fn cancelled(&mut self, log: &Log, request: LockRequest) {
        if self.random.chance(30) {
            return self.by_guard(log, request).await;
        }
        let answer = {
            let open = log.pending(Call::Acquire);
            let answer = drop_somewhere(request.acquire(), &mut self.random).await;
            open.finish();
            answer
        };
        match answer {
            Some(Ok(guard)) => self.hold(log, guard).await,
            Some(Err(error)) => self.refused(log, &error).await,
            None => log.step(Call::Acquire, Kind::Dropped),
        }
    }

    /// Works under the lock until the update is done, or until the task is notified of a loss.
    pub(super) async fn section(
        &mut self,
        log: &Log,
        held: &LockWatch,
        guard: Option<&LockGuard>,
    ) -> End {
        // Most tasks stop when they are notified. The others show why the resource must be fenced.
        // Only a resource that can refuse them may have such tasks.
        let token = held.fencing_token().map(u64::from);
        let is_stubborn =
            token.is_some() && (self.workload == Workload::Late || self.random.chance(25));
        let plan = self.plan();
        let pass = Pass {
            key: log.key(),
            hold: log.number(),
            token,
            part: 0,
        };
        let safe = Arc::<LastSafe>::default();
        let looks = record_renewals(log.clone(), held.clone(), Arc::clone(&safe));
        let _looks = AbortOnDrop(tokio::spawn(looks));
        let mut work = pin!(steps_of(
            &mut self.resource,
            self.section,
            log,
            &plan,
            pass,
            guard,
            &self.stop
        ));
        if guard.is_none() {
            // `run` receives the notification of the loss, and drops this future here.
            work.await;
            return End::Done;
        }
        // In a separate task, which only the notification of the loss wakes up.
        let loss = record_loss(log.clone(), held.clone(), safe);
        let mut heard = AbortOnDrop(tokio::spawn(loss));
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
            // Five times the ttl. In half of the cases only the notification of the loss ends the
            // pause.
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
            // Some sections are longer than a ttl.
            Workload::ReadWrite | Workload::Permits | Workload::Elections => Plan {
                updates: 1,
                think: if random.chance(3) {
                    TTL * 3 / 2
                } else {
                    random.millis(0, 10)
                },
                renew: random.chance(5),
            },
            // Some tasks acquire and release without an update.
            _ => Plan {
                updates: usize::from(random.chance(70)),
                think: Duration::ZERO,
                renew: random.chance(3),
            },
        }
    }
}

/// The plan of one critical section.
struct Plan {
    updates: usize,
    /// The time between the read and the write.
    think: Duration,
    /// Whether the task renews the lease explicitly.
    renew: bool,
}

/// A task that ends together with the task that started it.
pub(super) struct AbortOnDrop(pub(super) JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Records a loss. A lock that is lost before the end of its lease is valid no longer.
pub(super) async fn record_loss(log: Log, held: LockWatch, safe: Arc<LastSafe>) {
    held.lost().await;
    safe.on_loss(&log, &held);
    let mut event = log.event(Call::Lost, Kind::Ok);
    event.valid_until = Some(event.at.into());
    log.write(event);
}

pub(super) async fn record_renewals(log: Log, held: LockWatch, safe: Arc<LastSafe>) {
    loop {
        tokio::time::sleep(RECORD_EVERY).await;
        log.lease(&held);
        safe.look(&log, &held);
    }
}

async fn steps_of(
    resource: &mut Client,
    section: Section,
    log: &Log,
    plan: &Plan,
    pass: Pass<'_>,
    guard: Option<&LockGuard>,
    stop: &Stop,
) {
    for _ in 0..plan.updates {
        if stop.is_set() {
            return;
        }
        log.step(Call::Write, Kind::Invoke);
        let Ok(done) = section.work(resource, pass, plan.think, stop).await else {
            // A worker without its runner has no work.
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

/// A future that is dropped after a number of polls.
struct PollLimit<F> {
    future: F,
    left: usize,
}

impl<F: Future + Unpin> Future for PollLimit<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        Pin::new(&mut self.future).poll(cx).map(Some)
    }
}

/// Drops a future at one of its polls, or after a moment. Returns `None` if it was dropped.
pub(super) async fn drop_somewhere<F: Future>(future: F, random: &mut Random) -> Option<F::Output> {
    if random.chance(50) {
        let left = random.below(6);
        let future = pin!(future);
        // A future that never gets that far is dropped after a moment.
        let polls = PollLimit { future, left };
        let bound = random.millis(1, 300);
        tokio::time::timeout(bound, polls).await.ok().flatten()
    } else {
        let bound = random.millis(0, 40);
        tokio::time::timeout(bound, future).await.ok()
    }
}
