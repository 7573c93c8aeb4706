//! The record of one process: where its events go, and the record of one acquisition.

use std::fs::File;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::{LockError, LockManager, LockWatch, testing};

use crate::event::{Access, AccessKind, Call, Event, Kind, Nanos, Stall, Validity, nanos};
use crate::history::History;
use crate::lines::Line;
use crate::recorder::RecordClock;

/// Where the events of a process go.
pub(crate) struct Sink {
    pub(crate) locks: LockManager,
    pub(crate) process: u32,
    clock: RecordClock,
    state: Mutex<SinkState>,
    losses: mpsc::Sender<NotedLoss>,
}

pub(crate) struct SinkState {
    /// `None` if only the file keeps the events.
    history: Option<History>,
    file: Option<File>,
    error: Option<io::Error>,
    has_failed: bool,
    losses: mpsc::Receiver<NotedLoss>,
}

/// A loss that the library reported, and that is not recorded yet.
struct NotedLoss {
    event: Event,
    grant: Arc<Mutex<Grant>>,
}

impl SinkState {
    fn write(&mut self, line: Line) {
        if let Some(file) = &mut self.file
            // One system call for each line, so that a kill loses no written line.
            && let Err(error) = file.write_all(line.to_text().as_bytes())
            && !std::mem::replace(&mut self.has_failed, true)
        {
            self.error = Some(error);
        }
        if let Some(history) = &mut self.history {
            history.add_line(line);
        }
    }

    fn write_losses(&mut self) {
        while let Ok(NotedLoss { event, grant }) = self.losses.try_recv() {
            // A renewal after the last record may have moved the end of the lease.
            let known = locked(&grant).valid_until;
            if event.valid_until > known {
                let mut seen = event.clone();
                (seen.call, seen.kind) = (Call::Acquire, Kind::Seen);
                self.write(Line::Event(seen));
            }
            self.write(Line::Event(event));
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One number for all recorders of this process, which may record under one process number.
static ACQUISITIONS: AtomicU64 = AtomicU64::new(1);

impl Sink {
    pub(crate) fn new(
        locks: LockManager,
        process: u32,
        clock: RecordClock,
        history: Option<History>,
        file: Option<File>,
    ) -> Self {
        let (sender, losses) = mpsc::channel();
        Self {
            locks,
            process,
            clock,
            state: Mutex::new(SinkState {
                history,
                file,
                error: None,
                has_failed: false,
                losses,
            }),
            losses: sender,
        }
    }

    /// Returns the state, after it has recorded all noted losses.
    pub(crate) fn state(&self) -> MutexGuard<'_, SinkState> {
        let mut state = locked(&self.state);
        state.write_losses();
        state
    }

    pub(crate) fn now(&self) -> Nanos {
        match self.clock {
            RecordClock::Lease => testing::now(&self.locks),
            RecordClock::Wall => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH);
                nanos(since.unwrap_or_default())
            }
        }
    }

    /// Converts the end of a lease to the clock of the record, on which it is `at` now.
    fn to_record_clock(&self, lease_end: Nanos, at: Nanos) -> Nanos {
        match self.clock {
            RecordClock::Lease => lease_end,
            RecordClock::Wall => {
                let now = testing::now(&self.locks);
                at.saturating_add(lease_end.saturating_sub(now))
                    .saturating_sub(now.saturating_sub(lease_end))
            }
        }
    }

    pub(crate) fn write(&self, line: Line) {
        self.state().write(line);
    }

    /// Records all noted losses.
    pub(crate) fn write_losses(&self) {
        drop(self.state());
    }

    /// Records an access at this moment. The caller has a mutex of the resource, so that the record
    /// has the order of the resource.
    pub(crate) fn write_access(&self, lock: &AcquisitionRecord, resource: u64, kind: AccessKind) {
        let mut access = Access::new(
            self.now(),
            Arc::clone(&lock.key),
            lock.sink.process,
            lock.number,
            lock.token(),
            kind,
        );
        access.resource = resource;
        self.write(Line::Access(access));
    }

    pub(crate) fn write_stall(&self, from: Nanos, to: Nanos) {
        self.write(Line::Stall(Stall::new(self.process, from, to)));
    }

    pub(crate) fn history(&self) -> Option<History> {
        let mut history = self.state().history.clone()?;
        history.ended = Some(self.now());
        Some(history)
    }

    pub(crate) fn end(&self) -> io::Result<()> {
        self.write(Line::End {
            process: self.process,
            at: self.now(),
        });
        self.state().error.take().map_or(Ok(()), Err)
    }
}

/// Records the events of one acquisition. Made by [`Recorder::begin`](crate::Recorder::begin), for
/// calls that [`Recorder::lock`](crate::Recorder::lock) does not record, such as the attribute.
///
/// Clones record the same acquisition.
#[derive(Clone)]
pub struct AcquisitionRecord {
    sink: Arc<Sink>,
    task: u32,
    number: u64,
    key: Arc<str>,
    /// All clones learn of it.
    grant: Arc<Mutex<Grant>>,
}

/// What the record has about the grant.
#[derive(Default)]
struct Grant {
    token: Option<u64>,
    /// The last recorded validity.
    valid_until: Option<Validity>,
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
            | LockError::WouldDeadlock { .. }
            | LockError::ForeignKey { .. }
            | LockError::InvalidDialect { .. }
            | LockError::InvalidName { .. }
            | LockError::InvalidTtl { .. }
            | LockError::InvalidSetting { .. }
            | LockError::InvalidRenewal { .. }
            | LockError::InvalidMaxHold { .. }
            | LockError::InvalidMinHold { .. }
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
        // The receiver lives as long as the sink.
        let _sent = self.sink.losses.send(NotedLoss {
            event,
            grant: Arc::clone(&self.grant),
        });
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
