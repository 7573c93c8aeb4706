//! An acquire that waits for a connection, before anything is registered or sent.

use crate::error::LockError;
use crate::runtime::inner::ManagerInner;
use lock_protocol::clock::Moment;

/// Counts an acquire that waits for a connection.
pub(super) struct ConnectingAcquire<'a>(&'a ManagerInner);

impl Drop for ConnectingAcquire<'_> {
    fn drop(&mut self) {
        if self.0.check_process().is_ok() {
            self.0.activity.end_acquire(&self.0.reporter);
        }
    }
}

/// Waits for a connection, at most until `until`. The returned value counts as an acquire.
pub(super) async fn connect(
    inner: &ManagerInner,
    until: Moment,
) -> Result<ConnectingAcquire<'_>, LockError> {
    inner.activity.begin_acquire();
    let connecting = ConnectingAcquire(inner);
    let connected = tokio::select! {
        biased;
        () = inner.activity.closed() => Err(LockError::ShuttingDown),
        result = inner.store.wait_connected(until) => {
            result.map_err(|error| inner.explained(error))
        }
    };
    connected.map(|()| connecting)
}
