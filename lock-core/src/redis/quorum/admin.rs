//! The commands of operators at a quorum.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::QuorumServers;
use super::server::QuorumServer;
use super::vote::lasting;
use crate::error::LockError;
use crate::store::Store;
use lock_protocol::acquisition::ObservedHolder;
use lock_protocol::inspection::{
    InspectDetail, InspectReply, KeyContent, ReadTime, ScanPart, ScanPlace, ScanRequest, SeenKey,
};
use lock_protocol::key::LockKey;
use lock_protocol::lock_state::{ForceReply, ForceRequest, ForceVerdict};
use lock_protocol::owner_id::OwnerId;

/// How often a release is tried at a server whose value changes in between. The token changes only once after the
/// grant, when the server learns the majority's token, so a third attempt is already more than a live lock needs.
const ATTEMPTS: usize = 3;

/// Releases the lock at one server if its owner is still the one that was seen. The bytes can't be compared with what
/// was seen, because each server writes its own time into the value. The script compares bytes, however, so this reads
/// the server's own ones first, and again if a renewal raised the token in between: that doesn't make it another lock.
async fn force_release_at(
    server: &dyn Store,
    request: &ForceRequest,
    limit: Duration,
) -> Result<(ReadTime, ForceReply), LockError> {
    let Some(owner) = request.seen.as_ref().and_then(owner_of_seen) else {
        return server.force_release(request, limit).await;
    };
    let detail = InspectDetail::Short;
    let found = server.inspect(&request.key, detail, limit).await?;
    let (mut time, mut content) = (found.time, found.content);
    for _ in 0..ATTEMPTS {
        if owner_of(&content) != Some(owner) {
            break;
        }
        let request = ForceRequest {
            seen: Some(SeenKey::of(&content)),
            ..request.clone()
        };
        let (at, reply) = server.force_release(&request, limit).await?;
        if reply.verdict != ForceVerdict::Changed {
            return Ok((at, reply));
        }
        (time, content) = (at, reply.content);
    }
    let verdict = ForceVerdict::Changed;
    Ok((time, ForceReply { verdict, content }))
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
        for server in self.voters() {
            running.spawn(ask(Arc::clone(server)));
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

    pub(super) async fn inspect(
        &self,
        key: &LockKey,
        detail: InspectDetail,
        limit: Duration,
    ) -> Result<InspectReply, LockError> {
        let ask = |server: Arc<QuorumServer>| {
            let key = key.clone();
            async move { server.as_store().inspect(&key, detail, limit).await }
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

    pub(super) async fn force_release(
        &self,
        request: &ForceRequest,
        limit: Duration,
    ) -> Result<(ReadTime, ForceReply), LockError> {
        let ask = |server: Arc<QuorumServer>| {
            let request = request.clone();
            async move { force_release_at(server.as_store(), &request, limit).await }
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

    /// Scans the first server that replies. The next part comes from the same one.
    pub(super) async fn scan(
        &self,
        request: &ScanRequest,
        limit: Duration,
    ) -> Result<ScanPart, LockError> {
        let (first, within) = match &request.at {
            Some(ScanPlace::Server { index, within }) => (Some(*index), within.as_deref().cloned()),
            _ => (None, None),
        };
        let request = request.from(within);
        let mut failed = LockError::NoRuntime;
        for (index, server) in self.all().enumerate() {
            if first.is_some_and(|first| first != index) {
                continue;
            }
            match server.as_store().scan(&request, limit).await {
                Ok(mut part) => {
                    part.next = part.next.map(|within| ScanPlace::Server {
                        index,
                        within: Some(Box::new(within)),
                    });
                    return Ok(part);
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use lock_protocol::clock::{Deadline, Moment};
    use lock_protocol::inspection::FoundText;
    use lock_protocol::key::LockName;
    use lock_protocol::lock_state::{ForceMode, ForeignValues};
    use lock_protocol::op::{OpKind, Outcome};

    use super::*;
    use crate::store::{Boxed, Call, Reach, StoreStatus, StoreTraits, Together};

    /// A server whose key keeps changing: each command finds the next of these values.
    struct Changing {
        values: Mutex<Vec<KeyContent>>,
    }

    impl Changing {
        fn next(&self) -> KeyContent {
            self.values.lock().unwrap().remove(0)
        }
    }

    impl Store for Changing {
        fn traits(&self) -> &StoreTraits {
            &StoreTraits::SERVER
        }

        fn call<'a, 'c: 'a, 'o: 'c>(
            &'a self,
            calls: &'a mut [&'c mut Call<'o>],
            _: Together,
            _: Deadline,
        ) -> Boxed<'a, ()> {
            for call in calls {
                let content = self.next();
                let outcome = match &call.op.kind {
                    OpKind::Inspect(..) => Outcome::Inspected(Box::new(InspectReply {
                        content,
                        ..InspectReply::of_nothing(ReadTime::of_server(1))
                    })),
                    OpKind::Force(request) => {
                        let verdict = if request.seen == Some(SeenKey::of(&content)) {
                            ForceVerdict::Revoked { locked_ms: 5 }
                        } else {
                            ForceVerdict::Changed
                        };
                        let reply = ForceReply { verdict, content };
                        Outcome::Forced(ReadTime::of_server(2), Box::new(reply))
                    }
                    other => unreachable!("{other:?} is no part of a release by force"),
                };
                call.outcome = Some(Ok(outcome));
            }
            Box::pin(std::future::ready(()))
        }

        fn reach(&self) -> Reach {
            Reach::Connected
        }

        fn status(&self) -> StoreStatus {
            unreachable!("a release doesn't ask for it")
        }

        fn notifies<'a>(&'a self, _: &'a LockKey, _: Duration) -> Boxed<'a, bool> {
            unreachable!("a release waits for nothing")
        }

        fn wait_connected(&self, _: Moment) -> Boxed<'_, Result<(), LockError>> {
            unreachable!("a release doesn't ask for it")
        }
    }

    fn held(owner: OwnerId, token: u64) -> KeyContent {
        let value = format!("lk1:{owner} {token} 1790000000000 label");
        KeyContent::Text(FoundText::new(Some(9), value.into_bytes()))
    }

    /// Releases what was seen first, and returns the verdict. Every value is read.
    async fn verdict_for(values: &[KeyContent]) -> ForceVerdict {
        let request = ForceRequest {
            key: LockKey::new("lock:", &LockName::from("a")).unwrap(),
            mode: ForceMode::Revoke,
            label: "revoked by ops".to_owned(),
            token: None,
            seen: Some(SeenKey::of(&values[0])),
            foreign: ForeignValues::Keep,
            longest: Duration::from_secs(1),
        };
        let server = Changing {
            values: Mutex::new(values.to_vec()),
        };
        let released = force_release_at(&server, &request, Duration::from_secs(1)).await;
        assert_eq!(server.values.lock().unwrap().len(), 0, "{values:?}");
        released.unwrap().1.verdict
    }

    #[tokio::test]
    async fn renewal_that_raises_the_token_does_not_change_the_lock() {
        let owner = OwnerId::random();
        let (old, new) = (held(owner, 7), held(owner, 9));
        let verdict = verdict_for(&[old.clone(), new.clone(), new]).await;
        assert_eq!(verdict, ForceVerdict::Revoked { locked_ms: 5 });
        let verdict = verdict_for(&[old.clone(), old]).await;
        assert_eq!(verdict, ForceVerdict::Revoked { locked_ms: 5 });
    }

    #[tokio::test]
    async fn other_holder_or_value_that_changes_each_time_is_not_released() {
        let owner = OwnerId::random();
        let other = held(OwnerId::random(), 8);
        let verdict = verdict_for(&[held(owner, 7), other]).await;
        assert_eq!(verdict, ForceVerdict::Changed);
        let values: Vec<_> = (1..=4).map(|token| held(owner, token)).collect();
        assert_eq!(verdict_for(&values).await, ForceVerdict::Changed);
    }
}
