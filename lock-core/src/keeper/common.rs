//! What all tasks of the keeper share.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::Backend;
use crate::clock::Moment;
use crate::counts::Counters;
use crate::inbox::Inbox;
use crate::sync::{assert_no_mutex_held, caught};

/// What all tasks of the keeper share.
pub(super) struct Common {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) counters: Arc<Counters>,
    pub(super) command_timeout: Duration,
    /// There is something to do.
    pub(super) wake: Notify,
}

impl Common {
    pub(super) fn now(&self) -> Moment {
        self.backend.clock().now()
    }

    /// Runs a task on the keeper's runtime. Its panic is counted; what it had taken it gives back
    /// as it is dropped.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let counters = Arc::clone(&self.counters);
        assert_no_mutex_held();
        tokio::spawn(async move {
            if let Err(payload) = caught(task).await {
                counters.panicked("the background thread", payload);
            }
        });
    }
}
