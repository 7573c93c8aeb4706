//! Locks of Redisson: a hash with a field for the owner.
//!
//! # The states of an acquire
//!
//! | State | Exchange | Then |
//! |---|---|---|
//! | new | `redisson_acquire.lua` | held, refused, busy; a waiter goes on to `Busy` |
//! | `Busy` | none | asks for the channel of the key, and attempts again once it is subscribed |
//! | `Again` | `redisson_acquire.lua` | held, refused, busy |
//!
//! The second attempt is needed, because the release may have come between the first one and the subscription. A channel
//! that was subscribed before the first attempt needs none. If the channel is down, the waiter polls.

use super::found::{FoundValue, held_by_another};
use super::owner::{Owner, acquire_of, progress, read_renewal, read_script, released};
use super::replies::{ScriptAcquire, notifying_release};
use super::{
    Channel, Codec, CodecEvent, ExchangeFacts, LinkFacts, Notes, OpState, Progress, Step,
    record_copy,
};
use crate::acquisition::{AcquireOutcome, SentAcquires, SentCopy};
use crate::clock::ServerMs;
use crate::dialect::{Dialect, RedissonLock};
use crate::op::{ForeignValue, Op, OpKind, Outcome, Refusal, RefusalKind};
use crate::poll_schedule::HolderExpiry;
use crate::resp::{CommandBuf, Replies};
use crate::scripts::{REDISSON_ACQUIRE, REDISSON_RELEASE, REDISSON_RENEW};
use crate::ttl::whole_millis;

/// The codec of the dialects of Redisson.
#[derive(Clone, Debug)]
pub struct Redisson {
    /// The holders are fields of the hash. Redisson writes `<UUID>:<thread id>`, which never equals one of them.
    pub owner: Owner,
    /// Notifications are sharded, as in a cluster.
    pub is_sharded: bool,
}

/// How far an acquire has come.
#[derive(Clone, Debug)]
pub enum RedissonState {
    Attempt {
        copy: SentCopy,
        not_after_ms: ServerMs,
        /// Messages arrived before it was sent.
        was_up: bool,
        is_again: bool,
    },
    Busy {
        outcome: AcquireOutcome,
        was_up: bool,
    },
}

/// Returns the commands that publish a release, so that each version of Redisson receives it.
pub(super) fn publishers(is_sharded: bool) -> &'static [&'static str] {
    if is_sharded {
        &["SPUBLISH", "PUBLISH"]
    } else {
        &["PUBLISH"]
    }
}

impl Codec for Redisson {
    fn next(&self, op: &mut Op<'_>, facts: &ExchangeFacts<'_>) -> Step {
        let is_up = matches!(facts.channel, Channel::Up(_));
        let mut is_again = false;
        if let OpState::Redisson(state) = &op.state
            && let RedissonState::Busy { outcome, was_up } = &**state
        {
            match facts.channel {
                Channel::Unknown => return Step::Subscribe,
                Channel::Up(_) if !was_up => is_again = true,
                Channel::Up(_) => {
                    let outcome = Outcome::Acquired(notified(outcome.clone()));
                    return Step::Done(Box::new(Ok(outcome)));
                }
                Channel::Down(_) => {
                    let outcome = Outcome::Acquired(outcome.clone());
                    return Step::Done(Box::new(Ok(outcome)));
                }
            }
        }
        op.state = match &mut op.kind {
            OpKind::Acquire(sent) => OpState::Redisson(Box::new(RedissonState::Attempt {
                copy: record_copy(sent, facts),
                not_after_ms: facts.not_after.not_after_ms,
                was_up: is_up,
                is_again,
            })),
            OpKind::Release(request) => OpState::KeptFor(request.min_hold_ms(facts.now)),
            _ => OpState::Sent,
        };
        op.sent_at = facts.now;
        Step::Send { commands: 1 }
    }

    fn encode(&self, op: &Op<'_>, _: &LinkFacts<'_>, out: &mut CommandBuf<'_>) {
        match (&op.kind, &op.state) {
            (OpKind::Acquire(sent), OpState::Redisson(state)) => {
                if let RedissonState::Attempt { not_after_ms, .. } = &**state {
                    self.write_acquire(sent, *not_after_ms, out);
                }
            }
            (OpKind::Renew(renewal, _), _) => {
                out.script(&REDISSON_RENEW, &[renewal.key.as_str()])
                    .arg(self.owner.text(renewal.owner_id))
                    .arg(whole_millis(renewal.ttl));
            }
            (OpKind::Release(request), OpState::KeptFor(min_hold_ms)) => {
                let mut command = out.script(&REDISSON_RELEASE, &[request.key.as_str()]);
                command
                    .arg(self.owner.text(request.owner_id))
                    .arg(*min_hold_ms)
                    .arg(self.owner.without_owner())
                    .arg(request.key.redisson_channel());
                for publisher in publishers(self.is_sharded) {
                    command.arg(*publisher);
                }
            }
            _ => debug_assert!(false, "no operation of this dialect"),
        }
    }

    fn read(
        &self,
        op: &mut Op<'_>,
        link: &LinkFacts<'_>,
        replies: &mut Replies<'_>,
        notes: &mut Notes,
    ) -> Progress {
        let read = match &op.kind {
            OpKind::Acquire(_) => read_acquire(op, replies, notes),
            OpKind::Renew(renewal, _) => {
                read_renewal(renewal, op.sent_at, link, replies, notes).map(Some)
            }
            OpKind::Release(_) => notifying_release(replies.next()).map(|(message, server_us)| {
                notes.server_us = Some(server_us);
                let was_owner = message.is_some();
                notes.event = message.map(|message| CodecEvent::ReleaseHeard {
                    receivers: message.receivers,
                    refused: message.refused,
                });
                Some(released(was_owner, server_us, link))
            }),
            _ => Err(Refusal::unreadable()),
        };
        progress(read)
    }
}

impl Redisson {
    fn write_acquire(&self, sent: &SentAcquires, not_after_ms: ServerMs, out: &mut CommandBuf<'_>) {
        let is_fenced = matches!(
            sent.key.dialect(),
            Dialect::Redisson {
                lock: RedissonLock::Fenced
            }
        );
        let (key, counter) = (sent.key.as_str(), sent.key.redisson_counter());
        let keys = [key, &counter];
        let keys = if is_fenced { &keys } else { &keys[..1] };
        let mut command = out.script(&REDISSON_ACQUIRE, keys);
        command
            .arg(self.owner.text(sent.owner_id))
            .arg(sent.lease_config.ttl.as_millis())
            .arg(not_after_ms);
    }
}

fn read_acquire(
    op: &mut Op<'_>,
    replies: &mut Replies<'_>,
    notes: &mut Notes,
) -> Result<Option<Outcome>, Refusal> {
    let OpState::Redisson(state) = std::mem::replace(&mut op.state, OpState::Sent) else {
        return Err(Refusal::unreadable());
    };
    let RedissonState::Attempt {
        copy,
        was_up,
        is_again,
        ..
    } = *state
    else {
        return Err(Refusal::unreadable());
    };
    let reply = read_script(op, &copy, replies, notes)?;
    let sent_at = op.sent_at;
    let sent = acquire_of(op)?;
    let found = match reply {
        ScriptAcquire::Late => return Ok(Some(Outcome::Acquired(AcquireOutcome::Late))),
        ScriptAcquire::Held {
            remaining_ms,
            token,
        } => {
            return Ok(Some(Outcome::Acquired(AcquireOutcome::Held {
                token,
                sent: sent_at,
                remaining: std::time::Duration::from_millis(remaining_ms),
            })));
        }
        ScriptAcquire::Busy { holder } => FoundValue::from_script(holder),
        ScriptAcquire::Foreign { found } => {
            sent.on_busy();
            let kind = RefusalKind::Foreign(ForeignValue::NoRedissonLock);
            return Err(Refusal::own(kind, found));
        }
    };
    sent.on_busy();
    let waits = sent.waits_until.is_some();
    let outcome = held_by_another(&found, notes.received)?;
    if is_again {
        return Ok(Some(Outcome::Acquired(notified(outcome))));
    }
    let is_polled = matches!(
        outcome,
        AcquireOutcome::Busy {
            holder_expiry: HolderExpiry::Polled { .. },
            ..
        }
    );
    if waits && is_polled {
        op.state = OpState::Redisson(Box::new(RedissonState::Busy { outcome, was_up }));
        return Ok(None);
    }
    Ok(Some(Outcome::Acquired(outcome)))
}

/// Returns the outcome for a waiter that receives the messages of the key.
fn notified(mut outcome: AcquireOutcome) -> AcquireOutcome {
    if let AcquireOutcome::Busy { holder_expiry, .. } = &mut outcome
        && let HolderExpiry::Polled { ends } = *holder_expiry
    {
        *holder_expiry = HolderExpiry::Notified { ends };
    }
    outcome
}
