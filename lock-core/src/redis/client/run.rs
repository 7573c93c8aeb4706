//! Runs operations over a connection.
//!
//! All calls go round together. In each round, every call without an outcome puts its next commands into one buffer,
//! which goes out as one exchange, and then reads its part of the replies:
//!
//! | A call | In the next round |
//! |---|---|
//! | has an outcome | takes no part |
//! | met a server that doesn't know its script | sends the same commands again, with the script's text |
//! | waits, and its channel isn't known | first waits for the subscription, for at most half of its time |
//! | asked for another lane | takes no part; the lanes follow when the shared rounds have ended |
//!
//! # Lanes
//!
//! Calls [in turn](Lane::InTurn) run together, while no other exchange of that lane is under way. Transactions run one
//! by one, each alone on a connection that does nothing else. A transaction that another client has disturbed gives up
//! its turn before it begins again. The two lanes run side by side, so that neither waits for the other.
//!
//! # Cancel safety
//!
//! Nothing is sent before the first poll, and everything that is sent is recorded in the operations before. A caller may
//! therefore drop the future at any await: a dropped round leaves an acquire whose copy is recorded, and a release or a
//! renewal without an outcome.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::RedisClient;
use crate::error::LockError;
use crate::error::texts::RefusedBy;
use crate::redis::channels::Phase;
use crate::redis::connection::Connection;
use crate::redis::errors::{breaks_connection, timed_out};
use crate::redis::transport::Expected;
use crate::redis::transport::Subscribing;
use crate::store::{Call, Together, fail_all};
use crate::telemetry::LockEvent;
use lock_protocol::clock::{Clock, Deadline, Moment};
use lock_protocol::codec::native::{SetMode, SetResult};
use lock_protocol::codec::operators::freed;
use lock_protocol::codec::{
    Channel, CodecEvent, ExchangeFacts, Lane, LinkFacts, Notes, Progress, Step,
};
use lock_protocol::key::LockKey;
use lock_protocol::op::{Op, OpKind, Outcome, Refusal};
use lock_protocol::resp::{CommandBuf, LOCK_REPLY, Replies, Reply, ScriptsBy};

/// Whether messages on a channel arrive, and its name.
type KnownChannel = (bool, Arc<str>);

/// What a round sends.
enum Prepared {
    Nothing,
    /// Commands, and the moment for which they were decided.
    Exchange(Expected, Moment),
    /// Nothing, until waiters know their channels.
    Subscribe,
}

/// Why the rounds of a lane ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::redis) enum RoundsEnd {
    /// No call has anything left to send.
    Idle,
    /// Another client has disturbed a transaction.
    Disturbed,
}

/// Encodes what the calls of a lane send.
struct Writer<'a, 'c, 'o> {
    client: &'a RedisClient,
    connection: &'a Connection,
    calls: &'a [&'c mut Call<'o>],
    lane: Lane,
}

impl Writer<'_, '_, '_> {
    fn write(&self, out: &mut Vec<u8>) {
        let link = link_facts(self.connection);
        let form = self.connection.abilities.script_form();
        let open = self.calls.iter().filter(|call| is_open(call, self.lane));
        for call in open {
            let out = CommandBuf::with_scripts(out, form, call.run.scripts);
            let mut out = out.asking(self.connection.is_asking());
            let codec = self.client.codecs.of(&call.op);
            codec.encode(&call.op, &link, &mut out);
        }
    }
}

impl RedisClient {
    /// Runs the calls until each has an outcome. A call that runs out of time gets the error of the connection.
    pub(in crate::redis) async fn run(
        &self,
        connection: &Connection,
        calls: &mut [&mut Call<'_>],
        deadline: Deadline,
    ) {
        self.rounds(connection, calls, Lane::Shared, deadline).await;
        if needs_lanes(calls) {
            Box::pin(self.run_lanes(connection, calls, deadline)).await;
        }
    }

    /// Runs the calls that have asked for another lane.
    pub(in crate::redis) async fn run_lanes(
        &self,
        connection: &Connection,
        calls: &mut [&mut Call<'_>],
        deadline: Deadline,
    ) {
        let (mut in_turn, mut transactions) = split(calls, |call| call.run.lane == Lane::InTurn);
        tokio::join!(
            self.run_in_turn(connection, &mut in_turn, deadline),
            self.run_transactions(&mut transactions, deadline)
        );
    }

    async fn run_in_turn(
        &self,
        connection: &Connection,
        calls: &mut [&mut Call<'_>],
        deadline: Deadline,
    ) {
        if !has_open(calls, Lane::InTurn) {
            return;
        }
        let turn = tokio::time::timeout(deadline.left(), self.in_turn.lock()).await;
        let Ok(_turn) = turn else {
            end_all(
                calls,
                Lane::InTurn,
                &timed_out("other renewals are running"),
            );
            return;
        };
        self.rounds(connection, calls, Lane::InTurn, deadline).await;
    }

    pub(in crate::redis) async fn run_transactions(
        &self,
        calls: &mut [&mut Call<'_>],
        deadline: Deadline,
    ) {
        if !has_open(calls, Lane::Transactions) {
            return;
        }
        let connection = match self.transactions.for_current_runtime(deadline).await {
            Ok(connection) => connection,
            Err(error) => return end_all(calls, Lane::Transactions, &error),
        };
        let open = calls
            .iter_mut()
            .filter(|call| is_open(call, Lane::Transactions));
        for call in open {
            let alone = std::slice::from_mut(call);
            loop {
                // Given up between two tries, so that a busy key blocks no other transaction.
                let turn = tokio::time::timeout(deadline.left(), connection.turn.lock()).await;
                let Ok(_turn) = turn else {
                    let error = timed_out("other transactions are running");
                    end_all(alone, Lane::Transactions, &error);
                    break;
                };
                if deadline.left().is_zero() {
                    let error = timed_out("other clients keep changing the key");
                    end_all(alone, Lane::Transactions, &error);
                }
                let end = self
                    .rounds(&connection, alone, Lane::Transactions, deadline)
                    .await;
                if end == RoundsEnd::Idle {
                    break;
                }
            }
        }
    }

    /// Makes exchanges for the calls of a lane, until none of them has anything left to send.
    ///
    /// What a round needs is computed where it is needed, so that the future stays small: each pair of an acquire and a
    /// release allocates it twice.
    pub(in crate::redis) async fn rounds(
        &self,
        connection: &Connection,
        calls: &mut [&mut Call<'_>],
        lane: Lane,
        deadline: Deadline,
    ) -> RoundsEnd {
        loop {
            let (expected, now) = match self.prepare(connection, calls, lane) {
                Prepared::Nothing => return RoundsEnd::Idle,
                Prepared::Exchange(expected, now) => (expected, now),
                Prepared::Subscribe => {
                    Box::pin(self.learn_channels(connection, calls, deadline)).await;
                    continue;
                }
            };
            let exchanged = {
                let writer = Writer {
                    client: self,
                    connection,
                    calls,
                    lane,
                };
                let write = |out: &mut Vec<u8>| writer.write(out);
                let limit = deadline.left_at(now);
                connection.exchange(write, expected, limit).await
            };
            match exchanged {
                Ok(replies) => {
                    if self.read(connection, calls, lane, &replies) {
                        return RoundsEnd::Disturbed;
                    }
                }
                Err(error) => {
                    end_all(calls, lane, &error);
                    return RoundsEnd::Idle;
                }
            }
        }
    }

    /// Decides what each call of a lane sends in this round.
    fn prepare(
        &self,
        connection: &Connection,
        calls: &mut [&mut Call<'_>],
        lane: Lane,
    ) -> Prepared {
        if !has_open(calls, lane) {
            return Prepared::Nothing;
        }
        let link = link_facts(connection);
        let now = Clock::System.now();
        let (mut replies, mut largest) = (0, 0);
        let mut wants_channel = false;
        for call in calls.iter_mut().filter(|call| is_open(call, lane)) {
            if call.run.scripts == ScriptsBy::Hash {
                let known = match call.run.channel.take() {
                    Some(known) => Some(*known),
                    None => self.known_channel(&call.op, &link),
                };
                let step = self.next(connection, &link, call, known.as_ref(), now, replies == 0);
                call.run.commands = 0;
                match step {
                    Step::Send { commands } => {
                        call.run.commands = u32::try_from(commands).unwrap_or(u32::MAX);
                    }
                    Step::Over(lane) => call.run.lane = lane,
                    Step::Done(outcome) => end(connection, call, *outcome),
                    // The others go first. What was decided for them must not be decided twice.
                    Step::Subscribe => wants_channel = true,
                }
            }
            replies += call.run.commands as usize;
            largest = largest.max(call.op.largest_reply());
        }
        match replies {
            0 if wants_channel => Prepared::Subscribe,
            0 => Prepared::Nothing,
            _ => Prepared::Exchange(Expected { replies, largest }, now),
        }
    }

    /// Waits for the subscriptions of waiters whose channel isn't known.
    async fn learn_channels(
        &self,
        connection: &Connection,
        calls: &mut [&mut Call<'_>],
        deadline: Deadline,
    ) {
        let link = link_facts(connection);
        for call in calls.iter_mut() {
            let is_open = call.outcome.is_none() && call.op.waits();
            if is_open && self.known_channel(&call.op, &link).is_none() {
                let known = self.channel(&call.op, &link, deadline).await;
                call.run.channel = Some(Box::new(known));
            }
        }
    }

    fn next(
        &self,
        connection: &Connection,
        link: &LinkFacts<'_>,
        call: &mut Call<'_>,
        known: Option<&KnownChannel>,
        now: Moment,
        is_first: bool,
    ) -> Step {
        let facts = self.exchange_facts(connection, link, call.run.lane, known, now);
        let facts = ExchangeFacts { is_first, ..facts };
        self.codecs.of(&call.op).next(&mut call.op, &facts)
    }

    fn exchange_facts<'a>(
        &self,
        connection: &Connection,
        link: &'a LinkFacts<'a>,
        lane: Lane,
        known: Option<&'a KnownChannel>,
        now: Moment,
    ) -> ExchangeFacts<'a> {
        ExchangeFacts {
            link,
            now,
            not_after: self.not_after(connection, now),
            command_timeout: self.command_timeout,
            channel: match known {
                Some((true, channel)) => Channel::Up(channel),
                Some((false, channel)) => Channel::Down(channel),
                None => Channel::Unknown,
            },
            lane,
            is_first: true,
        }
    }

    /// Gives each call its part of the replies. Returns whether another client has disturbed a transaction.
    fn read(
        &self,
        connection: &Connection,
        calls: &mut [&mut Call<'_>],
        lane: Lane,
        replies: &[u8],
    ) -> bool {
        let renews = |call: &&mut Call<'_>| matches!(call.op.kind, OpKind::Renew(..));
        let link = &LinkFacts {
            changed_at: calls
                .iter()
                .any(renews)
                .then(|| self.server_changed_at(connection))
                .flatten(),
            ..link_facts(connection)
        };
        let received = Clock::System.now();
        let mut replies = Replies::new(replies);
        let mut is_disturbed = false;
        let mut is_any_unknown = false;
        for call in calls.iter_mut().filter(|call| is_open(call, lane)) {
            let mut part = replies.take_part(call.run.commands as usize);
            let may_be_unknown = call.run.commands > 1 || part.begins_with_error();
            if call.run.scripts == ScriptsBy::Hash
                && may_be_unknown
                && part.clone().any(is_unknown_script)
            {
                call.run.scripts = ScriptsBy::Text;
                is_any_unknown = true;
                continue;
            }
            if is_any_unknown && matches!(call.op.kind, OpKind::Wait(_)) {
                // It counted what stood in front of it, and that is sent again.
                continue;
            }
            call.run.scripts = ScriptsBy::Hash;
            let mut notes = Notes::new(received);
            let codec = self.codecs.of(&call.op);
            let progress = codec.read(&mut call.op, link, &mut part, &mut notes);
            is_disturbed |= notes.event == Some(CodecEvent::TransactionRepeated);
            let notified_others = self.record(connection, link, &call.op, notes);
            if let Progress::Done(mut outcome) = progress {
                if let Ok(Outcome::Released(released)) = &mut outcome {
                    released.notified_others = notified_others;
                }
                end(connection, call, outcome);
            }
        }
        is_disturbed
    }

    /// Records what the replies say beside the outcome. Returns whether other clients received a message about a release.
    fn record(
        &self,
        connection: &Connection,
        link: &LinkFacts<'_>,
        op: &Op<'_>,
        notes: Notes,
    ) -> bool {
        if let Some(server_us) = notes.server_us {
            self.record_server_time(connection, op.sent_at, server_us);
        }
        let (Some(event), Some(key)) = (notes.event, op.key()) else {
            return false;
        };
        match event {
            CodecEvent::ExpiryRepaired => {
                let lock = self.reporter.id(key);
                self.reporter.emit(&LockEvent::ExpiryRepaired { lock });
            }
            CodecEvent::TransactionRepeated => {
                let lock = self.reporter.id(key);
                self.reporter.emit(&LockEvent::TransactionRepeated { lock });
            }
            CodecEvent::ReleaseHeard { receivers, refused } => {
                if let Some(refused) = refused
                    && !self
                        .is_refusal_of_messages_known
                        .swap(true, Ordering::Relaxed)
                {
                    self.report_refused_messages(&refused);
                }
                return receivers > self.channels.own_subscriptions(key, link.run_id);
            }
        }
        false
    }

    fn report_refused_messages(&self, error: &str) {
        self.reporter.emit(&LockEvent::ServerRestricted {
            server: &self.pool.connector.node().server,
            command: "PUBLISH",
            effect: "waiters in Redisson do not learn of all releases, and sleep until the end of the lease that \
                     they have seen",
            error,
        });
    }

    /// Acquires the native locks of a set whose keys are in one slot by one command. A call without an outcome was not
    /// acquired: the command ended at an earlier one, or has released it. The error of a command that had no effect
    /// is the outcome of the first call.
    pub(in crate::redis) async fn run_set(
        &self,
        calls: &mut [&mut Call<'_>],
        together: Together,
        deadline: Deadline,
    ) {
        let mode = match together {
            Together::AllOrNone => SetMode::AllOrNone,
            Together::InOrder | Together::Each => SetMode::InOrder,
        };
        let connection = match self.pool.for_current_runtime(deadline).await {
            Ok(connection) => connection,
            Err(error) => return fail_all(&mut calls[..1], &error),
        };
        let connection = &*connection;
        let link = link_facts(connection);
        let mut ops: Vec<_> = calls.iter_mut().map(|call| &mut call.op).collect();
        let results = self.exchange_set(connection, &link, &mut ops, mode, deadline);
        let results = results.await.unwrap_or_else(|error| vec![(0, Err(error))]);
        for (at, result) in results {
            if let Some(call) = calls.get_mut(at) {
                call.outcome = Some(result);
            }
        }
    }

    async fn exchange_set(
        &self,
        connection: &Connection,
        link: &LinkFacts<'_>,
        ops: &mut [&mut Op<'_>],
        mode: SetMode,
        deadline: Deadline,
    ) -> Result<Vec<(usize, Result<Outcome, LockError>)>, LockError> {
        let native = &self.codecs.native;
        let mut now = Clock::System.now();
        let mut known = ops.first().and_then(|op| self.known_channel(op, link));
        let facts = self.exchange_facts(connection, link, Lane::Shared, known.as_ref(), now);
        if let Step::Subscribe = native.next_set(ops, &facts)
            && let Some(first) = ops.first()
        {
            known = Some(self.channel(first, link, deadline).await);
            now = Clock::System.now();
            let facts = self.exchange_facts(connection, link, Lane::Shared, known.as_ref(), now);
            native.next_set(ops, &facts);
        }
        let form = connection.abilities.script_form();
        let expected = Expected {
            replies: 1,
            largest: LOCK_REPLY,
        };
        let mut scripts = ScriptsBy::Hash;
        loop {
            let write = |out: &mut Vec<u8>| {
                let out = CommandBuf::with_scripts(out, form, scripts);
                let mut out = out.asking(connection.is_asking());
                native.encode_set(ops, mode, link, &mut out);
            };
            let exchanged = connection.exchange(write, expected, deadline.left());
            let replies = exchanged.await?;
            let mut replies = Replies::new(&replies);
            if scripts == ScriptsBy::Hash && replies.clone().any(is_unknown_script) {
                scripts = ScriptsBy::Text;
                continue;
            }
            let mut notes = Notes::new(Clock::System.now());
            let results = native.read_set(ops, link, &mut replies, &mut notes);
            let Some(first) = ops.first() else {
                return Ok(Vec::new());
            };
            self.record(connection, link, first, notes);
            let to_outcome = |(at, result): SetResult| {
                let key = ops.get(at).and_then(|op| op.key());
                let result = result.map_err(|refusal| refused(connection, key, &refusal));
                (at, result)
            };
            return match results {
                Ok(results) => Ok(results.into_iter().map(to_outcome).collect()),
                Err(refusal) => Err(refused(connection, first.key(), &refusal)),
            };
        }
    }

    /// Returns the channel of a waiter, if it is subscribed already.
    fn known_channel(&self, op: &Op<'_>, link: &LinkFacts<'_>) -> Option<KnownChannel> {
        if !op.waits() {
            return None;
        }
        let key = op.key()?;
        if key.dialect().notifies_all_waiters() {
            let is_up = self.channels.keep_key_if_up(key, link.run_id);
            return is_up.then(|| (true, key.text()));
        }
        if self.is_sharded() {
            return None;
        }
        let manager = self.channels.manager();
        let phase = self.channels.phase(Subscribing::Classic, manager);
        (phase == Some(Phase::Up(link.run_id))).then(|| (true, Arc::clone(manager)))
    }

    /// Returns the channel of a waiter, and whether it gets notifications. Waits for the first subscription, for at
    /// most half of the time.
    async fn channel(&self, op: &Op<'_>, link: &LinkFacts<'_>, deadline: Deadline) -> KnownChannel {
        let Some(key) = op.key() else {
            return (false, Arc::clone(self.channels.manager()));
        };
        let is_of_key = key.dialect().notifies_all_waiters();
        if !self.pool.connector.can_subscribe() && (is_of_key || self.is_sharded()) {
            return (false, Arc::clone(self.channels.manager()));
        }
        let limit = || deadline.left() / 2;
        if is_of_key {
            let is_up = self.channels.key_up_for(key, link.run_id, limit()).await;
            return (is_up, key.text());
        }
        self.channels.native_up_for(key, link.run_id, limit).await
    }
}

fn end(connection: &Connection, call: &mut Call<'_>, outcome: Result<Outcome, Refusal>) {
    let outcome = outcome.map_err(|refusal| refused(connection, call.op.key(), &refusal));
    call.outcome = Some(outcome);
}

/// Returns what is known of a connection, except since when the client knows its server process.
fn link_facts(connection: &Connection) -> LinkFacts<'_> {
    LinkFacts {
        origin: connection.origin,
        process: connection.process(),
        run_id: connection.first.run_id,
        changed_at: None,
        floor_us: connection.floor_us(),
        lead_us: connection.lead_us(),
        clock_difference: connection.clock_difference,
        abilities: &connection.abilities,
    }
}

/// Returns whether calls have asked for another lane than the shared one.
pub(in crate::redis) fn needs_lanes(calls: &[&mut Call<'_>]) -> bool {
    has_open(calls, Lane::InTurn) || has_open(calls, Lane::Transactions)
}

/// Splits calls, so that both parts can run side by side.
pub(in crate::redis) fn split<'a, 'c>(
    calls: &'a mut [&mut Call<'c>],
    is_first: impl Fn(&Call<'c>) -> bool,
) -> (Vec<&'a mut Call<'c>>, Vec<&'a mut Call<'c>>) {
    let calls = calls.iter_mut().map(|call| &mut **call);
    calls.partition(|call| is_first(call))
}

fn has_open(calls: &[&mut Call<'_>], lane: Lane) -> bool {
    calls.iter().any(|call| is_open(call, lane))
}

/// Returns whether a call runs in this lane and has no outcome.
fn is_open(call: &Call<'_>, lane: Lane) -> bool {
    call.outcome.is_none() && call.run.lane == lane
}

/// Ends the calls of a lane that have no outcome.
fn end_all(calls: &mut [&mut Call<'_>], lane: Lane, error: &LockError) {
    for call in calls.iter_mut().filter(|call| is_open(call, lane)) {
        // A lock that an operator has freed is free, even if nobody has served its queue.
        let freed = freed(&mut call.op.state);
        call.outcome = Some(freed.ok_or_else(|| error.clone()));
    }
}

fn is_unknown_script(reply: Reply<'_>) -> bool {
    reply
        .error()
        .is_some_and(|error| error.code() == "NOSCRIPT")
}

/// Converts a refusal, and marks the connection as broken if it can no longer be used.
fn refused(connection: &Connection, key: Option<&LockKey>, refusal: &Refusal) -> LockError {
    let by = RefusedBy {
        user: connection.user.as_deref(),
        server: &connection.node().text(),
    };
    let error = LockError::refused(&by, key, refusal);
    if breaks_connection(&error) {
        connection.give_up(&error);
    }
    error
}
