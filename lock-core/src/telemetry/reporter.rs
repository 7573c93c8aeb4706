//! Gives the events of a manager to their readers, and counts some of them.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use tracing::Span;

use super::mismatches::Mismatches;
use super::{KeyDisplay, LockEvent, LockId, ObserverHandle, PanicSource, metrics, span, trace};
use crate::sync::{Process, catch, panic_message};
use lock_protocol::clock::Moment;
use lock_protocol::key::LockKey;

/// What a reporter counted.
pub(crate) struct Counts {
    pub(crate) lost: u64,
    pub(crate) renewals_failed: u64,
    pub(crate) releases_failed: u64,
    pub(crate) panics: u64,
}

/// The counts of a manager, and the readers of its events.
#[derive(Debug)]
pub(crate) struct Reporter {
    lost: AtomicU64,
    renewals_failed: AtomicU64,
    releases_failed: AtomicU64,
    panics: AtomicU64,
    observer: Option<ObserverHandle>,
    key_display: KeyDisplay,
    process: Process,
    mismatches: Mismatches,
}

impl Default for Reporter {
    fn default() -> Self {
        Self::new(None, KeyDisplay::default())
    }
}

impl Reporter {
    pub(crate) fn new(observer: Option<ObserverHandle>, key_display: KeyDisplay) -> Self {
        Self {
            lost: AtomicU64::new(0),
            renewals_failed: AtomicU64::new(0),
            releases_failed: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            observer,
            key_display,
            process: Process::current(),
            mismatches: Mismatches::default(),
        }
    }

    pub(crate) fn lost(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn renewal_failed(&self) {
        self.renewals_failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn release_failed(&self) {
        self.releases_failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how events show a lock.
    pub(crate) fn id<'a>(&self, key: &'a LockKey) -> LockId<'a> {
        LockId::new(key, self.key_display)
    }

    /// Returns whether a different number of permits for this key was reported less than a minute ago.
    pub(crate) fn is_repeated_mismatch(&self, key: &LockKey, now: Moment) -> bool {
        self.mismatches.is_repeated(key, now)
    }

    /// Returns whether an event has a reader. Frequent events are not made without one.
    pub(crate) fn listens(&self) -> bool {
        self.observer.is_some() || tracing::dispatcher::has_been_set() || metrics::is_recorded()
    }

    /// Does the checks of an uncontended pair of acquire and release, for the bench `telemetry`: for the
    /// record of the acquire, its command, the record of the held lock, and the command of the release.
    pub(crate) fn checks_of_a_pair(&self) -> bool {
        let mut listens = false;
        for _ in 0..4 {
            listens |= std::hint::black_box(self).listens();
        }
        listens
    }

    /// Gives an event to its readers. A panic of one of them must not stop the code after the event.
    pub(crate) fn emit(&self, event: &LockEvent<'_>) {
        self.emit_in(None, event);
    }

    /// As [`emit`](Self::emit). The tracing event is recorded in the span.
    pub(crate) fn emit_in(&self, span: Option<&Span>, event: &LockEvent<'_>) {
        if !self.has_readers() {
            return;
        }
        self.caught(PanicSource::Subscriber, || span::write_in(span, event));
        self.caught(PanicSource::Recorder, || metrics::write(event));
        if let Some(ObserverHandle(observer)) = &self.observer {
            self.caught(PanicSource::Observer, || observer.on_event(event));
        }
    }

    /// Returns whether the readers may be called. The readers of a forked child are those of the parent:
    /// another thread may have held one of their mutexes at the fork.
    fn has_readers(&self) -> bool {
        self.process.is_current()
    }

    /// Runs foreign code. Returns `None` if it panicked. In a forked child, does not run a reader.
    ///
    /// The closure must not own a span: a span that is dropped calls the subscriber.
    pub(crate) fn guarded<T>(&self, source: PanicSource, foreign: impl FnOnce() -> T) -> Option<T> {
        if source.is_sink() && !self.has_readers() {
            return None;
        }
        self.caught(source, foreign)
    }

    fn caught<T>(&self, source: PanicSource, foreign: impl FnOnce() -> T) -> Option<T> {
        match catch(foreign) {
            Ok(value) => Some(value),
            Err(payload) => {
                self.panicked(source, payload);
                None
            }
        }
    }

    /// Drops a span, which may be the end of it. In a forked child, forgets it.
    pub(crate) fn drop_span<S>(&self, span: Option<S>) {
        let Some(span) = span else {
            return;
        };
        if self.has_readers() {
            self.caught(PanicSource::Subscriber, || drop(span));
        } else {
            std::mem::forget(span);
        }
    }

    /// Wakes a task. A panic of the waker must not keep the next task asleep.
    pub(crate) fn wake(&self, waker: Waker) {
        self.waking(|| waker.wake());
    }

    /// As [`wake`](Self::wake), for a call that wakes tasks, such as a notification of tokio.
    pub(crate) fn waking(&self, wake: impl FnOnce()) {
        self.guarded(PanicSource::Waker, wake);
    }

    /// Counts and reports a panic that was caught.
    pub(crate) fn panicked(&self, source: PanicSource, payload: Box<dyn Any + Send>) {
        self.panics.fetch_add(1, Ordering::Relaxed);
        let message = panic_message(payload);
        if !self.has_readers() {
            return;
        }
        let event = LockEvent::PanicCaught {
            source,
            message: &message,
        };
        let observer = self.observer.as_ref();
        let readers: [&dyn Fn(); 3] = [
            &|| trace::write(&event),
            &|| metrics::write(&event),
            // An observer that panicked would panic again for its own panic.
            &|| match observer {
                Some(ObserverHandle(observer)) if source != PanicSource::Observer => {
                    observer.on_event(&event);
                }
                _ => {}
            },
        ];
        for reader in readers {
            // The reader itself may be the code that panics.
            if let Err(again) = catch(reader) {
                panic_message(again);
            }
        }
    }

    pub(crate) fn read(&self) -> Counts {
        Counts {
            lost: self.lost.load(Ordering::Relaxed),
            renewals_failed: self.renewals_failed.load(Ordering::Relaxed),
            releases_failed: self.releases_failed.load(Ordering::Relaxed),
            panics: self.panics.load(Ordering::Relaxed),
        }
    }
}
