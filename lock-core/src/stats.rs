//! Counters of events that a caller may not have seen.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use tracing::Span;

use crate::protocol::key::LockKey;
use crate::sync::{catch, panic_message};
use crate::telemetry::{self, KeyDisplay, LockEvent, LockId, ObserverHandle, PanicSource};

/// Counts events, since the manager was made, that a caller may not have seen. Returned by
/// [`LockManager::stats`](crate::LockManager::stats).
///
/// Read it in a health check, or export it as metrics. Each event is also a
/// [`LockEvent`](crate::telemetry::LockEvent).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockStats {
    /// Locks that were lost while they were held. Either a renewal found the key free or with
    /// another owner, or the lease ended before a renewal succeeded.
    pub lost: u64,
    /// Renewals that failed: the server did not reply, or replied with an error. The background
    /// worker repeats each of them until the lease ends.
    pub renewals_failed: u64,
    /// Releases that failed after the body of a lock had completed. The body's result was kept.
    pub releases_failed: u64,
    /// Panics of a tracing subscriber, of a metrics recorder, of an observer, of a
    /// [holder tag](crate::LockManagerBuilder::holder_tag), of a waker, or of the background worker. The
    /// library catches each of them, traces it as an error, and continues to renew and release locks.
    pub panics: u64,
}

/// The counters of a manager, and the readers of its events.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    lost: AtomicU64,
    renewals_failed: AtomicU64,
    releases_failed: AtomicU64,
    panics: AtomicU64,
    observer: Option<ObserverHandle>,
    key_display: KeyDisplay,
}

impl Counters {
    pub(crate) fn new(observer: Option<ObserverHandle>, key_display: KeyDisplay) -> Self {
        Self {
            observer,
            key_display,
            ..Self::default()
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

    /// Returns whether an event has a reader. Frequent events are not made without one.
    pub(crate) fn listens(&self) -> bool {
        self.observer.is_some()
            || tracing::dispatcher::has_been_set()
            || telemetry::metrics::is_recorded()
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
        self.guarded(PanicSource::Subscriber, || {
            telemetry::span::write_in(span, event);
        });
        self.guarded(PanicSource::Recorder, || telemetry::metrics::write(event));
        if let Some(ObserverHandle(observer)) = &self.observer {
            self.guarded(PanicSource::Observer, || observer.on_event(event));
        }
    }

    /// Runs the code of a reader. Returns `None` if it panicked.
    pub(crate) fn guarded<T>(&self, source: PanicSource, foreign: impl FnOnce() -> T) -> Option<T> {
        match catch(foreign) {
            Ok(value) => Some(value),
            Err(payload) => {
                self.panicked(source, payload);
                None
            }
        }
    }

    /// Drops a span, which may be the end of it.
    pub(crate) fn drop_span(&self, span: Option<Arc<Span>>) {
        if span.is_some() {
            self.guarded(PanicSource::Subscriber, || drop(span));
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
        let event = LockEvent::PanicCaught {
            source,
            message: &message,
        };
        let observer = self.observer.as_ref();
        let readers: [&dyn Fn(); 3] = [
            &|| telemetry::trace::write(&event),
            &|| telemetry::metrics::write(&event),
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

    pub(crate) fn read(&self) -> LockStats {
        LockStats {
            lost: self.lost.load(Ordering::Relaxed),
            renewals_failed: self.renewals_failed.load(Ordering::Relaxed),
            releases_failed: self.releases_failed.load(Ordering::Relaxed),
            panics: self.panics.load(Ordering::Relaxed),
        }
    }
}
