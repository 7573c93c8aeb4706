//! The recorded events. All of them are plain data.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;
use std::time::Duration;

/// A moment in nanoseconds, on the one clock of a whole history.
pub type Nanos = u64;

/// Converts a duration to a difference of moments. A duration that does not fit becomes the largest
/// difference.
#[must_use]
pub fn nanos(span: Duration) -> Nanos {
    u64::try_from(span.as_nanos()).unwrap_or(Nanos::MAX)
}

/// Until when a lock is valid, as its guard reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Validity {
    /// Until the end of its lease.
    Until(Nanos),
    /// As long as its guard exists. Its lease does not end by itself.
    Endless,
}

impl Validity {
    /// Returns the end of the lease, if it ends by itself.
    #[must_use]
    pub fn lease_end(self) -> Option<Nanos> {
        match self {
            Self::Until(end) => Some(end),
            Self::Endless => None,
        }
    }

    /// Returns whether the lock is still valid just after this moment.
    #[must_use]
    pub fn is_after(self, moment: Nanos) -> bool {
        self > Self::Until(moment)
    }
}

impl From<Nanos> for Validity {
    fn from(end: Nanos) -> Self {
        Self::Until(end)
    }
}

/// An operation of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Call {
    /// Acquires the lock. Its `Ok` begins a held lock.
    Acquire,
    /// Renews a held lock.
    Renew,
    /// Releases a held lock.
    Release,
    /// Changes the protected resource.
    Write,
    /// Notifies the holder that its lock is lost. The client does not call it, so its only event is
    /// [`Kind::Ok`].
    Lost,
}

/// What an event reports: a stage of its operation, or the validity of its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// It begins. The time is taken before anything else happens.
    Invoke,
    /// It succeeded. The time is taken after everything else.
    Ok,
    /// It certainly had no effect.
    Fail,
    /// It ended, and it is not known whether it had, or will have, an effect.
    Info,
    /// Its future or its guard was dropped. As with [`Info`](Self::Info), its effect is not known.
    Dropped,
    /// Reports until when a held lock is valid: see [`Event::valid_until`]. It neither begins nor
    /// ends the operation.
    Seen,
}

const CALLS: [(Call, &str); 5] = [
    (Call::Acquire, "acquire"),
    (Call::Renew, "renew"),
    (Call::Release, "release"),
    (Call::Write, "write"),
    (Call::Lost, "lost"),
];

const KINDS: [(Kind, &str); 6] = [
    (Kind::Invoke, "invoke"),
    (Kind::Ok, "ok"),
    (Kind::Fail, "fail"),
    (Kind::Info, "info"),
    (Kind::Dropped, "dropped"),
    (Kind::Seen, "seen"),
];

fn name_of<T: PartialEq>(names: &[(T, &'static str)], value: &T) -> &'static str {
    let found = names.iter().find(|(known, _)| known == value);
    found.map_or("unknown", |(_, name)| name)
}

fn named<T: Copy>(names: &[(T, &'static str)], name: &str) -> Option<T> {
    let found = names.iter().find(|(_, known)| *known == name);
    found.map(|(value, _)| *value)
}

impl Call {
    /// All operations.
    pub const ALL: &[Self] = &[
        Self::Acquire,
        Self::Renew,
        Self::Release,
        Self::Write,
        Self::Lost,
    ];

    /// Returns the word used in files.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        name_of(&CALLS, &self)
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        named(&CALLS, name)
    }
}

impl Kind {
    /// Returns the word used in files.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        name_of(&KINDS, &self)
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        named(&KINDS, name)
    }
}

/// One event of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// The moment of the event.
    pub at: Nanos,
    /// The process. A process that replaces a killed process needs another number.
    pub process: u32,
    /// The task within the process. The checks do not use it.
    pub task: u32,
    /// The number of the acquisition within the process. All events of one acquisition and of the
    /// held lock that it makes have the same number.
    pub acquisition: u64,
    /// The operation.
    pub call: Call,
    /// What the event reports about the operation.
    pub kind: Kind,
    /// The lock.
    pub key: Arc<str>,
    /// The fencing token of the held lock. Holders that hold the lock together have the same token.
    pub token: Option<u64>,
    /// The kind of the held lock. Only the `Ok` of an acquire has one; all others have the default.
    pub lock_kind: lock_protocol::kind::Kind,
    /// Until when the held lock is valid; `None` if the event does not report it.
    ///
    /// The latest validity of all events counts. There is one exception: the validity of a
    /// [`Call::Lost`] ends an earlier one.
    pub valid_until: Option<Validity>,
    /// The longest duration that is promised for the operation.
    pub limit: Option<Nanos>,
    /// A note for people.
    pub note: Option<Arc<str>>,
}

impl Event {
    /// Makes an event of the task 0, without the optional fields.
    pub fn new(
        at: Nanos,
        process: u32,
        acquisition: u64,
        key: impl Into<Arc<str>>,
        call: Call,
        kind: Kind,
    ) -> Self {
        Self {
            at,
            process,
            task: 0,
            acquisition,
            call,
            kind,
            key: key.into(),
            token: None,
            lock_kind: lock_protocol::kind::Kind::Exclusive,
            valid_until: None,
            limit: None,
            note: None,
        }
    }

    /// Makes the `Ok` of an acquire: the beginning of a held lock.
    pub fn granted(
        at: Nanos,
        process: u32,
        acquisition: u64,
        key: impl Into<Arc<str>>,
        token: Option<u64>,
        valid_until: impl Into<Validity>,
    ) -> Self {
        Self {
            token,
            valid_until: Some(valid_until.into()),
            ..Self::new(at, process, acquisition, key, Call::Acquire, Kind::Ok)
        }
    }

    /// Sets the kind of the held lock. Defaults to an exclusive lock.
    ///
    /// ```
    /// use lock_core::Kind;
    /// use lock_testing::{Checker, Event, History};
    ///
    /// let mut history = History::new();
    /// // Two readers hold the lock together, with one token.
    /// for process in [1, 2] {
    ///     let granted = Event::granted(100, process, 1, "stock", Some(7), 900);
    ///     history.events.push(granted.lock_kind(Kind::Read));
    /// }
    /// assert!(Checker::new().check(&history).violations().is_empty());
    /// ```
    #[must_use]
    pub fn lock_kind(self, lock_kind: lock_protocol::kind::Kind) -> Self {
        Self { lock_kind, ..self }
    }
}

fn token_text(token: Option<u64>) -> String {
    token.map_or_else(String::new, |token| format!(", token {token}"))
}

impl Display for Event {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (call, kind) = (self.call.as_str(), self.kind.as_str());
        write!(
            f,
            "process {}, acquisition {}: {call} {kind}{}",
            self.process,
            self.acquisition,
            token_text(self.token)
        )?;
        if self.lock_kind != lock_protocol::kind::Kind::Exclusive {
            write!(f, ", {}", self.lock_kind)?;
        }
        match self.valid_until {
            Some(Validity::Endless) => write!(f, ", valid until its release")?,
            Some(Validity::Until(until)) if until >= self.at => {
                write!(f, ", valid for {} us", (until - self.at) / 1000)?;
            }
            Some(Validity::Until(until)) => {
                write!(f, ", expired {} us ago", (self.at - until) / 1000)?;
            }
            None => {}
        }
        if let Some(limit) = self.limit {
            write!(f, ", limit {} us", limit / 1000)?;
        }
        match &self.note {
            Some(note) => write!(f, ", {note}"),
            None => Ok(()),
        }
    }
}

/// A period in which a process, or all tasks of its runtime, did not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stall {
    /// The process.
    pub process: u32,
    /// The last sign of life before the stall.
    pub from: Nanos,
    /// The first sign of life after the stall.
    pub to: Nanos,
}

impl Stall {
    /// Makes a stall.
    #[must_use]
    pub fn new(process: u32, from: Nanos, to: Nanos) -> Self {
        Self { process, from, to }
    }
}

/// One access to a protected resource, in the resource's own order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Access {
    /// The moment of the access.
    pub at: Nanos,
    /// The lock that protects the resource.
    pub key: Arc<str>,
    /// The process of the client.
    pub process: u32,
    /// The acquisition of the client.
    pub acquisition: u64,
    /// The fencing token, where the lock has one.
    pub token: Option<u64>,
    /// The resource: 0 if the lock protects only one. Resources are checked separately.
    pub resource: u64,
    /// What the resource did.
    pub kind: AccessKind,
}

/// What a resource did with an access. It refuses a token that is lower than the highest token that
/// it has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AccessKind {
    /// Returned its value.
    Read,
    /// Accepted a new value. The client wrote the number of accepted writes: the value that it had
    /// read, plus one.
    Write {
        /// The new value.
        value: u64,
    },
    /// Refused to return its value.
    RefusedRead,
    /// Refused a new value.
    RefusedWrite,
}

impl AccessKind {
    /// Returns whether the resource accepted the access.
    #[must_use]
    pub fn is_accepted(self) -> bool {
        matches!(self, Self::Read | Self::Write { .. })
    }
}

impl Access {
    /// Makes an access to the resource 0.
    pub fn new(
        at: Nanos,
        key: impl Into<Arc<str>>,
        process: u32,
        acquisition: u64,
        token: Option<u64>,
        kind: AccessKind,
    ) -> Self {
        Self {
            at,
            key: key.into(),
            process,
            acquisition,
            token,
            resource: 0,
            kind,
        }
    }
}

impl Display for Access {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "process {}, acquisition {}: resource ",
            self.process, self.acquisition
        )?;
        match self.kind {
            AccessKind::Read => write!(f, "read")?,
            AccessKind::Write { value } => write!(f, "accepted the value {value}")?,
            AccessKind::RefusedRead => write!(f, "refused a read")?,
            AccessKind::RefusedWrite => write!(f, "refused a write")?,
        }
        write!(f, "{}", token_text(self.token))
    }
}
