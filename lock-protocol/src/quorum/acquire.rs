//! One attempt to acquire the key at a majority.

use std::time::Duration;

use super::lease::QuorumLease;
use super::{QuorumAction, ServerLease, end_of_majority, is_one_process, majority};
use crate::clock::Moment;
use crate::fencing_token::FencingToken;
use crate::ttl::Ttl;

/// How long the gate may take to reply. Longer than a slow round trip, and short for a waiter.
const GATE_PATIENCE: Duration = Duration::from_millis(100);

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum QuorumOutcome {
    Granted {
        /// `None` in a dialect without fencing tokens.
        token: Option<FencingToken>,
        ends_at: Moment,
        /// The servers that confirmed the lock.
        servers: Vec<usize>,
    },
    /// Another holder has the key at so many servers that no majority is left. `remaining` is the time
    /// until enough of them are free, where the servers told it.
    Contended { remaining: Option<Duration> },
    /// A majority confirmed the lock, but with less than half of its ttl left.
    TooLate,
    /// Too many servers are in quarantine, failed, or took too long.
    NoQuorum {
        granted: usize,
        needed: usize,
        servers: usize,
    },
}

/// A server where another holder has the key.
#[derive(Clone, Copy, Debug)]
pub struct BusyServer {
    /// The time to the end of its lease there, if it is known.
    pub remaining: Option<Duration>,
    /// The holder may have released the lock at the other servers: this caller saw the same one before, or
    /// does not come again. At the gate, the next server is asked then. A new holder ends the attempt, so
    /// that two clients do not split the votes.
    pub may_be_stale: bool,
}

/// What is known of one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Vote {
    /// In quarantine: it is not asked.
    Excluded,
    NotAsked,
    Asked,
    Busy(Option<Duration>),
    /// A command failed or got no reply. It may have run.
    Failed,
    /// The key is ours. In the second round the token is not confirmed yet.
    Held(ServerLease),
    /// The server confirmed the token of the second round, or gave the key without a token.
    Confirmed(ServerLease),
    /// The server lost the key between the rounds.
    NotOurs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum VotePhase {
    /// Only the first servers of the order were asked, so that two clients do not split the votes.
    Gate { next: usize, until: Moment },
    /// All servers were asked.
    Votes { until: Moment },
    /// A majority holds the key, and this token is written to it.
    Raise { token: FencingToken, until: Moment },
}

/// An attempt to acquire a key at a majority of the servers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QuorumAcquire {
    ttl: Ttl,
    order: Vec<usize>,
    votes: Vec<Vote>,
    phase: VotePhase,
    actions: Vec<QuorumAction>,
    outcome: Option<QuorumOutcome>,
}

impl QuorumAcquire {
    /// Begins an attempt at `servers` servers. `gate_order` has the servers in the order that all
    /// clients have for this key, without those in quarantine.
    pub fn new(servers: usize, ttl: Ttl, now: Moment, gate_order: Vec<usize>) -> Self {
        let mut votes = vec![Vote::Excluded; servers];
        for server in &gate_order {
            if let Some(vote) = votes.get_mut(*server) {
                *vote = Vote::NotAsked;
            }
        }
        let mut attempt = Self {
            ttl,
            order: gate_order,
            votes,
            phase: VotePhase::Gate {
                next: 0,
                until: now,
            },
            actions: Vec::new(),
            outcome: None,
        };
        attempt.conclude(now);
        if attempt.outcome.is_none() {
            attempt.ask_next_gate(now);
        }
        attempt
    }

    /// Returns what to do since the last call. A [`Wait`](QuorumAction::Wait) is the last one.
    pub fn actions(&mut self) -> Vec<QuorumAction> {
        let mut actions = std::mem::take(&mut self.actions);
        if self.outcome.is_none() {
            let (VotePhase::Gate { until, .. }
            | VotePhase::Votes { until }
            | VotePhase::Raise { until, .. }) = self.phase;
            actions.push(QuorumAction::Wait { until });
        }
        actions
    }

    /// Returns how the attempt ended. Afterwards, replies change nothing.
    pub fn outcome(&self) -> Option<&QuorumOutcome> {
        self.outcome.as_ref()
    }

    /// Returns the granted lease, for its renewals. It takes replies to commands of this attempt that have none yet.
    pub fn lease(&self) -> Option<QuorumLease> {
        let Some(QuorumOutcome::Granted { token, .. }) = self.outcome else {
            return None;
        };
        let confirmed = self.votes.iter().map(|vote| match vote {
            Vote::Confirmed(lease) => Some(*lease),
            _ => None,
        });
        let mut lease = QuorumLease::new(self.ttl, token, confirmed);
        for (server, vote) in self.votes.iter().enumerate() {
            match vote {
                Vote::Excluded => lease.restarted(server),
                Vote::Asked => lease.may_still_hold(server),
                Vote::Held(_) => lease.may_still_raise(server),
                _ => {}
            }
        }
        Some(lease)
    }

    /// The server gave the key to this acquisition.
    pub fn held(&mut self, server: usize, lease: ServerLease, now: Moment) {
        if self.has_vote_elsewhere(server, lease) {
            self.failed(server, now);
            return;
        }
        let vote = match lease.token {
            Some(_) => Vote::Held(lease),
            None => Vote::Confirmed(lease),
        };
        if !self.replace(server, vote, Vote::may_reply_to_acquire) {
            return;
        }
        match (self.phase, lease.token) {
            (VotePhase::Gate { .. }, _) => self.ask_all(now),
            (VotePhase::Raise { token, .. }, Some(given)) if given <= token => {
                self.actions.push(QuorumAction::Raise(server, token));
            }
            (VotePhase::Raise { until, .. }, Some(given)) => self.raise_all(given, until),
            (VotePhase::Raise { .. }, None) | (VotePhase::Votes { .. }, _) => {}
        }
        self.conclude(now);
    }

    /// Another holder has the key at the server.
    pub fn busy(&mut self, server: usize, by: BusyServer, now: Moment) {
        let BusyServer {
            remaining,
            may_be_stale,
        } = by;
        if !self.replace(server, Vote::Busy(remaining), Vote::may_reply_to_acquire) {
            return;
        }
        if matches!(self.phase, VotePhase::Gate { .. }) && !may_be_stale {
            self.finish(QuorumOutcome::Contended { remaining });
            return;
        }
        self.conclude(now);
        if self.outcome.is_none() && self.is_gate(server) {
            self.ask_next_gate(now);
        }
    }

    /// A command failed at the server, or got no reply in its time. A later reply still counts.
    pub fn failed(&mut self, server: usize, now: Moment) {
        if !self.replace(server, Vote::Failed, Vote::may_fail) {
            return;
        }
        self.conclude(now);
        if self.outcome.is_none() && self.is_gate(server) {
            self.ask_next_gate(now);
        }
    }

    /// The server confirmed the token of a [`Raise`](QuorumAction::Raise).
    pub fn raised(&mut self, server: usize, lease: ServerLease, now: Moment) {
        if self.has_vote_elsewhere(server, lease) {
            self.failed(server, now);
            return;
        }
        // A confirmation of a lower token is from before another server gave a higher one.
        if matches!(self.phase, VotePhase::Raise { token, .. } if Some(token) == lease.token)
            && self.replace(server, Vote::Confirmed(lease), Vote::may_reply_to_raise)
        {
            self.conclude(now);
        }
    }

    /// The server lost the key before its token was raised.
    pub fn not_ours(&mut self, server: usize, now: Moment) {
        if self.replace(server, Vote::NotOurs, Vote::may_reply_to_raise) {
            self.conclude(now);
        }
    }

    /// Passes the time. See [`QuorumAction::Wait`].
    pub fn tick(&mut self, now: Moment) {
        if self.outcome.is_some() {
            return;
        }
        match self.phase {
            VotePhase::Gate { until, .. } if until <= now => self.ask_next_gate(now),
            VotePhase::Votes { until } | VotePhase::Raise { until, .. } if until <= now => {
                for vote in &mut self.votes {
                    if *vote == Vote::Asked {
                        *vote = Vote::Failed;
                    }
                }
                self.give_up();
            }
            _ => {}
        }
    }

    /// Stores the vote if the attempt goes on and the server's vote so far allows it.
    fn replace(&mut self, server: usize, vote: Vote, allowed: fn(Vote) -> bool) -> bool {
        match self.votes.get_mut(server) {
            Some(before) if self.outcome.is_none() && allowed(*before) => {
                *before = vote;
                true
            }
            _ => false,
        }
    }

    /// Returns whether the process that confirmed this has a vote under another address already. It has only one.
    fn has_vote_elsewhere(&self, server: usize, lease: ServerLease) -> bool {
        self.votes
            .iter()
            .enumerate()
            .any(|(other, vote)| match vote {
                Vote::Held(known) | Vote::Confirmed(known) => {
                    other != server && is_one_process(known.run_id, lease.run_id)
                }
                _ => false,
            })
    }

    fn is_gate(&self, server: usize) -> bool {
        let VotePhase::Gate { next, .. } = self.phase else {
            return false;
        };
        let gate = next.checked_sub(1).and_then(|gate| self.order.get(gate));
        gate == Some(&server)
    }

    fn ask_next_gate(&mut self, now: Moment) {
        let VotePhase::Gate { next, .. } = self.phase else {
            return;
        };
        let Some(server) = self.order.get(next).copied() else {
            self.ask_all(now);
            return;
        };
        self.phase = VotePhase::Gate {
            next: next + 1,
            until: now.plus(GATE_PATIENCE),
        };
        self.ask(server);
    }

    /// Asks all servers that were not asked. From now on, half the ttl may pass: a grant that comes
    /// later would have less than half of it left.
    fn ask_all(&mut self, now: Moment) {
        for server in self.order.clone() {
            self.ask(server);
        }
        self.phase = VotePhase::Votes {
            until: now.plus(self.ttl.as_duration() / 2),
        };
    }

    fn ask(&mut self, server: usize) {
        if self.replace(server, Vote::Asked, |vote| vote == Vote::NotAsked) {
            self.actions.push(QuorumAction::Acquire(server));
        }
    }

    /// Writes the token to all servers that gave one. No earlier confirmation counts.
    fn raise_all(&mut self, token: FencingToken, until: Moment) {
        self.phase = VotePhase::Raise { token, until };
        for (server, vote) in self.votes.iter_mut().enumerate() {
            if let Vote::Held(lease) | Vote::Confirmed(lease) = *vote {
                *vote = Vote::Held(lease);
                self.actions.push(QuorumAction::Raise(server, token));
            }
        }
    }

    fn conclude(&mut self, now: Moment) {
        if self.count(Vote::is_possible) < self.needed() {
            self.give_up();
            return;
        }
        match self.phase {
            VotePhase::Votes { until } if self.count(Vote::is_ours) >= self.needed() => {
                let tokens = self.votes.iter().filter_map(|vote| match vote {
                    Vote::Held(lease) => lease.token,
                    _ => None,
                });
                match tokens.max() {
                    Some(token) => self.raise_all(token, until),
                    None => self.grant(None, now),
                }
            }
            VotePhase::Raise { token, .. } => self.grant(Some(token), now),
            VotePhase::Gate { .. } | VotePhase::Votes { .. } => {}
        }
    }

    /// Grants the lock when a majority confirmed it.
    fn grant(&mut self, token: Option<FencingToken>, now: Moment) {
        let confirmed = self.votes.iter().enumerate();
        let (servers, ends): (Vec<_>, Vec<_>) = confirmed
            .filter_map(|(server, vote)| match vote {
                Vote::Confirmed(lease) => Some((server, lease.ends_at(self.ttl))),
                _ => None,
            })
            .unzip();
        let Some(ends_at) = end_of_majority(ends.into_iter(), self.needed()) else {
            return;
        };
        if ends_at.since(now) < self.ttl.as_duration() / 2 {
            self.finish(QuorumOutcome::TooLate);
        } else {
            self.finish(QuorumOutcome::Granted {
                token,
                ends_at,
                servers,
            });
        }
    }

    fn give_up(&mut self) {
        let possible = self.count(Vote::is_possible);
        let mut busy: Vec<_> = self
            .votes
            .iter()
            .filter_map(|vote| match vote {
                Vote::Busy(remaining) => Some(*remaining),
                _ => None,
            })
            .collect();
        // A time that is not known is the longest.
        busy.sort_unstable_by_key(|remaining| remaining.unwrap_or(Duration::MAX));
        let missing = self.needed().saturating_sub(possible);
        let last_to_free = missing.checked_sub(1).and_then(|index| busy.get(index));
        self.finish(match last_to_free {
            Some(remaining) => QuorumOutcome::Contended {
                remaining: *remaining,
            },
            None => QuorumOutcome::NoQuorum {
                granted: self.count(Vote::is_ours),
                needed: self.needed(),
                servers: self.votes.len(),
            },
        });
    }

    fn finish(&mut self, outcome: QuorumOutcome) {
        let granted = matches!(outcome, QuorumOutcome::Granted { .. });
        // Commands of an attempt that ended are not sent any more.
        self.actions.clear();
        if !granted && self.count(Vote::may_have_the_key) > 0 {
            self.actions.push(QuorumAction::CancelAll);
        }
        self.outcome = Some(outcome);
    }

    fn needed(&self) -> usize {
        majority(self.votes.len())
    }

    fn count(&self, is: fn(Vote) -> bool) -> usize {
        self.votes.iter().filter(|vote| is(**vote)).count()
    }
}

impl Vote {
    fn may_reply_to_acquire(self) -> bool {
        matches!(self, Self::Asked | Self::Failed)
    }

    fn may_reply_to_raise(self) -> bool {
        matches!(self, Self::Held(_) | Self::Failed)
    }

    fn may_fail(self) -> bool {
        matches!(self, Self::Asked | Self::Held(_))
    }

    fn is_ours(self) -> bool {
        matches!(self, Self::Held(_) | Self::Confirmed(_))
    }

    /// Whether the server may still confirm the token.
    fn is_possible(self) -> bool {
        self.is_ours() || matches!(self, Self::NotAsked | Self::Asked)
    }

    fn may_have_the_key(self) -> bool {
        !matches!(self, Self::Excluded | Self::NotAsked | Self::Busy(_))
    }
}
