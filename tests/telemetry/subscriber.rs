//! The tracing subscriber of this test program. It records all spans and events of the library.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Mutex, OnceLock, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The fields of a span or an event, as text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields(pub(crate) BTreeMap<String, String>);

impl Fields {
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

#[derive(Clone, Debug)]
pub(crate) struct RecordedEvent {
    pub(crate) name: &'static str,
    pub(crate) level: Level,
    pub(crate) target: &'static str,
    pub(crate) fields: Fields,
    /// The number of its span, if it has one.
    pub(crate) span: Option<u64>,
}

#[derive(Clone, Debug)]
pub(crate) struct RecordedSpan {
    pub(crate) name: &'static str,
    pub(crate) fields: Fields,
    pub(crate) parent: Option<u64>,
    references: usize,
    pub(crate) is_closed: bool,
}

#[derive(Debug, Default)]
struct Recorded {
    /// The number of a span is its place plus one.
    spans: Vec<RecordedSpan>,
    events: Vec<RecordedEvent>,
}

static RECORDED: Mutex<Recorded> = Mutex::new(Recorded {
    spans: Vec::new(),
    events: Vec::new(),
});

thread_local! {
    static STACK: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

fn recorded() -> std::sync::MutexGuard<'static, Recorded> {
    RECORDED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Installs the subscriber of the process, once.
pub(crate) fn install() {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        tracing::subscriber::set_global_default(Recording).expect("the only subscriber");
    });
}

/// Returns the events that the filter accepts.
pub(crate) fn events(filter: impl Fn(&RecordedEvent) -> bool) -> Vec<RecordedEvent> {
    let recorded = recorded();
    let events = recorded.events.iter().filter(|event| filter(event));
    events.cloned().collect()
}

/// Returns the spans that the filter accepts, with their numbers.
pub(crate) fn spans(filter: impl Fn(&RecordedSpan) -> bool) -> Vec<(u64, RecordedSpan)> {
    let recorded = recorded();
    let numbered = (1..).zip(&recorded.spans);
    let spans = numbered.filter(|(_, span)| filter(span));
    spans.map(|(number, span)| (number, span.clone())).collect()
}

struct Recording;

impl Subscriber for Recording {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("lock_core") || metadata.target().starts_with("telemetry")
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let parent = attributes.parent().map(Id::into_u64);
        let parent = parent.or_else(|| STACK.with_borrow(|stack| stack.last().copied()));
        let mut recorded = recorded();
        recorded.spans.push(RecordedSpan {
            name: attributes.metadata().name(),
            fields,
            parent,
            references: 1,
            is_closed: false,
        });
        Id::from_u64(u64::try_from(recorded.spans.len()).expect("few spans"))
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        values.record(&mut recorded().spans[place(span)].fields);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let metadata = event.metadata();
        let event = RecordedEvent {
            name: metadata.name(),
            level: *metadata.level(),
            target: metadata.target(),
            fields,
            span: STACK.with_borrow(|stack| stack.last().copied()),
        };
        recorded().events.push(event);
    }

    fn enter(&self, span: &Id) {
        STACK.with_borrow_mut(|stack| stack.push(span.into_u64()));
    }

    fn exit(&self, span: &Id) {
        let left = STACK.with_borrow_mut(Vec::pop);
        assert_eq!(left, Some(span.into_u64()), "spans end in order");
    }

    fn clone_span(&self, span: &Id) -> Id {
        recorded().spans[place(span)].references += 1;
        span.clone()
    }

    fn try_close(&self, span: Id) -> bool {
        let mut recorded = recorded();
        let span = &mut recorded.spans[place(&span)];
        span.references -= 1;
        span.is_closed = span.references == 0;
        span.is_closed
    }
}

fn place(span: &Id) -> usize {
    usize::try_from(span.into_u64()).expect("few spans") - 1
}
