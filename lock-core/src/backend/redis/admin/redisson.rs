//! The commands of operators for locks of Redisson.

use std::time::Duration;

use redis::Cmd;

use super::super::client::{Call, RedisClient};
use super::super::connection::Connection;
use super::super::scripts::{REDISSON_FORCE_RELEASE, REDISSON_INSPECT};
use super::reply;
use crate::backend::admin::{ForceRequest, ListedLock};
use crate::error::LockError;
use lock_protocol::dialect::Dialect;
use lock_protocol::inspection::{InspectReply, KeyContent, ReadTime};
use lock_protocol::key::{LockKey, LockName};
use lock_protocol::lock_state::{ForceMode, ForceReply};
use lock_protocol::owner_id::OwnerId;
use lock_protocol::resp::OPERATOR_REPLY;
use lock_protocol::wire::PlainOwner;

/// Returns whether the key is that of a lock of Redisson.
pub(super) fn is_redisson(key: &LockKey) -> bool {
    matches!(key.dialect(), Dialect::Redisson { .. })
}

impl RedisClient {
    pub(super) async fn inspect_redisson(
        &self,
        connection: &Connection,
        key: &LockKey,
        limit: Duration,
    ) -> Result<InspectReply, LockError> {
        let (keys, none): ([&str; 1], [&str; 0]) = ([key.as_str()], []);
        let script = &REDISSON_INSPECT;
        let read = reply::inspect_redisson;
        let called = self.call_script(
            connection,
            script,
            key,
            &keys,
            &none,
            read,
            OPERATOR_REPLY,
            limit,
        );
        let (_, reply) = called.await?;
        Ok(reply.value)
    }

    /// Reads many locks in one pipeline. Leaves out those that have ended meanwhile, and hashes that are no locks.
    pub(super) async fn list_redisson(
        &self,
        connection: &Connection,
        candidates: Vec<(LockName, LockKey)>,
        limit: Duration,
    ) -> Result<Vec<ListedLock>, LockError> {
        let calls = candidates.iter().map(|(_, key)| Call {
            key,
            keys: vec![key.as_str()],
        });
        let calls: Vec<_> = calls.collect();
        let read = |_, _, value| {
            let reply = reply::inspect_redisson(value)?;
            Ok((reply.value, Some(reply.server_us)))
        };
        let no_args = |_, _: &mut Cmd| {};
        let script = &REDISSON_INSPECT;
        let found = self.run_each(
            connection,
            script,
            &calls,
            no_args,
            read,
            OPERATOR_REPLY,
            limit,
        );
        let found = found.await;
        let mut locks = Vec::with_capacity(candidates.len());
        for ((name, key), found) in candidates.into_iter().zip(found) {
            let found = found?;
            if matches!(found.content, KeyContent::Text(_)) {
                locks.push(ListedLock { name, key, found });
            }
        }
        Ok(locks)
    }

    pub(super) async fn force_redisson(
        &self,
        connection: &Connection,
        request: &ForceRequest,
        digest: &str,
        seen: Vec<u8>,
        limit: Duration,
    ) -> Result<(ReadTime, ForceReply), LockError> {
        let mode = match request.mode {
            ForceMode::Revoke => "revoke",
            ForceMode::Now | ForceMode::Grant => "now",
        };
        let key = &request.key;
        let has_counter = key.dialect().capabilities().fencing_token;
        let counter = has_counter.then(|| key.redisson_counter());
        let mut keys = vec![key.as_str()];
        keys.extend(counter.as_deref());
        let field = PlainOwner {
            owner_id: OwnerId::nil(),
            label: request.label.clone(),
        };
        let token = request.token.map(|token| token.to_string());
        let field = field.to_string();
        let channel = key.redisson_channel();
        let before = [mode, &field, token.as_deref().unwrap_or_default(), digest];
        let mut args: Vec<&[u8]> = before.iter().map(|text| text.as_bytes()).collect();
        args.extend([&*seen, channel.as_bytes()]);
        let publishers = self.codecs.redisson.publishers().iter();
        args.extend(publishers.map(|command| command.as_bytes()));
        let script = &REDISSON_FORCE_RELEASE;
        let read = reply::force_redisson;
        let called = self.call_script(
            connection,
            script,
            key,
            &keys,
            &args,
            read,
            OPERATOR_REPLY,
            limit,
        );
        let (_, reply) = called.await?;
        Ok((ReadTime::of_server(reply.server_us), reply.value))
    }
}
