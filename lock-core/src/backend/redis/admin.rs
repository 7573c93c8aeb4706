//! The commands of operators: they read locks of any dialect, and take them from their holders.

use std::time::Duration;

use super::client::RedisClient;
use super::reply;
use super::scripts::INSPECT;
use crate::backend::{AdminBackend, Boxed};
use crate::error::LockError;
use crate::protocol::clock::{Clock, Deadline};
use crate::protocol::inspection::{INSPECTED_WAITERS, InspectReply};
use crate::protocol::key::LockKey;

impl RedisClient {
    async fn inspect(&self, key: &LockKey, limit: Duration) -> Result<InspectReply, LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        let connection = self.pool.for_current_runtime(limit).await?;
        let keys = [key.as_str(), key.queue()];
        let args = [INSPECTED_WAITERS];
        let left = deadline.left();
        let (_, reply) = self
            .call_script(
                &connection,
                &INSPECT,
                key,
                &keys,
                &args,
                reply::inspect,
                left,
            )
            .await?;
        Ok(reply.value)
    }
}

impl AdminBackend for RedisClient {
    fn inspect<'a>(
        &'a self,
        key: &'a LockKey,
        limit: Duration,
    ) -> Boxed<'a, Result<InspectReply, LockError>> {
        Box::pin(self.inspect(key, limit))
    }
}
