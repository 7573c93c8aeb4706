//! Codecs: what an operation writes in a dialect, and what the replies mean.
//!
//! A codec has no IO, no task and no clock. Whoever runs an operation goes round in a circle until there is an outcome:
//!
//! ```text
//! next    decides the exchange, and records in the operation what a cancel has to undo
//! encode  writes the commands that `next` announced
//! ..      the commands are sent, and their replies arrive
//! read    gives the outcome, or asks for another exchange
//! ```
//!
//! `encode` runs under the mutex of the connection, so it only writes, and it may run twice: a server that doesn't know a
//! script gets its text in the next exchange. It therefore depends on nothing that changes between the two. Time and
//! channel are facts of `next` alone ([`ExchangeFacts`]), which puts what it decides into the operation's state.

use std::sync::Arc;
use std::time::Duration;

use self::abilities::Abilities;
use self::conditional::ConditionalState;
use self::deadline::DeadlineState;
use self::operators::{ForceState, ScanState};
use self::owner::OwnerState;
use self::redisson::RedissonState;
use self::watch_multi::WatchState;
use crate::acquisition::{FailureClass, Origin, RenewOutcome, SentAcquires, SentCopy};
use crate::clock::{Moment, ServerMs};
use crate::clock_sync::NotAfter;
use crate::dialect::{Dialect, ReleaseMethod};
use crate::key::LockKey;
use crate::loss::LossReason;
use crate::op::{ForeignValue, Op, OpKind, Outcome, Refusal, RefusalKind, Renewal};
use crate::redirect::Redirect;
use crate::resp::{CommandBuf, LOCK_REPLY, OPERATOR_REPLY, Replies, ServerError};
use crate::unconfirmed::Unconfirmed;

pub mod abilities;
pub mod conditional;
pub mod deadline;
mod found;
pub mod native;
pub mod operators;
pub mod owner;
pub mod redisson;
mod replies;
pub mod watch_multi;

pub use self::replies::accepted;

#[cfg(test)]
mod tests;

/// The longest text of a server that an error or a log line contains.
pub const MAX_ERROR_TEXT: usize = 300;

/// Writes and reads the operations of a dialect.
pub trait Codec: Send + Sync {
    /// Decides the next exchange, and records in `op` what a cancel has to undo.
    fn next(&self, op: &mut Op<'_>, facts: &ExchangeFacts<'_>) -> Step;

    /// Writes the commands that [`next`](Self::next) announced. Changes nothing, never blocks and never panics.
    fn encode(&self, op: &Op<'_>, link: &LinkFacts<'_>, out: &mut CommandBuf<'_>);

    /// Reads the replies to these commands.
    fn read(
        &self,
        op: &mut Op<'_>,
        link: &LinkFacts<'_>,
        replies: &mut Replies<'_>,
        notes: &mut Notes,
    ) -> Progress;
}

/// What a codec wants next.
#[derive(Debug)]
pub enum Step {
    /// To send this many commands.
    Send { commands: usize },
    /// To know whether the channel of the key is subscribed. It is asked again then, with the time after that.
    Subscribe,
    /// To run in this lane. It is asked again there.
    Over(Lane),
    /// Nothing: this is the outcome.
    Done(Box<Result<Outcome, Refusal>>),
}

impl Step {
    fn refused(refusal: Refusal) -> Self {
        Self::Done(Box::new(Err(refusal)))
    }
}

/// What the replies made of an operation.
#[derive(Debug)]
pub enum Progress {
    /// It wants another exchange.
    Next,
    Done(Result<Outcome, Refusal>),
}

/// How far a codec has come with an operation.
#[derive(Clone, Debug)]
pub enum OpState {
    New,
    Sent,
    /// An acquire, and the latest server time at which it may take effect.
    Copy(SentCopy, ServerMs),
    /// A release that keeps the key locked for this many milliseconds. It was computed when the release was first
    /// sent, so that a second copy carries the same.
    KeptFor(u64),
    Owner(OwnerState),
    Watch(WatchState),
    Conditional(ConditionalState),
    /// In a box, because it carries the deadlines that the key may hold.
    Deadline(Box<DeadlineState>),
    Redisson(Box<RedissonState>),
    Scan(Box<ScanState>),
    Force(Box<ForceState>),
}

/// Where an operation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Together with others.
    Shared,
    /// Together with others, but never while another exchange of this lane is under way.
    InTurn,
    /// Alone, on a connection for transactions.
    Transactions,
}

/// What is known of a connection. It doesn't change while an operation is on its way.
#[derive(Clone, Copy, Debug)]
pub struct LinkFacts<'a> {
    /// The number of the connection.
    pub origin: Origin,
    /// The server process, or [`ANY_PROCESS`](crate::unconfirmed::ANY_PROCESS) if it doesn't show which it is.
    pub process: u64,
    pub run_id: u64,
    /// When the client connected to this process, if it knew another one before. Leases that were confirmed earlier
    /// come from that other one.
    pub changed_at: Option<Moment>,
    /// The lowest fencing token of a grant, in microseconds.
    pub floor_us: u64,
    /// How far the seed of a counter lies ahead of the server's time, in microseconds.
    pub lead_us: u64,
    /// The least difference between this machine's clock and the server's.
    pub clock_difference: Duration,
    pub abilities: &'a Abilities,
}

/// What is known at the moment of sending.
#[derive(Clone, Copy, Debug)]
pub struct ExchangeFacts<'a> {
    pub link: &'a LinkFacts<'a>,
    pub now: Moment,
    /// The time limit of a command that is sent now, in the time of the server.
    pub not_after: NotAfter,
    pub command_timeout: Duration,
    pub channel: Channel<'a>,
    pub lane: Lane,
    /// No other operation stands in front in the same exchange.
    pub is_first: bool,
}

/// The channel on which waiters of a key are notified.
#[derive(Clone, Copy, Debug)]
pub enum Channel<'a> {
    /// Nobody has asked yet.
    Unknown,
    /// Messages on it arrive.
    Up(&'a Arc<str>),
    /// Waiters have to poll.
    Down(&'a Arc<str>),
}

/// What a codec tells whoever runs it, beside the outcome.
#[derive(Debug)]
pub struct Notes {
    /// When the replies arrived.
    pub received: Moment,
    /// The server's time in a reply, in microseconds.
    pub server_us: Option<u64>,
    pub event: Option<CodecEvent>,
}

impl Notes {
    pub fn new(received: Moment) -> Self {
        Self {
            received,
            server_us: None,
            event: None,
        }
    }
}

/// What happened to an operation, beside its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CodecEvent {
    /// The key of another holder had no expiry, and has one now.
    ExpiryRepaired,
    /// Another client touched the key of a transaction, which is repeated.
    TransactionRepeated,
    /// This many subscriptions received the message about a release.
    ReleaseHeard {
        receivers: usize,
        /// A command that the server refused, and its error.
        refused: Option<String>,
    },
}

/// The codecs of all dialects.
#[derive(Debug)]
pub struct Codecs {
    pub native: native::Native,
    pub owner: owner::Owner,
    pub watch_multi: watch_multi::WatchMulti,
    pub conditional: conditional::Conditional,
    pub deadline: deadline::DeadlineGetset,
    pub redisson: redisson::Redisson,
    pub operators: operators::Operators,
}

impl Codecs {
    /// Returns the lane of an operation, as far as it is known before there is a connection.
    pub fn lane_of(&self, op: &Op<'_>) -> Lane {
        let method = ReleaseMethod::WatchMulti;
        match (&op.kind, op.key().map(LockKey::dialect)) {
            (OpKind::Acquire(_), _) => Lane::Shared,
            (kind, _) if kind.is_of_operators() => Lane::Shared,
            (_, Some(Dialect::SetNxPx { release })) if release == method => Lane::Transactions,
            _ => Lane::Shared,
        }
    }

    /// Returns the codec of the operation.
    pub fn of(&self, op: &Op<'_>) -> &dyn Codec {
        if op.kind.is_of_operators() {
            return &self.operators;
        }
        match op.key().map_or(Dialect::Native, LockKey::dialect) {
            Dialect::Native => &self.native,
            Dialect::SetnxExpire
            | Dialect::LuaSetnxExpire
            | Dialect::SetNxPx {
                release: ReleaseMethod::Script,
            } => &self.owner,
            Dialect::SetNxPx {
                release: ReleaseMethod::WatchMulti,
            } => &self.watch_multi,
            Dialect::SetNxPx { .. } => &self.conditional,
            Dialect::DeadlineGetset => &self.deadline,
            Dialect::Redisson { .. } => &self.redisson,
        }
    }
}

impl Op<'_> {
    /// Returns the most bytes of a reply.
    pub fn largest_reply(&self) -> usize {
        if self.kind.is_of_operators() {
            OPERATOR_REPLY
        } else {
            LOCK_REPLY
        }
    }
}

impl Refusal {
    /// Classifies an error that the server replied.
    pub fn of(error: ServerError<'_>) -> Self {
        let detail = error.detail();
        Self {
            kind: kind_of(error.code(), &detail),
            redirect: Redirect::parse(error.code(), &detail).map(Box::new),
            text: error.text().into(),
        }
    }

    /// A refusal of this kind, which shows this text.
    pub(crate) fn own(kind: RefusalKind, text: impl Into<Box<str>>) -> Self {
        Self {
            kind,
            text: text.into(),
            redirect: None,
        }
    }

    /// A reply that isn't one of the commands of this library. What cannot be read doesn't count as good.
    pub fn unreadable() -> Self {
        Self::own(RefusalKind::Unreadable, "")
    }

    /// Returns whether the server doesn't know a command or the form of its arguments, or the user may not run it.
    /// Such a command had no effect, and has none later.
    pub fn is_of_command(&self) -> bool {
        matches!(
            self.kind,
            RefusalKind::Permission | RefusalKind::UnknownCommand
        )
    }

    /// Returns whether the reason is known, and known to pass.
    pub fn is_temporary(&self) -> bool {
        matches!(
            self.kind.class(),
            FailureClass::Retry | FailureClass::OutOfMemory
        )
    }

    /// Returns whether the server doesn't know the script.
    pub fn is_unknown_script(&self) -> bool {
        self.kind == RefusalKind::UnknownScript
    }

    /// Returns whether the server doesn't know the command.
    pub fn is_unknown_command(&self) -> bool {
        self.text.contains("unknown command") || self.text.contains("Unknown command")
    }
}

/// Records the copy of an acquire without a queue entry that is about to be sent.
fn record_copy(sent: &mut SentAcquires, facts: &ExchangeFacts<'_>) -> SentCopy {
    let ExchangeFacts {
        link,
        now,
        not_after,
        command_timeout,
        ..
    } = *facts;
    let copy = Unconfirmed::new(not_after.not_after_ms, link.process, now, command_timeout);
    sent.on_send_without_entry(link.origin, copy)
}

/// Returns the outcome of a renewal over a connection. A lease that an earlier server process had confirmed was lost
/// with it.
fn renewed(outcome: RenewOutcome, renewal: &Renewal, link: &LinkFacts<'_>) -> Outcome {
    let is_older = link
        .changed_at
        .is_some_and(|changed_at| renewal.confirmed_at < changed_at);
    Outcome::Renewed(if is_older {
        outcome.map_loss(LossReason::after_server_change)
    } else {
        outcome
    })
}

/// How servers say that they don't know a command, or the form of its arguments.
const UNKNOWN_COMMAND: [&str; 17] = [
    "unknown command",
    "Unknown command",
    "unknown subcommand",
    "Unknown subcommand",
    "Unknown Redis command",
    "unknown or unsupported command",
    "unsupported command",
    "not supported",
    "Command is not available",
    "not allowed from script",
    "cluster support disabled",
    "non local key",
    "syntax error",
    "wrong number of arguments",
    "Protocol version is not",
    "unsupported protocol version",
    "Error compiling script",
];

/// The only classifier of what servers say.
fn kind_of(code: &str, detail: &str) -> RefusalKind {
    match code {
        "LOADING" => RefusalKind::Loading,
        "BUSY" => RefusalKind::ScriptBusy,
        "OOM" => RefusalKind::OutOfMemory,
        "MISCONF" => RefusalKind::Misconfigured,
        "CLUSTERDOWN" => RefusalKind::ClusterDown,
        "MOVED" | "ASK" | "TRYAGAIN" => RefusalKind::SlotMoving,
        "NOREPLICAS" => RefusalKind::NoReplicas,
        "READONLY" | "MASTERDOWN" | "UNBLOCKED" => RefusalKind::NotPrimary,
        "NOAUTH" | "WRONGPASS" => RefusalKind::Authentication,
        "NOPROTO" | "CROSSSLOT" => RefusalKind::UnknownCommand,
        "NOPERM" => RefusalKind::Permission,
        "WRONGTYPE" => RefusalKind::WrongType,
        "NOSCRIPT" => RefusalKind::UnknownScript,
        _ if detail.contains("max number of clients") => RefusalKind::TooManyClients,
        // Before Redis 6, and on other engines.
        _ if detail.contains("invalid password")
            || detail.contains("invalid username-password")
            || detail.contains("without any password") =>
        {
            RefusalKind::Authentication
        }
        // Inside a script, older servers report this without the code.
        _ if detail.contains("The user executing the script can't")
            || detail.contains("no permissions to run") =>
        {
            RefusalKind::Permission
        }
        // The script found it, or `INCR` did.
        _ if detail.contains("the fencing counter is beyond any time")
            || detail.contains("would overflow") =>
        {
            RefusalKind::Foreign(ForeignValue::CounterTooHigh)
        }
        // The counter of tokens holds something else.
        _ if detail.contains("not an integer") => RefusalKind::WrongType,
        _ if UNKNOWN_COMMAND.iter().any(|words| detail.contains(words)) => {
            RefusalKind::UnknownCommand
        }
        _ => RefusalKind::Other,
    }
}
