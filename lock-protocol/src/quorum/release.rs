//! The release of a key at all servers.

use super::majority;

/// The state of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReleaseRound {
    /// Too few servers replied.
    Pending,
    /// A majority released the key. The other servers are released in the background.
    Released,
    /// So many servers say that the key is not ours that no majority held it at the end.
    NotOurs,
    /// Too many releases failed. The release is repeated there.
    Unconfirmed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReleaseVote {
    Sent,
    Released,
    NotOurs,
    Failed,
}

/// A release that was sent to all servers.
#[derive(Clone, Debug)]
pub struct QuorumRelease(Vec<ReleaseVote>);

impl QuorumRelease {
    pub fn new(servers: usize) -> Self {
        Self(vec![ReleaseVote::Sent; servers])
    }

    pub fn released(&mut self, server: usize) {
        self.set(server, ReleaseVote::Released);
    }

    pub fn not_ours(&mut self, server: usize) {
        self.set(server, ReleaseVote::NotOurs);
    }

    /// The release failed or got no reply in its time. A later reply still counts.
    pub fn failed(&mut self, server: usize) {
        self.set(server, ReleaseVote::Failed);
    }

    /// Returns the servers that have not confirmed the release.
    pub fn unconfirmed(&self) -> impl Iterator<Item = usize> {
        let is_open = |vote| matches!(vote, ReleaseVote::Sent | ReleaseVote::Failed);
        let votes = self.0.iter().enumerate();
        votes.filter_map(move |(server, vote)| is_open(*vote).then_some(server))
    }

    pub fn round(&self) -> ReleaseRound {
        let needed = majority(self.0.len());
        let count = |vote| self.0.iter().filter(|other| **other == vote).count();
        if count(ReleaseVote::Released) >= needed {
            ReleaseRound::Released
        } else if self.0.len() - count(ReleaseVote::NotOurs) < needed {
            ReleaseRound::NotOurs
        } else if count(ReleaseVote::Sent) > 0 {
            ReleaseRound::Pending
        } else {
            ReleaseRound::Unconfirmed
        }
    }

    /// The first answer of a server stays: a repeated release finds the key free.
    fn set(&mut self, server: usize, new: ReleaseVote) {
        if let Some(vote) = self.0.get_mut(server)
            && matches!(vote, ReleaseVote::Sent | ReleaseVote::Failed)
        {
            *vote = new;
        }
    }
}
