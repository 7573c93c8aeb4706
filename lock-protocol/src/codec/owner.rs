//! Locks whose key holds their owner: `SETNX` and `EXPIRE`, the same in one script, and `SET NX PX`.
//!
//! # The states of an acquire
//!
//! | State | Exchange | Then |
//! |---|---|---|
//! | new | `SETNX` or `SET NX PX`, and what the key holds: `PTTL`, `GETRANGE`, `TIME` | held, busy, or one of the next |
//! | `Type` | `TYPE`, of a key that is no string | refused; free if the key has gone |
//! | `Expire` | after `SETNX`: the expiry, by a script that compares the owner | held; busy if it isn't the owner any more |
//! | `ExpireAnyway` | without the right to run that script: `PEXPIRE NX` | the refusal: such a lock couldn't be released |
//! | `Watching` | Redis 6.2 doesn't know `NX`; in the lane of transactions: `WATCH`, `GETRANGE` | `Changing`; the refusal if it isn't the owner any more |
//! | `Changing` | `MULTI`, `PEXPIRE`, `EXEC` | the refusal |
//! | `Repair` | another holder's key has no expiry: a script that sets one | busy until then |
//! | `Script` | `setnx_expire.lua` | held or busy |
//!
//! The script for the expiry compares the owner, because this process may have stopped in between, for longer than an
//! expiry that another client gave to the key. `NX` and the transaction keep it from another holder's lease as well.
//!
//! `SET` and `SETNX` have no time limit on the server. If a late copy acquires the lock, the releases that are repeated
//! until then remove it, or it expires after its ttl.

use std::sync::Arc;
use std::time::Duration;

use super::found::{FoundValue, expect_owner};
use super::replies::{ScriptAcquire, accepted, acquired, loss, server_time, was_owner, wrong_type};
use super::{
    Codec, CodecEvent, ExchangeFacts, Lane, LinkFacts, Notes, OpState, Progress, Step, record_copy,
    renewed,
};
use crate::acquisition::{AcquireOutcome, RenewOutcome, SentAcquires, SentCopy};
use crate::cleanup::ReleaseOutcome;
use crate::clock::{Moment, ServerMs};
use crate::dialect::Scheme;
use crate::key::LockKey;
use crate::op::{Op, OpKind, Outcome, Refusal, RefusalKind, Renewal};
use crate::owner_id::OwnerId;
use crate::poll_schedule::HolderExpiry;
use crate::resp::{CommandBuf, Replies, Reply};
use crate::scripts::{OWNER_RELEASE, OWNER_RENEW, OWNER_REPAIR, SETNX_EXPIRE};
use crate::ttl::whole_millis;
use crate::wire::OwnerText;

/// The bytes of a value that are read: more than any owner of this library has.
pub(super) const VALUE_LIMIT: usize = 200;

/// The codec of the dialects whose releases and renewals are scripts.
#[derive(Clone, Debug)]
pub struct Owner {
    /// The label of the manager, which each of its owners has.
    pub label: Arc<str>,
}

/// How far an acquire has come.
#[derive(Clone, Debug)]
pub enum OwnerState {
    Set(SentCopy),
    Type(SetReply),
    Expire,
    ExpireAnyway(Box<Refusal>),
    Watching(Box<Refusal>),
    Changing(Box<Refusal>),
    /// The value without an expiry, and the outcome.
    Repair(Box<(Vec<u8>, AcquireOutcome)>),
    Script(SentCopy, ServerMs),
}

/// The reply to the command that sets the key if it is free.
#[derive(Clone, Copy, Debug)]
pub struct SetReply {
    is_set: bool,
    server_us: u64,
}

impl Owner {
    /// Returns the value that only this acquisition writes.
    pub(super) fn text(&self, owner_id: OwnerId) -> OwnerText<'_> {
        OwnerText {
            owner_id,
            label: &self.label,
        }
    }

    /// Returns the value of a key that stays locked after its release.
    pub(super) fn without_owner(&self) -> OwnerText<'_> {
        self.text(OwnerId::nil())
    }
}

impl Codec for Owner {
    fn next(&self, op: &mut Op<'_>, facts: &ExchangeFacts<'_>) -> Step {
        let mut commands = 1;
        match (&mut op.kind, &op.state) {
            (OpKind::Acquire(sent), OpState::New) => {
                let copy = record_copy(sent, facts);
                op.state = OpState::Owner(if is_script(sent) {
                    OwnerState::Script(copy, facts.not_after.not_after_ms)
                } else {
                    commands = SET_COMMANDS;
                    OwnerState::Set(copy)
                });
            }
            // The lease counts from the command that set it.
            (_, OpState::Owner(OwnerState::Type(_))) => return Step::Send { commands },
            (_, OpState::Owner(OwnerState::Watching(_) | OwnerState::Changing(_)))
                if facts.lane != Lane::Transactions =>
            {
                return Step::Over(Lane::Transactions);
            }
            (_, OpState::Owner(OwnerState::Watching(_))) => commands = 2,
            (_, OpState::Owner(OwnerState::Changing(_))) => commands = 3,
            (OpKind::Release(request), OpState::New) => {
                op.state = OpState::KeptFor(request.min_hold_ms(facts.now));
            }
            (OpKind::Renew(..), OpState::New) => op.state = OpState::Sent,
            _ => {}
        }
        op.sent_at = facts.now;
        Step::Send { commands }
    }

    fn encode(&self, op: &Op<'_>, _: &LinkFacts<'_>, out: &mut CommandBuf<'_>) {
        let Some(key) = op.key().map(LockKey::as_str) else {
            return;
        };
        match (&op.kind, &op.state) {
            (OpKind::Acquire(sent), OpState::Owner(state)) => self.write_acquire(sent, state, out),
            (OpKind::Renew(renewal, _), _) => {
                out.script(&OWNER_RENEW, &[key])
                    .arg(self.text(renewal.owner_id))
                    .arg(whole_millis(renewal.ttl));
            }
            (OpKind::Release(request), OpState::KeptFor(min_hold_ms)) => {
                out.script(&OWNER_RELEASE, &[key])
                    .arg(self.text(request.owner_id))
                    .arg(*min_hold_ms)
                    .arg(self.without_owner());
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
            OpKind::Acquire(_) => self.read_acquire(op, replies, notes),
            OpKind::Renew(renewal, _) => {
                read_renewal(renewal, op.sent_at, link, replies, notes).map(Some)
            }
            OpKind::Release(_) => was_owner(replies.next()).map(|(was_owner, server_us)| {
                notes.server_us = Some(server_us);
                Some(released(was_owner, server_us, link))
            }),
            _ => Err(Refusal::unreadable()),
        };
        progress(read)
    }
}

/// Converts the outcome of an exchange; without one, another exchange follows.
pub(super) fn progress(read: Result<Option<Outcome>, Refusal>) -> Progress {
    match read {
        Ok(Some(outcome)) => Progress::Done(Ok(outcome)),
        Ok(None) => Progress::Next,
        Err(refusal) => Progress::Done(Err(refusal)),
    }
}

/// Reads the reply of a script that renews a lease.
pub(super) fn read_renewal(
    renewal: &Renewal,
    sent_at: Moment,
    link: &LinkFacts<'_>,
    replies: &mut Replies<'_>,
    notes: &mut Notes,
) -> Result<Outcome, Refusal> {
    let (loss, server_us) = loss(replies.next())?;
    notes.server_us = Some(server_us);
    let outcome = RenewOutcome::unless_lost(loss, renewal.ttl, sent_at);
    Ok(renewed(outcome, renewal, link))
}

/// Returns the outcome of a release that compared the owner.
pub(super) fn released(was_owner: bool, server_us: u64, link: &LinkFacts<'_>) -> Outcome {
    let outcome = ReleaseOutcome::without_waiters(was_owner, ServerMs::from_micros(server_us));
    Outcome::Released(outcome.told_by(link.run_id))
}

fn scheme(sent: &SentAcquires) -> Option<Scheme> {
    sent.key.dialect().scheme()
}

fn is_script(sent: &SentAcquires) -> bool {
    scheme(sent) == Some(Scheme::LuaSetnxExpire)
}

/// `SETNX` or `SET`, `PTTL`, `GETRANGE` and `TIME`.
const SET_COMMANDS: usize = 4;

/// The reply to `PTTL` for a key that doesn't exist.
const NO_KEY: i64 = -2;

impl Owner {
    fn write_acquire(&self, sent: &SentAcquires, state: &OwnerState, out: &mut CommandBuf<'_>) {
        let key = sent.key.as_str();
        let owner = self.text(sent.owner_id);
        let ttl_ms = sent.lease_config.ttl.as_millis();
        match state {
            OwnerState::Set(_) => {
                if scheme(sent) == Some(Scheme::SetnxExpire) {
                    out.command("SETNX").arg(key).arg(owner);
                } else {
                    let mut command = out.command("SET");
                    command.arg(key).arg(owner).arg("NX").arg("PX").arg(ttl_ms);
                }
                out.command("PTTL").arg(key);
                let mut range = out.command("GETRANGE");
                range.arg(key).arg(0_u32).arg(VALUE_LIMIT - 1);
                drop(range);
                out.command("TIME");
            }
            OwnerState::Type(_) => {
                out.command("TYPE").arg(key);
            }
            OwnerState::Expire => {
                out.script(&OWNER_RENEW, &[key]).arg(owner).arg(ttl_ms);
            }
            OwnerState::ExpireAnyway(_) => {
                out.command("PEXPIRE").arg(key).arg(ttl_ms).arg("NX");
            }
            OwnerState::Watching(_) => {
                out.command("WATCH").arg(key);
                let mut range = out.command("GETRANGE");
                range.arg(key).arg(0_u32).arg(VALUE_LIMIT - 1);
            }
            OwnerState::Changing(_) => {
                out.command("MULTI");
                out.command("PEXPIRE").arg(key).arg(ttl_ms);
                out.command("EXEC");
            }
            OwnerState::Repair(found) => {
                out.script(&OWNER_REPAIR, &[key]).arg(&found.0).arg(ttl_ms);
            }
            OwnerState::Script(_, not_after_ms) => {
                let seconds = sent.lease_config.ttl.as_duration().as_secs();
                let mut command = out.script(&SETNX_EXPIRE, &[key]);
                command.arg(owner).arg(seconds).arg(*not_after_ms);
            }
        }
    }

    fn read_acquire(
        &self,
        op: &mut Op<'_>,
        replies: &mut Replies<'_>,
        notes: &mut Notes,
    ) -> Result<Option<Outcome>, Refusal> {
        let OpState::Owner(state) = std::mem::replace(&mut op.state, OpState::Sent) else {
            return Err(Refusal::unreadable());
        };
        match state {
            OwnerState::Set(copy) => self.read_set(op, &copy, replies, notes),
            OwnerState::Type(set) => {
                let kind = accepted(replies.next())?.status();
                let kind = kind.ok_or_else(Refusal::unreadable)?;
                let found = match kind {
                    // Another holder has set or deleted the key in the meantime.
                    b"none" | b"string" => FoundValue::Nothing,
                    _ => FoundValue::Type(String::from_utf8_lossy(kind).into_owned()),
                };
                self.decide(op, set, &found, Vec::new(), notes)
            }
            OwnerState::Expire => match was_owner(replies.next()) {
                Ok((is_owner, server_us)) => {
                    notes.server_us = Some(server_us);
                    let ttl = acquire_of(op)?.lease_config.ttl.as_duration();
                    if is_owner {
                        return Ok(Some(held(op, ttl)));
                    }
                    busy(op, &FoundValue::Nothing, server_us, notes).map(Some)
                }
                // Such a lock cannot be released either, and must at least expire.
                Err(refusal) if refusal.kind == RefusalKind::Permission => {
                    op.state = OpState::Owner(OwnerState::ExpireAnyway(Box::new(refusal)));
                    Ok(None)
                }
                Err(refusal) => Err(refusal),
            },
            OwnerState::ExpireAnyway(refusal) => {
                if accepted(replies.next()).is_ok() {
                    return Err(*refusal);
                }
                op.state = OpState::Owner(OwnerState::Watching(refusal));
                Ok(None)
            }
            OwnerState::Watching(refusal) => {
                let is_watched = accepted(replies.next()).is_ok();
                let value = accepted(replies.next()).ok().and_then(Reply::text);
                let owner = self.text(acquire_of(op)?.owner_id).to_string();
                // Of another holder's key nothing is changed. The next transaction of the connection ends the `WATCH`.
                if !is_watched || value != Some(owner.as_bytes()) {
                    return Err(*refusal);
                }
                op.state = OpState::Owner(OwnerState::Changing(refusal));
                Ok(None)
            }
            OwnerState::Changing(refusal) => Err(*refusal),
            OwnerState::Repair(found) => {
                let (is_repaired, server_us) = was_owner(replies.next())?;
                notes.server_us = Some(server_us);
                if is_repaired {
                    notes.event = Some(CodecEvent::ExpiryRepaired);
                }
                let ttl = acquire_of(op)?.lease_config.ttl.as_duration();
                let (_, mut outcome) = *found;
                if let AcquireOutcome::Busy { holder_expiry, .. } = &mut outcome {
                    *holder_expiry = HolderExpiry::Polled {
                        ends: op.sent_at.plus(ttl),
                    };
                }
                Ok(Some(Outcome::Acquired(outcome)))
            }
            OwnerState::Script(copy, _) => {
                let reply = read_script(op, &copy, replies, notes)?;
                let found = match reply {
                    ScriptAcquire::Late => {
                        return Ok(Some(Outcome::Acquired(AcquireOutcome::Late)));
                    }
                    ScriptAcquire::Held { remaining_ms, .. } => {
                        return Ok(Some(held(op, Duration::from_millis(remaining_ms))));
                    }
                    ScriptAcquire::Busy { holder } => FoundValue::from_script(holder),
                    ScriptAcquire::Foreign { found } => FoundValue::Type(found),
                };
                let server_us = notes.server_us.unwrap_or_default();
                busy(op, &found, server_us, notes).map(Some)
            }
        }
    }

    /// Reads the reply to the command that sets the key, and what the key holds.
    fn read_set(
        &self,
        op: &mut Op<'_>,
        copy: &SentCopy,
        replies: &mut Replies<'_>,
        notes: &mut Notes,
    ) -> Result<Option<Outcome>, Refusal> {
        acquire_of(op)?.on_any_reply(copy);
        let is_set = is_set(accepted(replies.next())?)?;
        let pttl = replies.next();
        let value = replies.next().ok_or_else(Refusal::unreadable)?;
        let server_us = server_time(accepted(replies.next())?)?;
        notes.server_us = Some(server_us);
        let pttl = accepted(pttl)?.integer();
        let pttl = pttl.ok_or_else(Refusal::unreadable)?;
        let set = SetReply { is_set, server_us };
        if pttl == NO_KEY {
            return self.decide(op, set, &FoundValue::Nothing, Vec::new(), notes);
        }
        if wrong_type(&value).is_some() {
            op.state = OpState::Owner(OwnerState::Type(set));
            return Ok(None);
        }
        let bytes = accepted(Some(value))?.text();
        let bytes = bytes.ok_or_else(Refusal::unreadable)?.to_vec();
        let found = FoundValue::Value {
            text: String::from_utf8_lossy(&bytes).into_owned(),
            remaining: u64::try_from(pttl).ok().map(Duration::from_millis),
        };
        self.decide(op, set, &found, bytes, notes)
    }

    /// Decides what follows from what the key holds. `bytes` is its value, which may not be text.
    fn decide(
        &self,
        op: &mut Op<'_>,
        reply: SetReply,
        found: &FoundValue,
        bytes: Vec<u8>,
        notes: &Notes,
    ) -> Result<Option<Outcome>, Refusal> {
        let sent = acquire_of(op)?;
        let ttl = sent.lease_config.ttl.as_duration();
        let needs_expiry = scheme(sent) == Some(Scheme::SetnxExpire);
        // An earlier copy may have set the key, and its reply may be lost.
        let is_own = reply.is_set || found.is_by(&self.text(sent.owner_id).to_string());
        if is_own && needs_expiry {
            op.state = OpState::Owner(OwnerState::Expire);
            return Ok(None);
        }
        let remaining = if reply.is_set {
            Some(ttl)
        } else {
            found.remaining().filter(|_| is_own)
        };
        if let Some(remaining) = remaining {
            return Ok(Some(held(op, remaining.min(ttl))));
        }
        let outcome = busy(op, found, reply.server_us, notes)?;
        match outcome {
            Outcome::Acquired(
                outcome @ AcquireOutcome::Busy {
                    holder_expiry: HolderExpiry::NoExpiry,
                    ..
                },
            ) if needs_expiry => {
                op.state = OpState::Owner(OwnerState::Repair(Box::new((bytes, outcome))));
                Ok(None)
            }
            outcome => Ok(Some(outcome)),
        }
    }
}

/// Reads the reply of a script that acquires a lock.
pub(super) fn read_script(
    op: &mut Op<'_>,
    copy: &SentCopy,
    replies: &mut Replies<'_>,
    notes: &mut Notes,
) -> Result<ScriptAcquire, Refusal> {
    let reply = accepted(replies.next());
    acquire_of(op)?.on_any_reply(copy);
    let (reply, server_us) = acquired(reply?)?;
    notes.server_us = Some(server_us);
    Ok(reply)
}

pub(super) fn acquire_of<'s>(op: &'s mut Op<'_>) -> Result<&'s mut SentAcquires, Refusal> {
    match &mut op.kind {
        OpKind::Acquire(sent) => Ok(sent),
        _ => Err(Refusal::unreadable()),
    }
}

/// Returns the outcome of an acquire that the last exchange has granted.
fn held(op: &Op<'_>, remaining: Duration) -> Outcome {
    Outcome::Acquired(AcquireOutcome::Held {
        token: None,
        sent: op.sent_at,
        remaining,
    })
}

/// Returns the outcome for a key that another holder has.
fn busy(
    op: &mut Op<'_>,
    found: &FoundValue,
    server_us: u64,
    notes: &Notes,
) -> Result<Outcome, Refusal> {
    acquire_of(op)?.on_busy();
    let read_at = ServerMs::from_micros(server_us);
    expect_owner(found, read_at, notes.received).map(Outcome::Acquired)
}

fn is_set(reply: Reply<'_>) -> Result<bool, Refusal> {
    match (reply.status(), reply.integer()) {
        (Some(b"OK"), _) | (_, Some(1)) => Ok(true),
        (_, Some(0)) => Ok(false),
        _ if reply.is_null() => Ok(false),
        _ => Err(Refusal::unreadable()),
    }
}
