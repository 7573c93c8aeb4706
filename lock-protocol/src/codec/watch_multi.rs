//! Releases and renews by an optimistic transaction, where scripts are denied.
//!
//! `WATCH` belongs to a connection, so a transaction has its connection to itself while it runs:
//!
//! | State | Exchange | Then |
//! |---|---|---|
//! | new | none | asks for the lane of transactions |
//! | new, in that lane | `WATCH`, `GETRANGE`, and `PTTL` for a minimum hold | `Changing` |
//! | `Changing` | `MULTI`, the change, `EXEC`, `TIME` | the outcome; new again if another client touched the key |
//!
//! In "new" the turn is given up, so a busy key blocks no other transaction.
//!
//! A minimum hold must not outlast the lease. `PEXPIRE .. LT` would see to that, but Redis 6.2 doesn't have it, so the
//! transaction reads what is left of the lease. A change of the expiry in between disturbs it like any other.

use super::owner::{Owner, VALUE_LIMIT, progress, released};
use super::replies::{accepted, server_time, wrong_type};
use super::{
    Codec, CodecEvent, ExchangeFacts, Lane, LinkFacts, Notes, OpState, Progress, Step, renewed,
};
use crate::acquisition::RenewOutcome;
use crate::loss::LossReason;
use crate::op::{Op, OpKind, Outcome, Refusal};
use crate::owner_id::OwnerId;
use crate::resp::{CommandBuf, Replies, Reply};
use crate::ttl::whole_millis;

/// The codec of `SET NX PX` locks that are released in a transaction.
#[derive(Clone, Debug)]
pub struct WatchMulti {
    pub owner: Owner,
}

/// How far a transaction has come.
#[derive(Clone, Debug)]
pub enum WatchState {
    Watching {
        min_hold_ms: u64,
    },
    Changing {
        /// Why the key isn't the caller's, if it isn't.
        lost: Option<Box<LossReason>>,
        /// For how long the key stays locked after its release.
        keep_ms: u64,
    },
}

impl Codec for WatchMulti {
    fn next(&self, op: &mut Op<'_>, facts: &ExchangeFacts<'_>) -> Step {
        if let OpKind::Acquire(_) = op.kind {
            return self.owner.next(op, facts);
        }
        if facts.lane != Lane::Transactions {
            return Step::Over(Lane::Transactions);
        }
        let state = match &op.state {
            OpState::Watch(state @ WatchState::Changing { .. }) => state.clone(),
            _ => WatchState::Watching {
                min_hold_ms: match &op.kind {
                    OpKind::Release(request) => request.min_hold_ms(facts.now),
                    _ => 0,
                },
            },
        };
        let commands = match &state {
            WatchState::Watching { min_hold_ms } => 2 + usize::from(*min_hold_ms > 0),
            WatchState::Changing { .. } => 4,
        };
        op.state = OpState::Watch(state);
        op.sent_at = facts.now;
        Step::Send { commands }
    }

    fn encode(&self, op: &Op<'_>, link: &LinkFacts<'_>, out: &mut CommandBuf<'_>) {
        let OpState::Watch(state) = &op.state else {
            return self.owner.encode(op, link, out);
        };
        let (Some(key), Some(owner_id)) = (op.key(), owner_of(op)) else {
            return;
        };
        let key = key.as_str();
        match state {
            WatchState::Watching { min_hold_ms } => {
                out.command("WATCH").arg(key);
                // More bytes than the owner has: a longer value belongs to another holder.
                let len = self.owner.text(owner_id).to_string().len();
                let mut range = out.command("GETRANGE");
                range.arg(key).arg(0_u32).arg(len.max(VALUE_LIMIT));
                drop(range);
                if *min_hold_ms > 0 {
                    out.command("PTTL").arg(key);
                }
            }
            WatchState::Changing { lost, keep_ms } => {
                out.command("MULTI");
                match &op.kind {
                    // The transaction needs a command, and there is nothing to change.
                    _ if lost.is_some() => drop(out.command("TIME")),
                    OpKind::Renew(renewal, _) => {
                        out.command("PEXPIRE")
                            .arg(key)
                            .arg(whole_millis(renewal.ttl));
                    }
                    _ if *keep_ms == 0 => {
                        out.command("DEL").arg(key);
                    }
                    // Without an owner: a renewal that this release has overtaken must not extend the lease.
                    _ => {
                        let mut set = out.command("SET");
                        set.arg(key).arg(self.owner.without_owner());
                        set.arg("PX").arg(*keep_ms);
                    }
                }
                out.command("EXEC");
                out.command("TIME");
            }
        }
    }

    fn read(
        &self,
        op: &mut Op<'_>,
        link: &LinkFacts<'_>,
        replies: &mut Replies<'_>,
        notes: &mut Notes,
    ) -> Progress {
        let read = match std::mem::replace(&mut op.state, OpState::New) {
            OpState::Watch(WatchState::Watching { min_hold_ms }) => {
                self.read_watched(op, min_hold_ms, replies).map(|changing| {
                    op.state = OpState::Watch(changing);
                    None
                })
            }
            OpState::Watch(WatchState::Changing { lost, .. }) => {
                read_change(op, link, lost.map(|lost| *lost), replies, notes)
            }
            state => {
                op.state = state;
                return self.owner.read(op, link, replies, notes);
            }
        };
        progress(read)
    }
}

fn owner_of(op: &Op<'_>) -> Option<OwnerId> {
    match &op.kind {
        OpKind::Renew(renewal, _) => Some(renewal.owner_id),
        OpKind::Release(request) => Some(request.owner_id),
        _ => None,
    }
}

/// Reads the reply to `PTTL`. Returns for how long a key stays locked after its release: for the minimum hold, but no
/// longer than its lease. It is never zero, which no expiry may be.
pub(super) fn read_keep_ms(min_hold_ms: u64, reply: Option<Reply<'_>>) -> Result<u64, Refusal> {
    let left = accepted(reply)?.integer();
    let left = left.ok_or_else(Refusal::unreadable)?;
    // Negative without an expiry, and without the key: then the change finds no owner.
    let ms = u64::try_from(left).map_or(min_hold_ms, |left| min_hold_ms.min(left));
    Ok(ms.max(1))
}

impl WatchMulti {
    /// Reads what the watched key holds, and decides what changes it.
    fn read_watched(
        &self,
        op: &Op<'_>,
        min_hold_ms: u64,
        replies: &mut Replies<'_>,
    ) -> Result<WatchState, Refusal> {
        let lost = self.read_value(op, replies)?.map(Box::new);
        let keep_ms = match min_hold_ms {
            0 => 0,
            _ => read_keep_ms(min_hold_ms, replies.next())?,
        };
        Ok(WatchState::Changing { lost, keep_ms })
    }

    /// Reads why the key isn't the caller's, if it isn't.
    fn read_value(
        &self,
        op: &Op<'_>,
        replies: &mut Replies<'_>,
    ) -> Result<Option<LossReason>, Refusal> {
        accepted(replies.next())?;
        let value = replies.next().ok_or_else(Refusal::unreadable)?;
        if wrong_type(&value).is_some() {
            return Ok(Some(LossReason::Replaced));
        }
        let value = accepted(Some(value))?.text();
        let value = value.ok_or_else(Refusal::unreadable)?;
        let owner = owner_of(op).map(|owner_id| self.owner.text(owner_id).to_string());
        if owner.is_some_and(|owner| owner.as_bytes() == value) {
            return Ok(None);
        }
        Ok(Some(loss_of(value)))
    }
}

/// Returns why a key with this value was lost. Without the key, the server returns an empty text.
pub(super) fn loss_of(value: &[u8]) -> LossReason {
    let value = String::from_utf8_lossy(value);
    LossReason::from_value(Some(&*value).filter(|value| !value.is_empty()))
}

fn read_change(
    op: &Op<'_>,
    link: &LinkFacts<'_>,
    lost: Option<LossReason>,
    replies: &mut Replies<'_>,
    notes: &mut Notes,
) -> Result<Option<Outcome>, Refusal> {
    accepted(replies.next())?;
    // The error of the queued command is more precise than the error of EXEC.
    accepted(replies.next())?;
    let executed = accepted(replies.next())?;
    let server_us = server_time(accepted(replies.next())?)?;
    notes.server_us = Some(server_us);
    // A touched key only matters if the transaction was to change it.
    if lost.is_none() && executed.is_null() {
        notes.event = Some(CodecEvent::TransactionRepeated);
        return Ok(None);
    }
    Ok(Some(match &op.kind {
        OpKind::Renew(renewal, _) => {
            let outcome = RenewOutcome::unless_lost(lost, renewal.ttl, op.sent_at);
            renewed(outcome, renewal, link)
        }
        _ => released(lost.is_none(), server_us, link),
    }))
}
