//! Where everybody is: the clients, the server, the network and the clocks.

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::network::{Network, fingerprint};
use super::rules::{Budget, Rules};
use crate::backend::{Attempt, Copy};
use crate::clock::{Moment, ServerMs};
use crate::lease::{Anchor, Lease};
use crate::nonce::Nonce;
use crate::table::{Held, Table};
use crate::token::FencingToken;
use crate::wire::Entry;

/// Not a whole number of milliseconds, so that rounding is seen: a ttl that is one millisecond
/// less than so many ticks is over on the server at the last of them, and a holder whose clock
/// is slow sees it over only by the margin.
pub(super) const TICK_US: u64 = 50_500;
/// Server time when the model begins.
const BEGIN_US: u64 = 1_000_000_000_000;
/// The clients' clocks go at the edge of what is promised: one percent slow, one fast, one true.
const RATES: [u64; 3] = [99, 101, 100];
/// How many nonces one client can use up.
const NONCES: usize = 8;
/// Zero is nobody's.
const FIRST_NONCE: u128 = 1;

/// A part of a state: shared until it changes, and hashed once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part<T> {
    it: Arc<T>,
    /// `None` since it was changed.
    fingerprint: Option<u64>,
}

impl<T: Clone + Hash> Part<T> {
    pub(super) fn new(it: T) -> Self {
        Self {
            fingerprint: Some(fingerprint(&it)),
            it: Arc::new(it),
        }
    }

    pub(super) fn change(&mut self) -> &mut T {
        self.fingerprint = None;
        Arc::make_mut(&mut self.it)
    }

    pub(super) fn seal(&mut self) {
        if self.fingerprint.is_none() {
            self.fingerprint = Some(fingerprint(&*self.it));
        }
    }
}

impl<T> Deref for Part<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.it
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
pub(super) struct Slot {
    pub(super) grant: Option<Grant>,
    pub(super) look: bool,
    pub(super) head: Option<Moment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Grant {
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
    pub(super) copy: Option<Copy>,
}

/// One call of `acquire`, while it runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Asking {
    pub(super) attempt: Attempt,
    pub(super) sent: Option<Sent>,
    /// Who asks once asks again once, when the connection was closed.
    pub(super) asked_again: bool,
    pub(super) slot: Slot,
    pub(super) looked: Moment,
    pub(super) next_look: Moment,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Holding {
    pub(super) attempt: Attempt,
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
pub(super) struct Ending {
    pub(super) attempt: Attempt,
    pub(super) was_held: bool,
    pub(super) keep_until: Option<Moment>,
    /// Until when the answer to the cancel is awaited.
    pub(super) sent: Option<Moment>,
    pub(super) again_at: Moment,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Client {
    pub(super) phase: Phase,
    pub(super) endings: Vec<Ending>,
    pub(super) nonces: u8,
    /// What the connection knows: the server's time and life as it began.
    pub(super) first: Anchor,
    pub(super) floor_us: u64,
    /// The youngest answer.
    pub(super) told: Option<Anchor>,
}

impl Client {
    pub(super) fn anchor(&self) -> Anchor {
        self.told
            .filter(|told| told.incarnation == self.first.incarnation)
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
        matches!(self.phase, Phase::Done | Phase::Crashed) && self.endings.is_empty()
    }
}

/// A token was not greater than all before it: of a grant, or of a guard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Disorder {
    pub(super) grants: bool,
    pub(super) guards: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) ticks: u64,
    /// How far the server's clock was moved.
    pub(super) moved_us: i64,
    pub(super) life: u64,
    pub(super) table: Part<Table>,
    pub(super) snapshot: Option<Part<Table>>,
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

impl State {
    pub(super) fn first(rules: &Rules) -> Self {
        let mut state = Self {
            ticks: 0,
            moved_us: 0,
            life: 1,
            table: Part::new(Table::default()),
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
            let first = state.anchor(id);
            state.clients.push(Part::new(Client {
                phase: Phase::Idle,
                endings: Vec::new(),
                nonces: 0,
                first,
                floor_us: first.server_us,
                told: None,
            }));
        }
        state
    }

    pub(super) fn seal(&mut self) {
        self.table.seal();
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
    pub(super) fn anchor(&self, id: usize) -> Anchor {
        Anchor {
            sent: self.now(id),
            server_us: self.server_us(),
            incarnation: self.life,
        }
    }

    pub(super) fn owner(&self) -> Option<(Nonce, FencingToken)> {
        let key = self.table.key.as_ref()?;
        match &key.it {
            Held::Native(owner) if key.expires_ms.is_none_or(|end| self.server_ms() <= end) => {
                Some((owner.nonce, owner.token))
            }
            _ => None,
        }
    }

    pub(super) fn queued(&self) -> impl Iterator<Item = &Entry> {
        self.table.queue.iter().flat_map(|queue| queue.it.values())
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
                .and_then(|asking| asking.attempt.waits_until);
            end.is_none_or(|end| self.now(id) < end.plus(tick))
        })
    }

    pub(super) fn new_nonce(&mut self, id: usize) -> Nonce {
        let used = &mut self.clients[id].change().nonces;
        let nonce = nonce_of(id, usize::from(*used));
        *used += 1;
        nonce
    }

    pub(super) fn settle(&mut self, nonce: Nonce) {
        self.settled |= 1 << index(nonce);
    }

    pub(super) fn is_settled(&self, nonce: Nonce) -> bool {
        nonce != Nonce::nobody() && self.settled & (1 << index(nonce)) != 0
    }
}

fn nonce_of(id: usize, used: usize) -> Nonce {
    assert!(used < NONCES, "a client used up its nonces");
    numbered(id * NONCES + used)
}

/// They differ in their first digits, by which the head of a queue is told.
fn numbered(number: usize) -> Nonce {
    Nonce::from_number((FIRST_NONCE + number as u128) << 96)
}

pub(super) fn client_of(nonce: Nonce) -> usize {
    index(nonce) / NONCES
}

fn index(nonce: Nonce) -> usize {
    (0..RATES.len() * NONCES)
        .find(|number| nonce == numbered(*number))
        .expect("a nonce of the model")
}
