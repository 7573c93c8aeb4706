//! What makes a grant a lock: a reply, a notification, or a renewal that confirms it.

use std::time::Duration;

use super::{
    AcquireFailure, AcquirePhase, AcquireResult, Acquisition, Action, CommandInFlight, Exposure,
    Failure, LeaseKind, NextAction, RenewReason, Strategy,
};
use crate::cleanup::ReleaseSubject;
use crate::clock::Moment;
use crate::fencing_token::FencingToken;
use crate::lease::Lease;
use crate::local_queue::{ObservedExpiry, Peers};
use crate::mailbox::Grant;

impl<E: Failure> Acquisition<E> {
    /// Takes a lock that the reply to a command confirmed. The command was sent at `sent`.
    pub(super) fn confirmed(
        &mut self,
        token: Option<FencingToken>,
        sent: Moment,
        remaining: Duration,
        now: Moment,
        peers: &mut impl Peers,
    ) -> NextAction<E> {
        let mut lease_config = self.sent.lease_config;
        if let Strategy::OneAttempt(attempt) = &self.strategy {
            lease_config = attempt.lease_config(lease_config, sent);
        }
        let lease = match self.lease_kind {
            LeaseKind::Renewed | LeaseKind::Confirmed => {
                Lease::confirmed(lease_config, sent, remaining)
            }
            LeaseKind::Endless => Lease::endless(lease_config, now),
        };
        self.take_if_valid(token, lease, now, peers)
    }

    /// Takes a lock that a notification granted. A renewal confirms it first when the end of its
    /// lease is uncertain, or when another client may have forged it.
    pub(super) fn on_grant(
        &mut self,
        grant: Grant,
        now: Moment,
        peers: &mut impl Peers,
    ) -> NextAction<E> {
        let lease_config = self.sent.lease_config;
        let token = Some(grant.token);
        if self.lease_kind == LeaseKind::Endless {
            let lease = Lease::endless(lease_config, grant.received);
            return self.take_if_valid(token, lease, now, peers);
        }
        let reason = self.doubt(&grant, peers);
        let until = grant.until.filter(|_| reason.is_none());
        if let Some(until) = until.filter(|until| until.since(now) >= grant.lease / 2) {
            let lease = Lease::handed_over(lease_config, grant.received, grant.lease, until);
            // The longest hold may have ended before the caller read the notification.
            return self.take_if_valid(token, lease, now, peers);
        }
        let limit = self.limit(now);
        self.phase = AcquirePhase::InFlight(CommandInFlight::Confirm { limit });
        NextAction::Perform(Action::Renew {
            limit,
            reason: reason.unwrap_or(RenewReason::Uncertain),
        })
    }

    /// Returns why the server may not have written this grant. Every client that may publish on the
    /// channel and knows the owner id can forge one.
    fn doubt(&self, grant: &Grant, peers: &impl Peers) -> Option<RenewReason> {
        if self.exposure == Exposure::Exposed || self.lease_kind == LeaseKind::Confirmed {
            return Some(RenewReason::Uncertain);
        }
        let is_too_long = grant.lease > self.sent.longest_handover();
        let is_too_old = peers.last_token().is_some_and(|known| grant.token < known);
        (is_too_long || is_too_old).then_some(RenewReason::Implausible)
    }

    /// Takes the lock, or lets it go if its lease has ended.
    fn take_if_valid(
        &mut self,
        token: Option<FencingToken>,
        lease: Lease,
        now: Moment,
        peers: &mut impl Peers,
    ) -> NextAction<E> {
        // The holder has acted on the loss already, so the reply comes too late.
        if let Strategy::OneAttempt(attempt) = &self.strategy
            && attempt.is_lost(now)
        {
            return self.fail(AcquireFailure::NotOwner);
        }
        if lease.is_valid(now) {
            return self.take(token, lease, now, peers);
        }
        match &mut self.strategy {
            Strategy::OneAttempt(_) => self.fail(AcquireFailure::LateGrant),
            Strategy::Wait(waiting) => {
                waiting.poll_at_once(now);
                NextAction::Perform(Action::StartOver)
            }
        }
    }

    fn take(
        &mut self,
        token: Option<FencingToken>,
        lease: Lease,
        now: Moment,
        peers: &mut impl Peers,
    ) -> NextAction<E> {
        let ends = lease.deadline();
        let observed_expiry = ends.map(|holder_expires_at| ObservedExpiry {
            at: now,
            holder_expires_at,
        });
        peers.leave(observed_expiry, token);
        self.phase = AcquirePhase::Owned;
        let mut release_request = self.sent.release_request();
        // Any connection will do: the acquire got its reply, so the release cannot overtake it.
        release_request.origin = None;
        release_request.subject = ReleaseSubject::Guard;
        NextAction::Done(AcquireResult::Acquired {
            token,
            lease,
            release_request,
        })
    }
}
