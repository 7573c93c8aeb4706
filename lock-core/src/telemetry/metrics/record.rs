//! Events as metrics of the `metrics` facade.

use std::time::Duration;

use metrics::{Key, Label, Level, Metadata, SharedString, Unit, with_recorder};

use super::{
    ACQUIRE_DURATION, CLEANUPS, CLEANUPS_OPEN, COMMAND_DURATION, ERROR_TYPE, HOLD_DURATION,
    KIND_MISMATCHES, LOSSES, METRICS, MetricKind, NAME, NOTIFICATIONS, OBSERVER_PANICS, RECONNECTS,
    RENEWALS, REVOCATIONS, ROLE, SERVER,
};
use crate::error::LockError;
use crate::telemetry::trace::TARGET;
use crate::telemetry::{AcquireEnd, LockEvent, LockId};

static METADATA: Metadata<'static> = Metadata::new(TARGET, Level::INFO, Some(module_path!()));

/// Returns whether a recorder is installed.
///
/// The facade does not say so. But its placeholder is a static of a type without data, and a recorder has
/// data. A recorder without data that was installed for the process is a box, whose address is no place
/// in memory.
pub(crate) fn is_recorded() -> bool {
    with_recorder(|recorder| {
        let address = std::ptr::from_ref(recorder).cast::<()>().addr();
        size_of_val(recorder) != 0 || address <= align_of_val(recorder)
    })
}

/// Gives the recorder the descriptions and units.
pub(crate) fn describe() {
    if !is_recorded() {
        return;
    }
    with_recorder(|recorder| {
        for metric in METRICS {
            let name = metric.name.into();
            let text = SharedString::const_str(metric.description);
            match metric.kind {
                MetricKind::Histogram => {
                    recorder.describe_histogram(name, Some(Unit::Seconds), text);
                }
                MetricKind::Gauge => recorder.describe_gauge(name, Some(Unit::Count), text),
                MetricKind::Counter => recorder.describe_counter(name, Some(Unit::Count), text),
            }
        }
    });
}

/// Writes the metrics of an event.
pub(crate) fn write(event: &LockEvent<'_>) {
    if !is_recorded() {
        return;
    }
    match *event {
        LockEvent::Granted { lock, waited, .. } => {
            acquired(lock, AcquireEnd::Acquired, waited, None);
        }
        LockEvent::NotAcquired {
            lock,
            outcome,
            waited,
            error,
            ..
        } => {
            let error = error.filter(|_| outcome == AcquireEnd::Failed);
            acquired(lock, outcome, waited, error);
        }
        LockEvent::HoldEnded {
            lock,
            outcome,
            held_for,
            ..
        } => {
            let labels = vec![named(lock), label("outcome", outcome.as_str())];
            observe(HOLD_DURATION, labels, held_for);
        }
        LockEvent::Lost { lock, reason, .. } => {
            count(LOSSES, vec![named(lock), label("reason", reason.as_str())]);
        }
        LockEvent::KindMismatch { lock, .. } => count(KIND_MISMATCHES, vec![named(lock)]),
        LockEvent::Renewed { .. } => renewal("renewed"),
        LockEvent::RenewalLate { .. } => renewal("late"),
        LockEvent::RenewalFailed { .. } => renewal("failed"),
        LockEvent::RenewalRefused { .. } => renewal("refused"),
        LockEvent::CleanupEnded {
            operation, outcome, ..
        } => {
            let outcome = label("outcome", outcome.as_str());
            count(
                CLEANUPS,
                vec![label("operation", operation.as_str()), outcome],
            );
        }
        LockEvent::CommandEnded {
            command,
            server,
            duration,
            error,
        } => {
            let mut labels = vec![
                label("command", command.as_str()),
                Label::new(SERVER, server.shared_host()),
            ];
            labels.extend(error.map(|error| label(ERROR_TYPE, error.code())));
            observe(COMMAND_DURATION, labels, duration);
        }
        LockEvent::Connected {
            connection,
            is_reconnect: true,
            ..
        } => {
            count(RECONNECTS, vec![label("connection", connection.as_str())]);
        }
        LockEvent::NotificationReceived { kind, outcome } => {
            let outcome = label("outcome", outcome.as_str());
            count(NOTIFICATIONS, vec![label("kind", kind.as_str()), outcome]);
        }
        LockEvent::Revoked { lock, mode, .. } => {
            count(REVOCATIONS, vec![named(lock), label("mode", mode)]);
        }
        LockEvent::PanicCaught { source, .. } if source.is_sink() => {
            count(OBSERVER_PANICS, Vec::new());
        }
        _ => {}
    }
}

fn acquired(lock: LockId<'_>, outcome: AcquireEnd, waited: Duration, error: Option<&LockError>) {
    let mut labels = vec![named(lock), label("outcome", outcome.as_str())];
    labels.extend(error.map(|error| label(ERROR_TYPE, error.code())));
    labels.extend(role(lock.is_candidate()));
    observe(ACQUIRE_DURATION, labels, waited);
}

fn renewal(outcome: &'static str) {
    count(RENEWALS, vec![label("outcome", outcome)]);
}

fn named(lock: LockId<'_>) -> Label {
    label(NAME, lock.name())
}

/// Returns the label that keeps the waits of candidates, which may last for days, apart from other waits.
fn role(is_candidate: bool) -> Option<Label> {
    is_candidate.then(|| label(ROLE, "candidate"))
}

fn label(key: &'static str, value: &'static str) -> Label {
    Label::from_static_parts(key, value)
}

fn observe(metric: &'static str, labels: Vec<Label>, duration: Duration) {
    let key = Key::from_parts(metric, labels);
    with_recorder(|recorder| recorder.register_histogram(&key, &METADATA))
        .record(duration.as_secs_f64());
}

fn count(metric: &'static str, labels: Vec<Label>) {
    let key = Key::from_parts(metric, labels);
    with_recorder(|recorder| recorder.register_counter(&key, &METADATA)).increment(1);
}

fn change(metric: &'static str, labels: Vec<Label>, by: f64) {
    let key = Key::from_parts(metric, labels);
    with_recorder(|recorder| recorder.register_gauge(&key, &METADATA)).increment(by);
}

/// One unit of a gauge. A unit that no recorder has counted does not exist, so a recorder that is
/// installed later never goes below zero.
#[derive(Debug)]
#[must_use = "a unit that is not taken off stays in the gauge"]
pub(crate) struct GaugeUnit {
    metric: &'static str,
    name: &'static str,
    kind: &'static str,
    is_candidate: bool,
}

impl GaugeUnit {
    /// Adds a unit, if there is a recorder.
    pub(crate) fn add(metric: &'static str, lock: LockId<'_>) -> Option<Self> {
        if !is_recorded() {
            return None;
        }
        let unit = Self {
            metric,
            name: lock.name(),
            kind: lock.kind(),
            is_candidate: lock.is_candidate(),
        };
        unit.change(1.0);
        Some(unit)
    }

    /// Takes the unit off again.
    pub(crate) fn subtract(self) {
        self.change(-1.0);
    }

    fn change(&self, by: f64) {
        let mut labels = vec![label(NAME, self.name), label("kind", self.kind)];
        labels.extend(role(self.is_candidate));
        change(self.metric, labels, by);
    }
}

/// Changes the number of open cleanups.
pub(crate) fn change_cleanups_open(by: f64) {
    change(CLEANUPS_OPEN, Vec::new(), by);
}
