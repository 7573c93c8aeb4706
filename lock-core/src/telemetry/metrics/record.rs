//! Events as metrics of the `metrics` facade.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use metrics::{Key, Label, Level, Metadata, SharedString, Unit, with_recorder};

use super::{
    ACQUIRE_DURATION, CLEANUPS, CLEANUPS_OPEN, COMMAND_DURATION, ERROR_TYPE, HELD_OLDEST,
    HOLD_DURATION, KIND_MISMATCHES, LAST_SUCCESS, LOSSES, METRICS, MetricKind, NAME, NOTIFICATIONS,
    OBSERVER_PANICS, RECONNECTS, RENEWALS, REVOCATIONS, ROLE, SERVER,
};
use crate::error::LockError;
use crate::sync::PerProcess;
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
                MetricKind::Seconds => recorder.describe_gauge(name, Some(Unit::Seconds), text),
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
        LockEvent::Completed { lock, .. } => {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let key = Key::from_parts(LAST_SUCCESS, vec![named(lock)]);
            with_recorder(|recorder| recorder.register_gauge(&key, &METADATA))
                .set(now.unwrap_or_default().as_secs_f64());
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

/// The age of the oldest lock, by its name and its manager. Managers of one process share the gauge of a name.
static OLDEST: PerProcess<BTreeMap<(&'static str, usize), Duration>> =
    PerProcess::new(BTreeMap::new());

/// Writes the age of a manager's oldest lock of each name, and zero for a name of which it no longer has a lock.
pub(crate) fn write_oldest(manager: usize, ages: &BTreeMap<&'static str, Duration>) {
    let mut changed: Vec<_> = {
        let mut all = OLDEST.lock();
        let own = all.keys().filter(|(_, of)| *of == manager);
        let before: Vec<_> = own.map(|(name, _)| *name).collect();
        all.retain(|(_, of), _| *of != manager);
        all.extend(ages.iter().map(|(name, age)| ((*name, manager), *age)));
        let names = before.into_iter().chain(ages.keys().copied());
        names.map(|name| (name, Duration::MAX)).collect()
    };
    // A recorder is foreign code, so it runs outside of the mutex. Two managers may write in the other order than they
    // looked, so each looks again after it has written.
    loop {
        {
            let all = OLDEST.lock();
            let oldest = |name| {
                let of_name = all.range((name, 0)..=(name, usize::MAX));
                of_name.map(|(_, age)| *age).max().unwrap_or_default()
            };
            changed.retain_mut(|(name, written)| {
                let oldest = oldest(*name);
                std::mem::replace(written, oldest) != oldest
            });
        }
        if changed.is_empty() {
            return;
        }
        for (name, age) in &changed {
            let key = Key::from_parts(HELD_OLDEST, vec![label(NAME, name)]);
            with_recorder(|recorder| recorder.register_gauge(&key, &METADATA))
                .set(age.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    /// The managers are numbers that no other test has.
    #[test]
    fn managers_of_one_process_share_the_gauge_of_the_oldest_lock() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let page = recorder.handle();
        let write = |manager, seconds: &[u64]| {
            let ages = seconds
                .iter()
                .map(|age| ("shared", Duration::from_secs(*age)));
            metrics::with_local_recorder(&recorder, || write_oldest(manager, &ages.collect()));
            let page = page.render();
            let shown = page.lines().find(|line| line.contains("\"shared\""));
            shown.map(|line| line.rsplit(' ').next().unwrap().to_owned())
        };
        assert_eq!(write(1, &[]), None);
        assert_eq!(write(1, &[7]).as_deref(), Some("7"));
        assert_eq!(write(2, &[3]).as_deref(), Some("7"), "the older one stays");
        assert_eq!(write(1, &[]).as_deref(), Some("3"), "it has ended");
        assert_eq!(write(2, &[4]).as_deref(), Some("4"));
        assert_eq!(write(2, &[]).as_deref(), Some("0"));
        assert!(OLDEST.lock().keys().all(|(name, _)| *name != "shared"));
    }
}
