//! The commands of operators: they read locks of any dialect, and take them from their holders.

use std::collections::HashSet;
use std::time::Duration;

use super::client::RedisClient;
use crate::backend::admin::{ForceRequest, InspectDetail, ListReply, ListRequest, ListedLock};
use crate::backend::call::Call;
use crate::backend::{AdminBackend, Boxed};
use crate::error::{BackendErrorKind, LockError};
use crate::telemetry::LockCommand;
use lock_protocol::clock::{Clock, Deadline};
use lock_protocol::codec::operators::{SCANNED_PER_CALL, freed};
use lock_protocol::dialect::Dialect;
use lock_protocol::glob;
use lock_protocol::inspection::{InspectReply, KeyContent, ListCursor, ReadTime};
use lock_protocol::key::{LockKey, LockName};
use lock_protocol::lock_state::ForceReply;
use lock_protocol::op::{OpKind, Outcome, ScanRequest};

/// The most SCANs of one part of a list, so that a pattern which matches nothing does not hold the
/// caller for long.
const MOST_SCANS: u64 = 100;

impl RedisClient {
    /// Runs one operation of operators.
    async fn operate(&self, kind: OpKind<'_>, limit: Duration) -> Result<Outcome, LockError> {
        let mut call = Call::new(kind);
        let deadline = Deadline::after(Clock::System, limit);
        self.call(&mut [&mut call], deadline).await;
        match call.outcome {
            Some(Ok(outcome)) => Ok(outcome),
            // The key is free, so the release has succeeded even if its queue was not served.
            failed => freed(&mut call.op.state).ok_or_else(|| match failed {
                Some(Err(error)) => error,
                _ => LockError::unsent(),
            }),
        }
    }

    /// Lists locks until the limit, or until the last SCAN.
    async fn list(&self, request: &ListRequest, limit: Duration) -> Result<ListReply, LockError> {
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
                let names = pending.drain(..most);
                let names = names.filter(|name| seen.insert(name.clone())).collect();
                locks.extend(self.read_all(request, names, limit).await?);
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
            let scan = ScanRequest {
                cursor,
                pattern: pattern.clone(),
                dialect: request.dialect,
            };
            let scanned = self.operate(OpKind::Scan(&scan), limit).await;
            let Outcome::Scanned { next: after, keys } = scanned.map_err(needs_scan)? else {
                return Err(LockError::unreadable());
            };
            let name = |key| {
                let key = String::from_utf8(key).ok()?;
                Some(key.strip_prefix(&*request.prefix)?.to_owned())
            };
            next = after;
            pending = keys.into_iter().filter_map(name).collect();
            scans += 1;
        }
    }

    /// Reads the locks with these names, without keys that have expired since they were found or hold something else.
    async fn read_all(
        &self,
        request: &ListRequest,
        names: Vec<String>,
        limit: Duration,
    ) -> Result<Vec<ListedLock>, LockError> {
        let candidate = |name: String| {
            let name = LockName::from(name);
            // A SCAN also finds companion keys, such as a lock's counter, whose names no lock may have.
            let key = LockKey::new(&request.prefix, &name).ok()?;
            let key = match request.dialect {
                Dialect::Redisson { .. } => key.in_dialect(request.dialect),
                _ => key,
            };
            Some((name, key))
        };
        let (names, keys): (Vec<_>, Vec<_>) = names.into_iter().filter_map(candidate).unzip();
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let inspected = self.operate(OpKind::InspectAll(&keys), limit).await?;
        let Outcome::InspectedAll(found) = inspected else {
            return Err(LockError::unreadable());
        };
        let locks = names.into_iter().zip(keys).zip(found);
        let locks = locks.filter(|(_, found)| matches!(found.content, KeyContent::Text(_)));
        Ok(locks
            .map(|((name, key), found)| ListedLock { name, key, found })
            .collect())
    }
}

/// Only lists need this right.
fn needs_scan(error: LockError) -> LockError {
    match error {
        LockError::Backend(error) if error.kind() == BackendErrorKind::Permission => {
            let advice = "listing needs `+scan`; use another user for `lockctl`";
            LockError::Backend(error.with_advice(advice))
        }
        other => other,
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
            let result = match self.operate(OpKind::Inspect(key, detail), limit).await {
                Ok(Outcome::Inspected(found)) => Ok(*found),
                Ok(_) => Err(LockError::unreadable()),
                Err(error) => Err(error),
            };
            self.end_command(LockCommand::Inspect, began, result.as_ref().err());
            result
        })
    }

    fn force_release<'a>(
        &'a self,
        request: &'a ForceRequest,
        limit: Duration,
    ) -> Boxed<'a, Result<(ReadTime, ForceReply), LockError>> {
        Box::pin(async move {
            match self.operate(OpKind::Force(request), limit).await? {
                Outcome::Forced(time, reply) => Ok((time, *reply)),
                _ => Err(LockError::unreadable()),
            }
        })
    }

    fn list<'a>(
        &'a self,
        request: &'a ListRequest,
        limit: Duration,
    ) -> Boxed<'a, Result<ListReply, LockError>> {
        Box::pin(self.list(request, limit))
    }
}
