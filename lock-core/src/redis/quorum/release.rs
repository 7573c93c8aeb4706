//! Releases at all servers of a quorum.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::server::{QuorumServer, SentOrigins};
use super::vote::lasting;
use super::{QuorumServers, local_ms};
use crate::error::LockError;
use crate::store::Renewal;
use crate::sync::Process;
use lock_protocol::cleanup::{Keep, ReleaseOutcome, ReleaseRequest, ReleaseSubject};
use lock_protocol::clock::{Clock, Deadline, ServerMs};
use lock_protocol::quorum::{QuorumRelease, ReleaseRound, majority};
use lock_protocol::ttl::{MIN_TTL, Ttl};

type ReleaseResults = Vec<Result<ReleaseOutcome, LockError>>;

/// Releases locks at all servers side by side. Returns when each has an outcome; a minority that is slow is
/// released after that.
pub(super) async fn release(
    servers: &Arc<QuorumServers>,
    requests: &[&ReleaseRequest],
    limit: Duration,
) -> ReleaseResults {
    let (done, outcomes) = oneshot::channel();
    let releasing = QuorumReleasing::begin(Arc::clone(servers), requests, limit);
    tokio::spawn(releasing.run(done));
    match outcomes.await {
        Ok(outcomes) => outcomes,
        // The runtime is shutting down.
        Err(_ended) => requests.iter().map(|_| Err(LockError::NoRuntime)).collect(),
    }
}

/// A release that only frees the lock of an owner id.
pub(super) fn plain(renewal: &Renewal) -> ReleaseRequest {
    let ttl = Ttl::new(renewal.ttl.max(MIN_TTL)).unwrap_or(renewal.lease_config.ttl);
    ReleaseRequest {
        key: renewal.key.clone(),
        owner_id: renewal.owner_id,
        ttl,
        entries: Vec::new(),
        origin: None,
        unconfirmed: None,
        keep: Keep::Nothing,
        subject: ReleaseSubject::Acquire,
        kind: renewal.lease_config.kind,
        label: Arc::clone(&renewal.label),
    }
}

/// Counts releases that are running, so that the background worker does not end before them.
struct OpenReleases {
    servers: Arc<QuorumServers>,
    process: Process,
}

impl OpenReleases {
    fn begin(servers: Arc<QuorumServers>) -> Self {
        servers.releasing.fetch_add(1, Ordering::AcqRel);
        Self {
            servers,
            process: Process::current(),
        }
    }
}

impl Drop for OpenReleases {
    fn drop(&mut self) {
        // No thread of a forked child unlocks a mutex that was locked at the fork.
        if !self.process.is_current() {
            return;
        }
        if self.servers.releasing.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.servers.released.notify_waiters();
        }
    }
}

/// Releases that are running.
struct QuorumReleasing {
    servers: Arc<QuorumServers>,
    /// The requests, as each server gets them.
    requests: Vec<Arc<[ReleaseRequest]>>,
    locks: Vec<ReleasedLock>,
    /// When the requests were sent, in the time in which the end of unconfirmed acquires is counted.
    sent_ms: ServerMs,
    deadline: Deadline,
}

/// Sends releases to one server.
async fn release_at(
    server: Arc<QuorumServer>,
    requests: &[ReleaseRequest],
    limit: Duration,
) -> ReleaseResults {
    if let [one] = requests {
        return vec![server.as_store().release(one, limit).await];
    }
    // A release over the connection of its acquire cannot overtake it, and is no part of a batch.
    let mut singles = JoinSet::new();
    let mut batch = Vec::new();
    let mut places = Vec::new();
    for (at, request) in requests.iter().enumerate() {
        if request.origin.is_none() {
            batch.push(request);
            places.push(at);
            continue;
        }
        let (server, request) = (Arc::clone(&server), request.clone());
        singles.spawn(async move { (at, server.as_store().release(&request, limit).await) });
    }
    let batch = server.as_store().release_all(&batch, limit).await;
    let mut results = singles.join_all().await;
    results.extend(places.into_iter().zip(batch));
    results.sort_unstable_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

/// The release of one lock.
struct ReleasedLock {
    machine: QuorumRelease,
    is_cancel: bool,
    released: usize,
    replies: usize,
    errors: Vec<LockError>,
}

impl QuorumReleasing {
    fn begin(servers: Arc<QuorumServers>, requests: &[&ReleaseRequest], limit: Duration) -> Self {
        let sent_to: Vec<_> = requests
            .iter()
            .map(|request| {
                let held = servers.forget_held(request.owner_id);
                let sent_to = servers.forget_sent(request.owner_id);
                sent_to.or_else(|| held.map(|held| held.origins()))
            })
            .collect();
        let of_server = |number| {
            let with_origin =
                |(request, sent_to): (&&ReleaseRequest, &Option<Arc<SentOrigins>>)| {
                    ReleaseRequest {
                        origin: sent_to.as_ref().and_then(|origins| origins.of(number)),
                        ..(*request).clone()
                    }
                };
            requests.iter().zip(&sent_to).map(with_origin).collect()
        };
        let count = servers.len();
        let lock = |request: &&ReleaseRequest| ReleasedLock {
            machine: QuorumRelease::new(count),
            is_cancel: request.subject == ReleaseSubject::Acquire,
            released: 0,
            replies: 0,
            errors: Vec::new(),
        };
        Self {
            requests: (0..count).map(of_server).collect(),
            locks: requests.iter().map(lock).collect(),
            servers,
            sent_ms: local_ms(Clock::System.now()),
            deadline: Deadline::after(Clock::System, limit),
        }
    }

    async fn run(mut self, done: oneshot::Sender<ReleaseResults>) {
        let _open = OpenReleases::begin(Arc::clone(&self.servers));
        let mut running = JoinSet::new();
        for (number, server) in self.servers.all().enumerate() {
            let Some(requests) = self.requests.get(number).map(Arc::clone) else {
                continue;
            };
            let limit = self.deadline.left();
            running.spawn(async move { (number, release_at(server, &requests, limit).await) });
        }
        let mut done = Some(done);
        while let Some(joined) = running.join_next().await {
            let Ok((server, results)) = joined else {
                continue;
            };
            for (lock, result) in self.locks.iter_mut().zip(results) {
                lock.count(server, result);
            }
            if done.is_some()
                && let Some(results) = self.results()
                && let Some(done) = done.take()
            {
                // The caller may have stopped waiting.
                let _sent = done.send(results);
            }
        }
        self.repeat_at_minority();
    }

    /// Repeats releases at the servers that did not confirm them. A release that failed is repeated at all servers by
    /// its caller.
    fn repeat_at_minority(&self) {
        for (at, lock) in self.locks.iter().enumerate() {
            let result = lock.result(self.sent_ms, self.servers.len());
            if result.is_none_or(|result| result.is_err()) {
                continue;
            }
            for number in lock.machine.unconfirmed() {
                let request = self.requests.get(number).and_then(|all| all.get(at));
                if let (Some(server), Some(request)) = (self.servers.get(number), request) {
                    let has_open_acquire = request.origin.is_some();
                    let ends_at = has_open_acquire.then(|| self.servers.acquires_end_at());
                    let timeout = self.servers.command_timeout;
                    server.unreleased.add(request.clone(), ends_at, timeout);
                }
            }
        }
    }

    fn results(&self) -> Option<ReleaseResults> {
        let result = |lock: &ReleasedLock| lock.result(self.sent_ms, self.servers.len());
        self.locks.iter().map(result).collect()
    }
}

impl ReleasedLock {
    fn count(&mut self, server: usize, result: Result<ReleaseOutcome, LockError>) {
        match result {
            Ok(outcome) => {
                self.replies += 1;
                if outcome.was_owner {
                    self.released += 1;
                    self.machine.released(server);
                } else {
                    self.machine.not_ours(server);
                }
            }
            Err(error) => {
                self.errors.push(error);
                self.machine.failed(server);
            }
        }
    }

    /// Returns the result. `None` while there may still be one.
    fn result(
        &self,
        sent_ms: ServerMs,
        servers: usize,
    ) -> Option<Result<ReleaseOutcome, LockError>> {
        let outcome = |was_owner| ReleaseOutcome::without_waiters(was_owner, sent_ms);
        let needed = majority(servers);
        Some(match self.machine.round() {
            ReleaseRound::Released => Ok(outcome(true)),
            ReleaseRound::NotOurs => Ok(outcome(false)),
            ReleaseRound::Pending => return None,
            // A cancel has nothing to confirm but that a majority does not have the lock.
            ReleaseRound::Unconfirmed if self.is_cancel && self.replies >= needed => {
                Ok(outcome(self.released > 0))
            }
            ReleaseRound::Unconfirmed => {
                let no_quorum = LockError::NoQuorum {
                    granted: self.released,
                    needed,
                    servers,
                };
                Err(lasting(self.errors.iter().cloned(), servers).unwrap_or(no_quorum))
            }
        })
    }
}
