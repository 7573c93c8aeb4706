//! The metrics: their table, and events as metrics.

use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(feature = "metrics")]
mod record;

#[cfg(feature = "metrics")]
use self::record::change_cleanups_open;
#[cfg(feature = "metrics")]
pub(crate) use self::record::{GaugeUnit, describe, is_recorded, write, write_oldest};
#[cfg(not(feature = "metrics"))]
use self::without::change_cleanups_open;
#[cfg(not(feature = "metrics"))]
pub(crate) use self::without::{GaugeUnit, describe, is_recorded, write, write_oldest};

/// Buckets for `distributed_lock.acquire.duration` in seconds: those that OpenTelemetry advises for durations, and
/// 2.5 and 30. Half of the default wait of 5 s is a bucket, because an alert compares the wait with it.
pub const ACQUIRE_BUCKETS: &[f64] = &[
    0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
];

/// Buckets for `distributed_lock.hold.duration` in seconds: [`ACQUIRE_BUCKETS`], and buckets up to an hour.
pub const HOLD_BUCKETS: &[f64] = &[
    0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0,
];

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetricKind {
    /// A distribution of durations, in seconds.
    Histogram,
    /// A number that goes up and down.
    Gauge,
    /// A number of seconds: an age, or the time since 1970.
    Seconds,
    /// A number that only grows.
    Counter,
}

impl MetricKind {
    /// Returns the kind and its unit, as the guide shows them.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Histogram => "histogram, s",
            Self::Gauge => "gauge",
            Self::Seconds => "gauge, s",
            Self::Counter => "counter",
        }
    }
}

/// One metric of the library.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct MetricInfo {
    /// The name.
    pub name: &'static str,
    /// What it is.
    pub kind: MetricKind,
    /// All labels, in alphabetical order. `error.type` is present only when a command failed, or when an acquire failed
    /// for a reason other than a busy lock. Only candidates of [`lead`](crate::LockRequest::lead) have `role`.
    pub labels: &'static [&'static str],
    /// What it counts.
    pub description: &'static str,
}

const NAME: &str = "distributed_lock.name";
const ERROR_TYPE: &str = "error.type";
const SERVER: &str = "server.address";
const ROLE: &str = "role";

/// The time from a call to the lock, or to the call's error.
pub(crate) const ACQUIRE_DURATION: &str = "distributed_lock.acquire.duration";
/// The time from a grant to the release or the loss.
pub(crate) const HOLD_DURATION: &str = "distributed_lock.hold.duration";
pub(crate) const HELD: &str = "distributed_lock.held";
/// How long the oldest lock has been held.
pub(crate) const HELD_OLDEST: &str = "distributed_lock.held.oldest";
pub(crate) const WAITING: &str = "distributed_lock.waiting";
const LOSSES: &str = "distributed_lock.losses";
const KIND_MISMATCHES: &str = "distributed_lock.kind_mismatches";
const RENEWALS: &str = "distributed_lock.renewals";
const CLEANUPS: &str = "distributed_lock.cleanups";
pub(crate) const CLEANUPS_OPEN: &str = "distributed_lock.cleanups.open";
const COMMAND_DURATION: &str = "distributed_lock.command.duration";
const RECONNECTS: &str = "distributed_lock.reconnects";
const NOTIFICATIONS: &str = "distributed_lock.notifications";
const LAST_SUCCESS: &str = "distributed_lock.last_success";
const REVOCATIONS: &str = "distributed_lock.revocations";
const OBSERVER_PANICS: &str = "distributed_lock.observer_panics";

/// All metrics of the library, in the order of the guide.
pub const METRICS: &[MetricInfo] = &[
    MetricInfo {
        name: ACQUIRE_DURATION,
        kind: MetricKind::Histogram,
        labels: &[NAME, ERROR_TYPE, "outcome", ROLE],
        description: "The time from a call to the lock, or to the end of the call.",
    },
    MetricInfo {
        name: HOLD_DURATION,
        kind: MetricKind::Histogram,
        labels: &[NAME, "outcome"],
        description: "The time from a grant to the release or the loss.",
    },
    MetricInfo {
        name: HELD,
        kind: MetricKind::Gauge,
        labels: &[NAME, "kind"],
        description: "Locks that guards of this process hold.",
    },
    MetricInfo {
        name: HELD_OLDEST,
        kind: MetricKind::Seconds,
        labels: &[NAME],
        description: "The age of the oldest lock that a guard of this process holds on a server.",
    },
    MetricInfo {
        name: WAITING,
        kind: MetricKind::Gauge,
        labels: &[NAME, "kind", ROLE],
        description: "Callers of this process that found the lock busy and wait.",
    },
    MetricInfo {
        name: LAST_SUCCESS,
        kind: MetricKind::Seconds,
        labels: &[NAME],
        description: "When work with `once_per` last succeeded in this process, in seconds since 1970.",
    },
    MetricInfo {
        name: LOSSES,
        kind: MetricKind::Counter,
        labels: &[NAME, "reason"],
        description: "Locks that were lost while they were held.",
    },
    MetricInfo {
        name: KIND_MISMATCHES,
        kind: MetricKind::Counter,
        labels: &[NAME],
        description: "Acquires that found holders with another number of permits.",
    },
    MetricInfo {
        name: RENEWALS,
        kind: MetricKind::Counter,
        labels: &["outcome"],
        description: "Renewals of held locks.",
    },
    MetricInfo {
        name: CLEANUPS,
        kind: MetricKind::Counter,
        labels: &["operation", "outcome"],
        description: "Releases and cancels that the background worker finished.",
    },
    MetricInfo {
        name: CLEANUPS_OPEN,
        kind: MetricKind::Gauge,
        labels: &[],
        description: "Releases and cancels that the background worker has not finished.",
    },
    MetricInfo {
        name: COMMAND_DURATION,
        kind: MetricKind::Histogram,
        labels: &["command", ERROR_TYPE, SERVER],
        description: "The time from a command to its reply, with the wait for a connection.",
    },
    MetricInfo {
        name: RECONNECTS,
        kind: MetricKind::Counter,
        labels: &["connection"],
        description: "Connections that replaced a broken one.",
    },
    MetricInfo {
        name: NOTIFICATIONS,
        kind: MetricKind::Counter,
        labels: &["kind", "outcome"],
        description: "Notifications that arrived.",
    },
    MetricInfo {
        name: REVOCATIONS,
        kind: MetricKind::Counter,
        labels: &[NAME, "mode"],
        description: "Locks that this process released by force.",
    },
    MetricInfo {
        name: OBSERVER_PANICS,
        kind: MetricKind::Counter,
        labels: &[],
        description: "Panics of an observer, of a tracing subscriber or of a metrics recorder.",
    },
];

/// The open cleanups of a manager that a recorder has counted.
#[derive(Debug, Default)]
pub(crate) struct OpenCleanups(AtomicU64);

impl OpenCleanups {
    pub(crate) fn add(&self) {
        if is_recorded() {
            self.0.fetch_add(1, Ordering::Relaxed);
            change_cleanups_open(1.0);
        }
    }

    /// Takes one off, if a recorder has counted any.
    pub(crate) fn subtract(&self) {
        let relaxed = Ordering::Relaxed;
        let counted = self
            .0
            .fetch_update(relaxed, relaxed, |open| open.checked_sub(1));
        if counted.is_ok() {
            change_cleanups_open(-1.0);
        }
    }
}

/// The functions of a build without the feature `metrics`. They do nothing.
#[cfg(not(feature = "metrics"))]
mod without {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use crate::telemetry::{LockEvent, LockId};

    pub(crate) const fn is_recorded() -> bool {
        false
    }

    pub(crate) const fn describe() {}

    pub(crate) const fn write(_event: &LockEvent<'_>) {}

    pub(crate) fn write_oldest(_manager: usize, _ages: &BTreeMap<&'static str, Duration>) {}

    /// There is no unit.
    #[derive(Debug)]
    pub(crate) enum GaugeUnit {}

    impl GaugeUnit {
        pub(crate) const fn add(_metric: &'static str, _lock: LockId<'_>) -> Option<Self> {
            None
        }

        pub(crate) const fn subtract(self) {
            match self {}
        }
    }

    pub(crate) const fn change_cleanups_open(_by: f64) {}
}
