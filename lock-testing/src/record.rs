//! The record of one process: where its events go, and the record of one acquisition.

use std::fs::File;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::{LockError, LockManager, LockWatch, testing};

use crate::event::{Access, AccessKind, Call, ENDLESS, Event, Kind, Nanos, Stall, nanos};
use crate::history::History;
use crate::lines::Line;
use crate::recorder::RecordClock;

/// Where the events of a process go.
pub(crate) struct Sink {
    pub(crate) locks: LockManager,
    pub(crate) process: u32,
    clock: RecordClock,
    state: Mutex<SinkState>,
    has_failed: AtomicBool,
}

struct SinkState {
    /// `None` if only the file keeps the events.
    history: Option<History>,
    file: Option<File>,
    error: Option<io::Error>,
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
        Self {
            locks,
            process,
            clock,
            state: Mutex::new(SinkState {
                history,
                file,
                error: None,
            }),
            has_failed: AtomicBool::new(false),
        }
    }

    fn state(&self) -> MutexGuard<'_, SinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
                (at + lease_end.saturating_sub(now)).saturating_sub(now.saturating_sub(lease_end))
            }
        }
    }

    pub(crate) fn write(&self, line: Line) {
        let mut state = self.state();
        if let Some(file) = &mut state.file
            // One system call for each line, so that a kill loses no written line.
            && let Err(error) = file.write_all(line.to_text().as_bytes())
            && !self.has_failed.swap(true, Ordering::Relaxed)
        {
            state.error = Some(error);
        }
        if let Some(history) = &mut state.history {
            history.add_line(line);
        }
    }

    /// Takes the time and writes the access under one mutex, so that the order of the accesses is
    /// the order of their times.
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
    /// The token plus one; zero for none. All clones learn of it.
    token: Arc<AtomicU64>,
    /// The last recorded validity.
    valid_until: Arc<AtomicU64>,
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
            token: Arc::default(),
            valid_until: Arc::default(),
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
        self.token.load(Ordering::Acquire).checked_sub(1)
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

    /// Records the beginning of an acquire that takes at most `limit`.
    pub fn invoked(&self, limit: Duration) {
        let mut event = self.event(Call::Acquire, Kind::Invoke);
        event.limit = Some(nanos(limit));
        self.write(event);
    }

    /// Records that an operation returned an error.
    ///
    /// After an error of the backend the effect of the operation is not known, because the library
    /// resolves it in the background.
    pub fn failed(&self, call: Call, error: &LockError) {
        let kind = match error {
            LockError::Backend(_) => Kind::Info,
            _ => Kind::Fail,
        };
        let mut event = self.event(call, kind);
        event.note = Some(error.to_string().into());
        self.write(event);
    }

    /// Records the end of an acquire that granted the lock.
    pub fn granted(&self, held: &LockWatch) {
        let mut event = self.event(Call::Acquire, Kind::Ok);
        event.token = held.fencing_token().map(u64::from);
        let token = event.token.map_or(0, |token| token.saturating_add(1));
        self.token.store(token, Ordering::Release);
        let until = self.lease_end(held, event.at);
        event.valid_until = Some(until);
        self.valid_until.store(until, Ordering::Release);
        self.write(event);
    }

    /// Returns the end of the lease on the clock of the record.
    fn lease_end(&self, held: &LockWatch, at: Nanos) -> Nanos {
        let end = testing::lease_end(held);
        end.map_or(ENDLESS, |end| self.sink.to_record_clock(end, at))
    }

    /// Records until when the lock is valid, if that has changed. Does nothing for a lock that is
    /// lost or released.
    pub fn lease(&self, held: &LockWatch) {
        let mut event = self.event(Call::Acquire, Kind::Seen);
        let until = self.lease_end(held, event.at);
        let known = self.valid_until.load(Ordering::Acquire);
        if held.is_held() && until > known.saturating_add(nanos(SAME)) {
            self.valid_until.store(until, Ordering::Release);
            event.valid_until = Some(until);
            self.write(event);
        }
    }

    /// Records that the holder learned of the loss of its lock.
    pub fn lost(&self, held: &LockWatch) {
        let mut event = self.event(Call::Lost, Kind::Ok);
        // A renewal after the last record may have moved the end of the lease. A lock that was lost
        // before the end of its lease is valid no longer.
        let until = self.lease_end(held, event.at).min(event.at);
        let known = self.valid_until.load(Ordering::Acquire);
        if until > known {
            let mut seen = event.clone();
            (seen.call, seen.kind) = (Call::Acquire, Kind::Seen);
            seen.valid_until = Some(until);
            self.write(seen);
        }
        event.valid_until = Some(until);
        self.write(event);
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
