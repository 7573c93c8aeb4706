//! Where the events of one process go: to its history in memory, to its file, or to both.

use std::fs::File;
use std::io::{self, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{SystemTime, UNIX_EPOCH};

use lock_core::{LockManager, testing};

use crate::event::{Access, AccessKind, Call, Event, Kind, Nanos, Stall, nanos};
use crate::history::History;
use crate::lines::Line;
use crate::record::{AcquisitionRecord, Grant};
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
pub(crate) struct NotedLoss {
    pub(crate) event: Event,
    pub(crate) grant: Arc<Mutex<Grant>>,
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

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

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
    pub(crate) fn to_record_clock(&self, lease_end: Nanos, at: Nanos) -> Nanos {
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
            lock.number(),
            lock.token(),
            kind,
        );
        access.resource = resource;
        self.write(Line::Access(access));
    }

    /// Keeps a loss for the next record. It does not wait for the record.
    pub(crate) fn note_loss(&self, loss: NotedLoss) {
        // The receiver lives as long as the sink.
        let _sent = self.losses.send(loss);
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
