//! Acquires and releases the locks of a set: several acquisitions that one command drives together.

use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use crate::error::LockError;
use crate::runtime::acquired::Acquired;
use crate::runtime::connecting;
use crate::runtime::inner::ManagerInner;
use crate::runtime::pending::PendingAcquire;
use crate::runtime::records::AcquireRecord;
use crate::runtime::waiter::{self, BoxedAcquire, Waits};
use crate::store::{Call, Reach, Together};
use crate::sync::Mutex;
use crate::telemetry::Caller;
use lock_protocol::acquisition::{
    AcquireConfig, AcquireOutcome, Action, NextAction, Outage, Patience, QueueLimit,
};
use lock_protocol::cleanup::{AwaitedRelease, Cleanup, ReleaseOutcome, ReleaseRequest, Validity};
use lock_protocol::clock::{Deadline, Moment};
use lock_protocol::key::LockKey;
use lock_protocol::lease::LeaseConfig;
use lock_protocol::op::OpKind;

/// How long a set waits, and since when.
#[derive(Debug)]
pub(crate) struct SetPatience {
    started: Moment,
    wait: Duration,
    max_queue: QueueLimit,
    outage: Option<SetOutages>,
}

/// The time that a set has for outages of the server. All of its acquisitions share it.
#[derive(Debug)]
struct SetOutages {
    longest: Duration,
    /// What the acquisition under way has left of it. It may be dropped at any time.
    left: Arc<Mutex<Outage>>,
}

impl SetPatience {
    /// `spent` is the part of the wait that has passed, or of the time for outages if there is one.
    pub(crate) fn new(inner: &ManagerInner, waits: Waits, spent: Duration) -> Self {
        let outages = |longest: Duration| SetOutages {
            longest,
            left: Arc::new(Mutex::new(Outage::new(longest.saturating_sub(spent)))),
        };
        Self {
            started: inner.clock().now().minus(spent),
            wait: waits.wait,
            max_queue: waits.max_queue,
            outage: waits.outage.map(outages),
        }
    }

    pub(crate) fn started(&self) -> Moment {
        self.started
    }

    /// Returns whether each acquisition makes one attempt.
    fn is_one_attempt(&self) -> bool {
        self.wait.is_zero()
    }

    /// Returns the patience of an acquisition that begins now, and its time for outages.
    fn of_each(&self, inner: &ManagerInner) -> (Patience, Option<Duration>) {
        let started = self.started;
        if self.is_one_attempt() {
            let command_timeout = inner.settings.command_timeout;
            let mut until = started.plus(command_timeout);
            let longest = self.outage.as_ref().map(|outages| outages.longest);
            if let Some(longest) = longest {
                // It may have waited for a connection.
                let now = inner.clock().now();
                until = now
                    .plus(command_timeout)
                    .min(started.plus(longest))
                    .max(until);
            }
            return (Patience::OneAttempt { started, until }, longest);
        }
        let mut deadline = started.plus(self.wait);
        let left = self.outage.as_ref().map(|outages| {
            let now = inner.clock().now();
            let mut known = outages.left.lock();
            // An acquisition that was dropped during an outage is followed by this one.
            known.end(now);
            let left = known.left(now);
            deadline = deadline.plus(outages.longest.saturating_sub(left));
            left
        });
        let patience = Patience::Wait {
            started,
            deadline,
            max_queue: self.max_queue,
        };
        (patience, left)
    }

    /// Begins to wait for a connection. Returns until when.
    fn connects_until(&self, inner: &ManagerInner) -> Moment {
        let mut until = self.started.plus(self.wait);
        if self.is_one_attempt() {
            until = self.started.plus(inner.settings.command_timeout);
        }
        let Some(outages) = &self.outage else {
            return until;
        };
        let now = inner.clock().now();
        let mut known = outages.left.lock();
        known.begin(now);
        if self.is_one_attempt() {
            until.max(self.started.plus(outages.longest))
        } else {
            now.plus(known.left(now))
        }
    }

    /// Returns what an acquisition records its outages in.
    fn outage(&self) -> Option<Arc<Mutex<Outage>>> {
        let outages = self.outage.as_ref()?;
        Some(Arc::clone(&outages.left))
    }
}

/// What one command of a set got. The numbers are those of the locks that it was for.
pub(crate) struct SetProgress {
    pub(crate) acquired: Vec<(usize, Acquired)>,
    /// The lock that the caller did not get yet. The future goes on with it alone.
    pub(crate) waiting: Option<(usize, BoxedAcquire)>,
}

/// Sends one command for these locks, at least one. Locks that are in neither part of the result were not
/// acquired, and need another command.
///
/// # Cancel safety
/// Dropping the future releases what was acquired, and leaves the queue.
pub(crate) async fn acquire(
    inner: &Arc<ManagerInner>,
    locks: &[(LockKey, LeaseConfig)],
    patience: &SetPatience,
) -> Result<SetProgress, LockError> {
    if let [(key, lease_config)] = locks
        && patience.outage.is_none()
    {
        return acquire_alone(inner, key.clone(), *lease_config, patience);
    }
    // The record of the first lock is that of the set, until it is known which lock the outcome is about.
    let record = locks
        .first()
        .and_then(|(key, lease)| AcquireRecord::begin(inner, key, lease.kind, patience.started));
    let connecting = if inner.store.reach() == Reach::Down {
        match connecting::connect(inner, patience.connects_until(inner)).await {
            Ok(connecting) => Some(connecting),
            Err(error) => return Err(waiter::failed(record, error)),
        }
    } else {
        None
    };
    let mut pending = begin(inner, locks, record, patience);
    // Each acquisition counts itself.
    drop(connecting);
    if inner.activity.is_closing() {
        let record = pending.first_mut().and_then(|first| first.record.take());
        return Err(waiter::failed(record, LockError::ShuttingDown));
    }
    let outcomes = match send(inner, &mut pending, patience).await {
        Ok(outcomes) => outcomes,
        Err((at, error)) => {
            let mut record = pending.first_mut().and_then(|first| first.record.take());
            if at > 0 {
                AcquireRecord::discard(record);
                let (key, lease_config) = &locks[at];
                record = AcquireRecord::begin(inner, key, lease_config.kind, patience.started);
            }
            return Err(waiter::failed(record, error));
        }
    };
    let mut progress = SetProgress {
        acquired: Vec::with_capacity(locks.len()),
        waiting: None,
    };
    for (at, (mut acquire, outcome)) in pending.into_iter().zip(outcomes).enumerate() {
        // The drop of an acquisition without an outcome cancels what it may have on the server.
        let Some(outcome) = outcome else {
            AcquireRecord::discard(acquire.record.take());
            continue;
        };
        if progress.waiting.is_some() {
            // In the order of the keys: a set that held a later lock could wait for a set that waits for it. The drop
            // cancels the acquisition.
            continue;
        }
        if acquire.record.is_none() {
            acquire.record =
                AcquireRecord::begin(inner, &locks[at].0, locks[at].1.kind, patience.started);
        }
        match acquire.on_acquire_result(outcome).split() {
            ControlFlow::Break(result) => progress.acquired.push((at, acquire.finish(result)?)),
            ControlFlow::Continue(action) => {
                let going_on = Box::pin(waiter::go_on(acquire, action, patience.outage()));
                progress.waiting = Some((at, going_on));
            }
        }
    }
    Ok(progress)
}

/// The outcomes of a set's acquires, one for each lock. A lock without one was not acquired: the calls ended before it,
/// or it was released again.
type SetOutcomes = Vec<Option<Result<AcquireOutcome, LockError>>>;

/// Sends the command of a set. That of a single attempt goes out again after its connection broke, as it does for
/// one lock: with new owner ids, the set could meet what its first copy has got. Returns the error of a single
/// attempt with the number of its lock.
async fn send(
    inner: &ManagerInner,
    pending: &mut [PendingAcquire],
    patience: &SetPatience,
) -> Result<SetOutcomes, (usize, LockError)> {
    let start = |acquire: &mut PendingAcquire| {
        let now = acquire.now();
        acquire.acquisition.on_start(now)
    };
    let mut limit = begin_copy(pending, start).unwrap_or_default();
    for acquire in &mut *pending {
        acquire.enter_local_queue();
    }
    let together = if patience.is_one_attempt() {
        Together::AllOrNone
    } else {
        Together::InOrder
    };
    loop {
        let outcomes = call(inner, pending, together, limit).await;
        let is_single = together == Together::AllOrNone;
        let Some((at, error)) = only_error(&outcomes).filter(|_| is_single) else {
            return Ok(outcomes);
        };
        let mut pauses_until = None;
        let fail = |acquire: &mut PendingAcquire| {
            let mut next = acquire.on_acquire_result(Err(error.clone()));
            if let NextAction::Perform(Action::Reconnect { .. }) = next {
                // The call connects by itself.
                let now = acquire.now();
                next = acquire.acquisition.on_reconnect(Ok(()), now);
            }
            if let NextAction::Perform(Action::Wait { until }) = next {
                pauses_until = pauses_until.max(Some(until));
            }
            next
        };
        limit = match (begin_copy(pending, fail), pauses_until) {
            (Some(limit), _) => limit,
            (None, Some(until)) => again(inner, pending, until).await.map_err(|closed| {
                let error = closed.unwrap_or(error);
                (at, error)
            })?,
            (None, None) => return Err((at, error)),
        };
    }
}

/// Waits until the next copy of a single attempt that outlasts an outage. Returns its time limit, or the error of a manager
/// that was closed in the meantime.
async fn again(
    inner: &ManagerInner,
    pending: &mut [PendingAcquire],
    until: Moment,
) -> Result<Duration, Option<LockError>> {
    tokio::select! {
        biased;
        () = inner.activity.closed() => return Err(Some(LockError::ShuttingDown)),
        () = tokio::time::sleep(until.since(inner.clock().now())) => {}
    }
    let copy = begin_copy(pending, |acquire| {
        let now = acquire.now();
        acquire.acquisition.on_timeout(now)
    });
    copy.ok_or(None)
}

async fn call(
    inner: &ManagerInner,
    pending: &mut [PendingAcquire],
    together: Together,
    limit: Duration,
) -> SetOutcomes {
    let mut deadline = Deadline::after(inner.clock(), limit);
    if let Some(pause) = pending.iter().filter_map(PendingAcquire::pause).max() {
        deadline = Box::pin(waiter::pause_before(pause, deadline)).await;
    }
    let sent = pending.iter_mut();
    let sent = sent.map(|acquire| acquire.acquisition.sent_mut());
    let mut calls: Vec<_> = sent.map(|sent| Call::new(OpKind::Acquire(sent))).collect();
    let mut all: Vec<_> = calls.iter_mut().collect();
    inner.store.call(&mut all, together, deadline).await;
    let outcome = |call: Call<'_>| call.outcome.is_some().then(|| call.acquired());
    calls.into_iter().map(outcome).collect()
}

/// Begins a copy of the command, if each lock begins one. Returns its time limit.
fn begin_copy(
    pending: &mut [PendingAcquire],
    mut next: impl FnMut(&mut PendingAcquire) -> NextAction<LockError>,
) -> Option<Duration> {
    let mut limit = Some(Duration::MAX);
    for acquire in pending {
        let left = match next(acquire) {
            NextAction::Perform(Action::Acquire { limit }) => Some(limit),
            _ => None,
        };
        limit = limit.zip(left).map(|(limit, left)| limit.min(left));
    }
    limit
}

/// Returns the error of the only lock that has an outcome.
fn only_error(outcomes: &SetOutcomes) -> Option<(usize, LockError)> {
    let known = outcomes.iter().enumerate();
    let mut known = known.filter_map(|(at, outcome)| Some((at, outcome.as_ref()?)));
    match (known.next(), known.next()) {
        (Some((at, Err(error))), None) => Some((at, error.clone())),
        _ => None,
    }
}

/// A set of one lock is an ordinary lock.
fn acquire_alone(
    inner: &Arc<ManagerInner>,
    key: LockKey,
    lease_config: LeaseConfig,
    patience: &SetPatience,
) -> Result<SetProgress, LockError> {
    let spent = inner.clock().now().since(patience.started);
    let (wait, outage) = (patience.wait, None);
    let acquiring = if patience.is_one_attempt() {
        waiter::try_acquire(inner, key, lease_config, outage, spent, Caller::Call)?
    } else {
        let waits = Waits {
            wait,
            max_queue: patience.max_queue,
            outage,
        };
        waiter::acquire(inner, key, lease_config, waits, spent, Caller::Call)?
    };
    Ok(SetProgress {
        acquired: Vec::new(),
        waiting: Some((0, acquiring)),
    })
}

/// Registers an acquisition for each lock.
fn begin(
    inner: &Arc<ManagerInner>,
    locks: &[(LockKey, LeaseConfig)],
    mut record: Option<Box<AcquireRecord>>,
    patience: &SetPatience,
) -> Vec<PendingAcquire> {
    let label = inner.acquire_label();
    let begin_one = |(key, lease_config): &(LockKey, LeaseConfig)| {
        let config = config(inner, key, *lease_config, Arc::clone(&label), patience);
        PendingAcquire::new(inner, config, record.take())
    };
    locks.iter().map(begin_one).collect()
}

/// Returns the settings of an acquisition that begins now.
fn config(
    inner: &ManagerInner,
    key: &LockKey,
    lease_config: LeaseConfig,
    label: Arc<str>,
    patience: &SetPatience,
) -> AcquireConfig {
    let (of_each, outage_wait) = patience.of_each(inner);
    AcquireConfig {
        outage_wait,
        ..waiter::acquire_config(inner, key.clone(), lease_config, label, of_each)
    }
}

/// Renews the locks of a set by one batch. Returns the error of the first lock that was not renewed.
pub(crate) async fn renew(locks: &[&Acquired]) -> Result<(), LockError> {
    let Some(inner) = locks.first().map(|first| &first.inner) else {
        return Ok(());
    };
    inner.check_process()?;
    inner.check_runtime()?;
    let held = locks.iter().map(|acquired| &acquired.held);
    let (ended, renewed): (Vec<_>, Vec<_>) = held
        .enumerate()
        .partition(|(_, held)| held.is_lost() || held.is_released());
    let first_ended = ended.first().map(|(at, held)| (*at, held.lost_error()));
    if renewed.is_empty() {
        return first_ended.map_or(Ok(()), |(_, error)| Err(error));
    }
    let remaining = renewed.iter().map(|(_, held)| held.remaining());
    let limit = remaining.fold(inner.settings.command_timeout, Duration::min);
    let renewals: Vec<_> = renewed.iter().map(|(_, held)| held.renewal()).collect();
    let outcomes = inner.store.renew_all(&renewals, limit).await;
    let mut failed = Vec::from_iter(first_ended);
    for ((at, held), outcome) in renewed.into_iter().zip(outcomes) {
        let result = held.apply_renewal(outcome);
        inner.track(held);
        failed.extend(result.err().map(|error| (at, error)));
    }
    let first = failed.into_iter().min_by_key(|(at, _)| *at);
    first.map_or(Ok(()), |(_, error)| Err(error))
}

/// The release of one lock of a set.
struct SetRelease {
    acquired_at: usize,
    release: AwaitedRelease<LockError>,
}

/// Sends the releases of a set. Returns one outcome for each lock, in order; the caller passes it to
/// [`Acquired::finish_release`].
///
/// # Cancel safety
/// Dropping the future loses nothing: the drops of the guards release in the background.
pub(crate) fn send_release(
    acquired: &[&Acquired],
) -> impl Future<Output = Vec<Result<ReleaseOutcome, LockError>>> + Send + use<> {
    let mut inner = None;
    let mut locks = Vec::new();
    for acquired in acquired {
        inner = inner.or(Some(Arc::clone(&acquired.inner)));
        let request = acquired.release_request();
        locks.push((Arc::clone(&acquired.held), request));
    }
    async move {
        let Some(inner) = inner else {
            return Vec::new();
        };
        // A forked child has copies, and must not release the locks of its parent.
        if let Err(error) = inner.check_process() {
            return locks.iter().map(|_| Err(error.clone())).collect();
        }
        let requests = locks.iter().map(|(held, request)| {
            let validity = held.validity();
            inner.untrack(held);
            request.clone().map(|request| (request, validity))
        });
        let outcomes = release(&inner, requests.collect()).await;
        for ((held, request), outcome) in locks.iter().zip(&outcomes) {
            if let Some(request) = request {
                held.on_release(outcome, request.keep);
            }
        }
        outcomes
    }
}

/// Sends one command for all releases. A release that it does not end goes on alone.
async fn release(
    inner: &ManagerInner,
    requests: Vec<Option<(ReleaseRequest, Validity)>>,
) -> Vec<Result<ReleaseOutcome, LockError>> {
    let limit = inner.settings.command_timeout;
    let now = inner.clock().now();
    let mut outcomes: Vec<_> = requests
        .iter()
        .map(|_| Ok(ReleaseOutcome::already_released()))
        .collect();
    let mut releases = Vec::with_capacity(requests.len());
    for (acquired_at, request) in requests.into_iter().enumerate() {
        if let Some((request, validity)) = request {
            let cleanup = Cleanup::new(request, now, inner.settings.command_timeout);
            let mut release = AwaitedRelease::new(cleanup, now.plus(limit), validity);
            let _send = release.on_start(now);
            releases.push(SetRelease {
                acquired_at,
                release,
            });
        }
    }
    let replies = {
        let requests: Vec<_> = releases.iter().map(|it| it.release.request()).collect();
        inner.store.release_all(&requests, limit).await
    };
    for (one, reply) in releases.into_iter().zip(replies) {
        let SetRelease {
            acquired_at,
            mut release,
        } = one;
        let now = inner.clock().now();
        let step = match reply {
            Ok(outcome) => {
                let key = &release.request().key;
                inner.notifications.on_release(key, &outcome, now);
                release.on_reply(outcome, now)
            }
            Err(error) => release.on_failure(error, now),
        };
        outcomes[acquired_at] = inner.finish_release(&mut release, step).await;
    }
    outcomes
}
