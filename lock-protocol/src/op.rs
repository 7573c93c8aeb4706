//! The operations on locks, as data.
//!
//! An [`Op`] says what a caller wants ([`OpKind`]). Locks in memory do it at once. For a server, a codec (feature `wire`)
//! turns it into commands and reads the replies; whoever owns a connection carries both. The same value serves memory, a
//! single server, a node of a cluster and each server of a quorum.
//!
//! # Recorded before it is sent
//!
//! Whoever executes an acquire first writes into its [`SentAcquires`] what a cancel has to undo. A caller may therefore
//! drop its future at any moment: whatever was sent is known.

use std::time::Duration;

use crate::acquisition::{AcquireOutcome, FailureClass, Origin, RenewOutcome, SentAcquires};
use crate::cleanup::{ReleaseOutcome, ReleaseRequest};
#[cfg(feature = "wire")]
use crate::clock::Moment;
#[cfg(feature = "wire")]
use crate::codec::OpState;
use crate::fencing_token::FencingToken;
use crate::inspection::{InspectDetail, InspectReply, ReadTime, ScanPart, ScanRequest};
use crate::key::LockKey;
use crate::lock_state::{ForceReply, ForceRequest};
use crate::redirect::Redirect;
pub use crate::renewal::Renewal;

/// One operation, and how far it has come.
#[derive(Debug)]
pub struct Op<'a> {
    pub kind: OpKind<'a>,
    /// How far a codec has come with it.
    #[cfg(feature = "wire")]
    pub state: OpState,
    /// When the commands of the last exchange were sent.
    #[cfg(feature = "wire")]
    pub sent_at: Moment,
}

/// What a caller wants.
#[derive(Debug)]
pub enum OpKind<'a> {
    Acquire(&'a mut SentAcquires),
    Renew(&'a Renewal, Expiry),
    Release(&'a ReleaseRequest),
    /// Frees only the key, while its slot moves and the other keys of the lock are elsewhere. A release has to follow.
    FreeKey(&'a ReleaseRequest),
    /// Writes the token of a quorum to the key of one of its servers.
    Raise(&'a Raise),
    /// Waits until the writes before it in the same exchange are acknowledged.
    Wait(&'a WaitFor),
    /// Reads a lock and its first waiters, and changes nothing.
    Inspect(&'a LockKey, InspectDetail),
    /// Finds locks, and reads what their keys hold and how many waiters they have.
    Scan(&'a ScanRequest),
    /// Takes a lock from its holder.
    Force(&'a ForceRequest),
}

impl OpKind<'_> {
    /// Returns whether an operator does this, with locks of any dialect.
    pub fn is_of_operators(&self) -> bool {
        matches!(self, Self::Inspect(..) | Self::Scan(_) | Self::Force(_))
    }
}

/// Whether a renewal rewrites an expiry that is late enough already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    WhereNeeded,
    /// So that replicas and the disk have something to acknowledge.
    Always,
}

/// A token to write to the key of a lock, together with a renewal.
#[derive(Clone, Debug)]
pub struct Raise {
    pub renewal: Renewal,
    pub to: RaiseTo,
}

/// Which token a key has after a raise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RaiseTo {
    /// The higher one of both.
    AtLeast(FencingToken),
    Exactly(FencingToken),
}

/// Who has to acknowledge, and how long to wait.
#[derive(Clone, Debug)]
pub struct WaitFor {
    pub replicas: u32,
    /// Also the disk of the primary.
    pub disk: bool,
    pub within: Duration,
}

impl<'a> Op<'a> {
    pub fn new(kind: OpKind<'a>) -> Self {
        Self {
            kind,
            #[cfg(feature = "wire")]
            state: OpState::New,
            #[cfg(feature = "wire")]
            sent_at: Moment::from_nanos(0),
        }
    }

    /// Returns the key of the lock. A wait and a scan have none.
    pub fn key(&self) -> Option<&LockKey> {
        match &self.kind {
            OpKind::Acquire(sent) => Some(&sent.key),
            OpKind::Renew(renewal, _) => Some(&renewal.key),
            OpKind::Raise(raise) => Some(&raise.renewal.key),
            OpKind::Release(request) | OpKind::FreeKey(request) => Some(&request.key),
            OpKind::Inspect(key, _) => Some(key),
            OpKind::Force(request) => Some(&request.key),
            OpKind::Wait(_) | OpKind::Scan(_) => None,
        }
    }

    /// Returns whether this is an acquire that enters the queue of its key.
    pub fn waits(&self) -> bool {
        matches!(&self.kind, OpKind::Acquire(sent) if sent.waits_until.is_some())
    }

    /// Returns the connection that this operation has to follow, so that it doesn't overtake what it undoes.
    pub fn follows(&self) -> Option<Origin> {
        match &self.kind {
            OpKind::Release(request) | OpKind::FreeKey(request) => request.origin,
            _ => None,
        }
    }
}

/// What became of an operation that was executed.
#[derive(Debug)]
pub enum Outcome {
    Acquired(AcquireOutcome),
    Renewed(RenewOutcome),
    Released(ReleaseOutcome),
    KeyFreed {
        was_owner: bool,
    },
    /// Whether the disk of the primary, and how many replicas, have acknowledged.
    Acknowledged {
        by_disk: bool,
        replicas: u32,
    },
    Inspected(Box<InspectReply>),
    Scanned(Box<ScanPart>),
    Forced(ReadTime, Box<ForceReply>),
}

/// An error that the server replied, or a reply that nobody can read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub kind: RefusalKind,
    /// What the server said.
    pub text: Box<str>,
    /// Where a node of a cluster says that the key is.
    pub redirect: Option<Box<Redirect>>,
}

/// Why a server refused a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RefusalKind {
    /// It is still reading its data set.
    Loading,
    /// It is busy with a script.
    ScriptBusy,
    OutOfMemory,
    /// It cannot persist.
    Misconfigured,
    ClusterDown,
    /// The slot of the key moves, or has moved.
    SlotMoving,
    NoReplicas,
    NotPrimary,
    Authentication,
    Permission,
    TooManyClients,
    /// The key, or one that belongs to it, holds something else.
    WrongType,
    /// The key holds a value that no lock of the request's dialect has.
    Foreign(ForeignValue),
    /// It doesn't know the script.
    UnknownScript,
    /// It doesn't know the command or the form of its arguments, and won't the next time.
    UnknownCommand,
    /// It lacks the commands that compare the owner, and the dialect of the request needs them.
    NoOwnerCommands,
    /// Its clock and this machine's differ by too much for the dialect. The text says by how much.
    ClocksDiffer,
    /// An earlier release got no reply, and must not be sent twice.
    MustNotRepeat,
    /// The reply isn't one that this library's commands have.
    Unreadable,
    Other,
}

/// What a key holds that isn't a lock of the request's dialect. The text of the refusal shows it, but not an
/// owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ForeignValue {
    /// A value of this type.
    Type,
    /// A deadline, where the dialect expects an owner.
    Deadline,
    /// An owner, where the dialect expects a deadline.
    Owner,
    /// A hash that isn't a lock of Redisson which this library speaks.
    NoRedissonLock,
    /// The fencing counter that belongs to the key holds a number that no clock gives.
    CounterTooHigh,
}

impl RefusalKind {
    /// Returns whether the server has rejected the command without executing any of it.
    pub fn is_unexecuted(self) -> bool {
        match self {
            Self::Loading
            | Self::ScriptBusy
            | Self::OutOfMemory
            | Self::Misconfigured
            | Self::ClusterDown
            | Self::SlotMoving
            | Self::NoReplicas
            | Self::NotPrimary
            | Self::Authentication
            | Self::Permission => true,
            Self::TooManyClients
            | Self::WrongType
            | Self::Foreign(_)
            | Self::UnknownScript
            | Self::UnknownCommand
            | Self::NoOwnerCommands
            | Self::ClocksDiffer
            | Self::MustNotRepeat
            | Self::Unreadable
            | Self::Other => false,
        }
    }

    /// Returns what the state machines do about it.
    pub fn class(self) -> FailureClass {
        match self {
            Self::OutOfMemory => FailureClass::OutOfMemory,
            Self::Loading
            | Self::ScriptBusy
            | Self::Misconfigured
            | Self::ClusterDown
            | Self::SlotMoving
            | Self::NoReplicas
            | Self::NotPrimary
            | Self::TooManyClients => FailureClass::Retry,
            Self::Permission => FailureClass::Forbidden,
            Self::WrongType | Self::Foreign(_) => FailureClass::ForeignKey,
            Self::MustNotRepeat => FailureClass::MustNotRepeat,
            Self::Other => FailureClass::Unknown,
            Self::Authentication
            | Self::UnknownScript
            | Self::UnknownCommand
            | Self::NoOwnerCommands
            | Self::ClocksDiffer
            | Self::Unreadable => FailureClass::Fatal,
        }
    }
}
