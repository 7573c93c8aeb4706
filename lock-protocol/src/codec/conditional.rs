//! Releases and renews as the server allows: by a command that compares the owner (`SET .. IFEQ`, `DELEX`, `DELIFEQ`), by
//! a script, or in a transaction.
//!
//! | State | Exchange | Then |
//! |---|---|---|
//! | new, the server's commands aren't known | `Asking`: `COMMAND INFO`, or a script of no hash | new |
//! | new | renewal: `SET key owner IFEQ owner PX ttl`; release: `DELEX` or `DELIFEQ` | the outcome, or one of the next |
//! | `Loss` | a renewal found another owner: `GETRANGE` | lost, and why |
//! | `Left` | a release with a minimum hold: `PTTL` | `Keep` |
//! | `Keep` | `SET key no-owner IFEQ owner PX ms` | the outcome |
//! | `Instead` | the server refused the command: as a script or a transaction | as the other codec says |
//!
//! With [`ReleaseMethod::Conditional`] there is no other method, so a refusal is the outcome. A command that was refused for a
//! lack of memory may succeed as a script.

use std::sync::atomic::{AtomicBool, Ordering};

use super::abilities::{DeleteCommand, OpenQuestion, OwnerCheck};
use super::owner::{VALUE_LIMIT, progress};
use super::replies::{accepted, server_time, wrong_type};
use super::watch_multi::{WatchMulti, loss_of, read_keep_ms};
use super::{Codec, ExchangeFacts, Lane, LinkFacts, Notes, OpState, Progress, Step, renewed};
use crate::acquisition::RenewOutcome;
use crate::cleanup::ReleaseOutcome;
use crate::clock::ServerMs;
use crate::dialect::{Dialect, ReleaseMethod};
use crate::key::LockKey;
use crate::loss::LossReason;
use crate::op::{Op, OpKind, Outcome, Refusal, RefusalKind};
use crate::owner_id::OwnerId;
use crate::resp::{CommandBuf, Replies, Reply};
use crate::ttl::whole_millis;

/// The codec of `SET NX PX` locks whose release depends on the server.
#[derive(Debug)]
pub struct Conditional {
    pub watch_multi: WatchMulti,
    /// A connection has chosen transactions, which don't join a batch.
    is_transaction: AtomicBool,
}

/// How far a release or a renewal has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionalState {
    Asking(OpenQuestion),
    Renew {
        asks_time: bool,
    },
    Delete {
        delete: DeleteCommand,
        asks_time: bool,
    },
    Loss,
    Left {
        min_hold_ms: u64,
        asks_time: bool,
    },
    Keep {
        ms: u64,
    },
    /// Without commands of the server.
    Instead,
}

impl Conditional {
    pub fn new(watch_multi: WatchMulti) -> Self {
        Self {
            watch_multi,
            is_transaction: AtomicBool::new(false),
        }
    }

    /// Returns whether releases may go out together.
    pub fn joins_batches(&self) -> bool {
        !self.is_transaction.load(Ordering::Relaxed)
    }

    /// Decides by what the connection knows of its server.
    fn decide(
        &self,
        op: &mut Op<'_>,
        facts: &ExchangeFacts<'_>,
        check: Result<OwnerCheck, OpenQuestion>,
    ) -> Step {
        match check {
            Err(OpenQuestion::Unsupported) => {
                Step::refused(Refusal::own(RefusalKind::NoOwnerCommands, ""))
            }
            Err(question) => {
                op.state = OpState::Conditional(ConditionalState::Asking(question));
                Step::Send { commands: 1 }
            }
            Ok(OwnerCheck::Script) => {
                op.state = OpState::New;
                self.watch_multi.owner.next(op, facts)
            }
            Ok(OwnerCheck::Transaction) => {
                self.is_transaction.store(true, Ordering::Relaxed);
                op.state = OpState::New;
                self.watch_multi.next(op, facts)
            }
            Ok(OwnerCheck::Command(delete)) => {
                // One for the whole exchange, and for a release that has to know until when a copy may take effect.
                let mut asks_time = facts.is_first;
                let state = match &op.kind {
                    OpKind::Release(request) => {
                        asks_time |= request.unconfirmed.is_some();
                        match request.min_hold_ms(facts.now) {
                            0 => ConditionalState::Delete { delete, asks_time },
                            min_hold_ms => ConditionalState::Left {
                                min_hold_ms,
                                asks_time,
                            },
                        }
                    }
                    _ => ConditionalState::Renew { asks_time },
                };
                op.state = OpState::Conditional(state);
                op.sent_at = facts.now;
                Step::Send {
                    commands: 1 + usize::from(asks_time),
                }
            }
        }
    }
}

impl Codec for Conditional {
    fn next(&self, op: &mut Op<'_>, facts: &ExchangeFacts<'_>) -> Step {
        let abilities = facts.link.abilities;
        let method = method_of(op);
        let is_acquire = matches!(op.kind, OpKind::Acquire(_));
        // It was decided before, by what the other connection knows of the server.
        if facts.lane == Lane::Transactions {
            return self.watch_multi.next(op, facts);
        }
        match op.state {
            // Such a lock could not be released, and must not be acquired.
            OpState::New if is_acquire && method == ReleaseMethod::Conditional => {
                match abilities.owner_check(method) {
                    Ok(_) => self.watch_multi.owner.next(op, facts),
                    check => self.decide(op, facts, check),
                }
            }
            _ if is_acquire => self.watch_multi.owner.next(op, facts),
            OpState::New => self.decide(op, facts, abilities.owner_check(method)),
            OpState::Conditional(ConditionalState::Instead) => {
                self.decide(op, facts, abilities.without_commands())
            }
            OpState::Conditional(state) => Step::Send {
                commands: 1 + usize::from(asks_time(state)),
            },
            _ => self.watch_multi.owner.next(op, facts),
        }
    }

    fn encode(&self, op: &Op<'_>, link: &LinkFacts<'_>, out: &mut CommandBuf<'_>) {
        let OpState::Conditional(state) = op.state else {
            return self.watch_multi.encode(op, link, out);
        };
        if let ConditionalState::Asking(question) = state {
            return question.encode(out);
        }
        let (Some(key), Some((owner_id, ttl_ms))) = (op.key(), owner_of(op)) else {
            return;
        };
        let key = key.as_str();
        let owners = &self.watch_multi.owner;
        let owner = owners.text(owner_id);
        match state {
            // `SET` without an expiry would remove the one that the key has.
            ConditionalState::Renew { .. } => {
                let mut set = out.command("SET");
                set.arg(key).arg(owner).arg("IFEQ").arg(owner);
                set.arg("PX").arg(ttl_ms);
            }
            ConditionalState::Keep { ms } => {
                // Without an owner: a renewal that this release has overtaken must not extend the lease.
                let mut set = out.command("SET");
                set.arg(key)
                    .arg(owners.without_owner())
                    .arg("IFEQ")
                    .arg(owner);
                set.arg("PX").arg(ms);
            }
            ConditionalState::Delete {
                delete: DeleteCommand::Delex,
                ..
            } => {
                out.command("DELEX").arg(key).arg("IFEQ").arg(owner);
            }
            ConditionalState::Delete {
                delete: DeleteCommand::Delifeq,
                ..
            } => {
                out.command("DELIFEQ").arg(key).arg(owner);
            }
            ConditionalState::Left { .. } => {
                out.command("PTTL").arg(key);
            }
            ConditionalState::Loss => {
                let mut range = out.command("GETRANGE");
                range.arg(key).arg(0_u32).arg(VALUE_LIMIT - 1);
                return;
            }
            ConditionalState::Asking(_) | ConditionalState::Instead => return,
        }
        if asks_time(state) {
            out.command("TIME");
        }
    }

    fn read(
        &self,
        op: &mut Op<'_>,
        link: &LinkFacts<'_>,
        replies: &mut Replies<'_>,
        notes: &mut Notes,
    ) -> Progress {
        let OpState::Conditional(state) = op.state else {
            return self.watch_multi.read(op, link, replies, notes);
        };
        progress(read_reply(op, state, link, replies, notes))
    }
}

fn read_reply(
    op: &mut Op<'_>,
    state: ConditionalState,
    link: &LinkFacts<'_>,
    replies: &mut Replies<'_>,
    notes: &mut Notes,
) -> Result<Option<Outcome>, Refusal> {
    let method = method_of(op);
    let reply = replies.next().ok_or_else(Refusal::unreadable)?;
    let mut time = |notes: &mut Notes| -> Result<Option<u64>, Refusal> {
        if asks_time(state) {
            notes.server_us = Some(server_time(accepted(replies.next())?)?);
        }
        Ok(notes.server_us)
    };
    match state {
        ConditionalState::Asking(question) => {
            let refusal = reply.error().map(Refusal::of);
            if let Some(refusal) = refusal
                && question == OpenQuestion::Commands
                && method == ReleaseMethod::Conditional
                && refusal.kind == RefusalKind::Permission
            {
                return Err(refusal);
            }
            link.abilities.record(question, reply)?;
            // A question about scripts may have come after a refusal.
            op.state = match question {
                OpenQuestion::Scripts => OpState::Conditional(ConditionalState::Instead),
                OpenQuestion::Commands | OpenQuestion::Unsupported => OpState::New,
            };
            Ok(None)
        }
        ConditionalState::Renew { .. } => {
            let answer = was_owner(reply)?;
            time(notes)?;
            match (answer, &op.kind) {
                (Answer::Yes, OpKind::Renew(renewal, _)) => {
                    let outcome = RenewOutcome::unless_lost(None, renewal.ttl, op.sent_at);
                    Ok(Some(renewed(outcome, renewal, link)))
                }
                (Answer::Refused(refusal), _) => instead(op, method, link, refusal),
                _ => {
                    op.state = OpState::Conditional(ConditionalState::Loss);
                    Ok(None)
                }
            }
        }
        ConditionalState::Loss => {
            let loss = if wrong_type(&reply).is_some() {
                LossReason::Replaced
            } else {
                let value = accepted(Some(reply))?.text();
                loss_of(value.ok_or_else(Refusal::unreadable)?)
            };
            let OpKind::Renew(renewal, _) = &op.kind else {
                return Err(Refusal::unreadable());
            };
            let outcome = RenewOutcome::unless_lost(Some(loss), renewal.ttl, op.sent_at);
            Ok(Some(renewed(outcome, renewal, link)))
        }
        ConditionalState::Delete { .. } | ConditionalState::Keep { .. } => {
            let answer = was_owner(reply)?;
            let server_us = time(notes)?;
            match answer {
                Answer::Yes => Ok(Some(settled(true, server_us, link))),
                Answer::No => Ok(Some(settled(false, server_us, link))),
                Answer::Refused(refusal) => instead(op, method, link, refusal),
            }
        }
        ConditionalState::Left { min_hold_ms, .. } => {
            let ms = read_keep_ms(min_hold_ms, Some(reply))?;
            time(notes)?;
            op.state = OpState::Conditional(ConditionalState::Keep { ms });
            Ok(None)
        }
        ConditionalState::Instead => Err(Refusal::unreadable()),
    }
}

/// Decides what follows from a command that the server refused, and that had no effect.
fn instead(
    op: &mut Op<'_>,
    method: ReleaseMethod,
    link: &LinkFacts<'_>,
    refusal: Refusal,
) -> Result<Option<Outcome>, Refusal> {
    let is_lasting = refusal.is_of_command();
    if method != ReleaseMethod::Auto {
        let lacks_command = is_lasting && refusal.kind != RefusalKind::Permission;
        return Err(if lacks_command {
            Refusal::own(RefusalKind::NoOwnerCommands, "")
        } else {
            refusal
        });
    }
    if is_lasting {
        link.abilities.refuse_commands();
    }
    op.state = OpState::Conditional(ConditionalState::Instead);
    Ok(None)
}

/// Returns whether the exchange of this state ends with `TIME`.
fn asks_time(state: ConditionalState) -> bool {
    match state {
        ConditionalState::Renew { asks_time }
        | ConditionalState::Delete { asks_time, .. }
        | ConditionalState::Left { asks_time, .. } => asks_time,
        ConditionalState::Keep { .. } => true,
        ConditionalState::Asking(_) | ConditionalState::Loss | ConditionalState::Instead => false,
    }
}

/// Returns the outcome of a release whose reply may have no time.
fn settled(was_owner: bool, server_us: Option<u64>, link: &LinkFacts<'_>) -> Outcome {
    let outcome = ReleaseOutcome {
        was_owner,
        server_ms: server_us.map(ServerMs::from_micros),
        run_id: link.run_id,
        more: false,
        notified_others: false,
    };
    Outcome::Released(outcome)
}

/// What a command that compares the owner replied.
enum Answer {
    Yes,
    No,
    /// It had no effect, and another method may work.
    Refused(Refusal),
}

fn was_owner(reply: Reply<'_>) -> Result<Answer, Refusal> {
    let Some(error) = reply.error() else {
        return match (reply.status(), reply.integer()) {
            (Some(b"OK"), _) | (_, Some(1)) => Ok(Answer::Yes),
            (_, Some(0)) => Ok(Answer::No),
            _ if reply.is_null() => Ok(Answer::No),
            _ => Err(Refusal::unreadable()),
        };
    };
    let refusal = Refusal::of(error);
    // Redis says in its own words that the key isn't a string.
    if refusal.kind == RefusalKind::WrongType || refusal.text.contains("should be of string type") {
        return Ok(Answer::No);
    }
    if refusal.is_of_command() || refusal.kind == RefusalKind::OutOfMemory {
        return Ok(Answer::Refused(refusal));
    }
    Err(refusal)
}

fn owner_of(op: &Op<'_>) -> Option<(OwnerId, u64)> {
    match &op.kind {
        OpKind::Renew(renewal, _) => Some((renewal.owner_id, whole_millis(renewal.ttl))),
        OpKind::Release(request) => Some((request.owner_id, 0)),
        _ => None,
    }
}

fn method_of(op: &Op<'_>) -> ReleaseMethod {
    match op.key().map(LockKey::dialect) {
        Some(Dialect::SetNxPx { release }) => release,
        _ => ReleaseMethod::Script,
    }
}
