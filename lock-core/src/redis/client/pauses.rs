//! Pauses after releases, so that other clients get their turns.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::sync::Mutex;
use lock_protocol::clock::{Clock, Moment};
use lock_protocol::key::LockKey;

/// How long a new acquire waits after a release of the same key that other clients were notified of. Without this pause,
/// one process acquiring in a loop wins nearly all turns, because the others first have to receive the message.
const PAUSE: Duration = Duration::from_millis(2);

/// Pauses that have ended are removed when there are more.
const MANY_PAUSES: usize = 64;

/// Until when new acquires of keys wait.
#[derive(Default)]
pub(super) struct ReleasePauses(Mutex<HashMap<Arc<str>, Moment>>);

impl ReleasePauses {
    /// Waits until other clients had their chance after a release of this key.
    pub(super) async fn wait(&self, key: &LockKey) {
        let until = self.0.lock().get(key.as_str()).copied();
        if let Some(until) = until {
            let now = Clock::System.now();
            // At most that long: the clock may have been read before the release.
            tokio::time::sleep(until.since(now).min(PAUSE)).await;
        }
    }

    /// Records a release whose message other clients received.
    pub(super) fn begin(&self, key: &LockKey) {
        let now = Clock::System.now();
        let mut pauses = self.0.lock();
        if pauses.len() >= MANY_PAUSES {
            pauses.retain(|_, until| *until > now);
        }
        pauses.insert(key.text(), now.plus(PAUSE));
    }
}
