//! The record of one task about one acquisition.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lock_core::{LockError, LockWatch};

use crate::event::{Call, Event, Kind, Nanos, Recorder, nanos, now};
use crate::history::DROPPED;

/// A validity that moved by less than this was not renewed in between.
const SAME: Nanos = 3_000_000;

/// The record of one task about one acquisition.
pub(super) struct Log {
    pub(super) recorder: Arc<Recorder>,
    pub(super) worker: u32,
    pub(super) task: u32,
    pub(super) hold: u64,
    pub(super) key: &'static str,
    /// The last recorded validity.
    pub(super) until: Nanos,
}

impl Log {
    /// Returns a copy for another task that observes the same held lock.
    pub(super) fn copied(&self) -> Self {
        Self {
            recorder: Arc::clone(&self.recorder),
            ..*self
        }
    }

    pub(super) fn event(&self, call: Call, kind: Kind) -> Event {
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

    pub(super) fn write(&self, event: &Event) {
        self.recorder.write(&event.to_line());
    }

    pub(super) fn step(&self, call: Call, kind: Kind) {
        self.write(&self.event(call, kind));
    }

    pub(super) fn noted(&self, call: Call, kind: Kind, note: &str) {
        let mut event = self.event(call, kind);
        event.note = Some(note.to_owned());
        self.write(&event);
    }

    pub(super) fn failed(&self, call: Call, error: &LockError) {
        let kind = match error {
            // The library resolves in the background whether the request was executed.
            LockError::Backend(_) => Kind::Info,
            _ => Kind::Fail,
        };
        self.noted(call, kind, &error.to_string());
    }

    pub(super) fn held(&mut self, held: &LockWatch) {
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

    /// Records until when the lock is valid, if that has changed.
    pub(super) fn record_lease(&mut self, held: &LockWatch) {
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

/// An acquisition or a held lock that may be dropped with its runtime before it completes.
pub(super) struct Pending {
    pub(super) log: Log,
    pub(super) held: Option<LockWatch>,
    pub(super) is_finished: AtomicBool,
}

impl Pending {
    pub(super) fn acquiring(log: &Log) -> Self {
        Self::new(log, None)
    }

    pub(super) fn holding(log: &Log, held: &LockWatch) -> Self {
        Self::new(log, Some(held.clone()))
    }

    pub(super) fn new(log: &Log, held: Option<LockWatch>) -> Self {
        Self {
            log: log.copied(),
            held,
            is_finished: AtomicBool::new(false),
        }
    }

    pub(super) fn finish(&self) {
        self.is_finished.store(true, Ordering::Relaxed);
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let call = match &self.held {
            _ if *self.is_finished.get_mut() => return,
            None => Call::Acquire,
            // `run` drops a body that has lost its lock.
            Some(held) if held.is_lost() => return,
            Some(_) => {
                self.log.step(Call::Release, Kind::Invoke);
                Call::Release
            }
        };
        self.log.noted(call, Kind::Info, DROPPED);
    }
}
