//! The leases that this manager holds at a quorum, and what their servers replied.

use std::sync::Arc;

use super::as_confirmed;
use super::server::{AcquireOrder, SentOrigins};
use super::vote::lasting;
use crate::error::LockError;
use crate::store::Renewal;
use lock_protocol::acquisition::RenewOutcome;
use lock_protocol::clock::{Clock, Moment};
use lock_protocol::loss::LossReason;
use lock_protocol::quorum::{MetProcess, QuorumLease, RenewalRound, majority};

/// The number of the round in which a lease is granted.
pub(super) const FIRST_ROUND: u64 = 0;

/// A lease that this manager holds.
pub(super) struct HeldQuorum {
    pub(super) lease: QuorumLease,
    pub(super) order: Arc<AcquireOrder>,
    /// Grows with each renewal. Replies of an earlier one do not count.
    pub(super) round: u64,
    /// Why servers refused in this round, and the errors of the others.
    loss: Option<LossReason>,
    errors: Vec<LockError>,
}

impl HeldQuorum {
    pub(super) fn new(lease: QuorumLease, order: Arc<AcquireOrder>) -> Self {
        Self {
            lease,
            order,
            round: FIRST_ROUND,
            loss: None,
            errors: Vec::new(),
        }
    }

    /// Returns whether a majority may still hold the lease.
    pub(super) fn is_valid(&self, now: Moment) -> bool {
        self.lease.ends_at().is_some_and(|ends_at| ends_at > now)
    }

    /// Returns the connections of acquires without a reply.
    pub(super) fn origins(&self) -> Arc<SentOrigins> {
        Arc::clone(&self.order.origins)
    }

    /// Returns the number of the round, and the errors of the last one, which are to be dropped outside of
    /// the mutex.
    pub(super) fn begin_round(&mut self, now: Moment) -> (u64, Vec<LockError>) {
        self.round += 1;
        self.loss = None;
        self.lease.begin_round(now);
        // All servers are asked.
        let _renewals = self.lease.actions();
        (self.round, std::mem::take(&mut self.errors))
    }

    pub(super) fn count(
        &mut self,
        server: usize,
        process: Option<MetProcess>,
        result: Result<RenewOutcome, LockError>,
    ) {
        if let Some(process) = process {
            self.lease.met(server, process);
        }
        match (result, process) {
            (
                Ok(RenewOutcome::Held {
                    sent, remaining, ..
                }),
                Some(_),
            ) => self.lease.renewed(server, sent, remaining),
            (Ok(RenewOutcome::NotOwner(reason)), _) => {
                self.loss.get_or_insert(reason);
                self.lease.not_ours(server);
            }
            // The connection broke meanwhile, so it is not known which process replied.
            (Ok(RenewOutcome::Held { .. }), None) => self.lease.failed(server),
            (Err(error), _) => {
                self.errors.push(error);
                self.lease.failed(server);
            }
        }
    }

    /// Returns the outcome of the round. `None` while it may still get one.
    pub(super) fn outcome(&self, renewal: &Renewal) -> Option<Result<RenewOutcome, LockError>> {
        Some(match self.lease.round() {
            RenewalRound::Pending => return None,
            RenewalRound::Renewed { ends_at } => {
                let (sent, remaining) = as_confirmed(ends_at, renewal.ttl);
                Ok(RenewOutcome::Held {
                    token: None,
                    sent: sent.min(Clock::System.now()),
                    remaining,
                })
            }
            RenewalRound::Lost => {
                let reason = self.loss.clone().unwrap_or(LossReason::Removed);
                Ok(RenewOutcome::NotOwner(reason))
            }
            RenewalRound::Unknown => Err(self.unknown()),
        })
    }

    pub(super) fn unknown(&self) -> LockError {
        let servers = self.lease.servers();
        let no_quorum = LockError::NoQuorum {
            granted: self.lease.confirmations(),
            needed: majority(servers),
            servers,
        };
        lasting(self.errors.iter().cloned(), servers).unwrap_or(no_quorum)
    }
}
