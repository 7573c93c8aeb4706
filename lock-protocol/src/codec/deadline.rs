//! Locks whose key holds the time at which their lease ends: `SETNX`, and `GETSET` once that time has passed.
//!
//! The value doesn't name its holder, so the deadlines that were written decide whether a lock belongs to an owner id.
//! They are shared by all nodes of a cluster, because a lock moves to another node with its slot.
//!
//! | Operation | Exchanges | What it must not do |
//! |---|---|---|
//! | acquire | `deadline_acquire.lua` | cancel a copy without a reply: another holder may have written the same deadline |
//! | renew | `deadline_renew.lua`, in turn | overtake another batch, whose deadlines it has to know |
//! | release | `TIME`, then `deadline_release.lua` | go out twice: the next holder may have written the same deadline |
//!
//! The release begins with a command that may be repeated, because the server may have closed an idle connection.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::found::{FoundValue, expect_deadline};
use super::owner::{acquire_of, progress, read_script, released};
use super::replies::{ScriptAcquire, accepted, loss, server_time, was_owner};
use super::{
    Codec, ExchangeFacts, Lane, LinkFacts, Notes, OpState, Progress, Step, record_copy, renewed,
};
use crate::acquisition::{AcquireOutcome, RenewOutcome, SentCopy};
use crate::clock::ServerMs;
use crate::dialect::CLOCK_TOLERANCE;
use crate::op::{Op, OpKind, Outcome, Refusal, RefusalKind};
use crate::owner_id::OwnerId;
use crate::resp::{CommandBuf, Replies};
use crate::scripts::{DEADLINE_ACQUIRE, DEADLINE_RELEASE, DEADLINE_RENEW};
use crate::ttl::whole_millis;

/// The codec of `SETNX` and `GETSET` locks.
#[derive(Clone, Debug, Default)]
pub struct DeadlineGetset {
    pub written: SharedDeadlines,
}

/// How far an operation has come.
#[derive(Clone, Debug)]
pub enum DeadlineState {
    Acquiring {
        copy: SentCopy,
        deadline: u64,
        not_after_ms: ServerMs,
    },
    Renewing {
        deadline: u64,
        /// The deadlines that it may replace.
        known: Vec<u64>,
    },
    /// Finds out whether the connection works.
    Probing,
    Probed,
    Releasing {
        min_hold_ms: u64,
        known: Vec<u64>,
    },
}

/// The time between the deadline and the expiry of the key. Until the key expires, no client of
/// this library takes the lock over: the clock of its holder may be behind.
fn spare_ms() -> u64 {
    whole_millis(CLOCK_TOLERANCE)
}

/// Returns the deadline of a lease that begins at this server time.
fn end_of(server_ms: ServerMs, ttl: Duration) -> u64 {
    server_ms.plus(whole_millis(ttl)).plus(1).as_u64()
}

impl Codec for DeadlineGetset {
    fn next(&self, op: &mut Op<'_>, facts: &ExchangeFacts<'_>) -> Step {
        let state = match (&mut op.kind, &op.state) {
            (OpKind::Acquire(sent), _) => {
                // Clients compare deadlines with their own clocks. If the clocks differ, the deadlines that one of them
                // writes are wrong for another.
                let difference = facts.link.clock_difference;
                if difference > CLOCK_TOLERANCE {
                    let text = format!("{difference:?}");
                    return Step::refused(Refusal::own(RefusalKind::ClocksDiffer, text));
                }
                let ttl = sent.lease_config.ttl.as_duration();
                DeadlineState::Acquiring {
                    copy: record_copy(sent, facts),
                    deadline: end_of(facts.not_after.server_ms, ttl),
                    not_after_ms: facts.not_after.not_after_ms,
                }
            }
            (OpKind::Renew(renewal, _), _) => {
                if facts.lane != Lane::InTurn {
                    return Step::Over(Lane::InTurn);
                }
                let deadline = end_of(facts.not_after.server_ms, renewal.ttl);
                // Recorded before it is sent: if the reply is lost, the key may hold either deadline.
                let known = self.written.lock().may_hold(renewal.owner_id, deadline);
                DeadlineState::Renewing { deadline, known }
            }
            (OpKind::Release(request), OpState::Deadline(_)) => {
                match self.written.lock().release(request.owner_id) {
                    Some(known) => DeadlineState::Releasing {
                        min_hold_ms: request.min_hold_ms(facts.now),
                        known,
                    },
                    None => return Step::refused(Refusal::own(RefusalKind::MustNotRepeat, "")),
                }
            }
            _ => DeadlineState::Probing,
        };
        op.state = OpState::Deadline(Box::new(state));
        op.sent_at = facts.now;
        Step::Send { commands: 1 }
    }

    fn encode(&self, op: &Op<'_>, _: &LinkFacts<'_>, out: &mut CommandBuf<'_>) {
        let (Some(key), OpState::Deadline(state)) = (op.key(), &op.state) else {
            debug_assert!(false, "encoded before it was decided");
            return;
        };
        let keys = [key.as_str()];
        match &**state {
            DeadlineState::Acquiring {
                deadline,
                not_after_ms,
                ..
            } => {
                let mut command = out.script(&DEADLINE_ACQUIRE, &keys);
                command.arg(*deadline).arg(spare_ms()).arg(*not_after_ms);
            }
            DeadlineState::Renewing { deadline, known } => {
                let mut command = out.script(&DEADLINE_RENEW, &keys);
                command.arg(*deadline).arg(spare_ms());
                for deadline in known {
                    command.arg(*deadline);
                }
            }
            DeadlineState::Probing | DeadlineState::Probed => drop(out.command("TIME")),
            DeadlineState::Releasing { min_hold_ms, known } => {
                let mut command = out.script(&DEADLINE_RELEASE, &keys);
                command.arg(*min_hold_ms).arg(spare_ms());
                for deadline in known {
                    command.arg(*deadline);
                }
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
        progress(self.read_reply(op, link, replies, notes))
    }
}

impl DeadlineGetset {
    fn read_reply(
        &self,
        op: &mut Op<'_>,
        link: &LinkFacts<'_>,
        replies: &mut Replies<'_>,
        notes: &mut Notes,
    ) -> Result<Option<Outcome>, Refusal> {
        let OpState::Deadline(state) = std::mem::replace(&mut op.state, OpState::Sent) else {
            return Err(Refusal::unreadable());
        };
        match (*state, &op.kind) {
            (DeadlineState::Acquiring { copy, deadline, .. }, _) => self
                .read_acquire(op, &copy, deadline, replies, notes)
                .map(Some),
            (DeadlineState::Renewing { deadline, .. }, OpKind::Renew(renewal, _)) => {
                let (loss, server_us) = loss(replies.next())?;
                notes.server_us = Some(server_us);
                if loss.is_none() {
                    self.written.lock().extended(renewal.owner_id, deadline);
                }
                // The server's clock may be ahead of the last clock sync.
                let left = Duration::from_millis(deadline.saturating_sub(server_us / 1000));
                let outcome = RenewOutcome::unless_lost(loss, renewal.ttl, op.sent_at);
                Ok(Some(renewed(outcome.for_at_most(left), renewal, link)))
            }
            (DeadlineState::Probing, _) => {
                let server_us = server_time(accepted(replies.next())?)?;
                notes.server_us = Some(server_us);
                op.state = OpState::Deadline(Box::new(DeadlineState::Probed));
                Ok(None)
            }
            (DeadlineState::Releasing { .. }, OpKind::Release(request)) => {
                let owner_id = request.owner_id;
                match was_owner(replies.next()) {
                    Ok((was_owner, server_us)) => {
                        notes.server_us = Some(server_us);
                        self.written.lock().forget(owner_id);
                        Ok(Some(released(was_owner, server_us, link)))
                    }
                    Err(refusal) => {
                        if refusal.kind.is_unexecuted() {
                            self.written.lock().release_was_refused(owner_id);
                        }
                        Err(refusal)
                    }
                }
            }
            _ => Err(Refusal::unreadable()),
        }
    }

    fn read_acquire(
        &self,
        op: &mut Op<'_>,
        copy: &SentCopy,
        deadline: u64,
        replies: &mut Replies<'_>,
        notes: &mut Notes,
    ) -> Result<Outcome, Refusal> {
        let reply = read_script(op, copy, replies, notes)?;
        let server_ms = ServerMs::from_micros(notes.server_us.unwrap_or_default());
        let sent_at = op.sent_at;
        let sent = acquire_of(op)?;
        let found = match reply {
            ScriptAcquire::Late => return Ok(Outcome::Acquired(AcquireOutcome::Late)),
            ScriptAcquire::Held { remaining_ms, .. } => {
                let ttl = sent.lease_config.ttl.as_duration();
                let mut written = self.written.lock();
                written.sweep(server_ms.as_u64());
                written.holds(sent.owner_id, deadline);
                return Ok(Outcome::Acquired(AcquireOutcome::Held {
                    token: None,
                    sent: sent_at,
                    remaining: ttl.min(Duration::from_millis(remaining_ms)),
                }));
            }
            ScriptAcquire::Busy { holder } => FoundValue::from_script(holder),
            ScriptAcquire::Foreign { found } => FoundValue::Type(found),
        };
        sent.on_busy();
        expect_deadline(&found, server_ms, notes.received).map(Outcome::Acquired)
    }
}

/// The deadlines that a manager has written.
#[derive(Clone, Debug, Default)]
pub struct SharedDeadlines(Arc<Mutex<WrittenDeadlines>>);

impl SharedDeadlines {
    fn lock(&self) -> MutexGuard<'_, WrittenDeadlines> {
        // Nothing panics while it is locked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The deadlines that were written, by owner id.
#[derive(Debug, Default)]
struct WrittenDeadlines {
    locks: HashMap<OwnerId, DeadlineLock>,
    /// The number of locks after the last sweep.
    swept: usize,
}

/// Below this number of locks, a sweep is not worth its cost.
const SWEEP_FROM: usize = 64;

#[derive(Debug)]
struct DeadlineLock {
    /// The deadline that the server confirmed, followed by the deadlines of unconfirmed renewals.
    deadlines: Vec<u64>,
    release_is_sent: bool,
}

impl WrittenDeadlines {
    /// Records the deadline that the server has confirmed.
    fn holds(&mut self, owner_id: OwnerId, deadline: u64) {
        let lock = DeadlineLock {
            deadlines: vec![deadline],
            release_is_sent: false,
        };
        self.locks.insert(owner_id, lock);
    }

    /// Records a deadline that is about to be written, and returns those that it may replace. They
    /// are few: an unconfirmed renewal adds one, and the next confirmed one leaves one.
    fn may_hold(&mut self, owner_id: OwnerId, deadline: u64) -> Vec<u64> {
        let lock = self.locks.get_mut(&owner_id);
        // A renewal must not write a deadline that the release on its way does not know.
        let Some(lock) = lock.filter(|lock| !lock.release_is_sent) else {
            return Vec::new();
        };
        let before = lock.deadlines.clone();
        if !before.contains(&deadline) {
            lock.deadlines.push(deadline);
        }
        before
    }

    /// Records a renewal that wrote this deadline. Earlier deadlines are replaced; later ones may
    /// still arrive.
    fn extended(&mut self, owner_id: OwnerId, deadline: u64) {
        if let Some(lock) = self.locks.get_mut(&owner_id)
            && let Some(position) = lock.deadlines.iter().position(|known| *known == deadline)
        {
            lock.deadlines.drain(..position);
        }
    }

    /// Records that a release is about to be sent. Returns the deadlines that the key may hold, which are none if the
    /// owner id never held the lock. Returns `None` if a release was sent before.
    fn release(&mut self, owner_id: OwnerId) -> Option<Vec<u64>> {
        let Some(lock) = self.locks.get_mut(&owner_id) else {
            return Some(Vec::new());
        };
        let was_sent = std::mem::replace(&mut lock.release_is_sent, true);
        (!was_sent).then(|| lock.deadlines.clone())
    }

    /// Records that the server rejected the release without executing it, so it may be sent again.
    fn release_was_refused(&mut self, owner_id: OwnerId) {
        if let Some(lock) = self.locks.get_mut(&owner_id) {
            lock.release_is_sent = false;
        }
    }

    fn forget(&mut self, owner_id: OwnerId) {
        self.locks.remove(&owner_id);
    }

    /// Forgets locks that were never released and have expired. It runs when their number has
    /// doubled since the last sweep, so that many locks cost no more per lock than few.
    fn sweep(&mut self, server_ms: u64) {
        if self.locks.len() < SWEEP_FROM.max(self.swept * 2) {
            return;
        }
        let lasts = |lock: &DeadlineLock| lock.deadlines.iter().any(|end| *end >= server_ms);
        self.locks.retain(|_, lock| lasts(lock));
        self.swept = self.locks.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: OwnerId = OwnerId::nil();

    #[test]
    fn unconfirmed_renewal_leaves_two_possible_deadlines() {
        let mut written = WrittenDeadlines::default();
        assert!(written.may_hold(ONE, 5).is_empty());
        assert_eq!(written.release(ONE), Some(vec![]), "it was never held");
        written.holds(ONE, 10);
        assert_eq!(written.may_hold(ONE, 20), [10]);
        assert_eq!(written.may_hold(ONE, 30), [10, 20]);
        // Replies may arrive in any order.
        written.extended(ONE, 20);
        assert_eq!(written.may_hold(ONE, 40), [20, 30]);
        written.extended(ONE, 40);
        written.extended(ONE, 30);
        assert_eq!(written.release(ONE), Some(vec![40]));
        written.forget(ONE);
        assert_eq!(written.release(ONE), Some(vec![]));
    }

    #[test]
    fn release_is_sent_once() {
        let mut written = WrittenDeadlines::default();
        written.holds(ONE, 10);
        assert_eq!(written.release(ONE), Some(vec![10]));
        assert!(
            written.may_hold(ONE, 20).is_empty(),
            "no renewal follows a release"
        );
        assert_eq!(written.release(ONE), None);
        written.release_was_refused(ONE);
        assert_eq!(written.release(ONE), Some(vec![10]));
    }

    #[test]
    fn expired_locks_are_forgotten() {
        let mut written = WrittenDeadlines::default();
        let lasting = OwnerId::random();
        written.holds(lasting, 1_000_000);
        for deadline in 0..10_000 {
            written.sweep(deadline);
            written.holds(OwnerId::random(), deadline);
        }
        assert!(written.locks.len() <= SWEEP_FROM, "{}", written.locks.len());
        assert_eq!(written.release(lasting), Some(vec![1_000_000]));
        // Locks that have not expired stay known, however many there are.
        for _ in 0..10_000 {
            written.sweep(10_000);
            written.holds(OwnerId::random(), 20_000);
        }
        assert!(written.locks.len() > 10_000);
    }

    #[test]
    fn deadline_is_one_millisecond_after_the_ttl() {
        assert_eq!(end_of(ServerMs::new(1_000), Duration::from_secs(2)), 3_001);
    }
}
