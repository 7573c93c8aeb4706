//! The record of one acquisition.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::{LockError, LockWatch, testing};

use crate::event::{Call, Event, Kind, Nanos, Validity, nanos};
use crate::lines::Line;
use crate::sink::{NotedLoss, Sink, locked};

/// One number for all recorders of this process, which may record under one process number.
static ACQUISITIONS: AtomicU64 = AtomicU64::new(1);

/// Records the events of one acquisition. Made by [`Recorder::begin`](crate::Recorder::begin), for
/// calls that [`Recorder::lock`](crate::Recorder::lock) does not record, such as the attribute.
///
/// Clones record the same acquisition.
#[derive(Clone)]
pub struct AcquisitionRecord {
    pub(crate) sink: Arc<Sink>,
    task: u32,
    number: u64,
    pub(crate) key: Arc<str>,
    /// All clones learn of it.
    grant: Arc<Mutex<Grant>>,
}

/// What the record has about the grant.
#[derive(Default)]
pub(crate) struct Grant {
    token: Option<u64>,
    /// The last recorded validity.
    pub(crate) valid_until: Option<Validity>,
}

impl Grant {
    /// Returns whether a renewal led to this validity.
    fn was_renewed(&self, until: Validity) -> bool {
        match self.valid_until {
            Some(Validity::Until(known)) => until.is_after(known.saturating_add(nanos(SAME))),
            Some(Validity::Endless) => false,
            None => true,
        }
    }
}

/// A validity that moved by less than this was not renewed in between.
const SAME: Duration = Duration::from_millis(3);

impl AcquisitionRecord {
    pub(crate) fn new(sink: Arc<Sink>, task: u32, key: Arc<str>) -> Self {
        Self {
            sink,
            task,
            number: ACQUISITIONS.fetch_add(1, Ordering::Relaxed),
            key,
            grant: Arc::default(),
        }
    }

    /// Returns the number of the acquisition.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the lock.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the token of the grant, after [`granted`](Self::granted).
    #[must_use]
    pub fn token(&self) -> Option<u64> {
        locked(&self.grant).token
    }

    /// Makes an event of this acquisition at this moment, without recording it.
    #[must_use]
    pub fn event(&self, call: Call, kind: Kind) -> Event {
        let key = Arc::clone(&self.key);
        let mut event = Event::new(
            self.sink.now(),
            self.sink.process,
            self.number,
            key,
            call,
            kind,
        );
        event.task = self.task;
        event
    }

    /// Records an event.
    pub fn write(&self, event: Event) {
        self.sink.write(Line::Event(event));
    }

    /// Records a stage of an operation, at this moment.
    pub fn step(&self, call: Call, kind: Kind) {
        self.write(self.event(call, kind));
    }

    /// Records the beginning of an acquire that is promised to end within `limit`. The
    /// [guarantees](lock_core::guide::guarantees#waits-end) have the limits of the library.
    pub fn invoked(&self, limit: Duration) {
        let mut event = self.event(Call::Acquire, Kind::Invoke);
        event.limit = Some(nanos(limit));
        self.write(event);
    }

    /// Records that an operation returned an error.
    ///
    /// It is [`Kind::Fail`] only for an error after which the operation certainly had no effect. An
    /// acquire that timed out may have got the lock, and the library then released it. The same
    /// holds after an error of the backend.
    pub fn failed(&self, call: Call, error: &LockError) {
        let kind = match error {
            LockError::Contended { .. }
            | LockError::Done { .. }
            | LockError::WouldDeadlock { .. }
            | LockError::TicketEnded { .. }
            | LockError::ForeignKey { .. }
            | LockError::Invalid(_)
            | LockError::NotConfigured
            | LockError::Forked => Kind::Fail,
            _ => Kind::Info,
        };
        let mut event = self.event(call, kind);
        event.note = Some(error.to_string().into());
        self.write(event);
    }

    /// Records the end of an acquire that granted the lock.
    pub fn granted(&self, held: &LockWatch) {
        let mut event = self.event(Call::Acquire, Kind::Ok);
        event.token = held.fencing_token().map(u64::from);
        event.lock_kind = held.kind();
        event.valid_until = Some(self.lease_end(held, event.at));
        *locked(&self.grant) = Grant {
            token: event.token,
            valid_until: event.valid_until,
        };
        self.write(event);
    }

    /// Returns the end of the lease on the clock of the record.
    fn lease_end(&self, held: &LockWatch, at: Nanos) -> Validity {
        testing::lease_end(held).map_or(Validity::Endless, |end| {
            Validity::Until(self.sink.to_record_clock(end, at))
        })
    }

    /// Records until when the lock is valid, if that has changed. Does nothing for a lock that is
    /// lost or released.
    pub fn lease(&self, held: &LockWatch) {
        let mut event = self.event(Call::Acquire, Kind::Seen);
        let until = self.lease_end(held, event.at);
        let is_news = {
            let mut grant = locked(&self.grant);
            let is_news = held.is_held() && grant.was_renewed(until);
            if is_news {
                grant.valid_until = Some(until);
            }
            is_news
        };
        if is_news {
            event.valid_until = Some(until);
            self.write(event);
        }
    }

    /// Records that the holder learned of the loss of its lock.
    pub fn lost(&self, held: &LockWatch) {
        self.note_loss(held);
        self.sink.write_losses();
    }

    /// Takes the time of a loss, for the next record. It neither writes to the file nor waits for
    /// the record, so that the library may call it.
    pub(crate) fn note_loss(&self, held: &LockWatch) {
        let mut event = self.event(Call::Lost, Kind::Ok);
        // A lock that was lost before the end of its lease is valid no longer.
        let until = self.lease_end(held, event.at);
        event.valid_until = Some(until.min(Validity::Until(event.at)));
        let grant = Arc::clone(&self.grant);
        self.sink.note_loss(NotedLoss { event, grant });
    }

    pub(crate) fn write_losses(&self) {
        self.sink.write_losses();
    }

    /// Records the end of an operation whose future is dropped before
    /// [`finish`](PendingCall::finish).
    pub fn pending(&self, call: Call) -> PendingCall {
        PendingCall {
            record: self.clone(),
            call,
            is_finished: AtomicBool::new(false),
        }
    }
}

impl std::fmt::Debug for AcquisitionRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AcquisitionRecord")
            .field("key", &self.key)
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

/// An operation that may be dropped. Made by [`AcquisitionRecord::pending`]. Dropping it records
/// [`Kind::Dropped`], unless [`finish`](Self::finish) was called.
#[derive(Debug)]
#[must_use = "the operation counts as dropped as soon as this value is dropped"]
pub struct PendingCall {
    record: AcquisitionRecord,
    call: Call,
    is_finished: AtomicBool,
}

impl PendingCall {
    /// Records nothing when this value is dropped.
    pub fn finish(&self) {
        self.is_finished.store(true, Ordering::Relaxed);
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        if !*self.is_finished.get_mut() {
            self.record.step(self.call, Kind::Dropped);
        }
    }
}
