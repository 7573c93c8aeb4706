//! The state of the model: the clients, the server, the network and the clocks.

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

/// Not a whole number of milliseconds, so that rounding has an effect. Consider a ttl one millisecond
/// shorter than some number of ticks. On the server it ends at the last of these ticks. A holder with
/// a slow clock sees that end only because of the margin.
pub(super) const TICK_US: u64 = 50_500;
/// The server time at the start of the model.
const BEGIN_US: u64 = 1_000_000_000_000;
/// The rates of the clients' clocks, at the limits of the promise: 1 % slow, 1 % fast, exact.
const RATES: [u64; 3] = [99, 101, 100];
/// How many owner ids one client can use.
const OWNER_IDS: usize = 8;
/// Zero is the nil owner id.
const FIRST_OWNER_ID: u128 = 1;

/// A part of a state. It is shared until it changes, and hashed once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part<T> {
    value: Arc<T>,
    /// `None` after a change.
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

/// The notifications that the client has received and not yet handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ModelSlot {
    pub(super) grant: Option<ModelGrant>,
    pub(super) poll: bool,
    pub(super) head: Option<Moment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ModelGrant {
    pub(super) token: FencingToken,
    pub(super) received: Moment,
    pub(super) lease: Duration,
    pub(super) until: Option<Moment>,
}

/// A command whose reply is awaited.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sent {
    pub(super) at: Moment,
    pub(super) until: Moment,
    /// The bookkeeping of an acquire. A renewal that confirms a grant has none.
    pub(super) copy: Option<SentCommand>,
}

/// One call of `acquire`, while it runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Acquiring {
    pub(super) acquisition: Acquisition,
    pub(super) sent: Option<Sent>,
    /// Whether a single attempt was repeated, which happens once when the connection was closed.
    pub(super) was_repeated: bool,
    pub(super) slot: ModelSlot,
    pub(super) polled_at: Moment,
    pub(super) next_poll: Moment,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Holding {
    pub(super) acquisition: Acquisition,
    pub(super) lease: Lease,
    pub(super) since: Moment,
    /// When the renewal on its way was sent, and until when its reply is awaited.
    pub(super) renewing: Option<(Moment, Moment)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum ClientPhase {
    Idle,
    Acquiring(Acquiring),
    Holding(Holding),
    Done,
    Crashed,
}

/// A release or a cancel that is not final yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PendingRelease {
    pub(super) acquisition: Acquisition,
    pub(super) was_held: bool,
    pub(super) min_hold_until: Option<Moment>,
    /// Until when the reply to the cancel is awaited.
    pub(super) sent: Option<Moment>,
    pub(super) again_at: Moment,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Client {
    pub(super) phase: ClientPhase,
    pub(super) pending_releases: Vec<PendingRelease>,
    pub(super) owner_ids: u8,
    /// The server's time and run id at the start of the connection.
    pub(super) first: ClockSync,
    pub(super) floor_us: u64,
    /// The clock sync of the youngest reply.
    pub(super) latest: Option<ClockSync>,
}

impl Client {
    pub(super) fn clock_sync(&self) -> ClockSync {
        self.latest
            .filter(|latest| latest.run_id == self.first.run_id)
            .unwrap_or(self.first)
    }

    pub(super) fn acquiring(&self) -> Option<&Acquiring> {
        match &self.phase {
            ClientPhase::Acquiring(acquiring) => Some(acquiring),
            _ => None,
        }
    }

    pub(super) fn holding(&self) -> Option<&Holding> {
        match &self.phase {
            ClientPhase::Holding(holding) => Some(holding),
            _ => None,
        }
    }

    /// Whether nothing can happen to the client any more.
    pub(super) fn is_at_rest(&self) -> bool {
        matches!(self.phase, ClientPhase::Done | ClientPhase::Crashed)
            && self.pending_releases.is_empty()
    }
}

/// Whether the token of a grant, or of a guard, was not greater than all earlier ones.
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
    /// The owner ids that were cancelled for good, as bits.
    pub(super) finals: u32,
    pub(super) last_token: u64,
    pub(super) last_guard_token: u64,
    pub(super) disorder: Disorder,
    /// Keys were lost or the clock jumped, so exclusion is no longer promised.
    pub(super) beyond_promise: bool,
    /// A cancelled acquisition may come back: after a loss of memory, after the clock was set back,
    /// or by a copy of an acquire that its sender does not know of.
    pub(super) may_come_back: bool,
    /// For how many ticks the key was free while a client waited.
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
            finals: 0,
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
                phase: ClientPhase::Idle,
                pending_releases: Vec::new(),
                owner_ids: 0,
                first,
                floor_us: first.server_us,
                latest: None,
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

    /// The clock of a client. It is independent of the server's clock and of the other clients'.
    pub(super) fn now(&self, id: usize) -> Moment {
        let origin_us = 7_000_000 * (id as u64 + 1);
        Moment::from_nanos(origin_us * 1000 + self.real_us() * 10 * RATES[id])
    }

    /// The clock sync of a connection that starts now.
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

    /// How many clients hold the lock, each by its own clock.
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

    /// Whether no client waits longer than its wait by more than a tick.
    pub(super) fn waits_end_in_time(&self) -> bool {
        let tick = Duration::from_micros(TICK_US);
        self.clients.iter().enumerate().all(|(id, client)| {
            let end = client
                .acquiring()
                .and_then(|acquiring| acquiring.acquisition.waits_until);
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
        self.finals |= 1 << index(owner_id);
    }

    pub(super) fn is_final(&self, owner_id: OwnerId) -> bool {
        owner_id != OwnerId::nil() && self.finals & (1 << index(owner_id)) != 0
    }
}

fn owner_id_of(id: usize, used: usize) -> OwnerId {
    assert!(used < OWNER_IDS, "a client used up its owner ids");
    numbered(id * OWNER_IDS + used)
}

/// The ids differ in their first digits, which a head-of-queue notification carries.
fn numbered(number: usize) -> OwnerId {
    OwnerId::from_number((FIRST_OWNER_ID + number as u128) << 96)
}

pub(super) fn client_of(owner_id: OwnerId) -> usize {
    index(owner_id) / OWNER_IDS
}

fn index(owner_id: OwnerId) -> usize {
    (0..RATES.len() * OWNER_IDS)
        .find(|number| owner_id == numbered(*number))
        .expect("an owner id of the model")
}
