//! The tracing events of the library.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tracing::field::{Field, Visit};
use tracing::{Dispatch, span};

/// Collects the tracing events of the library on this thread.
#[derive(Clone, Debug, Default)]
pub struct Trace(Arc<Mutex<String>>);

impl Trace {
    /// Collects events until the guard is dropped.
    pub fn begin() -> (Self, tracing::subscriber::DefaultGuard) {
        // While `tracing` knows one subscriber only, it asks the subscriber of the thread that reaches an
        // event first. When that thread has none, the event is off for all threads. So there is a second
        // subscriber.
        static SECOND: OnceLock<Dispatch> = OnceLock::new();
        SECOND.get_or_init(|| Dispatch::new(Self::default()));
        let trace = Self::default();
        let guard = tracing::subscriber::set_default(trace.clone());
        (trace, guard)
    }

    /// Returns how often these words appear in the events.
    #[must_use]
    pub fn count(&self, words: &str) -> usize {
        let events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        events.matches(words).count()
    }

    /// Returns all events, one in each line.
    #[must_use]
    pub fn text(&self) -> String {
        let events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        events.clone()
    }

    /// Checks that an event contains these words.
    #[track_caller]
    pub fn assert_says(&self, words: &str) {
        let events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(events.contains(words), "`{words}` is not among:\n{events}");
    }
}

struct EventText(String);

impl Visit for EventText {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {field}={value:?}");
    }
}

impl tracing::Subscriber for Trace {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("lock_core")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = EventText(event.metadata().level().to_string());
        event.record(&mut text);
        let mut events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = writeln!(events, "{}", text.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
