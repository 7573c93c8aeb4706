//! The commands of a virtual client, and the server that executes them on the production lock state.

use crate::cleanup::{ReleaseOutcome, ReleaseRequest};
use crate::clock::{Moment, ServerMs};
use crate::kind::Kind;
use crate::lock_state::{
    AcquireCommand, AcquireReply, Env, LockState, Purpose, ReleaseCommand, ReleaseReply,
    RenewCommand, RenewReply,
};
use crate::owner_id::OwnerId;
use crate::wire::{QueueEntry, WireNotification};

/// The purpose of a command and its reply. A caller has at most one of each at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::tests) enum MessageLane {
    /// The caller acquires, polls or confirms a grant.
    Acquire,
    /// The background worker renews.
    Renew,
    /// A release or a cancel.
    Release,
}

/// A command on its way to the server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::tests) enum Request {
    Acquire {
        ttl_ms: u64,
        floor_us: u64,
        not_after_ms: ServerMs,
        entry: Option<QueueEntry>,
        kind: Kind,
        purpose: Purpose,
        earlier: Vec<QueueEntry>,
        max_queue: Option<u32>,
    },
    Renew {
        ttl_ms: u64,
        kind: Kind,
    },
    Release {
        floor_us: u64,
        min_hold_ms: u64,
        done_ms: u64,
        kind: Kind,
        entries: Vec<QueueEntry>,
    },
}

/// A reply on its way to the client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::tests) enum Reply {
    Acquire(AcquireReply),
    Renew(RenewReply),
    Release(ReleaseReply),
}

impl Request {
    pub(in crate::tests) fn release(request: &ReleaseRequest, floor_us: u64, now: Moment) -> Self {
        Self::Release {
            floor_us,
            min_hold_ms: request.min_hold_ms(now),
            done_ms: request.keep.done_ms(),
            kind: request.kind,
            entries: request.entries.clone(),
        }
    }

    /// Executes the command of an owner id.
    pub(in crate::tests) fn execute(
        &self,
        lock_state: &mut LockState,
        owner_id: OwnerId,
        env: &Env<'_>,
    ) -> (Reply, Vec<WireNotification>) {
        match self {
            Self::Acquire {
                ttl_ms,
                floor_us,
                not_after_ms,
                entry,
                kind,
                purpose,
                earlier,
                max_queue,
            } => {
                let command = AcquireCommand {
                    owner_id,
                    ttl_ms: *ttl_ms,
                    floor_us: *floor_us,
                    not_after_ms: *not_after_ms,
                    label: "",
                    entry: entry.as_ref(),
                    lead_us: 0,
                    kind: *kind,
                    purpose: *purpose,
                    earlier,
                    max_queue: *max_queue,
                };
                let (reply, notifications) = lock_state.acquire(&command, env);
                (Reply::Acquire(reply), notifications)
            }
            Self::Renew { ttl_ms, kind } => {
                let command = RenewCommand {
                    owner_id,
                    ttl_ms: *ttl_ms,
                    label: "",
                    kind: *kind,
                };
                let reply = lock_state.renew(&command, env.now_ms());
                (Reply::Renew(reply), Vec::new())
            }
            Self::Release {
                floor_us,
                min_hold_ms,
                done_ms,
                kind,
                entries,
            } => {
                let command = ReleaseCommand {
                    owner_id,
                    floor_us: *floor_us,
                    grace_ms: 0,
                    min_hold_ms: *min_hold_ms,
                    done_ms: *done_ms,
                    lead_us: 0,
                    label: "",
                    kind: *kind,
                    entries,
                };
                let (reply, notifications) = lock_state.release(&command, env);
                (Reply::Release(reply), notifications)
            }
        }
    }
}

impl Reply {
    pub(in crate::tests) fn as_released(&self, run_id: u64, server_us: u64) -> ReleaseOutcome {
        match self {
            Self::Release(reply) => {
                ReleaseOutcome::from_reply(*reply, Some(server_us)).told_by(run_id)
            }
            Self::Acquire(_) | Self::Renew(_) => panic!("the reply to a release: {self:?}"),
        }
    }
}
