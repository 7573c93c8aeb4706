//! What operators do with locks of any dialect: read one, find and read many, and take one from its holder.
//!
//! | Operation | Commands |
//! |---|---|
//! | inspect | `inspect.lua`, or `redisson_inspect.lua` |
//! | scan | see below |
//! | force release | `force_release.lua`, or `redisson_force_release.lua`; see below |
//!
//! A scan either finds names or reads those that an earlier part has found:
//!
//! | Part | Commands | Next |
//! |---|---|---|
//! | find | `SCAN` | done, with names to read |
//! | read | native: `TIME`, and `GET`, `PTTL` and `ZCARD` for each key; Redisson: `redisson_inspect.lua` for each key | done, or count the holders of shared locks |
//! | count | `ZCARD` of the holders of each shared lock | done |
//!
//! A force release has up to three steps. Each begins after the reply to the one before:
//!
//! | Step | Reply | Next |
//! |---|---|---|
//! | take | another client's value that may be removed, with a digest that the operator hasn't seen | take the value with this digest |
//! | take the value with a digest | | as below |
//! | take, serve the queue | freed, but more dead waiters stand in the queue than one call removes | serve the queue |
//! | any | anything else | done |
//!
//! The last step only serves the queue, because the key may have another holder by then.

use super::redisson::publishers;
use super::replies::{Parts, accepted, server_time, wrong_type};
use super::{Codec, ExchangeFacts, LinkFacts, Notes, OpState, Progress, Step};
use crate::dialect::Dialect;
use crate::glob;
use crate::inspection::{
    FoundText, INSPECTED_MEMBERS, INSPECTED_WAITERS, InspectDetail, InspectReply, KeyContent,
    ListedLock, ReadTime, ScanPart, ScanPlace, ScanRequest, SeenKey, SeenMember, SeenMembers,
};
use crate::key::{LockKey, LockName};
use crate::lock_state::{
    ForceGrant, ForceMode, ForceReply, ForceRequest, ForceVerdict, ForeignValues,
};
use crate::op::{Op, OpKind, Outcome, Refusal};
use crate::owner_id::OwnerId;
use crate::resp::{CommandBuf, Replies, Reply, number};
use crate::scripts::{FORCE_RELEASE, INSPECT, REDISSON_FORCE_RELEASE, REDISSON_INSPECT};
use crate::wire::{OwnerText, SHARED};

/// The keys of one SCAN. With 500, a list of 500,000 keys takes 1,000 calls of less than a millisecond. With 5,000, it is a
/// tenth faster, but each call blocks the server ten times as long.
pub const SCANNED_PER_CALL: u64 = 500;

/// The commands for each key of a list: GET, PTTL and ZCARD.
const COMMANDS_PER_KEY: usize = 3;

/// The reply to PTTL for a key that does not exist.
const NO_KEY: i64 = -2;

/// Asks the script for the digest of a foreign value.
const ASK_DIGEST: &str = "?";

/// The codec of operators.
#[derive(Clone, Copy, Debug)]
pub struct Operators {
    /// Notifications are sharded, as in a cluster.
    pub is_sharded: bool,
}

/// How far a force release has come.
#[derive(Clone, Debug)]
pub struct ForceState {
    step: ForceStep,
    /// The reply that freed the key, once only the queue is left.
    freed: Option<(ReadTime, ForceReply)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ForceStep {
    /// Takes the lock, or the foreign value with this digest.
    Take {
        digest: String,
    },
    ServeQueue,
}

/// How far a scan has come.
#[derive(Clone, Debug)]
pub struct ScanState {
    step: ScanStep,
    /// Where the server goes on; `None` when it has returned all keys.
    next: Option<u64>,
    /// Found names that are left for a later part.
    pending: Vec<String>,
    /// The locks that this part reads.
    names: Vec<LockName>,
    keys: Vec<LockKey>,
}

#[derive(Clone, Debug)]
enum ScanStep {
    Find {
        cursor: u64,
    },
    Read,
    /// Counts the holders of the shared locks, whose places in `found` are `shared`.
    Count {
        found: Vec<InspectReply>,
        shared: Vec<usize>,
    },
}

impl Codec for Operators {
    fn next(&self, op: &mut Op<'_>, facts: &ExchangeFacts<'_>) -> Step {
        op.sent_at = facts.now;
        match (&op.kind, &mut op.state) {
            (OpKind::Scan(request), OpState::New) => {
                let Some(state) = ScanState::begin(request) else {
                    return Step::Done(Box::new(Ok(scanned(ScanPart::default()))));
                };
                let commands = state.commands();
                op.state = OpState::Scan(Box::new(state));
                return Step::Send { commands };
            }
            (_, OpState::Scan(state)) => {
                let commands = state.commands();
                return Step::Send { commands };
            }
            (OpKind::Force(request), OpState::New) => {
                op.state = OpState::Force(Box::new(ForceState::new(request)));
            }
            (OpKind::Force(_), _) => {}
            _ => op.state = OpState::Sent,
        }
        Step::Send { commands: 1 }
    }

    fn encode(&self, op: &Op<'_>, link: &LinkFacts<'_>, out: &mut CommandBuf<'_>) {
        match (&op.kind, &op.state) {
            (OpKind::Inspect(key, detail), _) => write_inspect(key, *detail, out),
            (OpKind::Scan(request), OpState::Scan(state)) => state.write(request, out),
            (OpKind::Force(request), OpState::Force(state)) => {
                self.write_force(request, state, link, out);
            }
            _ => debug_assert!(false, "not an operation of operators"),
        }
    }

    fn read(
        &self,
        op: &mut Op<'_>,
        _: &LinkFacts<'_>,
        replies: &mut Replies<'_>,
        notes: &mut Notes,
    ) -> Progress {
        let read = match &op.kind {
            OpKind::Force(request) => return read_force(request, &mut op.state, replies, notes),
            OpKind::Scan(request) => return read_scan(request, &mut op.state, replies),
            OpKind::Inspect(key, _) => accepted(replies.next()).and_then(|reply| {
                let (found, server_us) = if is_redisson(key) {
                    parse_redisson_inspect(reply)?
                } else {
                    parse_inspect(reply)?
                };
                notes.server_us = Some(server_us);
                Ok(Outcome::Inspected(Box::new(found)))
            }),
            _ => Err(Refusal::unreadable()),
        };
        Progress::Done(read)
    }
}

fn is_redisson(key: &LockKey) -> bool {
    matches!(key.dialect(), Dialect::Redisson { .. })
}

fn write_inspect(key: &LockKey, detail: InspectDetail, out: &mut CommandBuf<'_>) {
    if is_redisson(key) {
        out.script(&REDISSON_INSPECT, &[key.as_str()]);
        return;
    }
    let detail = match detail {
        InspectDetail::Short => "",
        InspectDetail::Digest => "digest",
    };
    out.script(&INSPECT, &[key.as_str(), key.queue(), key.holders()])
        .arg(INSPECTED_WAITERS)
        .arg(detail)
        .arg(INSPECTED_MEMBERS);
}

impl ScanState {
    /// Begins a part of a scan. Returns `None` if nothing is left.
    fn begin(request: &ScanRequest) -> Option<Self> {
        let (next, pending) = match &request.at {
            Some(ScanPlace::Cursor { next, pending }) => (*next, pending.clone()),
            Some(ScanPlace::After(_) | ScanPlace::Server { .. }) | None => (Some(0), Vec::new()),
        };
        let mut state = Self {
            step: ScanStep::Read,
            next,
            pending: Vec::new(),
            names: Vec::new(),
            keys: Vec::new(),
        };
        let mut pending = pending.into_iter();
        while state.keys.len() < request.limit
            && let Some(name) = pending.next()
        {
            let name = LockName::from(name);
            if let Some(key) = request.key(&name) {
                state.names.push(name);
                state.keys.push(key);
            }
        }
        state.pending = pending.collect();
        if state.keys.is_empty() {
            let cursor = state.next?;
            state.step = ScanStep::Find { cursor };
        }
        Some(state)
    }

    /// Returns the number of commands of the step.
    fn commands(&self) -> usize {
        match &self.step {
            ScanStep::Find { .. } => 1,
            ScanStep::Read if self.is_redisson() => self.keys.len(),
            ScanStep::Read => 1 + COMMANDS_PER_KEY * self.keys.len(),
            ScanStep::Count { shared, .. } => shared.len(),
        }
    }

    fn is_redisson(&self) -> bool {
        self.keys.first().is_some_and(is_redisson)
    }

    fn write(&self, request: &ScanRequest, out: &mut CommandBuf<'_>) {
        match &self.step {
            ScanStep::Find { cursor } => write_scan(request, *cursor, out),
            ScanStep::Read if self.is_redisson() => {
                for key in &self.keys {
                    out.script(&REDISSON_INSPECT, &[key.as_str()]);
                }
            }
            ScanStep::Read => {
                out.command("TIME");
                for key in &self.keys {
                    out.command("GET").arg(key.as_str());
                    out.command("PTTL").arg(key.as_str());
                    out.command("ZCARD").arg(key.queue());
                }
            }
            ScanStep::Count { shared, .. } => {
                for key in shared.iter().filter_map(|at| self.keys.get(*at)) {
                    out.command("ZCARD").arg(key.holders());
                }
            }
        }
    }

    /// Reads the replies to a step. Returns the part after the last step; `None` if another one follows.
    fn read(
        &mut self,
        request: &ScanRequest,
        replies: &mut Replies<'_>,
    ) -> Result<Option<ScanPart>, Refusal> {
        let found = match std::mem::replace(&mut self.step, ScanStep::Read) {
            ScanStep::Find { .. } => {
                let (next, keys) = found_keys(accepted(replies.next())?)?;
                let name = |key| {
                    let key = String::from_utf8(key).ok()?;
                    Some(key.strip_prefix(&*request.prefix)?.to_owned())
                };
                self.pending = keys.into_iter().filter_map(name).collect();
                self.next = next;
                return Ok(Some(self.part(SCANNED_PER_CALL, Vec::new())));
            }
            ScanStep::Read if self.is_redisson() => self
                .keys
                .iter()
                .map(|_| Ok(parse_redisson_inspect(accepted(replies.next())?)?.0))
                .collect::<Result<Vec<_>, Refusal>>()?,
            ScanStep::Read => {
                let found = read_natives(self.keys.len(), replies)?;
                let shared = shared(&found);
                // Most lists have none, and need no further exchange.
                if !shared.is_empty() {
                    self.step = ScanStep::Count { found, shared };
                    return Ok(None);
                }
                found
            }
            ScanStep::Count { mut found, shared } => {
                for at in shared {
                    let total = if_right_type(replies.next())?.map_or(Ok(0), count)?;
                    if let Some(found) = found.get_mut(at) {
                        found.members.total = total;
                    }
                }
                found
            }
        };
        Ok(Some(self.part(0, found)))
    }

    /// Makes the part of what was read. Leaves out keys that have expired or hold something else by now.
    fn part(&mut self, scanned: u64, found: Vec<InspectReply>) -> ScanPart {
        let (names, keys) = (self.names.drain(..), self.keys.drain(..));
        let locks = names.zip(keys).zip(found);
        let locks = locks.filter(|(_, found)| matches!(found.content, KeyContent::Text(_)));
        let locks = locks.map(|((name, key), found)| ListedLock { name, key, found });
        let locks = locks.collect();
        let pending = std::mem::take(&mut self.pending);
        let is_last = self.next.is_none() && pending.is_empty();
        ScanPart {
            locks,
            scanned,
            next: (!is_last).then_some(ScanPlace::Cursor {
                next: self.next,
                pending,
            }),
        }
    }
}

fn scanned(part: ScanPart) -> Outcome {
    Outcome::Scanned(Box::new(part))
}

/// Returns the places of shared locks.
fn shared(found: &[InspectReply]) -> Vec<usize> {
    let is_shared = |found: &InspectReply| matches!(&found.content, KeyContent::Text(text) if text.holder.value.starts_with(SHARED));
    let places = found.iter().enumerate();
    let places = places.filter(|(_, found)| is_shared(found));
    places.map(|(at, _)| at).collect()
}

fn write_scan(request: &ScanRequest, cursor: u64, out: &mut CommandBuf<'_>) {
    let kind = match request.dialect {
        Dialect::Redisson { .. } => "hash",
        _ => "string",
    };
    let pattern = glob::escape(&request.prefix) + &request.pattern;
    out.command("SCAN")
        .arg(cursor)
        .arg("MATCH")
        .arg(&pattern)
        .arg("COUNT")
        .arg(SCANNED_PER_CALL)
        .arg("TYPE")
        .arg(kind);
}

/// Reads where the server goes on, and the keys that it has found.
fn found_keys(reply: Reply<'_>) -> Result<(Option<u64>, Vec<Vec<u8>>), Refusal> {
    let mut parts = reply.items().ok_or_else(Refusal::unreadable)?;
    let cursor = parts
        .next()
        .and_then(Reply::text)
        .and_then(number)
        .ok_or_else(Refusal::unreadable)?;
    let keys = parts.next().and_then(Reply::items);
    let keys = keys.ok_or_else(Refusal::unreadable)?;
    let keys = keys.map(|key| key.text().map(<[u8]>::to_vec));
    let keys: Option<Vec<_>> = keys.collect();
    let keys = keys.ok_or_else(Refusal::unreadable)?;
    Ok(((cursor != 0).then_some(cursor), keys))
}

fn read_scan(request: &ScanRequest, state: &mut OpState, replies: &mut Replies<'_>) -> Progress {
    let OpState::Scan(state) = state else {
        return Progress::Done(Err(Refusal::unreadable()));
    };
    match state.read(request, replies) {
        Ok(None) => Progress::Next,
        Ok(Some(part)) => Progress::Done(Ok(scanned(part))),
        Err(refusal) => Progress::Done(Err(refusal)),
    }
}

fn read_natives(keys: usize, replies: &mut Replies<'_>) -> Result<Vec<InspectReply>, Refusal> {
    let time = ReadTime::of_server(server_time(accepted(replies.next())?)?);
    let mut found = Vec::with_capacity(keys);
    for _ in 0..keys {
        let value = if_right_type(replies.next())?;
        let pttl = accepted(replies.next())?.integer();
        let pttl = pttl.ok_or_else(Refusal::unreadable)?;
        let total = if_right_type(replies.next())?.map_or(Ok(0), count)?;
        // Another client may have replaced the string since it was found.
        let value = value.and_then(Reply::text).filter(|_| pttl != NO_KEY);
        let content = value.map_or(KeyContent::Free, |value| {
            KeyContent::Text(FoundText::new(u64::try_from(pttl).ok(), value.to_vec()))
        });
        found.push(InspectReply {
            content,
            total,
            ..InspectReply::of_nothing(time)
        });
    }
    Ok(found)
}

/// Returns the reply; `None` when the key has another type than the command is for.
fn if_right_type(reply: Option<Reply<'_>>) -> Result<Option<Reply<'_>>, Refusal> {
    match reply {
        Some(reply) if wrong_type(&reply).is_some() => Ok(None),
        reply => accepted(reply).map(Some),
    }
}

fn count(reply: Reply<'_>) -> Result<u64, Refusal> {
    let number = reply.integer().and_then(|count| u64::try_from(count).ok());
    number.ok_or_else(Refusal::unreadable)
}

/// Reads the reply of `inspect.lua`, and the server's time in microseconds.
pub fn parse_inspect(reply: Reply<'_>) -> Result<(InspectReply, u64), Refusal> {
    let mut parts = Parts::of(reply)?;
    let verdict = parts.bytes()?;
    let server_us = parts.count()?;
    let total = parts.count()?;
    let mut members = SeenMembers::default();
    let content = match verdict {
        b"free" => KeyContent::Free,
        b"shared" => {
            let found = parts.found_text()?;
            members.total = parts.count()?;
            // The reply comes from a server, which may send any number.
            let shown = parts.count()?;
            for _ in 0..shown.min(INSPECTED_MEMBERS as u64) {
                members.first.push(SeenMember {
                    text: parts.text()?,
                    remaining_ms: Some(parts.count()?),
                });
            }
            KeyContent::Text(found)
        }
        b"held" => KeyContent::Text(parts.found_text()?),
        b"foreign" => KeyContent::OtherType {
            kind: parts.text()?,
            digest: parts.text()?,
        },
        _ => return Err(Refusal::unreadable()),
    };
    let reply = InspectReply {
        time: ReadTime::of_server(server_us),
        content,
        total,
        entries: parts.texts()?,
        members,
    };
    Ok((reply, server_us))
}

fn parse_redisson_inspect(reply: Reply<'_>) -> Result<(InspectReply, u64), Refusal> {
    let mut parts = Parts::of(reply)?;
    let verdict = parts.bytes()?;
    let server_us = parts.count()?;
    let content = match verdict {
        b"free" => KeyContent::Free,
        b"held" => KeyContent::Text(parts.found_text()?),
        b"foreign" => KeyContent::OtherType {
            kind: parts.text()?,
            digest: String::new(),
        },
        _ => return Err(Refusal::unreadable()),
    };
    let reply = InspectReply {
        content,
        ..InspectReply::of_nothing(ReadTime::of_server(server_us))
    };
    Ok((reply, server_us))
}

impl ForceState {
    fn new(request: &ForceRequest) -> Self {
        let digest = match request.foreign {
            ForeignValues::Keep => "",
            ForeignValues::Remove => seen_digest(request).unwrap_or(ASK_DIGEST),
        };
        Self {
            step: ForceStep::Take {
                digest: digest.to_owned(),
            },
            freed: None,
        }
    }
}

fn seen_digest(request: &ForceRequest) -> Option<&str> {
    request.seen.as_ref().and_then(SeenKey::digest)
}

impl Operators {
    fn write_force(
        self,
        request: &ForceRequest,
        state: &ForceState,
        link: &LinkFacts<'_>,
        out: &mut CommandBuf<'_>,
    ) {
        let (mode, token, digest, seen) = match &state.step {
            ForceStep::Take { digest } => (
                request.mode,
                request.token,
                digest.as_str(),
                request.seen.as_ref(),
            ),
            ForceStep::ServeQueue => (ForceMode::Grant, None, "", None),
        };
        let (key, label) = (&request.key, &request.label);
        let seen = seen_argument(seen);
        if is_redisson(key) {
            let has_counter = key.dialect().capabilities().is_fenced();
            let counter = has_counter.then(|| key.redisson_counter());
            let mut keys = vec![key.as_str()];
            keys.extend(counter.as_deref());
            let mut command = out.script(&REDISSON_FORCE_RELEASE, &keys);
            command.arg(match mode {
                ForceMode::Revoke => "revoke",
                ForceMode::Now | ForceMode::Grant => "now",
            });
            command.arg(OwnerText {
                owner_id: OwnerId::nil(),
                label,
            });
            match token {
                Some(token) => command.arg(token),
                None => command.arg(""),
            };
            command.arg(digest).arg(&seen).arg(&*key.redisson_channel());
            for publisher in publishers(self.is_sharded) {
                command.arg(*publisher);
            }
            return;
        }
        let mut command = out.script(FORCE_RELEASE.of(self.is_sharded), &key.all());
        command.arg(match mode {
            ForceMode::Revoke => "revoke",
            ForceMode::Now => "now",
            ForceMode::Grant => "grant",
        });
        command.arg(link.floor_us).arg(link.lead_us).arg(label);
        match token {
            Some(token) => command.arg(token),
            None => command.arg(""),
        };
        command.arg(digest).arg(&seen);
    }
}

/// Returns the argument of the script that says what the key must hold.
pub fn seen_argument(seen: Option<&SeenKey>) -> Vec<u8> {
    match seen {
        None => Vec::new(),
        Some(SeenKey::Free) => b"none".into(),
        Some(SeenKey::Text(bytes)) => [b"string ", &bytes[..]].concat(),
        Some(SeenKey::OtherType { kind, .. }) => kind.clone().into_bytes(),
    }
}

fn read_force(
    request: &ForceRequest,
    state: &mut OpState,
    replies: &mut Replies<'_>,
    notes: &mut Notes,
) -> Progress {
    let lock_type = if is_redisson(&request.key) {
        "lock"
    } else {
        "string"
    };
    let read = accepted(replies.next()).and_then(|reply| parse_force(reply, lock_type));
    let (mut reply, server_us) = match read {
        Ok(read) => read,
        // The key is free already. The next acquire serves the queue.
        Err(refusal) => return Progress::Done(freed(state).ok_or(refusal)),
    };
    notes.server_us = Some(server_us);
    let OpState::Force(state) = state else {
        return Progress::Done(Err(Refusal::unreadable()));
    };
    let removes = request.foreign == ForeignValues::Remove;
    if let (ForceVerdict::Foreign { digest }, ForceStep::Take { digest: named }) =
        (&reply.verdict, &state.step)
        && removes
        && named == ASK_DIGEST
    {
        let digest = digest.clone();
        state.step = ForceStep::Take { digest };
        return Progress::Next;
    }
    if let ForceVerdict::Foreign { .. } = reply.verdict
        && removes
        && seen_digest(request).is_some()
    {
        reply.verdict = ForceVerdict::Changed;
    }
    let time = ReadTime::of_server(server_us);
    if reply.verdict == ForceVerdict::Freed(ForceGrant::More) {
        state.step = ForceStep::ServeQueue;
        state.freed.get_or_insert((time, reply));
        return Progress::Next;
    }
    let (time, reply) = match state.freed.take() {
        Some((time, freed)) => {
            let verdict = reply.verdict;
            (time, ForceReply { verdict, ..freed })
        }
        None => (time, reply),
    };
    Progress::Done(Ok(Outcome::Forced(time, Box::new(reply))))
}

/// Returns the outcome of a force release that has freed the key, and hasn't served its queue.
pub fn freed(state: &mut OpState) -> Option<Outcome> {
    let OpState::Force(state) = state else {
        return None;
    };
    let (time, reply) = state.freed.take()?;
    Some(Outcome::Forced(time, Box::new(reply)))
}

/// Reads the reply of a force release, and the server's time in microseconds. `lock_type` is the type of a key that is a
/// lock.
pub fn parse_force(reply: Reply<'_>, lock_type: &str) -> Result<(ForceReply, u64), Refusal> {
    let mut parts = Parts::of(reply)?;
    let verdict = parts.bytes()?;
    let server_us = parts.count()?;
    let found = parts.text()?;
    let text = parts.found_text()?;
    let locked_ms = text.holder.remaining_ms.unwrap_or(0);
    let content = match found.as_str() {
        "none" => KeyContent::Free,
        found if found == lock_type => KeyContent::Text(text),
        _ => KeyContent::OtherType {
            kind: found,
            digest: String::new(),
        },
    };
    let verdict = match verdict {
        b"free" => ForceVerdict::Free,
        b"changed" => ForceVerdict::Changed,
        b"endless" => ForceVerdict::Endless,
        b"foreign" => ForceVerdict::Foreign {
            digest: parts.text()?,
        },
        b"revoked" => ForceVerdict::Revoked { locked_ms },
        b"freed" => ForceVerdict::Freed(match parts.bytes()? {
            b"none" => ForceGrant::None,
            b"waiter" => ForceGrant::Waiter,
            b"more" => ForceGrant::More,
            _ => return Err(Refusal::unreadable()),
        }),
        _ => return Err(Refusal::unreadable()),
    };
    Ok((ForceReply { verdict, content }, server_us))
}
