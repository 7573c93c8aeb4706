//! A subscriber that is there for the whole process: it sees each tracing event, notes the mutexes
//! that the library holds then, and panics where a test wants it.

use std::fmt::{Debug, Write};
use std::sync::{Mutex, Once, PoisonError};

use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

/// Events about keys with this in them make the subscriber panic.
pub(crate) const EXPLOSIVE: &str = "explosive";

static VIOLATIONS: Mutex<Vec<String>> = Mutex::new(Vec::new());

pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing::subscriber::set_global_default(Probe).expect("there is no other one");
    });
}

/// Foreign code runs here: it must not be under a mutex of the library.
pub(crate) fn check(what: &str) {
    // Only debug builds count them.
    #[cfg(debug_assertions)]
    {
        let held = lock_core::held_mutexes();
        if held > 0 {
            let mut violations = VIOLATIONS.lock().unwrap_or_else(PoisonError::into_inner);
            violations.push(format!("{what} under {held}"));
        }
    }
    #[cfg(not(debug_assertions))]
    let _ = what;
}

/// Nothing of what ran until now ran under a mutex.
#[track_caller]
pub(crate) fn assert_no_violation() {
    let violations = VIOLATIONS.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(violations.is_empty(), "{violations:?}");
}

struct Probe;

#[derive(Default)]
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {field}={value:?}");
    }
}

impl Subscriber for Probe {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("lock_core")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        check(&line.0);
        assert!(
            !line.0.contains(EXPLOSIVE),
            "the subscriber panics:{}",
            line.0
        );
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
