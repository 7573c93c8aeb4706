//! The renewals of a granted lease, and the healing of servers that lost it.

use std::time::Duration;

use super::{
    MetProcess, QuorumAction, ServerLease, end_of_lease, end_of_majority, is_one_process, majority,
};
use crate::clock::Moment;
use crate::fencing_token::FencingToken;
use crate::ttl::Ttl;

/// The state of a renewal round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RenewalRound {
    /// Too few servers replied.
    Pending,
    /// A majority confirmed the lease in this round.
    Renewed { ends_at: Moment },
    /// So many servers say that the key is not ours that no majority is left.
    Lost,
    /// Neither. The lease is valid until its deadline, and is renewed again.
    Unknown,
}

/// Whether a server's word counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Trusted,
    /// It restarted, and may have forgotten leases that have not ended.
    Quarantined,
    /// As [`Quarantined`](Self::Quarantined), but this lease was acquired there after the restart. It
    /// counts for this lease: nobody else counts that server before all forgotten leases have ended.
    Healed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RenewalVote {
    Sent,
    Renewed,
    NotOurs,
    Failed,
}

/// How far the healing of a server is in this round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Healing {
    NotBegun,
    /// The acquire of the grant has no reply yet.
    Late,
    Acquiring,
    Raising,
    Ended,
}

#[derive(Clone, Copy, Debug)]
struct LeaseServer {
    standing: Standing,
    vote: RenewalVote,
    healing: Healing,
    /// Until when the server holds the key, by its last confirmation. `None`: it does not count.
    ends_at: Option<Moment>,
    /// The token that the server confirmed.
    raised_to: Option<FencingToken>,
    /// The process to which the last connection led.
    process: Option<u64>,
    /// The process of the last confirmation.
    confirmed_by: Option<u64>,
}

/// A granted lease at a majority of the servers.
#[derive(Clone, Debug)]
pub struct QuorumLease {
    ttl: Ttl,
    /// The token that is written to the servers. It is not below the token of the grant. `None` in a dialect
    /// without fencing tokens.
    token: Option<FencingToken>,
    servers: Vec<LeaseServer>,
    round_began: Moment,
    actions: Vec<QuorumAction>,
}

impl QuorumLease {
    /// A lease that was just granted. `confirmed` has for each server its confirmation of the token.
    pub(super) fn new(
        ttl: Ttl,
        token: Option<FencingToken>,
        confirmed: impl Iterator<Item = Option<ServerLease>>,
    ) -> Self {
        let servers = confirmed.map(|confirmed| LeaseServer {
            standing: Standing::Trusted,
            vote: RenewalVote::Failed,
            healing: Healing::NotBegun,
            ends_at: confirmed.map(|lease| lease.ends_at(ttl)),
            raised_to: confirmed.and(token),
            process: confirmed.map(|lease| lease.run_id),
            confirmed_by: confirmed.map(|lease| lease.run_id),
        });
        Self {
            ttl,
            token,
            servers: servers.collect(),
            round_began: Moment::from_nanos(0),
            actions: Vec::new(),
        }
    }

    /// The server has not replied to the acquire yet, and the lock was granted without it.
    pub(super) fn may_still_hold(&mut self, server: usize) {
        self.advance(server, Healing::NotBegun, Healing::Late);
    }

    /// The server has not confirmed the token yet, and the lock was granted without it.
    pub(super) fn may_still_raise(&mut self, server: usize) {
        self.advance(server, Healing::NotBegun, Healing::Raising);
    }

    /// Returns whether a server doesn't have the key, as far as is known, and may be asked for it now.
    pub fn misses_servers(&self) -> bool {
        let remembered = self.is_remembered();
        self.servers
            .iter()
            .any(|server| server.is_missing(remembered))
    }

    /// Asks the servers again that did not give the key when the lease was granted: another holder had it, or they could
    /// not be reached, or they were in quarantine. Until they have it, one server that restarts can end the lease.
    pub fn ask_again(&mut self, now: Moment) {
        if self.ends_at().is_none_or(|ends_at| ends_at <= now) {
            return;
        }
        let remembered = self.is_remembered();
        for (number, server) in self.servers.iter_mut().enumerate() {
            if server.is_missing(remembered) {
                server.healing = Healing::Acquiring;
                self.actions.push(QuorumAction::Heal(number));
            }
        }
    }

    /// Begins a renewal at all servers. Confirmations of commands that were sent earlier do not count
    /// any more: the server may have restarted since.
    pub fn begin_round(&mut self, now: Moment) {
        self.actions.clear();
        self.round_began = now;
        for (number, server) in self.servers.iter_mut().enumerate() {
            server.vote = RenewalVote::Sent;
            server.healing = Healing::NotBegun;
            self.actions.push(QuorumAction::Renew(number));
        }
    }

    /// Returns what to do since the last call.
    pub fn actions(&mut self) -> Vec<QuorumAction> {
        std::mem::take(&mut self.actions)
    }

    /// Returns the moment until which a majority holds the key. `None` when there is no majority.
    pub fn ends_at(&self) -> Option<Moment> {
        let ends = self.servers.iter().filter_map(|server| server.ends_at);
        end_of_majority(ends, self.needed())
    }

    /// Returns the state of the renewal round. It may still get better after a result.
    pub fn round(&self) -> RenewalRound {
        let not_ours = self.count(|server| server.vote == RenewalVote::NotOurs);
        if self.is_renewed() {
            self.ends_at()
                .map_or(RenewalRound::Unknown, |ends_at| RenewalRound::Renewed {
                    ends_at,
                })
        } else if self.servers.len() - not_ours < self.needed() {
            RenewalRound::Lost
        } else if self.count(|server| server.vote == RenewalVote::Sent) > 0 {
            RenewalRound::Pending
        } else {
            RenewalRound::Unknown
        }
    }

    /// Returns how many servers confirmed the lease in this round.
    pub fn confirmations(&self) -> usize {
        let renewed = |server: &LeaseServer| server.vote == RenewalVote::Renewed;
        self.count(|server| renewed(server) && server.counts())
    }

    /// Returns the number of servers.
    pub fn servers(&self) -> usize {
        self.servers.len()
    }

    /// A connection leads to this process: call it before its reply is counted.
    pub fn met(&mut self, server: usize, process: MetProcess) {
        let Some(known) = self.servers.get_mut(server) else {
            return;
        };
        let is_new = known.process.replace(process.run_id) != Some(process.run_id);
        if process.counts {
            self.trusted(server);
        } else if is_new {
            self.restarted(server);
        }
    }

    /// Tells a lease that was just granted to which process the last connection led. What a server has confirmed stays:
    /// the first renewal shows whether it still has the key.
    pub fn met_at_grant(&mut self, server: usize, process: MetProcess) {
        let known = self.servers.get(server);
        if known.is_some_and(|known| known.confirmed_by.is_none()) {
            self.met(server, process);
        }
    }

    /// The server has restarted. It does not count until this lease is healed there.
    pub(super) fn restarted(&mut self, server: usize) {
        if let Some(server) = self.servers.get_mut(server) {
            server.standing = Standing::Quarantined;
            server.healing = Healing::NotBegun;
            server.ends_at = None;
            server.raised_to = None;
        }
    }

    /// The quarantine of the server is over.
    pub(super) fn trusted(&mut self, server: usize) {
        if let Some(server) = self.servers.get_mut(server) {
            server.standing = Standing::Trusted;
        }
    }

    /// The server renewed the key.
    pub fn renewed(&mut self, server: usize, sent_at: Moment, remaining: Duration) {
        if sent_at < self.round_began {
            return;
        }
        let ends_at = end_of_lease(self.ttl, sent_at, remaining);
        let mut confirmed_by = None;
        if let Some(server) = self.servers.get_mut(server) {
            server.vote = RenewalVote::Renewed;
            if server.standing != Standing::Quarantined {
                // Not the later one of both: near the end of `max_hold`, a renewal shortens the lease.
                server.ends_at = Some(ends_at);
                confirmed_by = server.process;
            }
        }
        if let Some(run_id) = confirmed_by {
            self.confirmed_by(server, run_id);
        }
        self.heal();
    }

    /// The key at the server is not ours: the reply to a renewal or to a raise.
    pub fn not_ours(&mut self, server: usize) {
        if let Some(server) = self.servers.get_mut(server) {
            if server.healing.is_running() {
                server.healing = Healing::Ended;
            }
            if server.standing == Standing::Healed {
                server.standing = Standing::Quarantined;
            }
            server.vote = RenewalVote::NotOurs;
            server.ends_at = None;
            server.raised_to = None;
        }
        self.heal();
    }

    /// A command failed at the server, or got no reply in its time.
    pub fn failed(&mut self, server: usize) {
        if let Some(server) = self.servers.get_mut(server) {
            if server.healing.is_running() {
                server.healing = Healing::Ended;
            } else if server.vote == RenewalVote::Sent {
                server.vote = RenewalVote::Failed;
            }
        }
        self.heal();
    }

    /// Another holder has the key at a server that was to be healed.
    pub fn busy(&mut self, server: usize) {
        if let Some(server) = self.servers.get_mut(server)
            && matches!(server.healing, Healing::Late | Healing::Acquiring)
        {
            server.healing = Healing::Ended;
        }
    }

    /// The server gave the key to this lease again. A token above that of the lease is written to all
    /// servers, so that each of them tells the same token.
    pub fn held(&mut self, server: usize, lease: ServerLease, now: Moment) {
        if !self.may_heal(lease.sent_at, now) {
            return;
        }
        let is_late = self.advance(server, Healing::Late, Healing::Raising);
        if !is_late && !self.advance(server, Healing::Acquiring, Healing::Raising) {
            return;
        }
        let (Some(given), Some(token)) = (lease.token, self.token) else {
            // There is no token to write.
            self.raised(server, lease, now);
            return;
        };
        if given <= token {
            self.actions.push(QuorumAction::Raise(server, token));
            return;
        }
        // The token of a grant stays as the holder knows it: a majority gave no higher one.
        if is_late {
            self.actions.push(QuorumAction::SetToken(server, token));
            return;
        }
        self.token = Some(given);
        for (number, other) in self.servers.iter().enumerate() {
            // One that is being healed too would tell a lower token.
            let is_raising = other.healing == Healing::Raising;
            if other.ends_at.is_some() || is_raising {
                self.actions.push(QuorumAction::Raise(number, given));
            }
        }
    }

    /// The server confirmed the token. From now on a healed server counts.
    pub fn raised(&mut self, server: usize, lease: ServerLease, now: Moment) {
        let known = self.servers.get(server).and_then(|known| known.process);
        if known.is_some_and(|known| known != lease.run_id) {
            // The server has restarted, or the address leads elsewhere now. The next renewal shows it.
            self.failed(server);
            return;
        }
        if lease.token != self.token || !self.may_heal(lease.sent_at, now) {
            return;
        }
        let healed = self.advance(server, Healing::Raising, Healing::Ended);
        let ends_at = lease.ends_at(self.ttl);
        if let Some(known) = self.servers.get_mut(server)
            && (healed || known.ends_at.is_some())
        {
            if known.standing == Standing::Quarantined {
                known.standing = Standing::Healed;
            }
            known.ends_at = known.ends_at.max(Some(ends_at));
            known.raised_to = lease.token;
            self.confirmed_by(server, lease.run_id);
        }
    }

    /// Records which process has confirmed the lease. What it confirmed under another address doesn't count any more:
    /// that address leads elsewhere now.
    fn confirmed_by(&mut self, server: usize, run_id: u64) {
        for (number, known) in self.servers.iter_mut().enumerate() {
            if number == server {
                known.confirmed_by = Some(run_id);
            } else if known
                .confirmed_by
                .is_some_and(|by| is_one_process(by, run_id))
            {
                known.confirmed_by = None;
                known.ends_at = None;
                known.raised_to = None;
                if known.vote == RenewalVote::Renewed {
                    known.vote = RenewalVote::Failed;
                }
            }
        }
    }

    /// Begins the healing of servers, if a majority confirmed the lease in this round. A server in
    /// quarantine is healed only beside a majority of servers that are not.
    fn heal(&mut self) {
        if !self.is_renewed() {
            return;
        }
        let needed = self.needed();
        let trusted = |server: &LeaseServer| server.standing == Standing::Trusted;
        let renewed = |server: &LeaseServer| server.vote == RenewalVote::Renewed;
        let remembered = self.count(|server| trusted(server) && renewed(server)) >= needed;
        for (number, server) in self.servers.iter_mut().enumerate() {
            if server.healing != Healing::NotBegun {
                continue;
            }
            let acquire = match (server.standing, server.vote) {
                (Standing::Trusted, RenewalVote::NotOurs) => true,
                (Standing::Quarantined, RenewalVote::NotOurs | RenewalVote::Renewed) => remembered,
                _ => false,
            };
            if acquire {
                server.healing = Healing::Acquiring;
                self.actions.push(QuorumAction::Heal(number));
            } else if let Some(token) = self.token
                && renewed(server)
                && server.counts()
                && server.raised_to != self.token
            {
                // It gave the key after the grant, or confirmed an older token.
                server.healing = Healing::Raising;
                self.actions.push(QuorumAction::Raise(number, token));
            }
        }
    }

    fn advance(&mut self, server: usize, from: Healing, to: Healing) -> bool {
        match self.servers.get_mut(server) {
            Some(server) if server.healing == from => {
                server.healing = to;
                true
            }
            _ => false,
        }
    }

    /// Whether the command is of this round, and the lock was not lost meanwhile.
    fn may_heal(&self, sent_at: Moment, now: Moment) -> bool {
        sent_at >= self.round_began && self.ends_at().is_some_and(|ends_at| ends_at > now)
    }

    fn is_renewed(&self) -> bool {
        self.confirmations() >= self.needed()
    }

    fn needed(&self) -> usize {
        majority(self.servers.len())
    }

    /// Whether a majority has the key that has forgotten no lease, so that a server in quarantine may be healed beside it.
    fn is_remembered(&self) -> bool {
        let remembers =
            |server: &LeaseServer| server.standing == Standing::Trusted && server.ends_at.is_some();
        self.count(remembers) >= self.needed()
    }

    fn count(&self, is: impl Fn(&LeaseServer) -> bool) -> usize {
        self.servers.iter().filter(|server| is(server)).count()
    }
}

impl Healing {
    /// Whether the server has not replied to a command of this healing.
    fn is_running(self) -> bool {
        matches!(self, Self::Late | Self::Acquiring | Self::Raising)
    }
}

impl LeaseServer {
    fn is_missing(&self, remembered: bool) -> bool {
        let may_have_it = self.standing != Standing::Quarantined || remembered;
        may_have_it && self.ends_at.is_none() && !self.healing.is_running()
    }

    fn counts(&self) -> bool {
        self.standing != Standing::Quarantined
    }
}
