//! A virtual caller that holds the lock, and the renewals of its background worker.

use std::time::Duration;

use super::{Caller, ClientStep, Effect, MessageLane, Reply, Request};
use crate::acquisition::{AcquireConfig, AcquireOrigin, Patience, RenewOutcome};
use crate::backoff::Jitter;
use crate::cleanup::Keep;
use crate::lease::LeaseAction;
use crate::local_queue::Peers;
use crate::owner_id::OwnerId;

impl<P: Peers> ClientStep<'_, P> {
    /// Sends the renewal if it is due. Returns whether it was sent.
    pub(in crate::tests) fn renew(&mut self) -> bool {
        let now = self.now;
        let timeout = self.manager.command_timeout;
        let Caller::Holding(holding) = &mut *self.caller else {
            return false;
        };
        let action = holding.lease.next_action(now);
        let Some(limit) = action.renewal_limit(now, timeout) else {
            return false;
        };
        self.send_renewal(limit);
        true
    }

    /// Renews at once, as the caller demands it. Returns whether it was sent.
    pub(in crate::tests) fn renew_now(&mut self) -> bool {
        let now = self.now;
        let timeout = self.manager.command_timeout;
        let Caller::Holding(holding) = &*self.caller else {
            return false;
        };
        if holding.renewing.is_some() || !holding.lease.is_valid(now) {
            return false;
        }
        let limit = timeout.min(holding.lease.remaining(now));
        self.send_renewal(limit);
        true
    }

    fn send_renewal(&mut self, limit: Duration) {
        let now = self.now;
        let Caller::Holding(holding) = &mut *self.caller else {
            return;
        };
        holding.renewing = Some((now, now.plus(limit)));
        let owner_id = holding.request.owner_id;
        let ttl = holding.lease.renewed_ttl(now);
        let request = Request::Renew {
            ttl_ms: crate::ttl::whole_millis(ttl),
            kind: holding.request.kind,
        };
        self.effects.push(Effect::Send {
            lane: MessageLane::Renew,
            owner_id,
            request,
        });
    }

    /// Handles the reply to a renewal.
    pub(in crate::tests) fn on_renewal_reply(&mut self, reply: &Reply, server_us: u64) {
        let now = self.now;
        let Caller::Holding(holding) = &mut *self.caller else {
            return;
        };
        let Some((sent, _)) = holding.renewing.take() else {
            return;
        };
        let Reply::Renew(reply) = *reply else {
            panic!("the reply to a renewal: {reply:?}");
        };
        match RenewOutcome::from_reply(reply, None, sent) {
            RenewOutcome::Held {
                sent, remaining, ..
            } => {
                let before = holding.lease.deadline();
                holding.lease.renewed(sent, remaining, now);
                if holding.lease.deadline() > before {
                    self.effects.push(Effect::Extended);
                }
            }
            RenewOutcome::NotOwner(_) => holding.lease.refused(),
        }
        self.manager.record(sent, server_us);
    }

    /// Handles a renewal that got no reply.
    pub(in crate::tests) fn on_no_renewal_reply(&mut self) {
        let Caller::Holding(holding) = &mut *self.caller else {
            return;
        };
        if holding.renewing.take().is_some() {
            holding.lease.unanswered(self.now);
            let owner_id = holding.request.owner_id;
            self.effects.push(Effect::StopAwaiting {
                lane: MessageLane::Renew,
                owner_id,
            });
        }
    }

    /// Makes the exclusive lock a read lock. Does nothing when its lease has ended.
    pub(in crate::tests) fn downgrade(&mut self, config: AcquireConfig) {
        let now = self.now;
        let Caller::Holding(holding) = &*self.caller else {
            return;
        };
        if holding.lease.is_lost(now) {
            return;
        }
        let ends = holding.lease.ends();
        let longest = now.plus(self.manager.command_timeout);
        let held = holding.request.clone();
        self.effects.push(Effect::StopAwaiting {
            lane: MessageLane::Renew,
            owner_id: held.owner_id,
        });
        let config = AcquireConfig {
            patience: Patience::OneAttempt {
                started: now,
                until: ends
                    .deadline
                    .map_or(longest, |deadline| deadline.min(longest)),
            },
            outage_wait: None,
            origin: AcquireOrigin::Downgrade {
                held: Box::new(held),
                ends,
            },
            ..config
        };
        self.start(config, Jitter::zero());
    }

    /// Gives the lock away. Returns the owner id under which it stays held.
    pub(in crate::tests) fn give(&mut self) -> Option<OwnerId> {
        let owner_id = match &*self.caller {
            Caller::Holding(holding) if !holding.lease.is_lost(self.now) => {
                holding.request.owner_id
            }
            _ => return None,
        };
        self.effects.push(Effect::StopAwaiting {
            lane: MessageLane::Renew,
            owner_id,
        });
        *self.caller = Caller::Done;
        Some(owner_id)
    }

    /// Drops the guard. Returns whether its lease had ended before.
    pub(in crate::tests) fn release(&mut self, min_hold: Option<Duration>) -> bool {
        let now = self.now;
        let Caller::Holding(holding) = &mut *self.caller else {
            return false;
        };
        let has_ended = holding.lease.next_action(now) == LeaseAction::Done;
        holding.lease.release();
        let mut request = holding.request.clone();
        request.keep = min_hold.map_or(Keep::Nothing, |shortest| {
            Keep::Until(holding.since.plus(shortest))
        });
        self.effects.push(Effect::StopAwaiting {
            lane: MessageLane::Renew,
            owner_id: request.owner_id,
        });
        self.manager.submit(request, now);
        *self.caller = Caller::Done;
        self.manager.run_cleanups(now, self.effects);
        has_ended
    }
}
