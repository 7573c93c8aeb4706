//! The commands of operators at a quorum.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::attempt::lasting;
use super::server::QuorumServer;
use super::{QuorumBackend, QuorumServers};
use crate::backend::Boxed;
use crate::backend::admin::{AdminBackend, ForceRequest, InspectDetail, ListReply, ListRequest};
use crate::error::LockError;
use lock_protocol::acquisition::ObservedHolder;
use lock_protocol::inspection::{InspectReply, KeyContent, ListCursor, ReadTime, SeenKey};
use lock_protocol::key::LockKey;
use lock_protocol::lock_state::{ForceReply, ForceVerdict};
use lock_protocol::owner_id::OwnerId;

impl QuorumServer {
    fn admin(&self) -> &dyn AdminBackend {
        &*self.backend.client
    }

    /// Releases the lock at this server. What was seen is compared by its owner: each server has written
    /// its own time into the value.
    async fn force_release(
        &self,
        request: &ForceRequest,
        limit: Duration,
    ) -> Result<(ReadTime, ForceReply), LockError> {
        let owner = request.seen.as_ref().and_then(owner_of_seen);
        let Some(owner) = owner else {
            return self.admin().force_release(request, limit).await;
        };
        let detail = InspectDetail::Short;
        let found = self.admin().inspect(&request.key, detail, limit).await?;
        if owner_of(&found.content) != Some(owner) {
            let reply = ForceReply {
                verdict: ForceVerdict::Changed,
                content: found.content,
            };
            return Ok((found.time, reply));
        }
        let request = ForceRequest {
            seen: Some(SeenKey::of(&found.content)),
            ..request.clone()
        };
        self.admin().force_release(&request, limit).await
    }
}

fn owner_of(content: &KeyContent) -> Option<OwnerId> {
    holder_of(content)?.owner_id
}

fn holder_of(content: &KeyContent) -> Option<ObservedHolder> {
    let KeyContent::Text(found) = content else {
        return None;
    };
    ObservedHolder::from_value(&found.holder.value, None, None)
}

fn owner_of_seen(seen: &SeenKey) -> Option<OwnerId> {
    let SeenKey::Text(bytes) = seen else {
        return None;
    };
    ObservedHolder::from_value(&String::from_utf8_lossy(bytes), None, None)?.owner_id
}

/// Returns whether two servers hold the same.
fn is_same(one: &KeyContent, other: &KeyContent) -> bool {
    match (owner_of(one), owner_of(other)) {
        (Some(one), Some(other)) => one == other,
        (None, None) => SeenKey::of(one) == SeenKey::of(other),
        _ => false,
    }
}

/// Returns the time to the expiry, for the order of replies. A key without an expiry is the last to end.
fn remaining(content: &KeyContent) -> u64 {
    match content {
        KeyContent::Text(found) => found.holder.remaining_ms.unwrap_or(u64::MAX),
        KeyContent::Free | KeyContent::OtherType { .. } => 0,
    }
}

/// Returns whether two servers hold the same, with the same token. A server that gave the key after the grant
/// has another token until the next renewal.
fn is_confirmed_same(one: &KeyContent, other: &KeyContent) -> bool {
    let token = |content| holder_of(content).and_then(|holder| holder.token);
    is_same(one, other) && token(one) == token(other)
}

/// Returns the index of what a majority holds, with the token of the grant where a majority has it, and with the
/// expiry until which a majority holds it.
fn of_majority<'a>(contents: impl Iterator<Item = &'a KeyContent>, needed: usize) -> Option<usize> {
    let contents: Vec<_> = contents.collect();
    let find = |is_same| of_same_majority(&contents, needed, is_same);
    find(is_confirmed_same).or_else(|| find(is_same))
}

/// As [`of_majority`], for one meaning of the same.
fn of_same_majority(
    contents: &[&KeyContent],
    needed: usize,
    is_same: fn(&KeyContent, &KeyContent) -> bool,
) -> Option<usize> {
    contents.iter().find_map(|one| {
        let same = contents.iter().enumerate();
        let mut same: Vec<_> = same.filter(|(_, other)| is_same(one, other)).collect();
        same.sort_by_key(|(_, content)| std::cmp::Reverse(remaining(content)));
        same.get(needed.checked_sub(1)?).map(|(at, _)| *at)
    })
}

impl QuorumServers {
    /// Returns the replies of a majority at least. Waits for those of all servers, unless fewer are enough.
    async fn ask_all<T, F>(
        &self,
        ask: impl Fn(Arc<QuorumServer>) -> F,
        is_enough: impl Fn(&[T]) -> bool,
    ) -> Result<Vec<T>, LockError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, LockError>> + Send + 'static,
    {
        let mut running = JoinSet::new();
        for server in self.all() {
            running.spawn(ask(server));
        }
        let (mut replies, mut errors) = (Vec::new(), Vec::new());
        while let Some(joined) = running.join_next().await {
            match joined.unwrap_or(Err(LockError::NoRuntime)) {
                Ok(reply) => replies.push(reply),
                Err(error) => errors.push(error),
            }
            if is_enough(&replies) {
                break;
            }
        }
        if replies.len() >= self.needed() {
            return Ok(replies);
        }
        let no_quorum = self.no_quorum(replies.len());
        Err(lasting(errors.into_iter(), self.len()).unwrap_or(no_quorum))
    }

    async fn inspect(
        &self,
        key: &LockKey,
        detail: InspectDetail,
        limit: Duration,
    ) -> Result<InspectReply, LockError> {
        let ask = |server: Arc<QuorumServer>| {
            let key = key.clone();
            async move { server.admin().inspect(&key, detail, limit).await }
        };
        // A server that does not reply cannot change what a majority has.
        let is_enough = |replies: &[InspectReply]| {
            let contents: Vec<_> = replies.iter().map(|reply| &reply.content).collect();
            of_same_majority(&contents, self.needed(), is_confirmed_same).is_some()
        };
        let mut replies = self.ask_all(ask, is_enough).await?;
        let contents = replies.iter().map(|reply| &reply.content);
        match of_majority(contents, self.needed()) {
            Some(at) => Ok(replies.swap_remove(at)),
            // Nobody has it: an attempt failed, or is under way.
            None => Ok(InspectReply::of_nothing(replies.swap_remove(0).time)),
        }
    }

    async fn force_release(
        &self,
        request: &ForceRequest,
        limit: Duration,
    ) -> Result<(ReadTime, ForceReply), LockError> {
        let ask = |server: Arc<QuorumServer>| {
            let request = request.clone();
            async move { server.force_release(&request, limit).await }
        };
        let mut replies = self.ask_all(ask, |_| false).await?;
        let contents = replies.iter().map(|(_, reply)| &reply.content);
        let at = of_majority(contents, self.needed()).or_else(|| {
            // Servers without a reply may have what the longest lease shows.
            let all = replies.iter().enumerate();
            all.max_by_key(|(_, (_, reply))| remaining(&reply.content))
                .map(|(at, _)| at)
        });
        Ok(replies.swap_remove(at.unwrap_or(0)))
    }

    /// Lists the locks of the first server that replies. The next part comes from the same one.
    async fn list(&self, request: &ListRequest, limit: Duration) -> Result<ListReply, LockError> {
        let (first, within) = match request.after.clone() {
            Some(ListCursor::Node { index, within }) => (Some(index), within),
            _ => (None, None),
        };
        let request = ListRequest {
            after: within.map(|within| *within),
            ..request.clone()
        };
        let mut failed = LockError::NoRuntime;
        for (index, server) in self.all().enumerate() {
            if first.is_some_and(|first| first != index) {
                continue;
            }
            match server.admin().list(&request, limit).await {
                Ok(mut reply) => {
                    reply.next = reply.next.map(|within| ListCursor::Node {
                        index,
                        within: Some(Box::new(within)),
                    });
                    return Ok(reply);
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }
}

impl AdminBackend for QuorumBackend {
    fn inspect<'a>(
        &'a self,
        key: &'a LockKey,
        detail: InspectDetail,
        limit: Duration,
    ) -> Boxed<'a, Result<InspectReply, LockError>> {
        Box::pin(self.servers.inspect(key, detail, limit))
    }

    fn force_release<'a>(
        &'a self,
        request: &'a ForceRequest,
        limit: Duration,
    ) -> Boxed<'a, Result<(ReadTime, ForceReply), LockError>> {
        Box::pin(self.servers.force_release(request, limit))
    }

    fn list<'a>(
        &'a self,
        request: &'a ListRequest,
        limit: Duration,
    ) -> Boxed<'a, Result<ListReply, LockError>> {
        Box::pin(self.servers.list(request, limit))
    }
}
