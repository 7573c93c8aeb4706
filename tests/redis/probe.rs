//! A tracing subscriber for the whole process. It records the mutexes that the library holds at
//! each event, and panics where a test requires it.

use std::fmt::{Debug, Write};
use std::sync::{Mutex, Once, PoisonError};

use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

/// The subscriber panics at events about keys that contain this text.
pub(crate) const EXPLOSIVE: &str = "explosive";

/// The password of tests that look for it in events.
pub(crate) const SECRET: &str = "Kennwort7d41";

static VIOLATIONS: Mutex<Vec<String>> = Mutex::new(Vec::new());

pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing::subscriber::set_global_default(Probe).expect("no other subscriber is set");
    });
}

/// Records a violation when the library holds a mutex here.
pub(crate) fn check(what: &str) {
    // Only debug builds count held mutexes.
    #[cfg(debug_assertions)]
    {
        let held = lock_core::testing::held_mutexes();
        if held > 0 {
            violation(format!("{what} under {held}"));
        }
    }
    #[cfg(not(debug_assertions))]
    let _ = what;
}

fn violation(text: String) {
    let mut violations = VIOLATIONS.lock().unwrap_or_else(PoisonError::into_inner);
    violations.push(text);
}

/// Checks that no foreign code has run under a mutex until now, and that no event contained
/// [`SECRET`].
#[track_caller]
pub(crate) fn assert_no_violation() {
    let violations = VIOLATIONS.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(violations.is_empty(), "{violations:?}");
}

struct Probe;

#[derive(Default)]
struct EventText(String);

impl Visit for EventText {
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
        let mut text = EventText::default();
        event.record(&mut text);
        check(&text.0);
        if text.0.contains(SECRET) {
            violation(format!("a password is in an event:{}", text.0));
        }
        assert!(
            !text.0.contains(EXPLOSIVE),
            "the subscriber panics:{}",
            text.0
        );
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
