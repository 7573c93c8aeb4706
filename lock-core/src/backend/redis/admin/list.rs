//! Lists the locks of a server with SCAN.

use std::collections::HashSet;
use std::time::Duration;

use redis::{Pipeline, RedisError, Value};

use super::super::client::{RedisClient, server_error};
use super::super::connection::Connection;
use super::super::errors::{is_wrong_type, lock_error};
use super::super::reply::{server_time, unexpected};
use crate::backend::admin::{ListReply, ListRequest, ListedLock};
use crate::error::{BackendErrorKind, LockError};
use lock_protocol::clock::{Clock, Deadline};
use lock_protocol::dialect::Dialect;
use lock_protocol::glob;
use lock_protocol::inspection::{
    FoundText, InspectReply, KeyContent, ListCursor, ReadTime, SeenMembers,
};
use lock_protocol::key::{LockKey, LockName};
use lock_protocol::resp::OPERATOR_REPLY;
use lock_protocol::wire::SHARED;

/// How many keys one SCAN looks at: 1,000 calls for 500,000 keys, none of them slower than a
/// millisecond. With 5,000 keys the list is a tenth faster, and each call blocks the server ten times
/// as long.
const SCANNED_PER_CALL: u64 = 500;
/// The most SCANs of one part of a list, so that a pattern which matches nothing does not hold the
/// caller for long.
const MOST_SCANS: u64 = 100;
/// The commands for each key: GET, PTTL and ZCARD.
const COMMANDS_PER_KEY: usize = 3;

/// A lock whose name a SCAN returned.
struct Candidate {
    name: String,
    key: LockKey,
}

impl RedisClient {
    /// Lists locks until the limit, or until the last SCAN.
    pub(super) async fn list(
        &self,
        request: &ListRequest,
        limit: Duration,
    ) -> Result<ListReply, LockError> {
        let (mut next, mut pending) = match request.after.clone() {
            Some(ListCursor::Scan { next, pending }) => (next, pending),
            Some(ListCursor::After(_) | ListCursor::Node { .. }) | None => (Some(0), Vec::new()),
        };
        let pattern = glob::escape(&request.prefix) + &request.pattern;
        let mut locks = Vec::new();
        // A SCAN may return a key twice.
        let mut seen = HashSet::new();
        let mut scans = 0;
        loop {
            while !pending.is_empty() && locks.len() < request.limit {
                let most = pending.len().min(request.limit - locks.len());
                let candidates: Vec<_> = pending
                    .drain(..most)
                    .filter(|name| seen.insert(name.clone()))
                    .filter_map(|name| candidate(&request.prefix, name))
                    .collect();
                locks.extend(self.read_all(request.dialect, candidates, limit).await?);
            }
            let is_full = locks.len() >= request.limit || scans == MOST_SCANS;
            let is_last = next.is_none() && pending.is_empty();
            let (Some(cursor), false) = (next, is_full || is_last) else {
                let cursor = ListCursor::Scan { next, pending };
                return Ok(ListReply {
                    locks,
                    next: (!is_last).then_some(cursor),
                    scanned: scans * SCANNED_PER_CALL,
                });
            };
            (next, pending) = self.scan(cursor, &pattern, request, limit).await?;
            scans += 1;
        }
    }

    /// Sends one SCAN. Returns the next cursor, and the names of the keys of the type that a lock has.
    async fn scan(
        &self,
        cursor: u64,
        pattern: &str,
        request: &ListRequest,
        limit: Duration,
    ) -> Result<(Option<u64>, Vec<String>), LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        let connection = self.pool.for_current_runtime(deadline).await?;
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(pattern);
        scan.arg("COUNT").arg(SCANNED_PER_CALL);
        let kind = match request.dialect {
            Dialect::Redisson { .. } => "hash",
            _ => "string",
        };
        scan.arg("TYPE").arg(kind);
        let reply = connection
            .call(&scan, OPERATOR_REPLY, deadline.left())
            .await?;
        let reply = reply.map_err(|error| refused(&error))?;
        let (cursor, keys): (u64, Vec<Vec<u8>>) =
            redis::from_redis_value(reply).map_err(|_| unexpected())?;
        let name = |key| {
            Some(
                String::from_utf8(key)
                    .ok()?
                    .strip_prefix(&*request.prefix)?
                    .to_owned(),
            )
        };
        let names = keys.into_iter().filter_map(name).collect();
        Ok(((cursor != 0).then_some(cursor), names))
    }

    /// Reads the locks in one pipeline. Leaves out those that have ended meanwhile.
    async fn read_all(
        &self,
        dialect: Dialect,
        candidates: Vec<Candidate>,
        limit: Duration,
    ) -> Result<Vec<ListedLock>, LockError> {
        if candidates.is_empty() {
            return Ok(Vec::new());
        }
        let deadline = Deadline::after(Clock::System, limit);
        let connection = self.pool.for_current_runtime(deadline).await?;
        if matches!(dialect, Dialect::Redisson { .. }) {
            let found = candidates.into_iter();
            let found = found.map(|it| (LockName::from(it.name), it.key.in_dialect(dialect)));
            let left = deadline.left();
            return self.list_redisson(&connection, found.collect(), left).await;
        }
        let mut pipeline = Pipeline::with_capacity(1 + COMMANDS_PER_KEY * candidates.len());
        pipeline.cmd("TIME");
        for Candidate { key, .. } in &candidates {
            pipeline.cmd("GET").arg(key.as_str());
            pipeline.cmd("PTTL").arg(key.as_str());
            pipeline.cmd("ZCARD").arg(key.queue());
        }
        pipeline.ignore_errors();
        let replies = connection
            .call_all(&pipeline, OPERATOR_REPLY, deadline.left())
            .await?;
        let mut replies = replies.into_iter();
        let time = replies.next().ok_or_else(unexpected)?;
        let time = time.map_err(|error| refused(&error))?;
        let time = ReadTime::of_server(server_time(time)?);
        let mut locks = Vec::with_capacity(candidates.len());
        for Candidate { name, key } in candidates {
            let mut reply = || replies.next().ok_or_else(unexpected);
            let (value, pttl, waiting) = (reply()?, reply()?, reply()?);
            let content = content(&connection, &key, value, pttl)?;
            let total = if_right_type(&connection, &key, waiting)?.map_or(Ok(0), count)?;
            if content == KeyContent::Free {
                continue;
            }
            locks.push(ListedLock {
                name: LockName::from(name),
                key,
                found: InspectReply {
                    time,
                    content,
                    total,
                    entries: Vec::new(),
                    members: SeenMembers::default(),
                },
            });
        }
        self.count_members(&mut locks, &connection, deadline)
            .await?;
        Ok(locks)
    }

    /// Counts the members of the shared locks. Most pages have none, and need no second pipeline.
    async fn count_members(
        &self,
        locks: &mut [ListedLock],
        connection: &Connection,
        deadline: Deadline,
    ) -> Result<(), LockError> {
        let is_shared = |lock: &&mut ListedLock| matches!(&lock.found.content, KeyContent::Text(found) if found.holder.value.starts_with(SHARED));
        let shared: Vec<_> = locks.iter_mut().filter(is_shared).collect();
        if shared.is_empty() {
            return Ok(());
        }
        let mut pipeline = Pipeline::with_capacity(shared.len());
        for lock in &shared {
            pipeline.cmd("ZCARD").arg(lock.key.holders());
        }
        pipeline.ignore_errors();
        let replies = connection
            .call_all(&pipeline, OPERATOR_REPLY, deadline.left())
            .await?;
        for (lock, reply) in shared.into_iter().zip(replies) {
            let total = if_right_type(connection, &lock.key, reply)?;
            lock.found.members.total = total.map_or(Ok(0), count)?;
        }
        Ok(())
    }
}

/// Returns the lock with this name. Returns `None` for a name that no lock can have, such as that of
/// the counter of a name with a hash tag.
fn candidate(prefix: &str, name: String) -> Option<Candidate> {
    let key = LockKey::new(prefix, &LockName::from(name.as_str())).ok()?;
    Some(Candidate { name, key })
}

/// Combines the replies to GET and PTTL.
fn content(
    connection: &Connection,
    key: &LockKey,
    value: Result<Value, RedisError>,
    pttl: Result<Value, RedisError>,
) -> Result<KeyContent, LockError> {
    let pttl = pttl.map_err(|error| server_error(connection, key, &error))?;
    let pttl: i64 = redis::from_redis_value(pttl).map_err(|_| unexpected())?;
    // Another client may have replaced the string since the SCAN.
    let Some(Value::BulkString(value)) = if_right_type(connection, key, value)? else {
        return Ok(KeyContent::Free);
    };
    if pttl == NO_KEY {
        return Ok(KeyContent::Free);
    }
    Ok(KeyContent::Text(FoundText::new(
        u64::try_from(pttl).ok(),
        value,
    )))
}

/// The reply to PTTL for a key that does not exist.
const NO_KEY: i64 = -2;

/// Returns the reply; `None` when the key has another type than the command is for.
fn if_right_type(
    connection: &Connection,
    key: &LockKey,
    reply: Result<Value, RedisError>,
) -> Result<Option<Value>, LockError> {
    match reply {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_wrong_type(&error) => Ok(None),
        Err(error) => Err(server_error(connection, key, &error)),
    }
}

fn count(reply: Value) -> Result<u64, LockError> {
    redis::from_redis_value(reply).map_err(|_| unexpected())
}

/// Converts an error of a command that only lists need.
fn refused(error: &RedisError) -> LockError {
    let text = "the lock server rejected the list";
    match lock_error(text, error) {
        LockError::Backend(error) if error.kind() == BackendErrorKind::Permission => {
            let advice = "listing needs `+scan`; use another user for `lockctl`";
            LockError::Backend(error.with_advice(advice))
        }
        other => other,
    }
}
