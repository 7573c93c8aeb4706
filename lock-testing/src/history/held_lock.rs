//! The held locks and the operations of a history.

use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use lock_protocol::kind::Kind as LockKind;

use super::History;
use crate::event::{Call, Event, Kind, Nanos, Validity};

/// One granted acquisition, until its release.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldLock {
    /// The process.
    pub process: u32,
    /// The number of the acquisition within the process.
    pub acquisition: u64,
    /// The lock.
    pub key: Arc<str>,
    /// The fencing token, where the lock has one.
    pub token: Option<u64>,
    /// The kind of the lock.
    pub lock_kind: LockKind,
    /// When the acquisition began.
    pub requested: Nanos,
    /// When the holder learned that it holds the lock.
    pub granted: Nanos,
    /// Until when the holder certainly believed that the lock was valid.
    pub valid_until: Validity,
    /// When the holder began to release it.
    pub released: Option<Nanos>,
    /// When and how the release ended.
    pub release_done: Option<(Nanos, Kind)>,
    /// When the loss was reported to its holder.
    pub lost: Option<Nanos>,
    /// Whether an event after the loss still reports the lock as valid.
    pub valid_after_loss: bool,
}

impl HeldLock {
    /// Returns the end of the period in which the holder believed that the lock was valid.
    #[must_use]
    pub fn end(&self) -> Validity {
        self.released.map_or(self.valid_until, |released| {
            self.valid_until.min(Validity::Until(released))
        })
    }

    /// Returns whether the lock was still valid when its holder received it.
    #[must_use]
    pub fn was_ever_valid(&self) -> bool {
        self.end().is_after(self.granted)
    }

    /// Returns whether both holders are of one group, and may hold the lock together: readers, or holders
    /// of permits out of the same number, with the same token.
    #[must_use]
    pub fn is_of_group(&self, other: &Self) -> bool {
        let are_alike = match (self.lock_kind, other.lock_kind) {
            (LockKind::Read, LockKind::Read) => true,
            (LockKind::Permits { of, .. }, LockKind::Permits { of: other, .. }) => of == other,
            _ => false,
        };
        are_alike && self.token == other.token
    }

    fn granted_by(event: &Event, requested: Option<Nanos>) -> Self {
        Self {
            process: event.process,
            acquisition: event.acquisition,
            key: Arc::clone(&event.key),
            token: event.token,
            lock_kind: event.lock_kind,
            requested: requested.unwrap_or(event.at),
            granted: event.at,
            valid_until: event.valid_until.unwrap_or(Validity::Until(event.at)),
            released: None,
            release_done: None,
            lost: None,
            valid_after_loss: false,
        }
    }

    fn record(&mut self, event: &Event) {
        if event.call == Call::Lost {
            self.lost.get_or_insert(event.at);
            if let Some(until) = event.valid_until {
                self.valid_until = self.valid_until.min(until);
            }
            return;
        }
        if let Some(until) = event.valid_until {
            self.valid_until = self.valid_until.max(until);
            let was_lost = self.lost.is_some_and(|lost| lost < event.at);
            self.valid_after_loss |= until.is_after(event.at) && was_lost;
        }
        match (event.call, event.kind) {
            (Call::Release, Kind::Invoke) => self.released = Some(event.at),
            (Call::Release, kind) => self.release_done = Some((event.at, kind)),
            _ => {}
        }
    }
}

impl Display for HeldLock {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self {
            process,
            acquisition,
            ..
        } = self;
        match self.token {
            Some(token) => write!(
                f,
                "process {process} (acquisition {acquisition}, token {token})"
            ),
            None => write!(f, "process {process} (acquisition {acquisition})"),
        }
    }
}

/// One call, from its beginning to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Operation {
    /// The operation.
    pub call: Call,
    /// The process.
    pub process: u32,
    /// The number of the acquisition within the process.
    pub acquisition: u64,
    /// The lock.
    pub key: Arc<str>,
    /// When it began.
    pub from: Nanos,
    /// When it ended; `None` if its process was killed, or if it still runs.
    pub to: Option<Nanos>,
    /// How it ended. An operation without an end is [`Kind::Info`].
    pub kind: Kind,
    /// The limit of its duration.
    pub limit: Option<Nanos>,
    /// The note of its beginning.
    pub note: Option<Arc<str>>,
}

impl Operation {
    /// Returns whether it is an acquire with a limit. A future that was dropped did not wait: its
    /// task did something else.
    pub(crate) fn is_wait(&self) -> bool {
        self.call == Call::Acquire && self.kind != Kind::Dropped && self.limit.is_some()
    }
}

impl History {
    /// Returns the events in the order of their times.
    pub(super) fn events_in_order(&self) -> Vec<&Event> {
        let mut events: Vec<&Event> = self.events.iter().collect();
        events.sort_by_key(|event| event.at);
        events
    }

    /// Returns all held locks, in the order in which their holders learned of them.
    #[must_use]
    pub fn held_locks(&self) -> Vec<HeldLock> {
        let mut requested = HashMap::new();
        let mut places: HashMap<(u32, u64), usize> = HashMap::new();
        let mut held: Vec<HeldLock> = Vec::new();
        for event in self.events_in_order() {
            let id = (event.process, event.acquisition);
            match (event.call, event.kind) {
                (Call::Acquire, Kind::Invoke) => {
                    requested.insert(id, event.at);
                }
                (Call::Acquire, Kind::Ok) => {
                    places.insert(id, held.len());
                    held.push(HeldLock::granted_by(event, requested.get(&id).copied()));
                }
                _ => {
                    if let Some(place) = places.get(&id) {
                        held[*place].record(event);
                    }
                }
            }
        }
        held
    }

    /// Returns all calls, in the order of their beginnings. [`Call::Lost`] is not a call.
    #[must_use]
    pub fn operations(&self) -> Vec<Operation> {
        let mut operations: Vec<Operation> = Vec::new();
        let mut open: HashMap<(u32, u64, Call), usize> = HashMap::new();
        for event in self.events_in_order() {
            let id = (event.process, event.acquisition, event.call);
            match event.kind {
                Kind::Seen => {}
                Kind::Invoke => {
                    open.insert(id, operations.len());
                    operations.push(Operation {
                        call: event.call,
                        process: event.process,
                        acquisition: event.acquisition,
                        key: Arc::clone(&event.key),
                        from: event.at,
                        to: None,
                        kind: Kind::Info,
                        limit: event.limit,
                        note: event.note.clone(),
                    });
                }
                kind => {
                    if let Some(place) = open.remove(&id) {
                        operations[place].to = Some(event.at);
                        operations[place].kind = kind;
                    }
                }
            }
        }
        operations
    }
}
