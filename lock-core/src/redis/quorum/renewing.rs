//! Renewals at all servers of a quorum, and the healing of servers that lost a lease.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::QuorumServers;
use super::held::{FIRST_ROUND, HeldQuorum};
use super::server::{Admission, QuorumServer, RaiseKind};
use super::vote::{AcquireVote, Vote};
use crate::error::LockError;
use crate::store::Renewal;
use lock_protocol::acquisition::RenewOutcome;
use lock_protocol::clock::{Clock, Deadline};
use lock_protocol::fencing_token::FencingToken;
use lock_protocol::loss::LossReason;
use lock_protocol::quorum::{MetProcess, QuorumAction, ServerLease};

/// A follow-up of a renewal, at one server.
#[derive(Clone, Copy)]
enum FollowUp {
    Heal,
    Raise(FencingToken, RaiseKind),
}

/// What a server replied in a renewal.
enum RenewalReply {
    Renewed {
        server: usize,
        results: Vec<Result<RenewOutcome, LockError>>,
        /// `None` if it is not known which process replied.
        process: Option<MetProcess>,
    },
    Healed {
        server: usize,
        at: usize,
        vote: Result<AcquireVote, LockError>,
    },
    Raised {
        server: usize,
        at: usize,
        raised: Result<Option<ServerLease>, LockError>,
    },
}

impl RenewalReply {
    /// Returns the late reply to an acquisition, as the reply to a follow-up of the only lease.
    fn of_first_lease(vote: Vote) -> Self {
        match vote {
            Vote::Acquired(server, vote) => Self::Healed {
                server,
                at: 0,
                vote,
            },
            Vote::Raised(server, raised) => Self::Raised {
                server,
                at: 0,
                raised,
            },
        }
    }
}

/// Renews leases at all servers side by side. Returns when each of them has an outcome. What is left of the
/// round goes on: servers that lost a lease are healed.
pub(super) async fn renew(
    servers: &Arc<QuorumServers>,
    renewals: Arc<[Renewal]>,
    limit: Duration,
) -> Vec<Result<RenewOutcome, LockError>> {
    let (done, outcomes) = oneshot::channel();
    let round = QuorumRenewing::begin(Arc::clone(servers), Arc::clone(&renewals), limit);
    tokio::spawn(round.run(done));
    match outcomes.await {
        Ok(outcomes) => outcomes,
        // The runtime is shutting down.
        Err(_ended) => renewals.iter().map(|_| Err(LockError::NoRuntime)).collect(),
    }
}

/// How long after one another servers are asked again that did not give the key at the grant. A rival gives up its keys
/// as soon as it knows that it has no majority. A server that stays down costs each lock four commands at most, and no
/// more attempts to connect than the pool's back-off allows.
const ASK_AGAIN_AFTER_MS: [u64; 4] = [100, 200, 400, 800];

/// Counts the replies of servers that were slower than the majority that granted a lock. Asks those again in the meantime
/// that did not give the key, until they have the lease or its first renewal begins.
pub(super) async fn complete(
    servers: Arc<QuorumServers>,
    renewal: Renewal,
    mut votes: JoinSet<Vote>,
) {
    let deadline = Deadline::after(Clock::System, servers.command_timeout);
    let mut completing = QuorumRenewing {
        servers,
        renewals: [renewal].into(),
        rounds: vec![Some(FIRST_ROUND)],
        deadline,
        running: JoinSet::new(),
    };
    let mut pauses = ASK_AGAIN_AFTER_MS.into_iter().map(Duration::from_millis);
    let mut pause = std::pin::pin!(tokio::time::sleep(pauses.next().unwrap_or_default()));
    let mut may_ask = true;
    loop {
        let reply = tokio::select! {
            Some(joined) = votes.join_next() => joined.map(RenewalReply::of_first_lease),
            Some(joined) = completing.running.join_next() => joined,
            () = &mut pause, if may_ask && completing.misses_servers() => {
                completing.ask_again();
                match pauses.next() {
                    Some(next) => pause.set(tokio::time::sleep(next)),
                    None => may_ask = false,
                }
                continue;
            }
            else => return,
        };
        if let Ok(reply) = reply {
            completing.count(reply);
        }
    }
}

/// A renewal of several leases that is running.
struct QuorumRenewing {
    servers: Arc<QuorumServers>,
    renewals: Arc<[Renewal]>,
    /// The number of the round of each lease. `None` for a lease that is not held any more.
    rounds: Vec<Option<u64>>,
    deadline: Deadline,
    running: JoinSet<RenewalReply>,
}

/// Whether a renewal waits for leases without an outcome.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RenewalWait {
    Left,
    Over,
}

type RenewalResults = Vec<Result<RenewOutcome, LockError>>;

impl QuorumRenewing {
    fn begin(servers: Arc<QuorumServers>, renewals: Arc<[Renewal]>, limit: Duration) -> Self {
        let now = Clock::System.now();
        let begin = |renewal: &Renewal| {
            let begun = servers.with_held(renewal.owner_id, |held| held.begin_round(now));
            begun.map(|(round, _errors)| round)
        };
        Self {
            rounds: renewals.iter().map(begin).collect(),
            servers,
            renewals,
            deadline: Deadline::after(Clock::System, limit),
            running: JoinSet::new(),
        }
    }

    async fn run(mut self, done: oneshot::Sender<RenewalResults>) {
        for (number, server) in self.servers.all().enumerate() {
            let (renewals, limit) = (Arc::clone(&self.renewals), self.deadline.left());
            self.running.spawn(async move {
                let (results, process) = server.renew(&renewals, limit).await;
                RenewalReply::Renewed {
                    server: number,
                    results,
                    process,
                }
            });
        }
        let mut done = Some(done);
        // A lease that only a slow server can decide must not cost the others their time.
        let grace = self.deadline.left() / 2;
        let mut grace = std::pin::pin!(tokio::time::sleep(grace));
        let mut is_over = false;
        loop {
            let changed = Arc::clone(&self.servers);
            let changed = changed.renewal_counted.notified();
            let patience = if is_over {
                RenewalWait::Over
            } else {
                RenewalWait::Left
            };
            if done.is_some()
                && let Some(outcomes) = self.outcomes(patience)
                && let Some(done) = done.take()
            {
                // The caller may have stopped waiting.
                let _sent = done.send(outcomes);
            }
            tokio::select! {
                Some(joined) = self.running.join_next() => {
                    if let Ok(reply) = joined {
                        self.count(reply);
                        self.servers.renewal_counted.notify_waiters();
                    }
                }
                () = changed, if done.is_some() => {}
                () = &mut grace, if !is_over => is_over = true,
                else => return,
            }
            if done.is_none() && self.running.is_empty() {
                return;
            }
        }
    }

    /// Returns whether a server may be asked again for the only lease in this round.
    fn misses_servers(&self) -> bool {
        let (owner_id, round) = (self.renewals[0].owner_id, self.rounds[0]);
        let misses =
            |held: &mut HeldQuorum| Some(held.round) == round && held.lease.misses_servers();
        self.servers.with_held(owner_id, misses) == Some(true)
    }

    /// Asks these servers again.
    fn ask_again(&mut self) {
        self.deadline = Deadline::after(Clock::System, self.servers.command_timeout);
        self.on_lease(0, |held| held.lease.ask_again(Clock::System.now()));
    }

    /// Returns the outcomes. `None` if a lease has none yet, unless the others `wait` no longer for it.
    fn outcomes(&self, patience: RenewalWait) -> Option<RenewalResults> {
        let pairs = self.renewals.iter().zip(&self.rounds);
        let outcome = |(renewal, round): (&Renewal, &Option<u64>)| {
            let removed = || Some(Ok(RenewOutcome::NotOwner(LossReason::Removed)));
            if round.is_none() {
                return removed();
            }
            // Another renewal of the lease may have begun. Its outcome serves this one too.
            self.servers
                .with_held(renewal.owner_id, |held| match held.outcome(renewal) {
                    None if patience == RenewalWait::Over => Some(Err(held.unknown())),
                    outcome => outcome,
                })
                .unwrap_or_else(removed)
        };
        pairs.map(outcome).collect()
    }

    /// Runs on the lease of a renewal, if its round is still the last one. Sends what follows.
    fn on_lease(&mut self, at: usize, change: impl FnOnce(&mut HeldQuorum)) -> bool {
        let (owner_id, round) = (self.renewals[at].owner_id, self.rounds[at]);
        // What is not run is dropped outside of the mutex: it may have an error with a foreign cause.
        let mut change = Some(change);
        let follow_ups = self.servers.with_held(owner_id, |held| {
            let Some(change) = change.take_if(|_| Some(held.round) == round) else {
                return Vec::new();
            };
            change(held);
            held.lease.actions()
        });
        drop(change);
        let is_held = follow_ups.is_some();
        for action in follow_ups.unwrap_or_default() {
            match action {
                QuorumAction::Heal(server) => self.follow(at, server, FollowUp::Heal),
                QuorumAction::Raise(server, token) => {
                    self.follow(at, server, FollowUp::Raise(token, RaiseKind::Higher));
                }
                QuorumAction::SetToken(server, token) => {
                    self.follow(at, server, FollowUp::Raise(token, RaiseKind::Exact));
                }
                _ => {}
            }
        }
        is_held
    }

    fn follow(&mut self, at: usize, number: usize, follow_up: FollowUp) {
        let owner_id = self.renewals[at].owner_id;
        let order = self
            .servers
            .with_held(owner_id, |held| Arc::clone(&held.order));
        let (Some(server), Some(order)) = (self.servers.get(number), order) else {
            return;
        };
        let deadline = self.deadline;
        self.running.spawn(async move {
            match follow_up {
                FollowUp::Heal => RenewalReply::Healed {
                    server: number,
                    at,
                    vote: server
                        .acquire(number, &order, Admission::Any, deadline)
                        .await,
                },
                FollowUp::Raise(token, kind) => RenewalReply::Raised {
                    server: number,
                    at,
                    raised: server
                        .raise(&order, token, kind, Admission::Any, deadline)
                        .await,
                },
            }
        });
    }

    fn count(&mut self, reply: RenewalReply) {
        let now = Clock::System.now();
        match reply {
            RenewalReply::Renewed {
                server,
                results,
                process,
            } => {
                for (at, result) in results.into_iter().enumerate() {
                    self.on_lease(at, |held| held.count(server, process, result));
                }
            }
            RenewalReply::Healed { server, at, vote } => {
                let is_unknown = vote.as_ref().is_err_and(|error| !error.is_refusal());
                let process = self.servers.get(server).and_then(|it| it.process());
                let may_have_key = is_unknown || matches!(vote, Ok(AcquireVote::Held(_)));
                let is_held = self.on_lease(at, |held| {
                    if !is_unknown {
                        held.order.origins.answered(server);
                    }
                    match &vote {
                        Ok(AcquireVote::Held(lease)) => {
                            if let Some(process) = process.filter(|it| it.run_id == lease.run_id) {
                                held.lease.met(server, process);
                            }
                            held.lease.held(server, *lease, now);
                        }
                        Ok(_) => held.lease.busy(server),
                        Err(_) => held.lease.failed(server),
                    }
                });
                if may_have_key && !is_held {
                    // It was released meanwhile.
                    self.servers
                        .release_again(server, &self.renewals[at], is_unknown);
                }
            }
            RenewalReply::Raised { server, at, raised } => {
                self.on_lease(at, |held| match &raised {
                    Ok(Some(lease)) => held.lease.raised(server, *lease, now),
                    Ok(None) => held.lease.not_ours(server),
                    Err(_) => held.lease.failed(server),
                });
            }
        }
    }
}

impl QuorumServer {
    /// Renews leases at this server. Also returns the process; `None` if it is not known which one replied.
    async fn renew(
        &self,
        renewals: &[Renewal],
        limit: Duration,
    ) -> (RenewalResults, Option<MetProcess>) {
        let deadline = Deadline::after(Clock::System, limit);
        let pool = &self.store.client.pool;
        let connection = pool.for_current_runtime(deadline).await;
        let before = match connection.and_then(|connection| self.observe(&connection)) {
            Ok(before) => before,
            Err(error) => return (renewals.iter().map(|_| Err(error.clone())).collect(), None),
        };
        let results = self.as_store().renew_all(renewals, deadline.left()).await;
        let at_once = Deadline::after(Clock::System, Duration::ZERO);
        let after = pool.for_current_runtime(at_once).await;
        let is_same = after.is_ok_and(|connection| connection.first.run_id == before.run_id);
        (results, is_same.then_some(before))
    }
}

impl QuorumServers {
    /// Releases a key at one server that gave it after the release, or may still give it.
    fn release_again(&self, number: usize, renewal: &Renewal, is_unknown: bool) {
        if let Some(server) = self.get(number) {
            let request = super::release::plain(renewal);
            let acquire_ends_at = is_unknown.then(|| self.acquires_end_at());
            let timeout = self.command_timeout;
            server.unreleased.add(request, acquire_ends_at, timeout);
        }
    }
}
