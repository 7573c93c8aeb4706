//! Events of locks, and who reads them: tracing, metrics and an observer.
//!
//! [`LockEvent`] is the only source. The library makes an event and gives it to three readers:
//!
//! - [`tracing`](https://docs.rs/tracing) gets spans and events with the target `lock_core`.
//! - The [`metrics`](https://docs.rs/metrics) facade gets the metrics in [`METRICS`], with the feature
//!   `metrics`.
//! - A [`LockObserver`] gets the event itself. Set it with
//!   [`LockManagerBuilder::observer`](crate::LockManagerBuilder::observer).
//!
//! [`guide::telemetry`](crate::guide::telemetry) has the tables of spans, events and metrics.

use std::fmt;
use std::sync::{Arc, LazyLock};

mod event;
mod labels;
pub(crate) mod metrics;
mod mismatches;
mod reporter;
pub(crate) mod span;
pub(crate) mod trace;

pub use self::event::LockEvent;
pub(crate) use self::labels::Caller;
pub use self::labels::{
    AcquireEnd, CertificateOwner, CleanupEnd, CleanupOperation, ConnectionKind, HoldEnd,
    LockCommand, LockId, NotificationKind, NotificationUse, PanicSource, ServerAddress,
};
pub use self::metrics::{ACQUIRE_BUCKETS, HOLD_BUCKETS, METRICS, MetricInfo, MetricKind};
pub(crate) use self::reporter::{Counts, Reporter};

/// The name of a lock whose template is not known.
pub const OTHER: &str = "_OTHER";

/// Does the checks for readers of an uncontended pair. Not an interface: for a bench of this project.
#[doc(hidden)]
#[must_use]
pub fn idle_checks() -> bool {
    static WITHOUT_OBSERVER: LazyLock<Reporter> = LazyLock::new(Reporter::default);
    WITHOUT_OBSERVER.checks_of_a_pair()
}

/// Reads the events of a manager. Set it with
/// [`LockManagerBuilder::observer`](crate::LockManagerBuilder::observer).
///
/// The library calls the observer on the thread on which the event happens: on a thread of the caller, or
/// on the background thread that renews the locks. So `on_event` has to return fast. It may call the
/// library. The library catches a panic of `on_event` and counts it.
///
/// Each closure `Fn(&LockEvent<'_>)` is an observer.
pub trait LockObserver: Send + Sync {
    /// Reads an event.
    fn on_event(&self, event: &LockEvent<'_>);
}

impl<F: Fn(&LockEvent<'_>) + Send + Sync> LockObserver for F {
    fn on_event(&self, event: &LockEvent<'_>) {
        self(event);
    }
}

/// The observer of a manager.
#[derive(Clone)]
pub(crate) struct ObserverHandle(pub(crate) Arc<dyn LockObserver>);

impl fmt::Debug for ObserverHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LockObserver")
    }
}

/// What events show as the key of a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum KeyDisplay {
    #[default]
    Key,
    /// The template of the name.
    Template,
}
