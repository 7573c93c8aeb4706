//! The context that all tasks of the background worker share.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::runtime::notifications::Notifications;
use crate::store::Store;
use crate::sync::{assert_no_mutex_held, caught};
use crate::telemetry::{PanicSource, Reporter};
use lock_protocol::clock::Moment;

/// The context that all tasks of the background worker share.
pub(super) struct WorkerContext {
    pub(super) store: Arc<dyn Store>,
    pub(super) notifications: Arc<Notifications>,
    pub(super) reporter: Arc<Reporter>,
    pub(super) command_timeout: Duration,
    /// Wakes the thread when there is work.
    pub(super) wake: Notify,
}

impl WorkerContext {
    pub(super) fn now(&self) -> Moment {
        self.store.clock().now()
    }

    /// Runs a task on the worker's runtime, and counts its panic. The drop of the task puts
    /// unfinished work back.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let reporter = Arc::clone(&self.reporter);
        assert_no_mutex_held();
        tokio::spawn(async move {
            if let Err(payload) = caught(task).await {
                reporter.panicked(PanicSource::Worker, payload);
            }
        });
    }
}
