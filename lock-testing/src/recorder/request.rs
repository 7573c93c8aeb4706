//! A request for a lock that is recorded.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use lock_core::dialect::Dialect;
use lock_core::{LockError, LockGuard, LockRequest, Renew, testing};

use super::Recorder;
use super::guard::{RecordedGuard, ReleaseRecord};
use super::loss::LeaseRecord;
use crate::event::{Call, Kind};
use crate::record::AcquisitionRecord;

/// How much later than its wait an acquire ends at the latest, as the guarantees say. A single
/// attempt ends within this time, or within the command timeout if that is longer.
const PROMISED_END: Duration = Duration::from_millis(250);

/// A request for a lock that is recorded. Made by [`Recorder::lock`].
///
/// The setters are those of [`LockRequest`]. Awaiting the request acquires the lock.
#[derive(Clone, Debug)]
#[must_use = "nothing is sent before `acquire`, `try_acquire` or `run`"]
pub struct RecordedRequest {
    recorder: Recorder,
    request: LockRequest,
}

impl RecordedRequest {
    pub(super) fn new(recorder: Recorder, request: LockRequest) -> Self {
        Self { recorder, request }
    }

    fn map(self, change: impl FnOnce(LockRequest) -> LockRequest) -> Self {
        Self {
            recorder: self.recorder,
            request: change(self.request),
        }
    }

    /// Sets how long the lock outlives a holder that dies. Defaults to the manager's `default_ttl`.
    pub fn ttl(self, ttl: Duration) -> Self {
        self.map(|request| request.ttl(ttl))
    }

    /// Sets how long `acquire` waits for the lock. Defaults to the manager's `default_wait`.
    pub fn wait(self, wait: Duration) -> Self {
        self.map(|request| request.wait(wait))
    }

    /// Sets how long `acquire` waits for a server that can't be reached, in addition to the wait. By default, that is a
    /// part of the wait.
    pub fn outage_wait(self, longest: Duration) -> Self {
        self.map(|request| request.outage_wait(longest))
    }

    /// Sets whether and how often the lock is renewed. Defaults to [`Renew::Auto`].
    pub fn renew(self, renew: Renew) -> Self {
        self.map(|request| request.renew(renew))
    }

    /// Sets the format of the lock on the server. Defaults to the manager's dialect.
    pub fn dialect(self, dialect: Dialect) -> Self {
        self.map(|request| request.dialect(dialect))
    }

    /// Sets the longest time for which the lock is held. Defaults to no limit.
    pub fn max_hold(self, max_hold: Duration) -> Self {
        self.map(|request| request.max_hold(max_hold))
    }

    /// Sets the shortest time for which the key stays locked. Defaults to zero.
    pub fn min_hold(self, min_hold: Duration) -> Self {
        self.map(|request| request.min_hold(min_hold))
    }

    /// Sets how many callers may wait for the lock already. Defaults to no limit.
    pub fn max_queue(self, waiters: u32) -> Self {
        self.map(|request| request.max_queue(waiters))
    }

    /// Acquires the lock and records it, as [`LockRequest::acquire`].
    ///
    /// # Errors
    /// As [`LockRequest::acquire`].
    ///
    /// # Cancel safety
    /// As [`LockRequest::acquire`]. The record shows an acquire that was dropped.
    pub async fn acquire(self) -> Result<RecordedGuard, LockError> {
        let record = self.begin();
        let pending = record.pending(Call::Acquire);
        let acquired = self.request.acquire().await;
        pending.finish();
        match acquired {
            Ok(guard) => Ok(RecordedGuard::new(guard, record)),
            Err(error) => {
                record.failed(Call::Acquire, &error);
                Err(error)
            }
        }
    }

    /// Acquires the lock, runs `body`, releases the lock, and records it, as [`LockRequest::run`].
    ///
    /// The body gets the guard, and the record for accesses to a
    /// [`FencedRegister`](crate::FencedRegister).
    ///
    /// # Errors
    /// As [`LockRequest::run`].
    ///
    /// # Cancel safety
    /// As [`LockRequest::run`]. The record shows a body that was dropped.
    pub async fn run<T>(
        self,
        body: impl AsyncFnOnce(&LockGuard, &AcquisitionRecord) -> T,
    ) -> Result<T, LockError> {
        let record = self.begin();
        let pending = record.pending(Call::Acquire);
        let mut is_granted = false;
        let outcome = self.request.run(async |guard| {
            pending.finish();
            is_granted = true;
            let watch = guard.watch();
            record.granted(&watch);
            let _lease = LeaseRecord::start(&record, &watch);
            // Records the release when the library drops this future.
            let mut release = ReleaseRecord::new(record.clone(), watch);
            let output = body(guard, &record).await;
            release.begin();
            output
        });
        let outcome = outcome.await;
        pending.finish();
        match &outcome {
            // The library does not return the outcome of the release.
            Ok(_) => record.step(Call::Release, Kind::Info),
            Err(error) if !is_granted => record.failed(Call::Acquire, error),
            Err(_) => {}
        }
        outcome
    }

    /// Begins the record of the acquire.
    fn begin(&self) -> AcquisitionRecord {
        let parts = testing::request_parts(&self.request);
        let limit = if parts.wait.is_zero() {
            parts
                .command_timeout
                .max(PROMISED_END)
                .max(parts.outage_wait)
        } else {
            let waits = parts.wait.saturating_add(parts.outage_wait);
            waits.saturating_add(PROMISED_END)
        };
        let record = self.recorder.begin(parts.key);
        record.invoked(limit);
        record
    }

    /// Makes one attempt to acquire the lock and records it, as [`LockRequest::try_acquire`].
    ///
    /// # Errors
    /// As [`LockRequest::try_acquire`].
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(self) -> Result<Option<RecordedGuard>, LockError> {
        match self.wait(Duration::ZERO).acquire().await {
            Ok(guard) => Ok(Some(guard)),
            Err(LockError::Contended { .. } | LockError::WouldDeadlock { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl IntoFuture for RecordedRequest {
    type Output = Result<RecordedGuard, LockError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    /// As [`acquire`](RecordedRequest::acquire).
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}
