//! The commands of operators: they read locks of any dialect, and take them from their holders.

use std::sync::Arc;
use std::time::Duration;

use super::client::RedisClient;
use super::connection::Connection;
use super::scripts::{FORCE_RELEASE, INSPECT};
use crate::backend::admin::{ForceRequest, ForeignValues, InspectDetail, ListReply, ListRequest};
use crate::backend::{AdminBackend, Boxed};
use crate::error::LockError;
use crate::telemetry::LockCommand;
use lock_protocol::clock::{Clock, Deadline};
use lock_protocol::inspection::{
    INSPECTED_MEMBERS, INSPECTED_WAITERS, InspectReply, ReadTime, SeenKey,
};
use lock_protocol::key::LockKey;
use lock_protocol::lock_state::{ForceGrant, ForceMode, ForceReply, ForceVerdict};

mod list;
mod redisson;
pub(crate) mod reply;

use self::redisson::is_redisson;
use lock_protocol::resp::OPERATOR_REPLY;

/// Asks the script for the digest of a foreign value.
const ASK_DIGEST: &str = "?";

impl RedisClient {
    async fn inspect(
        &self,
        key: &LockKey,
        detail: InspectDetail,
        limit: Duration,
    ) -> Result<InspectReply, LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        let connection = self.pool.for_current_runtime(deadline).await?;
        if is_redisson(key) {
            let left = deadline.left();
            return self.inspect_redisson(&connection, key, left).await;
        }
        let keys = [key.as_str(), key.queue(), key.holders()];
        let detail = match detail {
            InspectDetail::Short => "",
            InspectDetail::Digest => "digest",
        };
        let args = [
            &*INSPECTED_WAITERS.to_string(),
            detail,
            &INSPECTED_MEMBERS.to_string(),
        ];
        let left = deadline.left();
        let (_, reply) = self
            .call_script(
                &connection,
                &INSPECT,
                key,
                &keys,
                &args,
                reply::inspect,
                OPERATOR_REPLY,
                left,
            )
            .await?;
        Ok(reply.value)
    }

    /// Takes the lock from its holder. A foreign value is read first, and then removed if it is still
    /// the same.
    async fn force_release(
        &self,
        request: &ForceRequest,
        limit: Duration,
    ) -> Result<(ReadTime, ForceReply), LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        let connection = self.pool.for_current_runtime(deadline).await?;
        let seen = request.seen.as_ref().and_then(SeenKey::digest);
        let digest = match request.foreign {
            ForeignValues::Keep => "",
            ForeignValues::Remove => seen.unwrap_or(ASK_DIGEST),
        };
        let (time, mut first) = self.force(&connection, request, digest, limit).await?;
        let (time, reply) = match &first.verdict {
            ForceVerdict::Foreign { digest } if request.foreign == ForeignValues::Remove => {
                if seen.is_some() {
                    first.verdict = ForceVerdict::Changed;
                    (time, first)
                } else {
                    self.force(&connection, request, digest, limit).await?
                }
            }
            _ => (time, first),
        };
        if reply.verdict != ForceVerdict::Freed(ForceGrant::More) {
            return Ok((time, reply));
        }
        // The key may have another holder by now, so only the queue is served.
        let rest = ForceRequest {
            mode: ForceMode::Grant,
            token: None,
            seen: None,
            foreign: ForeignValues::Keep,
            ..request.clone()
        };
        let mut again = reply.clone();
        while again.verdict == ForceVerdict::Freed(ForceGrant::More) {
            (_, again) = self.force(&connection, &rest, "", limit).await?;
        }
        let verdict = again.verdict;
        Ok((time, ForceReply { verdict, ..reply }))
    }

    async fn force(
        &self,
        connection: &Arc<Connection>,
        request: &ForceRequest,
        digest: &str,
        limit: Duration,
    ) -> Result<(ReadTime, ForceReply), LockError> {
        let seen = seen_argument(request.seen.as_ref());
        if is_redisson(&request.key) {
            let forced = self.force_redisson(connection, request, digest, seen, limit);
            return forced.await;
        }
        let mode = match request.mode {
            ForceMode::Revoke => "revoke",
            ForceMode::Now => "now",
            ForceMode::Grant => "grant",
        };
        let token = request.token.map(|token| token.to_string());
        let floor = connection.floor_us().to_string();
        let token = token.as_deref().unwrap_or_default();
        let lead = connection.lead_us().to_string();
        let texts = [mode, &floor, &lead, &request.label, token, digest];
        let args: Vec<&[u8]> = texts
            .iter()
            .map(|text| text.as_bytes())
            .chain([&*seen])
            .collect();
        let script = FORCE_RELEASE.of(self.is_sharded());
        let read = reply::force_release;
        let key = &request.key;
        let (_, reply) = self
            .call_script(
                connection,
                script,
                key,
                &key.all(),
                &args,
                read,
                OPERATOR_REPLY,
                limit,
            )
            .await?;
        Ok((ReadTime::of_server(reply.server_us), reply.value))
    }
}

/// Returns the argument of the script that says what the key must hold.
pub(crate) fn seen_argument(seen: Option<&SeenKey>) -> Vec<u8> {
    match seen {
        None => Vec::new(),
        Some(SeenKey::Free) => b"none".into(),
        Some(SeenKey::Text(bytes)) => [b"string ", &bytes[..]].concat(),
        Some(SeenKey::OtherType { kind, .. }) => kind.clone().into_bytes(),
    }
}

impl AdminBackend for RedisClient {
    fn inspect<'a>(
        &'a self,
        key: &'a LockKey,
        detail: InspectDetail,
        limit: Duration,
    ) -> Boxed<'a, Result<InspectReply, LockError>> {
        Box::pin(async move {
            let began = self.begin_command();
            let result = self.inspect(key, detail, limit).await;
            self.end_command(LockCommand::Inspect, began, result.as_ref().err());
            result
        })
    }

    fn force_release<'a>(
        &'a self,
        request: &'a ForceRequest,
        limit: Duration,
    ) -> Boxed<'a, Result<(ReadTime, ForceReply), LockError>> {
        Box::pin(self.force_release(request, limit))
    }

    fn list<'a>(
        &'a self,
        request: &'a ListRequest,
        limit: Duration,
    ) -> Boxed<'a, Result<ListReply, LockError>> {
        Box::pin(self.list(request, limit))
    }
}
