//! What operators do with the locks in memory.

use std::time::{Duration, SystemTime};

use super::{MemoryBackend, endless_ms, server_ms};
use crate::backend::{AdminBackend, Boxed};
use crate::error::LockError;
use crate::protocol::clock::{Clock, Moment};
use crate::protocol::inspection::{InspectReply, KeyContent, ReadTime};
use crate::protocol::key::LockKey;
use crate::protocol::lock_state::LockState;

impl MemoryBackend {
    fn inspect_now(&self, key: &LockKey) -> InspectReply {
        let now = Clock::Tokio.now();
        let state = self.state.lock();
        inspected(state.locks.get(key.as_str()), now)
    }
}

/// Reads a lock state. A lock that lives as long as its guard has no remaining time.
fn inspected(lock_state: Option<&LockState>, now: Moment) -> InspectReply {
    let time = ReadTime {
        server_ms: server_ms(now),
        system: SystemTime::now(),
    };
    let mut reply = lock_state.map_or_else(
        || InspectReply::of_nothing(time),
        |lock_state| lock_state.inspect(time),
    );
    if let KeyContent::Text(found) = &mut reply.content {
        found.remaining_ms = found.remaining_ms.filter(|left| *left < endless_ms());
    }
    reply
}

impl AdminBackend for MemoryBackend {
    fn inspect<'a>(
        &'a self,
        key: &'a LockKey,
        _limit: Duration,
    ) -> Boxed<'a, Result<InspectReply, LockError>> {
        Box::pin(std::future::ready(Ok(self.inspect_now(key))))
    }
}
