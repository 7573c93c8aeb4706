//! What a client of the model does with replies and notifications.

use std::time::Duration;

use super::network::{Delivered, Reply};
use super::rules::{Mutation, Sight};
use super::state::{ClientPhase, ModelGrant};
use super::turn::Turn;
use crate::backend::{Acquisition, ReleaseOutcome};
use crate::config::RETRY_INTERVAL;
use crate::protocol::backoff::Jitter;
use crate::protocol::clock::{Moment, ServerMs};
use crate::protocol::clock_sync::{ClockSync, grant_deadline};
use crate::protocol::lease::{Lease, deadline};
use crate::protocol::owner_id::OwnerId;
use crate::protocol::poll_schedule::{HolderExpiry, LocalPosition, PollSchedule};

impl Turn<'_> {
    pub(super) fn notified(&mut self, id: usize, owner_id: OwnerId, delivered: Delivered) {
        let received = self.state.now(id);
        let from_receipt = self.rules.is(Mutation::DeadlineFromReceipt);
        let client = self.client(id);
        let (latest, run_id) = (client.latest, client.first.run_id);
        let ClientPhase::Acquiring(acquiring) = &mut client.phase else {
            return;
        };
        if acquiring.acquisition.owner_id != owner_id {
            return;
        }
        match delivered {
            Delivered::Grant {
                token,
                server_us,
                lease_ms,
            } => {
                let lease = Duration::from_millis(lease_ms);
                let until = if from_receipt {
                    Some(deadline(received, lease))
                } else {
                    grant_deadline(latest, run_id, server_us, lease, received)
                };
                acquiring.slot.grant = Some(ModelGrant {
                    token,
                    received,
                    lease,
                    until,
                });
            }
            Delivered::Head { holder_ms } => {
                acquiring.slot.head = Some(received.plus(Duration::from_millis(holder_ms)));
            }
        }
    }

    /// Records the server's time in a reply.
    fn record_server_time(&mut self, id: usize, sent: Moment, server_us: u64) {
        let client = self.client(id);
        let run_id = client.first.run_id;
        let is_younger = client
            .latest
            .is_none_or(|known| known.run_id != run_id || known.sent < sent);
        if is_younger && client.phase != ClientPhase::Done {
            client.latest = Some(ClockSync {
                sent,
                server_us,
                run_id,
            });
        }
    }

    /// The lease that a reply confirms.
    fn lease(
        &self,
        id: usize,
        acquisition: &Acquisition,
        sent: Moment,
        remaining_ms: u64,
    ) -> Lease {
        let counted_from = if self.rules.is(Mutation::DeadlineFromReply) {
            self.state.now(id)
        } else {
            sent
        };
        let remaining = Duration::from_millis(remaining_ms);
        if self.rules.is(Mutation::NoMargin) {
            let deadline = counted_from.plus(remaining);
            return Lease::handed_over(acquisition.lease_config, counted_from, remaining, deadline);
        }
        Lease::confirmed(acquisition.lease_config, counted_from, remaining)
    }

    /// Handles the reply to an acquire, or to a renewal that confirms a grant.
    pub(super) fn on_reply(&mut self, id: usize, reply: &Reply, server_us: u64) {
        let now = self.state.now(id);
        let notifications_only = self.rules.is(Mutation::NotificationsOnly);
        let Some(acquiring) = self.acquiring(id) else {
            return;
        };
        let Some(sent) = acquiring.sent.take() else {
            return;
        };
        if let Some(copy) = &sent.copy {
            acquiring.acquisition.answered(copy);
        }
        match reply {
            Reply::Held {
                token,
                remaining_ms,
            } => {
                let acquisition = acquiring.acquisition.clone();
                let lease = self.lease(id, &acquisition, sent.at, *remaining_ms);
                self.record_server_time(id, sent.at, server_us);
                if lease.is_valid(now) {
                    self.hold(id, *token, lease);
                } else if acquisition.waits_until.is_some() {
                    self.change_owner_id(id);
                } else {
                    self.give_up(id);
                }
                return;
            }
            Reply::Queued { rank, remaining_ms } => {
                let ends = now.plus(Duration::from_millis(*remaining_ms));
                let mut poll_schedule = PollSchedule::new(now, RETRY_INTERVAL, Jitter::seeded(0));
                poll_schedule.on_reply(
                    now,
                    *rank,
                    HolderExpiry::Native { ends },
                    None,
                    LocalPosition::First,
                );
                let seen_ms = ServerMs::from_micros(server_us);
                acquiring.acquisition.queued(seen_ms);
                acquiring.polled_at = now;
                acquiring.next_poll = poll_schedule.next();
                if notifications_only && let Some(end) = acquiring.acquisition.waits_until {
                    acquiring.next_poll = end;
                }
            }
            Reply::Busy => {
                acquiring.acquisition.out();
                self.give_up(id);
            }
            // The client polls at once: the refusal gave the server's time, or denied the grant.
            Reply::Late | Reply::NotOwner | Reply::Released => acquiring.next_poll = now,
        }
        self.record_server_time(id, sent.at, server_us);
        if *reply == Reply::Late {
            self.poll(id);
        }
    }

    pub(super) fn apply_renewal(&mut self, id: usize, reply: &Reply, server_us: u64) {
        let (now, sights) = (self.state.now(id), self.sights);
        let ClientPhase::Holding(holding) = &mut self.client(id).phase else {
            return;
        };
        let Some((sent, _)) = holding.renewing.take() else {
            return;
        };
        match reply {
            Reply::Held { remaining_ms, .. } => {
                let remaining = Duration::from_millis(*remaining_ms);
                let before = holding.lease.deadline();
                holding.lease.renewed(sent, remaining, now);
                if holding.lease.deadline() > before {
                    sights.saw(Sight::HandoverLeaseExtended);
                }
            }
            _ => holding.lease.refused(),
        }
        self.record_server_time(id, sent, server_us);
    }

    pub(super) fn apply_cancel(&mut self, id: usize, owner_id: OwnerId, server_us: u64) {
        let now = self.state.now(id);
        let confirmed_ms = ServerMs::from_micros(server_us);
        let at_once = self.rules.is(Mutation::CancelFinalAtOnce);
        let pending_releases = &mut self.client(id).pending_releases;
        let Some(at) = pending_releases
            .iter()
            .position(|pending_release| pending_release.acquisition.owner_id == owner_id)
        else {
            return;
        };
        let pending_release = &mut pending_releases[at];
        pending_release.sent = None;
        pending_release
            .acquisition
            .cancel_confirmed(&ReleaseOutcome {
                was_owner: false,
                server_ms: confirmed_ms,
                more: false,
            });
        let pending = pending_release
            .acquisition
            .unconfirmed_until_ms()
            .filter(|_| !at_once);
        if let Some(until) = pending {
            let pause = Duration::from_millis(until.since(confirmed_ms) + 1);
            pending_release.again_at = now.plus(pause);
            self.sights.saw(Sight::CancelHadToWait);
        } else {
            pending_releases.remove(at);
            self.state.mark_final(owner_id);
        }
    }
}
