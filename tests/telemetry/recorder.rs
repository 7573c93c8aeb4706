//! The metrics recorder of this test program.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};

/// One time series: its name, and its labels in alphabetical order.
pub(crate) type Series = (String, Vec<(String, String)>);

/// The sums of all series.
static TOTALS: Mutex<BTreeMap<Series, i64>> = Mutex::new(BTreeMap::new());
static SNAPSHOTTER: OnceLock<Snapshotter> = OnceLock::new();

/// Installs the recorder of the process, once.
pub(crate) fn install() {
    SNAPSHOTTER.get_or_init(|| {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        recorder.install().expect("the only recorder");
        snapshotter
    });
}

/// Returns all series: counters and gauges with their values, histograms with their numbers of values.
pub(crate) fn totals() -> MutexGuard<'static, BTreeMap<Series, i64>> {
    install();
    let mut totals = TOTALS.lock().unwrap_or_else(PoisonError::into_inner);
    // A snapshot sets all values to zero.
    for (key, _, _, value) in SNAPSHOTTER.get().expect("installed").snapshot().into_vec() {
        let (_, key) = key.into_parts();
        let labels = key.labels();
        let mut labels: Vec<_> = labels
            .map(|label| (label.key().to_owned(), label.value().to_owned()))
            .collect();
        labels.sort();
        let value = match value {
            DebugValue::Counter(count) => i64::try_from(count).expect("a small count"),
            // All gauges are counts.
            DebugValue::Gauge(value) => format!("{value:.0}").parse().expect("a whole number"),
            DebugValue::Histogram(values) => i64::try_from(values.len()).expect("a small count"),
        };
        *totals.entry((key.name().to_owned(), labels)).or_default() += value;
    }
    totals
}

/// Returns whether a series is of this metric and has these labels.
pub(crate) fn matches((name, known): &Series, metric: &str, labels: &[(&str, &str)]) -> bool {
    let has = |(key, value): &(&str, &str)| known.iter().any(|(k, v)| k == key && v == value);
    name == metric && labels.iter().all(has)
}
