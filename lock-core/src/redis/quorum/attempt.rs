//! One attempt to acquire a key at a majority: sends what the state machine decides.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::super::errors::timed_out;
use super::held::HeldQuorum;
use super::renewing;
use super::server::{AcquireOrder, Admission, RaiseKind, SentOrigins};
use super::vote::{AcquireVote, Vote, lasting};
use super::{QuorumServers, as_confirmed, local_ms};
use crate::error::{BackendErrorKind, LockError};
use crate::sync::assert_no_mutex_held;
use lock_protocol::acquisition::{
    AcquireOutcome, Failure, FailureClass, NO_ORIGIN, ObservedHolder, SentAcquires,
};
use lock_protocol::cleanup::ReleaseRequest;
use lock_protocol::clock::{Clock, Deadline, Moment};
use lock_protocol::clock_sync::UNKNOWN_RUN_ID;
use lock_protocol::fencing_token::FencingToken;
use lock_protocol::owner_id::{OwnerId, ShortId};
use lock_protocol::poll_schedule::HolderExpiry;
use lock_protocol::quorum::{BusyServer, QuorumAcquire, QuorumAction, QuorumOutcome};
use lock_protocol::ttl::whole_millis;
use lock_protocol::unconfirmed::Unconfirmed;

/// How long an attempt that failed waits for the replies to its cancels. Then the background worker goes on. Short,
/// because a wait may end this much late.
const CANCEL_PATIENCE: Duration = Duration::from_millis(50);

/// An attempt that is running.
struct QuorumAttempt {
    servers: Arc<QuorumServers>,
    order: Arc<AcquireOrder>,
    machine: QuorumAcquire,
    running: JoinSet<Vote>,
    deadline: Deadline,
    /// Whether each server replied to the acquire that was sent to it.
    is_answered: Vec<bool>,
    /// The servers that have another holder, so that nothing is to be cancelled there.
    is_busy: Vec<bool>,
    errors: Vec<Option<LockError>>,
    holder: Option<ObservedHolder>,
    /// The attempt goes on behind a gate with another holder: the caller makes no other attempt, or its last one saw
    /// the first such holder too, which may be a key that was left.
    passes_gates: bool,
    /// The first holder that the last attempt of the caller saw.
    seen_before: ShortId,
    /// The time to the end of the first holder's lease.
    remaining: Option<Duration>,
    /// The attempt has less time than a command needs at most, because the wait of its caller ends.
    is_cut_short: bool,
    foreign: Option<String>,
}

/// Makes one attempt, with all of its rounds. An attempt that fails leaves nothing behind, or leaves its
/// cancel to the caller.
pub(super) async fn acquire(
    servers: &Arc<QuorumServers>,
    sent: &mut SentAcquires,
    limit: Duration,
) -> Result<AcquireOutcome, LockError> {
    if servers.is_sent(sent.owner_id) {
        return Ok(AcquireOutcome::StartOver);
    }
    let deadline = Deadline::after(Clock::System, limit);
    let _turn = servers.turn(deadline, limit).await?;
    // Waiting for the turn costs a waiter part of its wait, but the servers keep the full time for their replies.
    let left = sent
        .waits_until
        .map(|until| until.since(Clock::System.now()));
    let limit = deadline.left().max(left.unwrap_or_default()).min(limit);
    let began = Clock::System.now();
    // In time of this machine: each server has a clock of its own. The last command is sent within one timeout. It
    // may take effect for a second one. The time of the server is known with an error of up to a third one.
    let longest = servers.command_timeout.saturating_mul(3);
    let not_after = local_ms(began).plus(whole_millis(longest));
    // It is sent over several connections. Its cancels look up each of them.
    let copy = Unconfirmed::new(not_after, UNKNOWN_RUN_ID, began, longest);
    let copy = sent.on_send_without_entry(NO_ORIGIN, copy);
    let expires_at = began
        .plus(longest)
        .plus(sent.lease_config.ttl.as_duration());
    let origins = Arc::new(SentOrigins::new(servers.len(), expires_at));
    servers.sent(sent.owner_id, Arc::clone(&origins));
    let order = Arc::new(AcquireOrder {
        key: sent.key.clone(),
        owner_id: sent.owner_id,
        lease_config: sent.lease_config,
        label: Arc::clone(&sent.label),
        origins,
    });
    let mut attempt = QuorumAttempt::new(Arc::clone(servers), Arc::clone(&order), limit);
    attempt.passes_gates = sent.waits_until.is_none();
    attempt.is_cut_short &= sent.waits_until.is_some();
    attempt.seen_before = sent.seen_holder;
    let outcome = attempt.run().await?;
    let holder = attempt.holder.as_ref().and_then(|holder| holder.owner_id);
    sent.seen_holder = holder.unwrap_or(OwnerId::nil()).short();
    if let QuorumOutcome::Granted { token, ends_at, .. } = outcome {
        attempt.hold();
        attempt.complete(sent);
        sent.on_any_reply(&copy);
        servers.forget_sent(sent.owner_id);
        return Ok(granted(token, ends_at, sent.lease_config.ttl.as_duration()));
    }
    if attempt.cancel(sent.release_request()).await {
        sent.on_any_reply(&copy);
        sent.on_busy();
        servers.forget_sent(sent.owner_id);
    }
    attempt.failed(&outcome)
}

fn granted(token: Option<FencingToken>, ends_at: Moment, ttl: Duration) -> AcquireOutcome {
    let (sent, remaining) = as_confirmed(ends_at, ttl);
    AcquireOutcome::Held {
        token,
        sent,
        remaining,
    }
}

impl QuorumAttempt {
    fn new(servers: Arc<QuorumServers>, order: Arc<AcquireOrder>, limit: Duration) -> Self {
        let count = servers.len();
        let gate_order = gate_order(&servers, order.key.as_str());
        let (ttl, now) = (order.lease_config.ttl, Clock::System.now());
        let is_cut_short = limit < servers.command_timeout;
        Self {
            machine: QuorumAcquire::new(count, ttl, now, gate_order),
            servers,
            order,
            running: JoinSet::new(),
            deadline: Deadline::after(Clock::System, limit),
            is_answered: vec![false; count],
            is_busy: vec![false; count],
            errors: vec![None; count],
            holder: None,
            passes_gates: false,
            seen_before: OwnerId::nil().short(),
            remaining: None,
            is_cut_short,
            foreign: None,
        }
    }

    async fn run(&mut self) -> Result<QuorumOutcome, LockError> {
        loop {
            let mut until = Clock::System.now();
            for action in self.machine.actions() {
                match action {
                    QuorumAction::Acquire(server) => self.send_acquire(server),
                    QuorumAction::Raise(server, token) => self.send_raise(server, token),
                    QuorumAction::Wait { until: moment } => until = moment,
                    // The caller cancels after the outcome. The others are no actions of an acquire.
                    QuorumAction::CancelAll
                    | QuorumAction::SetToken(..)
                    | QuorumAction::Renew(_)
                    | QuorumAction::Heal(_) => {}
                }
            }
            if let Some(outcome) = self.machine.outcome() {
                return Ok(outcome.clone());
            }
            let pause = tokio::time::sleep(until.since(Clock::System.now()));
            tokio::select! {
                joined = self.running.join_next(), if !self.running.is_empty() => match joined {
                    Some(Ok(vote)) => self.count(vote),
                    // The runtime is shutting down.
                    _ => return Err(LockError::NoRuntime),
                },
                () = pause => self.machine.tick(Clock::System.now()),
            }
        }
    }

    fn send_acquire(&mut self, number: usize) {
        let Some(server) = self.servers.get(number) else {
            return;
        };
        let (order, deadline) = (Arc::clone(&self.order), self.deadline);
        self.running.spawn(async move {
            let acquired = server.acquire(number, &order, Admission::Trusted, deadline);
            Vote::Acquired(number, acquired.await)
        });
    }

    fn send_raise(&mut self, number: usize, token: FencingToken) {
        let Some(server) = self.servers.get(number) else {
            return;
        };
        let (order, deadline) = (Arc::clone(&self.order), self.deadline);
        self.running.spawn(async move {
            let kind = RaiseKind::Higher;
            let raised = server.raise(&order, token, kind, Admission::Trusted, deadline);
            Vote::Raised(number, raised.await)
        });
    }

    fn count(&mut self, vote: Vote) {
        let now = Clock::System.now();
        match vote {
            Vote::Acquired(server, Ok(vote)) => {
                self.is_answered[server] = true;
                match vote {
                    AcquireVote::Held(lease) => self.machine.held(server, lease, now),
                    AcquireVote::Busy { holder, remaining } => {
                        self.is_busy[server] = true;
                        let by = self.observe(holder, remaining);
                        self.machine.busy(server, by, now);
                    }
                    AcquireVote::Foreign { found } => {
                        self.is_busy[server] = true;
                        self.foreign = Some(found);
                        self.machine.failed(server, now);
                    }
                }
            }
            Vote::Raised(server, Ok(Some(lease))) => self.machine.raised(server, lease, now),
            Vote::Raised(server, Ok(None)) => self.machine.not_ours(server, now),
            Vote::Acquired(server, Err(error)) => {
                self.is_answered[server] = error.is_refusal();
                self.errors[server] = Some(error);
                self.machine.failed(server, now);
            }
            Vote::Raised(server, Err(error)) => {
                self.errors[server] = Some(error);
                self.machine.failed(server, now);
            }
        }
    }

    fn observe(&mut self, seen: Option<ObservedHolder>, remaining: Option<Duration>) -> BusyServer {
        let holder = seen.as_ref().and_then(|seen| seen.owner_id);
        self.passes_gates |= self.seen_before == holder.unwrap_or(OwnerId::nil()).short();
        if self.holder.is_none() {
            (self.holder, self.remaining) = (seen, remaining);
        }
        BusyServer {
            remaining,
            may_be_stale: self.passes_gates,
        }
    }

    /// Keeps the granted lease for its renewals.
    fn hold(&self) {
        let Some(mut lease) = self.machine.lease() else {
            return;
        };
        for (number, server) in self.servers.all().enumerate() {
            if let Some(process) = server.process() {
                lease.met_at_grant(number, process);
            }
        }
        for (number, _) in self.is_answered.iter().enumerate().filter(|(_, it)| **it) {
            self.order.origins.answered(number);
        }
        let held = HeldQuorum::new(lease, Arc::clone(&self.order));
        self.servers.hold(self.order.owner_id, held);
    }

    /// Lets the servers reply that were slower than the majority, and asks those again that did not give the key. Without
    /// them, the lock would be at the majority only until its first renewal, and one server that restarts would end it.
    fn complete(self, sent: &SentAcquires) {
        let owner_id = self.order.owner_id;
        let misses_servers = |held: &mut HeldQuorum| held.lease.misses_servers();
        if self.running.is_empty() && self.servers.with_held(owner_id, misses_servers) != Some(true)
        {
            return;
        }
        let renewal = sent.renewal(Clock::System.now());
        assert_no_mutex_held();
        tokio::spawn(renewing::complete(self.servers, renewal, self.running));
    }

    /// Cancels the attempt at all servers to which it was sent. Returns whether it can take effect no more.
    async fn cancel(&mut self, request: ReleaseRequest) -> bool {
        // A task that still runs must not send behind the cancel.
        self.running.shutdown().await;
        let mut cancels = JoinSet::new();
        for (number, server) in self.servers.all().enumerate() {
            let Some(origin) = self.order.origins.of(number) else {
                continue;
            };
            if self.is_busy[number] {
                continue;
            }
            let request = ReleaseRequest {
                origin: Some(origin),
                ..request.clone()
            };
            let was_answered = self.is_answered[number];
            cancels.spawn(async move {
                let limit = CANCEL_PATIENCE;
                server.cancel(&request, was_answered, limit).await
            });
        }
        let mut is_settled = true;
        while let Some(cancelled) = cancels.join_next().await {
            is_settled &= cancelled.unwrap_or(false);
        }
        is_settled
    }

    fn failed(self, outcome: &QuorumOutcome) -> Result<AcquireOutcome, LockError> {
        match *outcome {
            QuorumOutcome::Contended { remaining } => Ok(busy(self.holder, remaining)),
            QuorumOutcome::TooLate => Err(LockError::advised(
                BackendErrorKind::TimedOut,
                "a majority of the lock servers confirmed the lock with less than half of its ttl left",
                "use a longer ttl, or servers that reply faster",
            )),
            QuorumOutcome::NoQuorum {
                granted,
                needed,
                servers,
            } => self.without_quorum(granted, needed, servers),
            QuorumOutcome::Granted { .. } => Err(LockError::NoRuntime),
        }
    }

    fn without_quorum(
        self,
        granted: usize,
        needed: usize,
        servers: usize,
    ) -> Result<AcquireOutcome, LockError> {
        if let Some(found) = self.foreign {
            return Ok(AcquireOutcome::Foreign { found });
        }
        if self.is_cut_short && self.is_too_slow(needed) {
            // The servers were not given the time to reply, so this says nothing about them.
            return match self.holder {
                Some(holder) => Ok(busy(Some(holder), self.remaining)),
                None => Err(timed_out(
                    "no majority of the lock servers replied before the wait ended",
                )),
            };
        }
        let no_quorum = LockError::NoQuorum {
            granted,
            needed,
            servers,
        };
        Err(lasting(self.errors.into_iter().flatten(), servers).unwrap_or(no_quorum))
    }

    /// Returns whether only the time was too short for a majority.
    fn is_too_slow(&self, needed: usize) -> bool {
        let is_slow = |error: &LockError| error.class() == FailureClass::TimedOut;
        let slow = self.errors.iter().flatten().filter(|error| is_slow(error));
        let slow = slow.count();
        let answered = self.is_answered.iter().filter(|it| **it).count();
        slow > 0 && slow == self.errors.iter().flatten().count() && slow + answered >= needed
    }
}

fn busy(holder: Option<ObservedHolder>, remaining: Option<Duration>) -> AcquireOutcome {
    let holder_expiry = match remaining {
        Some(remaining) => HolderExpiry::Polled {
            ends: Clock::System.now().plus(remaining),
        },
        None => HolderExpiry::NoExpiry,
    };
    AcquireOutcome::Busy {
        holder,
        holder_expiry,
    }
}

/// Returns the order in which all clients ask the servers for this key, so that two clients do not split
/// the votes. Servers that are down come last, and those in quarantine are left out.
fn gate_order(servers: &QuorumServers, key: &str) -> Vec<usize> {
    let mut order: Vec<_> = servers
        .all()
        .enumerate()
        .filter(|(_, server)| server.may_count())
        .map(|(number, server)| {
            let run_id = server.run_id();
            let mut hasher = DefaultHasher::new();
            (run_id, key).hash(&mut hasher);
            let is_last = run_id.is_none() || server.store.client.pool.seems_down();
            (is_last, hasher.finish(), number)
        })
        .collect();
    order.sort_unstable();
    order.into_iter().map(|(_, _, number)| number).collect()
}
