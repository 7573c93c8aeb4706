//! Where everybody is: the clients, the server, the network and the clocks.

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::network::{Network, fingerprint};
use super::rules::{Budget, Rules};
use crate::backend::{Acquisition, SentCommand};
use crate::protocol::clock::{Moment, ServerMs};
use crate::protocol::clock_sync::ClockSync;
use crate::protocol::fencing_token::FencingToken;
use crate::protocol::lease::Lease;
use crate::protocol::lock_state::{KeyValue, LockState};
use crate::protocol::owner_id::OwnerId;
use crate::protocol::wire::QueueEntry;

/// Not a whole number of milliseconds, so that rounding is seen: a ttl that is one millisecond
/// less than so many ticks is over on the server at the last of them, and a holder whose clock
/// is slow sees it over only by the margin.
pub(super) const TICK_US: u64 = 50_500;
/// Server time when the model begins.
const BEGIN_US: u64 = 1_000_000_000_000;
/// The clients' clocks go at the edge of what is promised: one percent slow, one fast, one true.
const RATES: [u64; 3] = [99, 101, 100];
/// How many owner ids one client can use up.
const OWNER_IDS: usize = 8;
/// Zero is nobody's.
const FIRST_OWNER_ID: u128 = 1;

/// A part of a state: shared until it changes, and hashed once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part<T> {
    value: Arc<T>,
    /// `None` since it was changed.
    fingerprint: Option<u64>,
}

impl<T: Clone + Hash> Part<T> {
    pub(super) fn new(value: T) -> Self {
        Self {
            fingerprint: Some(fingerprint(&value)),
            value: Arc::new(value),
        }
    }

    pub(super) fn change(&mut self) -> &mut T {
        self.fingerprint = None;
        Arc::make_mut(&mut self.value)
    }

    pub(super) fn seal(&mut self) {
        if self.fingerprint.is_none() {
            self.fingerprint = Some(fingerprint(&*self.value));
        }
    }
}

impl<T> Deref for Part<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Hash for Part<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let fingerprint = self
            .fingerprint
            .expect("a state is sealed before it is kept");
        state.write_u64(fingerprint);
    }
}

/// What was pushed and not yet looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ModelSlot {
    pub(super) grant: Option<ModelGrant>,
    pub(super) look: bool,
    pub(super) head: Option<Moment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ModelGrant {
    pub(super) token: FencingToken,
    pub(super) received: Moment,
    pub(super) lease: Duration,
    pub(super) until: Option<Moment>,
}

/// A command whose answer is awaited.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sent {
    pub(super) at: Moment,
    pub(super) until: Moment,
    /// The bookkeeping of an acquire; a renewal that confirms a grant has none.
    pub(super) copy: Option<SentCommand>,
}

/// One call of `acquire`, while it runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Asking {
    pub(super) acquisition: Acquisition,
    pub(super) sent: Option<Sent>,
    /// Who asks once asks again once, when the connection was closed.
    pub(super) asked_again: bool,
    pub(super) slot: ModelSlot,
    pub(super) looked: Moment,
    pub(super) next_look: Moment,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Holding {
    pub(super) acquisition: Acquisition,
    pub(super) lease: Lease,
    pub(super) since: Moment,
    /// When the renewal on its way was sent, and when it is given up.
    pub(super) renewing: Option<(Moment, Moment)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    Idle,
    Asking(Asking),
    Holding(Holding),
    Done,
    Crashed,
}

/// Something that is being taken back.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PendingRelease {
    pub(super) acquisition: Acquisition,
    pub(super) was_held: bool,
    pub(super) min_hold_until: Option<Moment>,
    /// Until when the answer to the cancel is awaited.
    pub(super) sent: Option<Moment>,
    pub(super) again_at: Moment,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Client {
    pub(super) phase: Phase,
    pub(super) pending_releases: Vec<PendingRelease>,
    pub(super) owner_ids: u8,
    /// What the connection knows: the server's time and life as it began.
    pub(super) first: ClockSync,
    pub(super) floor_us: u64,
    /// The youngest answer.
    pub(super) told: Option<ClockSync>,
}

impl Client {
    pub(super) fn clock_sync(&self) -> ClockSync {
        self.told
            .filter(|told| told.run_id == self.first.run_id)
            .unwrap_or(self.first)
    }

    pub(super) fn asking(&self) -> Option<&Asking> {
        match &self.phase {
            Phase::Asking(asking) => Some(asking),
            _ => None,
        }
    }

    pub(super) fn holding(&self) -> Option<&Holding> {
        match &self.phase {
            Phase::Holding(holding) => Some(holding),
            _ => None,
        }
    }

    /// Nothing will happen any more.
    pub(super) fn is_at_rest(&self) -> bool {
        matches!(self.phase, Phase::Done | Phase::Crashed) && self.pending_releases.is_empty()
    }
}

/// A token was not greater than all before it: of a grant, or of a guard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Disorder {
    pub(super) grants: bool,
    pub(super) guards: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ModelState {
    pub(super) ticks: u64,
    /// How far the server's clock was moved.
    pub(super) moved_us: i64,
    pub(super) life: u64,
    pub(super) lock_state: Part<LockState>,
    pub(super) snapshot: Option<Part<LockState>>,
    pub(super) network: Network,
    pub(super) clients: Vec<Part<Client>>,
    pub(super) left: Budget,
    /// Nonces that were taken back for good, as bits.
    pub(super) settled: u32,
    pub(super) last_token: u64,
    pub(super) last_guard_token: u64,
    pub(super) disorder: Disorder,
    /// Keys were lost or the clock jumped: exclusion is promised no more.
    pub(super) beyond_promise: bool,
    /// What was taken back may come back: after a loss of memory, a clock that was set back, or
    /// a copy of an acquire that its sender knows nothing of.
    pub(super) may_come_back: bool,
    /// For how many ticks the key was free although somebody waited.
    pub(super) free_ticks: u8,
}

impl ModelState {
    pub(super) fn first(rules: &Rules) -> Self {
        let mut state = Self {
            ticks: 0,
            moved_us: 0,
            life: 1,
            lock_state: Part::new(LockState::default()),
            snapshot: None,
            network: Network::default(),
            clients: Vec::new(),
            left: rules.budget,
            settled: 0,
            last_token: 0,
            last_guard_token: 0,
            disorder: Disorder::default(),
            beyond_promise: false,
            may_come_back: false,
            free_ticks: 0,
        };
        for id in 0..rules.clients {
            let first = state.clock_sync(id);
            state.clients.push(Part::new(Client {
                phase: Phase::Idle,
                pending_releases: Vec::new(),
                owner_ids: 0,
                first,
                floor_us: first.server_us,
                told: None,
            }));
        }
        state
    }

    pub(super) fn seal(&mut self) {
        self.lock_state.seal();
        for client in &mut self.clients {
            client.seal();
        }
    }

    fn real_us(&self) -> u64 {
        self.ticks * TICK_US
    }

    pub(super) fn server_us(&self) -> u64 {
        (BEGIN_US + self.real_us()).saturating_add_signed(self.moved_us)
    }

    pub(super) fn server_ms(&self) -> ServerMs {
        ServerMs::from_micros(self.server_us())
    }

    /// The clock of a client. It has nothing to do with the server's, nor with another's.
    pub(super) fn now(&self, id: usize) -> Moment {
        let origin_us = 7_000_000 * (id as u64 + 1);
        Moment::from_nanos(origin_us * 1000 + self.real_us() * 10 * RATES[id])
    }

    /// What a connection that is made now knows.
    pub(super) fn clock_sync(&self, id: usize) -> ClockSync {
        ClockSync {
            sent: self.now(id),
            server_us: self.server_us(),
            run_id: self.life,
        }
    }

    pub(super) fn owner(&self) -> Option<(OwnerId, FencingToken)> {
        let key = self.lock_state.key.as_ref()?;
        match &key.value {
            KeyValue::Native(owner) if key.expires_ms.is_none_or(|end| self.server_ms() <= end) => {
                Some((owner.owner_id, owner.token))
            }
            _ => None,
        }
    }

    pub(super) fn queued(&self) -> impl Iterator<Item = &QueueEntry> {
        self.lock_state
            .queue
            .iter()
            .flat_map(|queue| queue.value.values())
    }

    /// How many believe to hold the lock, each by its own clock.
    pub(super) fn holders(&self) -> usize {
        let believes = |(id, client): (usize, &Part<Client>)| {
            client
                .holding()
                .is_some_and(|holding| holding.lease.is_valid(self.now(id)))
        };
        self.clients
            .iter()
            .enumerate()
            .filter(|c| believes(*c))
            .count()
    }

    /// Whether nobody waits for longer than it wanted to, by more than a tick.
    pub(super) fn waits_end_in_time(&self) -> bool {
        let tick = Duration::from_micros(TICK_US);
        self.clients.iter().enumerate().all(|(id, client)| {
            let end = client
                .asking()
                .and_then(|asking| asking.acquisition.waits_until);
            end.is_none_or(|end| self.now(id) < end.plus(tick))
        })
    }

    pub(super) fn new_owner_id(&mut self, id: usize) -> OwnerId {
        let used = &mut self.clients[id].change().owner_ids;
        let owner_id = owner_id_of(id, usize::from(*used));
        *used += 1;
        owner_id
    }

    pub(super) fn mark_final(&mut self, owner_id: OwnerId) {
        self.settled |= 1 << index(owner_id);
    }

    pub(super) fn is_final(&self, owner_id: OwnerId) -> bool {
        owner_id != OwnerId::nil() && self.settled & (1 << index(owner_id)) != 0
    }
}

fn owner_id_of(id: usize, used: usize) -> OwnerId {
    assert!(used < OWNER_IDS, "a client used up its nonces");
    numbered(id * OWNER_IDS + used)
}

/// They differ in their first digits, by which the head of a queue is told.
fn numbered(number: usize) -> OwnerId {
    OwnerId::from_number((FIRST_OWNER_ID + number as u128) << 96)
}

pub(super) fn client_of(owner_id: OwnerId) -> usize {
    index(owner_id) / OWNER_IDS
}

fn index(owner_id: OwnerId) -> usize {
    (0..RATES.len() * OWNER_IDS)
        .find(|number| owner_id == numbered(*number))
        .expect("a nonce of the model")
}
