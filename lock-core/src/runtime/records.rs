//! What telemetry keeps of an acquire and of a held lock: times, spans and units of gauges.
//!
//! A record exists only if an event has a reader when the acquire begins, or when the lock is granted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tracing::Span;

use crate::error::LockError;
use crate::runtime::inner::ManagerInner;
use crate::sync::{Mutex, Process};
use crate::telemetry::metrics::{self, GaugeUnit};
use crate::telemetry::{
    AcquireEnd, Caller, HoldEnd, LockEvent, LockId, PanicSource, Reporter, span,
};
use lock_protocol::clock::{Clock, Moment};
use lock_protocol::fencing_token::FencingToken;
use lock_protocol::key::LockKey;
use lock_protocol::kind::Kind;

/// An acquire in progress. Dropping it reports that the caller cancelled the acquire.
pub(crate) struct AcquireRecord {
    reporter: Arc<Reporter>,
    key: LockKey,
    kind: Kind,
    caller: Caller,
    clock: Clock,
    process: Process,
    started: Moment,
    span: Option<Span>,
    queue: Option<Queued>,
    waiting: Option<GaugeUnit>,
    has_mismatch: bool,
    is_over: bool,
}

/// The first reply said that the lock is busy.
#[derive(Clone, Copy)]
struct Queued {
    position: Option<u64>,
}

impl AcquireRecord {
    pub(crate) fn begin(
        inner: &ManagerInner,
        key: &LockKey,
        kind: Kind,
        started: Moment,
    ) -> Option<Box<Self>> {
        let reporter = &inner.reporter;
        if !reporter.listens() {
            return None;
        }
        let server = inner.store.server();
        let span = reporter.guarded(PanicSource::Subscriber, || {
            span::acquire(reporter.id(key).of_kind(kind), server.as_deref())
        });
        Some(Box::new(Self {
            reporter: Arc::clone(reporter),
            key: key.clone(),
            kind,
            caller: Caller::Call,
            clock: inner.clock(),
            process: inner.process(),
            started,
            span: span.flatten(),
            queue: None,
            waiting: None,
            has_mismatch: false,
            is_over: false,
        }))
    }

    pub(crate) fn set_caller(&mut self, caller: Caller) {
        self.caller = caller;
    }

    fn lock(&self) -> LockId<'_> {
        let lock = self.reporter.id(&self.key);
        lock.of_kind(self.kind).of_caller(self.caller)
    }

    /// Records a reply that the lock is busy. Only the first one counts.
    pub(crate) fn on_busy(&mut self, position: Option<u64>) {
        if self.queue.is_some() {
            return;
        }
        self.queue = Some(Queued { position });
        self.waiting = gauge_unit(&self.reporter, metrics::WAITING, self.lock());
        if let (Some(span), Some(position)) = (&self.span, position) {
            self.reporter
                .guarded(PanicSource::Subscriber, || span::queued(span, position));
        }
        let lock = self.lock();
        let event = LockEvent::Queued { lock, position };
        self.reporter.emit_in(self.span.as_ref(), &event);
    }

    /// Records that the holders have permits out of another number than the caller. Only the first such reply
    /// counts.
    pub(crate) fn on_mismatch(&mut self, permits: u32, held_permits: u32) {
        if std::mem::replace(&mut self.has_mismatch, true) {
            return;
        }
        let now = self.clock.now();
        let event = LockEvent::KindMismatch {
            lock: self.lock(),
            permits,
            held_permits,
            is_repeated: self.reporter.is_repeated_mismatch(&self.key, now),
        };
        self.reporter.emit_in(self.span.as_ref(), &event);
    }

    pub(crate) fn granted(&mut self, token: Option<FencingToken>) {
        self.end(AcquireEnd::Acquired, token, None);
    }

    pub(crate) fn failed(&mut self, error: &LockError) {
        let outcome = match error {
            LockError::Contended { .. } | LockError::WouldDeadlock { .. } => AcquireEnd::Contended,
            LockError::Timeout { .. } => AcquireEnd::TimedOut,
            LockError::QueueFull { .. } => AcquireEnd::QueueFull,
            LockError::Done { .. } => AcquireEnd::Done,
            _ => AcquireEnd::Failed,
        };
        self.end(outcome, None, Some(error));
    }

    /// Ends the record without an event: the outcome of another lock is that of the whole set.
    pub(crate) fn discard(record: Option<Box<Self>>) {
        if let Some(mut record) = record {
            record.is_over = true;
            drop_unit(&record.reporter, record.waiting.take());
            let span = record.span.take();
            record.reporter.drop_span(span);
        }
    }

    fn end(&mut self, outcome: AcquireEnd, token: Option<FencingToken>, error: Option<&LockError>) {
        self.is_over = true;
        let waiting = self.waiting.take();
        let reporter = &self.reporter;
        let waited = self.clock.now().since(self.started);
        let lock = self.lock();
        let position = self.queue.and_then(|queued| queued.position);
        drop_unit(reporter, waiting);
        if let Some(span) = &self.span {
            reporter.guarded(PanicSource::Subscriber, || {
                span::end_acquire(span, outcome, waited, token, error);
            });
        }
        let event = match outcome {
            AcquireEnd::Acquired => LockEvent::Granted {
                lock,
                waited,
                position,
                token,
            },
            _ => LockEvent::NotAcquired {
                lock,
                outcome,
                waited,
                position,
                error,
            },
        };
        reporter.emit_in(self.span.as_ref(), &event);
        let span = self.span.take();
        reporter.drop_span(span);
    }
}

impl Drop for AcquireRecord {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // In a forked child, another thread may have held a mutex of the subscriber at the fork.
            std::mem::forget(self.span.take());
        } else if !self.is_over {
            self.end(AcquireEnd::Cancelled, None, None);
        }
    }
}

/// A held lock.
#[derive(Debug)]
pub(crate) struct HoldRecord {
    renewals: AtomicU64,
    process: Process,
    state: Mutex<RecordState>,
}

#[derive(Debug)]
struct RecordState {
    held: Option<GaugeUnit>,
    span: Option<Arc<Span>>,
    is_over: bool,
}

impl HoldRecord {
    pub(crate) fn begin(
        reporter: &Reporter,
        key: &LockKey,
        kind: Kind,
        token: Option<FencingToken>,
        process: Process,
    ) -> Option<Box<Self>> {
        if !reporter.listens() {
            return None;
        }
        let lock = reporter.id(key).of_kind(kind);
        let span = reporter.guarded(PanicSource::Subscriber, || span::hold(lock, token));
        Some(Box::new(Self {
            renewals: AtomicU64::new(0),
            process,
            state: Mutex::new(RecordState {
                held: gauge_unit(reporter, metrics::HELD, lock),
                span: span.flatten().map(Arc::new),
                is_over: false,
            }),
        }))
    }

    /// Returns the span, until the guard ends.
    pub(crate) fn span(&self) -> Option<Arc<Span>> {
        self.state.lock().span.clone()
    }

    pub(crate) fn renewed(&self) {
        self.renewals.fetch_add(1, Ordering::Relaxed);
    }

    /// Reports the end, unless it was reported before.
    pub(crate) fn end(
        &self,
        reporter: &Reporter,
        lock: LockId<'_>,
        outcome: HoldEnd,
        held_for: Duration,
        token: Option<FencingToken>,
    ) {
        let (unit, span) = {
            let mut state = self.state.lock();
            if std::mem::replace(&mut state.is_over, true) {
                return;
            }
            (state.held.take(), state.span.clone())
        };
        drop_unit(reporter, unit);
        let renewals = self.renewals.load(Ordering::Relaxed);
        if let Some(span) = &span {
            reporter.guarded(PanicSource::Subscriber, || {
                span::end_hold(span, outcome, held_for, renewals);
            });
        }
        let event = LockEvent::HoldEnded {
            lock,
            outcome,
            held_for,
            renewals,
            token,
        };
        reporter.emit_in(span.as_deref(), &event);
        reporter.drop_span(span);
    }

    /// Ends the span: the guard is gone.
    pub(crate) fn close(&self, reporter: &Reporter) {
        let span = self.state.lock().span.take();
        reporter.drop_span(span);
    }
}

impl Drop for HoldRecord {
    fn drop(&mut self) {
        // In a forked child, another thread may have held a mutex of the subscriber at the fork.
        if !self.process.is_current() {
            std::mem::forget(self.state.get_mut().span.take());
        }
    }
}

fn gauge_unit(reporter: &Reporter, metric: &'static str, lock: LockId<'_>) -> Option<GaugeUnit> {
    reporter
        .guarded(PanicSource::Recorder, || GaugeUnit::add(metric, lock))
        .flatten()
}

fn drop_unit(reporter: &Reporter, unit: Option<GaugeUnit>) {
    if let Some(unit) = unit {
        reporter.guarded(PanicSource::Recorder, || unit.subtract());
    }
}
