//! The state of the model: the clients, the server, the network and the clocks.

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::network::{Network, fingerprint};
use super::rules::{Budget, Rules};
use crate::acquisition::Connectivity;
use crate::clock::{Moment, ServerMs};
use crate::clock_sync::{ClockSync, ServerClock};
use crate::fencing_token::FencingToken;
use crate::kind::Group;
use crate::local_queue::{LocalPosition, ObservedExpiry, Peers};
use crate::lock_state::{KeyValue, LockState};
use crate::owner_id::OwnerId;
use crate::tests::virtual_client::{Caller, Holding, Manager};
use crate::wire::{EntryKind, Member, Mode, QueueEntry};

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

    pub(super) fn is_changed(&self) -> bool {
        self.fingerprint.is_none()
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

/// The other waiters of a manager with a single caller: none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct LonePeers {
    last_token: Option<FencingToken>,
}

impl Peers for LonePeers {
    fn enter(
        &mut self,
        _observed_expiry: Option<ObservedExpiry>,
        token: Option<FencingToken>,
    ) -> LocalPosition {
        self.last_token = self.last_token.max(token);
        LocalPosition::First
    }

    fn leave(&mut self, _observed_expiry: Option<ObservedExpiry>, _token: Option<FencingToken>) {
        self.last_token = None;
    }

    fn last_observed(&self) -> Option<ObservedExpiry> {
        None
    }

    fn last_token(&self) -> Option<FencingToken> {
        self.last_token
    }
}

/// A process with one caller.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Client {
    pub(super) manager: Manager,
    pub(super) caller: Caller,
    pub(super) peers: LonePeers,
    pub(super) owner_ids: u8,
}

impl Client {
    /// Whether nothing can happen to the client any more.
    pub(super) fn is_at_rest(&self) -> bool {
        matches!(self.caller, Caller::Done | Caller::Crashed) && self.manager.cleanups.is_empty()
    }

    /// Whether its caller waits in the queue, or is about to.
    pub(super) fn waits(&self) -> bool {
        let acquiring = self.caller.acquiring();
        acquiring.is_some_and(|acquiring| acquiring.acquisition.sent().waits_until.is_some())
    }

    /// Unifies states that differ only in what errors would report, or in what no later step reads.
    fn forget_reports(&mut self) {
        match &mut self.caller {
            Caller::Acquiring(acquiring) => acquiring.acquisition.forget_reports(),
            Caller::Done | Caller::Crashed => self.manager.server_clock = ServerClock::default(),
            Caller::Idle | Caller::Holding(_) => {}
        }
    }
}

/// A promise that a step broke.
#[derive(Clone, Copy, Debug)]
pub(super) enum Breach {
    /// The token of a grant was not greater than all earlier ones.
    GrantOrder,
    /// The token of a guard was not greater than all earlier ones.
    GuardOrder,
    /// A guard began after the end of its lease.
    LateGuard,
    /// A guard lost a lock that the server still had.
    EarlyLoss,
}

/// The promises that a run has broken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Breaches(u8);

impl Breaches {
    pub(super) fn record(&mut self, breach: Breach, is_broken: bool) {
        self.0 |= u8::from(is_broken) << breach as u8;
    }

    pub(super) fn has(self, breach: Breach) -> bool {
        self.0 & (1 << breach as u8) != 0
    }
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
    /// How many faults have happened.
    pub(super) faults: u8,
    /// The owner ids that were cancelled for good, as bits.
    pub(super) finals: u32,
    pub(super) last_token: u64,
    pub(super) last_guard_token: u64,
    pub(super) breaches: Breaches,
    /// Keys were lost or the clock jumped, so exclusion is no longer promised.
    pub(super) beyond_promise: bool,
    /// A cancelled acquisition may come back: after a loss of memory, after the clock was set back,
    /// or by a copy of an acquire that its sender does not know of.
    pub(super) may_come_back: bool,
    /// The owner id of a lock that its holder gave away.
    pub(super) ticket: Option<OwnerId>,
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
            faults: 0,
            finals: 0,
            last_token: 0,
            last_guard_token: 0,
            breaches: Breaches::default(),
            beyond_promise: false,
            may_come_back: false,
            ticket: None,
            free_ticks: 0,
        };
        for id in 0..rules.clients {
            let first = state.clock_sync(id);
            state.clients.push(Part::new(Client {
                manager: Manager {
                    channel: channel(id),
                    first,
                    server_clock: ServerClock::default(),
                    floor_us: first.server_us,
                    connectivity: Connectivity::Up,
                    origin: 0,
                    mode: Mode::Subscribed,
                    command_timeout: rules.command_timeout,
                    handover_lease: rules.handover_lease,
                    cleanups: Vec::new(),
                },
                caller: Caller::Idle,
                peers: LonePeers::default(),
                owner_ids: 0,
            }));
        }
        state
    }

    pub(super) fn seal(&mut self) {
        self.lock_state.seal();
        for client in &mut self.clients {
            if client.is_changed() {
                client.change().forget_reports();
            }
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

    /// The value of the key, if it is a lock that is held.
    fn held_value(&self) -> Option<&KeyValue> {
        let key = self.lock_state.key.as_ref()?;
        let is_alive = key.expires_ms.is_none_or(|end| self.server_ms() <= end);
        is_alive.then_some(&key.value)
    }

    /// The owner of the exclusive lock.
    pub(super) fn owner(&self) -> Option<OwnerId> {
        match self.held_value()? {
            KeyValue::Native(owner) => Some(owner.owner_id),
            _ => None,
        }
    }

    /// The token of the exclusive lock, or of the group that holds it together.
    pub(super) fn token(&self) -> Option<FencingToken> {
        match self.held_value()? {
            KeyValue::Native(owner) => Some(owner.token),
            KeyValue::Shared(group) => Some(group.token),
            _ => None,
        }
    }

    /// The members of the group that holds the lock, without those whose leases have ended.
    fn members(&self) -> impl Iterator<Item = &Member> {
        let is_shared = matches!(self.held_value(), Some(KeyValue::Shared(_)));
        let holders = self.lock_state.holders.iter().filter(move |_| is_shared);
        let members = holders.flat_map(|holders| &holders.value);
        members
            .filter(|(_, end)| self.server_ms() <= **end)
            .map(|(member, _)| member)
    }

    /// All owners that hold the lock on the server.
    pub(super) fn owners(&self) -> impl Iterator<Item = OwnerId> {
        let members = self.members().map(|member| member.owner_id);
        members.chain(self.owner())
    }

    /// Whether the first waiter could have the lock at once.
    pub(super) fn is_free_for_the_next(&self) -> bool {
        let Some(value) = self.held_value() else {
            return true;
        };
        let KeyValue::Shared(group) = value else {
            return false;
        };
        let first = self.queued().next();
        let Some(EntryKind::Known(kind)) = first.map(|entry| entry.kind.clone()) else {
            return false;
        };
        let members = u32::try_from(self.members().count()).unwrap_or(u32::MAX);
        let most = match group.group {
            Group::Permits(of) => of,
            Group::Read => u32::MAX,
        };
        kind.group() == Some(group.group) && members.saturating_add(kind.weight()) <= most
    }

    pub(super) fn queued(&self) -> impl Iterator<Item = &QueueEntry> {
        self.lock_state
            .queue
            .iter()
            .flat_map(|queue| queue.value.values())
    }

    /// The clients that hold the lock, each by its own clock.
    fn holding(&self) -> impl Iterator<Item = &Holding> {
        let clients = self.clients.iter().enumerate();
        clients.filter_map(|(id, client)| {
            let holding = client.caller.holding()?;
            holding.lease.is_valid(self.now(id)).then_some(holding)
        })
    }

    /// How many clients hold the lock, each by its own clock.
    pub(super) fn holders(&self) -> usize {
        self.holding().count()
    }

    /// Whether all holders are of one group, with one token and no permit too many.
    pub(super) fn holders_fit(&self) -> bool {
        let Some(first) = self.holding().next() else {
            return true;
        };
        if self.holders() == 1 {
            return true;
        }
        let group = first.request.kind.group();
        let is_one = group.is_some()
            && self
                .holding()
                .all(|next| next.request.kind.group() == group && next.token == first.token);
        let permits: u32 = self.holding().map(|held| held.request.kind.weight()).sum();
        is_one && !matches!(group, Some(Group::Permits(of)) if permits > of)
    }

    /// Whether no client waits longer than its wait by more than is promised.
    pub(super) fn waits_end_in_time(&self) -> bool {
        const LATE: Duration = Duration::from_millis(250);
        self.clients.iter().enumerate().all(|(id, client)| {
            let acquiring = client.caller.acquiring();
            let end = acquiring.and_then(|acquiring| acquiring.acquisition.sent().waits_until);
            end.is_none_or(|end| self.now(id) < end.plus(LATE))
        })
    }

    pub(super) fn mark_final(&mut self, owner_id: OwnerId) {
        self.finals |= 1 << index(owner_id);
    }

    pub(super) fn is_final(&self, owner_id: OwnerId) -> bool {
        owner_id != OwnerId::nil() && self.finals & (1 << index(owner_id)) != 0
    }
}

/// Returns the next owner id of a client.
pub(super) fn next_owner_id(id: usize, used: &mut u8) -> OwnerId {
    let number = usize::from(*used);
    assert!(number < OWNER_IDS, "a client used up its owner ids");
    *used += 1;
    numbered(id * OWNER_IDS + number)
}

/// The notification channel of a client.
pub(super) fn channel(id: usize) -> Arc<str> {
    format!("c{id}").into()
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
