//! Native locks: each operation is one script.
//!
//! | Operation | Script | State after `next` |
//! |---|---|---|
//! | acquire | `acquire.lua` | the copy that was recorded, with its time limit |
//! | acquires of a set | `acquire_all.lua`, for all of them | the same, for each |
//! | renew | `renew.lua` | sent |
//! | release | `release.lua` | how long the key is kept locked |
//! | free a key | `drop.lua` | the same |
//! | raise a token | `raise.lua` | sent |
//!
//! The headers of the scripts document their keys, arguments and replies.

use std::sync::Arc;

use super::{Channel, Codec, ExchangeFacts, LinkFacts, Notes, OpState, Progress, Step, renewed};
use crate::acquisition::{RenewOutcome, ReplyTimes, SendContext, SentAcquires, SentCopy};
use crate::cleanup::{Keep, ReleaseOutcome, ReleaseRequest};
use crate::clock::ServerMs;
use crate::fencing_token::FencingToken;
use crate::lock_state::{AcquireReply, Purpose, RawHolder, ReleaseReply, RenewReply, Verdict};
use crate::op::{Expiry, Op, OpKind, Outcome, Raise, RaiseTo, Refusal, Renewal, WaitFor};
use crate::poll_schedule;
use crate::resp::{Command, CommandBuf, Replies, Reply, ServerError, number};
use crate::scripts::{ACQUIRE, ACQUIRE_ALL, DROP, RAISE, RELEASE, RENEW};
use crate::ttl::whole_millis;
use crate::wire::Mode;

/// The kind in an acquire that makes the holder of the exclusive lock a reader.
const DOWNGRADE: &str = ">r";

/// Makes a renewal write the expiry even if it stays the same.
const ALWAYS_WRITE: &str = "write";

/// Makes a raise write the token even if it is lower.
const EXACT: &str = "exact";

/// The codec of native locks.
#[derive(Clone, Copy, Debug)]
pub struct Native {
    /// For how long a released lock stays free for other clients, in milliseconds.
    pub grace_ms: u64,
    /// Notifications are sharded, as in a cluster.
    pub is_sharded: bool,
}

/// What a set of acquires wants of one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetMode {
    /// Keeps what it gets, and each lock has an entry in its queue.
    InOrder,
    /// All locks or none.
    AllOrNone,
}

impl SetMode {
    fn wire(self) -> &'static str {
        match self {
            Self::InOrder => "go",
            Self::AllOrNone => "all",
        }
    }
}

/// The result of one lock of a set, by its index.
pub type SetResult = (usize, Result<Outcome, Refusal>);

impl Codec for Native {
    fn next(&self, op: &mut Op<'_>, facts: &ExchangeFacts<'_>) -> Step {
        let state = match &mut op.kind {
            OpKind::Acquire(sent) => match record(sent, facts) {
                Some(state) => state,
                None => return Step::Subscribe,
            },
            OpKind::Release(request) | OpKind::FreeKey(request) => {
                OpState::KeptFor(request.min_hold_ms(facts.now))
            }
            _ => OpState::Sent,
        };
        op.state = state;
        op.sent_at = facts.now;
        Step::Send { commands: 1 }
    }

    fn encode(&self, op: &Op<'_>, link: &LinkFacts<'_>, out: &mut CommandBuf<'_>) {
        match (&op.kind, &op.state) {
            (OpKind::Acquire(sent), OpState::Copy(_, not_after_ms)) => {
                let mut command = out.script(ACQUIRE.of(self.is_sharded), &sent.key.all());
                write_acquire(&mut command, sent, *not_after_ms, link);
            }
            (OpKind::Renew(renewal, expiry), _) => write_renewal(renewal, *expiry, out),
            (OpKind::Release(request), OpState::KeptFor(min_hold_ms)) => {
                let mut command = out.script(RELEASE.of(self.is_sharded), &request.key.all());
                self.write_release(&mut command, request, *min_hold_ms, link);
            }
            (OpKind::FreeKey(request), OpState::KeptFor(min_hold_ms)) => {
                let mut command = out.script(&DROP, &[request.key.as_str()]);
                command.arg(request.owner_id);
                write_keep(&mut command, request.keep, *min_hold_ms);
            }
            (OpKind::Raise(Raise { renewal, to }), _) => {
                let keys = [renewal.key.as_str(), renewal.key.counter()];
                let mut command = out.script(&RAISE, &keys);
                command.arg(renewal.owner_id);
                match to {
                    RaiseTo::AtLeast(token) => command.arg(*token),
                    RaiseTo::Exactly(token) => command.arg(*token).arg(EXACT),
                };
            }
            (OpKind::Wait(wait), _) => write_wait(wait, out),
            // `next` comes first, and no other state follows from it.
            _ => debug_assert!(false, "encoded before it was recorded"),
        }
    }

    fn read(
        &self,
        op: &mut Op<'_>,
        link: &LinkFacts<'_>,
        replies: &mut Replies<'_>,
        notes: &mut Notes,
    ) -> Progress {
        Progress::Done(read_reply(op, link, replies, notes))
    }
}

fn read_reply(
    op: &mut Op<'_>,
    link: &LinkFacts<'_>,
    replies: &mut Replies<'_>,
    notes: &mut Notes,
) -> Result<Outcome, Refusal> {
    let reply = replies.next().ok_or_else(Refusal::unreadable)?;
    if let OpKind::Acquire(_) = op.kind {
        return read_acquire(op, link, reply.error(), reply.text(), notes);
    }
    if let Some(error) = reply.error() {
        return Err(Refusal::of(error));
    }
    match &op.kind {
        OpKind::Renew(renewal, _) => {
            let outcome = read_renewal(op, reply, notes)?;
            Ok(renewed(outcome, renewal, link))
        }
        OpKind::Raise(_) => read_renewal(op, reply, notes).map(Outcome::Renewed),
        OpKind::Release(_) => {
            let (reply, server_us) = parse_release(reply.text())?;
            notes.server_us = server_us;
            let outcome = ReleaseOutcome::from_reply(reply, server_us);
            Ok(Outcome::Released(outcome.told_by(link.run_id)))
        }
        OpKind::FreeKey(_) => {
            let text = reply.text().ok_or_else(Refusal::unreadable)?;
            let was_owner = text.starts_with(b"released");
            Ok(Outcome::KeyFreed { was_owner })
        }
        OpKind::Wait(wait) => read_wait(wait, reply),
        _ => Err(Refusal::unreadable()),
    }
}

/// Records the copy that is about to be sent. Returns `None` if the channel has to be known first.
fn record(sent: &mut SentAcquires, facts: &ExchangeFacts<'_>) -> Option<OpState> {
    let (mode, channel) = match facts.channel {
        Channel::Up(channel) => (Mode::Subscribed, Arc::clone(channel)),
        Channel::Down(channel) => (Mode::Polling, Arc::clone(channel)),
        Channel::Unknown if sent.waits_until.is_some() => return None,
        // A single attempt has no entry in the queue, which would name its channel.
        Channel::Unknown => (Mode::Polling, Arc::clone(&sent.label)),
    };
    let copy = sent.on_send(SendContext {
        origin: facts.link.origin,
        run_id: facts.link.process,
        mode,
        channel: &channel,
        lease: poll_schedule::handover_lease(mode, sent.lease_config.ttl),
        now: facts.now,
        not_after: facts.not_after,
        command_timeout: facts.command_timeout,
    });
    Some(OpState::Copy(copy, facts.not_after.not_after_ms))
}

/// The number of arguments of an acquire that writes all of them, without the earlier entries.
const ACQUIRE_ARGS: usize = 8;

/// Writes the arguments of an acquire. The server counts 0.1 us for each, so those at the end that have their defaults
/// stay out.
fn write_acquire(
    command: &mut Command<'_>,
    sent: &SentAcquires,
    not_after_ms: ServerMs,
    link: &LinkFacts<'_>,
) {
    let has_more = link.lead_us > 0
        || sent.earlier().len() > 0
        || sent.lease_config.kind.is_shared()
        || sent.max_queue.get().is_some()
        || sent.is_exchange();
    if has_more {
        write_whole_acquire(command, sent, not_after_ms, link);
        return;
    }
    write_first_args(command, sent, not_after_ms, link);
    if let Some(entry) = sent.entry() {
        command.arg(entry);
    }
}

fn write_first_args(
    command: &mut Command<'_>,
    sent: &SentAcquires,
    not_after_ms: ServerMs,
    link: &LinkFacts<'_>,
) {
    command
        .arg(sent.owner_id)
        .arg(sent.lease_config.ttl.as_millis())
        .arg(link.floor_us)
        .arg(not_after_ms)
        .arg(&*sent.label);
}

/// Returns the number of arguments that [`write_whole_acquire`] writes.
fn whole_args(sent: &SentAcquires) -> usize {
    ACQUIRE_ARGS + usize::from(sent.max_queue.get().is_some()) + sent.earlier().len()
}

fn write_whole_acquire(
    command: &mut Command<'_>,
    sent: &SentAcquires,
    not_after_ms: ServerMs,
    link: &LinkFacts<'_>,
) {
    write_first_args(command, sent, not_after_ms, link);
    match sent.entry() {
        Some(entry) => command.arg(entry),
        None => command.arg(""),
    };
    command.arg(link.lead_us);
    match sent.purpose() {
        Purpose::Acquire => command.arg(sent.lease_config.kind.wire()),
        Purpose::Downgrade => command.arg(DOWNGRADE),
        Purpose::Exchange(from) => command.arg(&*format!(">{from}")),
    };
    if let Some(most) = sent.max_queue.get() {
        command.arg(format!("max {most}").as_str());
    }
    for entry in sent.earlier() {
        command.arg(entry);
    }
}

fn write_renewal(renewal: &Renewal, expiry: Expiry, out: &mut CommandBuf<'_>) {
    let kind = renewal.lease_config.kind;
    let keys = [renewal.key.as_str(), renewal.key.holders()];
    let keys = if kind.is_shared() { &keys } else { &keys[..1] };
    let mut command = out.script(&RENEW, keys);
    command.arg(renewal.owner_id).arg(whole_millis(renewal.ttl));
    let always = match expiry {
        Expiry::WhereNeeded => "",
        Expiry::Always => ALWAYS_WRITE,
    };
    if kind.is_shared() {
        command.arg(always).arg(&*renewal.label).arg(kind.wire());
    } else if !always.is_empty() {
        command.arg(always);
    }
}

fn write_wait(wait: &WaitFor, out: &mut CommandBuf<'_>) {
    let mut command = if wait.disk {
        let mut command = out.command("WAITAOF");
        command.arg(1_u32);
        command
    } else {
        out.command("WAIT")
    };
    command.arg(wait.replicas).arg(whole_millis(wait.within));
}

/// Writes what a release leaves in the key.
fn write_keep(command: &mut Command<'_>, keep: Keep, min_hold_ms: u64) {
    match keep.done_ms() {
        0 => command.arg(min_hold_ms),
        period_ms => command.arg(&*format!("done {period_ms}")),
    };
}

impl Native {
    fn write_release(
        &self,
        command: &mut Command<'_>,
        request: &ReleaseRequest,
        min_hold_ms: u64,
        link: &LinkFacts<'_>,
    ) {
        command
            .arg(request.owner_id)
            .arg(link.floor_us)
            .arg(self.grace_ms);
        if request.is_plain(min_hold_ms) {
            if link.lead_us > 0 {
                command.arg(link.lead_us);
            }
            return;
        }
        command.arg(link.lead_us);
        write_keep(command, request.keep, min_hold_ms);
        command.arg(&*request.label).arg(request.kind.wire());
        for entry in &request.entries {
            command.arg(entry);
        }
    }

    /// Decides the exchange of a set whose keys are in one slot: one command for all locks.
    pub fn next_set(&self, ops: &mut [&mut Op<'_>], facts: &ExchangeFacts<'_>) -> Step {
        for op in ops.iter_mut() {
            // All locks of a set wait, or none does, so either the first one asks or nobody.
            let step = self.next(op, facts);
            if let Step::Subscribe = step {
                return step;
            }
        }
        Step::Send { commands: 1 }
    }

    /// Writes the command of a set.
    pub fn encode_set(
        &self,
        ops: &[&mut Op<'_>],
        mode: SetMode,
        link: &LinkFacts<'_>,
        out: &mut CommandBuf<'_>,
    ) {
        let acquires = || {
            ops.iter().filter_map(|op| match (&op.kind, &op.state) {
                (OpKind::Acquire(sent), OpState::Copy(_, not_after_ms)) => {
                    Some((&**sent, *not_after_ms))
                }
                _ => None,
            })
        };
        let Some((first, not_after_ms)) = acquires().next() else {
            debug_assert!(false, "a set has acquires");
            return;
        };
        let keys: Vec<_> = acquires().flat_map(|(sent, _)| sent.key.all()).collect();
        let mut command = out.script(ACQUIRE_ALL.of(self.is_sharded), &keys);
        command
            .arg(first.key.all().len())
            .arg(not_after_ms)
            .arg(mode.wire());
        for (sent, not_after_ms) in acquires() {
            command.arg(whole_args(sent));
            write_whole_acquire(&mut command, sent, not_after_ms, link);
        }
    }

    /// Gives each lock of a set its part of the reply. A lock without a result was not acquired: the command ended
    /// at an earlier one, or has released this one.
    ///
    /// # Errors
    /// The server refused the whole command.
    pub fn read_set(
        &self,
        ops: &mut [&mut Op<'_>],
        link: &LinkFacts<'_>,
        replies: &mut Replies<'_>,
        notes: &mut Notes,
    ) -> Result<Vec<SetResult>, Refusal> {
        let reply = replies.next().ok_or_else(Refusal::unreadable)?;
        if let Some(error) = reply.error() {
            let refusal = Refusal::of(error);
            for op in ops {
                if let Some((sent, copy)) = acquire_of(op) {
                    sent.on_error_reply(&copy, refusal.kind.class());
                }
            }
            return Err(refusal);
        }
        let mut results = Vec::new();
        match SetReply::read(reply).ok_or_else(Refusal::unreadable)? {
            SetReply::Each(replies) => {
                let mut tried = 0;
                for (at, (op, reply)) in ops.iter_mut().zip(replies).enumerate() {
                    results.push((at, read_one(op, link, reply, notes)));
                    tried = at + 1;
                }
                for op in ops.iter_mut().skip(tried) {
                    if let Some((sent, copy)) = acquire_of(op) {
                        sent.on_not_run(&copy);
                    }
                }
            }
            SetReply::NotAcquired { at, reply, rest } => {
                for (other, op) in ops.iter_mut().enumerate() {
                    if other == at {
                        results.push((at, read_one(op, link, reply, notes)));
                    } else if let Some((sent, copy)) = acquire_of(op) {
                        match rest {
                            Rest::Undone => sent.on_undone(&copy),
                            Rest::Kept => sent.on_any_reply(&copy),
                        }
                    }
                }
            }
        }
        Ok(results)
    }
}

/// Returns the acquire of an operation, and the copy that was sent.
fn acquire_of<'s>(op: &'s mut Op<'_>) -> Option<(&'s mut SentAcquires, SentCopy)> {
    match (&mut op.kind, &op.state) {
        (OpKind::Acquire(sent), OpState::Copy(copy, _)) => Some((sent, copy.clone())),
        _ => None,
    }
}

/// Reads the reply to one lock of a set. Its error is a text, because the reply of a script has one error for all.
fn read_one(
    op: &mut Op<'_>,
    link: &LinkFacts<'_>,
    reply: Reply<'_>,
    notes: &mut Notes,
) -> Result<Outcome, Refusal> {
    let text = reply.text();
    let error = text.and_then(|text| text.strip_prefix(b"error "));
    read_acquire(op, link, error.map(ServerError::parse), text, notes)
}

fn read_acquire(
    op: &mut Op<'_>,
    link: &LinkFacts<'_>,
    error: Option<ServerError<'_>>,
    text: Option<&[u8]>,
    notes: &mut Notes,
) -> Result<Outcome, Refusal> {
    let sent_at = op.sent_at;
    let (sent, copy) = acquire_of(op).ok_or_else(Refusal::unreadable)?;
    if let Some(error) = error {
        let refusal = Refusal::of(error);
        sent.on_error_reply(&copy, refusal.kind.class());
        return Err(refusal);
    }
    let (reply, server_us) = parse_acquire(text)?;
    notes.server_us = Some(server_us);
    let times = ReplyTimes {
        sent: sent_at,
        received: notes.received,
        server_us,
        run_id: link.process,
    };
    Ok(Outcome::Acquired(sent.on_reply(&copy, reply, times)))
}

fn read_renewal(op: &Op<'_>, reply: Reply<'_>, notes: &mut Notes) -> Result<RenewOutcome, Refusal> {
    let (reply, found, server_us) = parse_renewal(reply.text())?;
    notes.server_us = Some(server_us);
    Ok(RenewOutcome::from_reply(
        reply,
        found.as_deref(),
        op.sent_at,
    ))
}

fn read_wait(wait: &WaitFor, reply: Reply<'_>) -> Result<Outcome, Refusal> {
    let number = |reply: Option<Reply<'_>>| {
        let number = reply.and_then(Reply::integer);
        number.and_then(|number| u32::try_from(number).ok())
    };
    let acknowledged = if wait.disk {
        let mut items = reply.items().ok_or_else(Refusal::unreadable)?;
        number(items.next()).zip(number(items.next()))
    } else {
        number(Some(reply)).map(|replicas| (1, replicas))
    };
    let (disks, replicas) = acknowledged.ok_or_else(Refusal::unreadable)?;
    let by_disk = disks > 0;
    Ok(Outcome::Acknowledged { by_disk, replicas })
}

/// What `acquire_all.lua` replied.
enum SetReply<'a> {
    /// One reply for each lock, up to the first that was not acquired.
    Each(Replies<'a>),
    /// No lock was acquired because of this one.
    NotAcquired {
        at: usize,
        reply: Reply<'a>,
        rest: Rest,
    },
}

/// What the command left of the locks that it could not acquire together.
#[derive(Clone, Copy)]
enum Rest {
    Undone,
    Kept,
}

impl<'a> SetReply<'a> {
    fn read(reply: Reply<'a>) -> Option<Self> {
        let mut replies = reply.items()?;
        let all = replies.clone();
        let rest = match replies.next().and_then(Reply::text) {
            Some(b"undone") => Rest::Undone,
            Some(b"kept") => Rest::Kept,
            _ => return Some(Self::Each(all)),
        };
        let index = usize::try_from(number(replies.next()?.text()?)?).ok()?;
        Some(Self::NotAcquired {
            at: index.checked_sub(1)?,
            reply: replies.next()?,
            rest,
        })
    }
}

/// Reads the reply of `acquire.lua`, and the server's time in microseconds.
pub fn parse_acquire(reply: Option<&[u8]>) -> Result<(AcquireReply, u64), Refusal> {
    let mut words = Words::of(reply)?;
    let verdict = words.next()?;
    let server_us = words.time()?;
    let reply = match verdict {
        b"late" => AcquireReply::Late,
        b"held" => AcquireReply::Held {
            token: words.token()?,
            remaining_ms: words.number()?,
        },
        b"queued" => AcquireReply::Queued {
            rank: words.number()?,
            holder: words.holder()?,
        },
        b"full" => AcquireReply::Full {
            rank: words.number()?,
            holder: words.holder()?,
        },
        b"busy" => AcquireReply::Busy {
            holder: words.holder()?,
        },
        b"more" => AcquireReply::More,
        b"gone" => AcquireReply::NotOwner,
        b"foreign" => AcquireReply::Foreign {
            found: words.rest(),
        },
        _ => return Err(Refusal::unreadable()),
    };
    Ok((reply, server_us))
}

/// Reads the reply of `release.lua`, and the server's time if the reply has it.
pub fn parse_release(reply: Option<&[u8]>) -> Result<(ReleaseReply, Option<u64>), Refusal> {
    let mut words = Words::of(reply)?;
    let verdict = match words.next()? {
        b"released" => Verdict::Free,
        b"handed" => Verdict::HandedOver,
        b"gone" => Verdict::NotOwner,
        _ => return Err(Refusal::unreadable()),
    };
    if words.is_at_end() {
        let more = false;
        return Ok((ReleaseReply { verdict, more }, None));
    }
    let server_us = words.time()?;
    let more = match words.rest().as_str() {
        "" => false,
        "more" => true,
        _ => return Err(Refusal::unreadable()),
    };
    Ok((ReleaseReply { verdict, more }, Some(server_us)))
}

/// Reads the reply of `renew.lua`, the value that a refused renewal found, and the server's time.
pub fn parse_renewal(reply: Option<&[u8]>) -> Result<(RenewReply, Option<String>, u64), Refusal> {
    let mut words = Words::of(reply)?;
    let verdict = words.next()?;
    let server_us = words.time()?;
    let reply = match verdict {
        b"held" => RenewReply::Held {
            token: words.token()?,
            remaining_ms: words.number()?,
        },
        b"gone" => RenewReply::NotOwner,
        _ => return Err(Refusal::unreadable()),
    };
    let found = (!words.is_at_end()).then(|| words.rest());
    Ok((reply, found, server_us))
}

/// The words of a native script's reply, separated by single spaces.
struct Words<'a> {
    left: Option<&'a [u8]>,
}

impl<'a> Words<'a> {
    fn of(reply: Option<&'a [u8]>) -> Result<Self, Refusal> {
        let left = Some(reply.ok_or_else(Refusal::unreadable)?);
        Ok(Self { left })
    }

    fn is_at_end(&self) -> bool {
        self.left.is_none()
    }

    fn next(&mut self) -> Result<&'a [u8], Refusal> {
        let left = self.left.take().ok_or_else(Refusal::unreadable)?;
        let Some(space) = left.iter().position(|byte| *byte == b' ') else {
            return Ok(left);
        };
        self.left = Some(&left[space + 1..]);
        Ok(&left[..space])
    }

    fn number(&mut self) -> Result<u64, Refusal> {
        number(self.next()?).ok_or_else(Refusal::unreadable)
    }

    /// Reads the two words of TIME.
    fn time(&mut self) -> Result<u64, Refusal> {
        let (seconds, micros) = (self.number()?, self.number()?);
        Ok(seconds.saturating_mul(1_000_000).saturating_add(micros))
    }

    fn token(&mut self) -> Result<FencingToken, Refusal> {
        self.number().map(FencingToken::new)
    }

    fn holder(&mut self) -> Result<RawHolder, Refusal> {
        // A key without an expiry has a negative time to live.
        let remaining = self.next()?;
        let remaining_ms = match remaining.strip_prefix(b"-") {
            Some(digits) => number(digits).map(|_| None),
            None => number(remaining).map(Some),
        };
        Ok(RawHolder {
            remaining_ms: remaining_ms.ok_or_else(Refusal::unreadable)?,
            value: self.rest(),
        })
    }

    /// Returns everything that is left. A foreign client may write a value that is not text.
    fn rest(&mut self) -> String {
        let left = self.left.take().unwrap_or_default();
        String::from_utf8_lossy(left).into_owned()
    }
}

#[cfg(test)]
mod tests;
