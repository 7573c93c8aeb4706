//! The owner ids that this manager has given out, and what it tells those who wait.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::Moment;
use crate::counts::Counters;
use crate::nonce::{Nonce, ShortId};
use crate::sync::Mutex;
use crate::token::FencingToken;
use crate::wait::{Sighting, Standing};

/// The lock was handed over by a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) token: FencingToken,
    pub(crate) received: Moment,
    pub(crate) lease: Duration,
    /// Until when it is valid; `None` when a renewal has to tell.
    pub(crate) until: Option<Moment>,
}

/// What a waiter is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    Grant(Grant),
    /// It is the first in the queue, and the holder's lease ends then.
    Head {
        holder_ends: Moment,
    },
    /// It is the foremost waiter of this manager on its key now.
    Foremost,
    /// Only asking can tell what happened meanwhile.
    Look,
}

/// Where one waiter is told.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    signals: Mutex<Signals>,
    notify: Notify,
}

#[derive(Debug, Default)]
struct Signals {
    grant: Option<Grant>,
    head: Option<Moment>,
    foremost: bool,
    look: bool,
}

impl Signals {
    fn put(&mut self, signal: Signal) {
        match signal {
            Signal::Grant(grant) => {
                // Two cannot both be true: only the server can tell which is.
                let is_only = self.grant.is_none();
                self.grant = Some(Grant {
                    until: grant.until.filter(|_| is_only),
                    ..grant
                });
            }
            Signal::Head { holder_ends } => self.head = Some(holder_ends),
            Signal::Foremost => self.foremost = true,
            Signal::Look => self.look = true,
        }
    }

    fn take(&mut self) -> Option<Signal> {
        if let Some(grant) = self.grant.take() {
            return Some(Signal::Grant(grant));
        }
        if std::mem::take(&mut self.look) {
            return Some(Signal::Look);
        }
        if let Some(holder_ends) = self.head.take() {
            return Some(Signal::Head { holder_ends });
        }
        std::mem::take(&mut self.foremost).then_some(Signal::Foremost)
    }
}

impl Slot {
    /// The next signal, the most important first.
    ///
    /// # Cancel safety
    /// Nothing is lost: a signal is taken in the poll that returns it.
    pub(crate) async fn next(&self) -> Signal {
        loop {
            if let Some(signal) = self.signals.lock().take() {
                return signal;
            }
            self.notify.notified().await;
        }
    }

    fn tell(&self, signal: Signal, counters: &Counters) {
        self.signals.lock().put(signal);
        counters.waking(|| self.notify.notify_one());
    }
}

/// All owner ids that this manager has given out and not taken back, and its waiters by key.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    counters: Arc<Counters>,
}

#[derive(Debug, Default)]
struct State {
    /// In the order of the ids, so that those that begin alike stand together.
    slots: BTreeMap<Nonce, Option<Arc<Slot>>>,
    queues: HashMap<Arc<str>, Queue>,
    next_place: u64,
}

/// The waiters of this manager on one key, in the order in which they were put into the queue.
#[derive(Debug, Default)]
struct Queue {
    waiters: BTreeMap<u64, Arc<Slot>>,
    seen: Option<Sighting>,
    last_token: Option<FencingToken>,
}

/// The place of a waiter among those of its manager on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u64);

impl Queue {
    fn standing(&self, place: Place) -> Standing {
        match self.waiters.first_key_value() {
            Some((first, _)) if *first == place.0 => Standing::Foremost,
            _ => Standing::Behind,
        }
    }

    fn see(&mut self, sighting: Option<Sighting>, token: Option<FencingToken>) {
        if let Some(sighting) = sighting
            && self.seen.is_none_or(|known| known.at <= sighting.at)
        {
            self.seen = Some(sighting);
        }
        self.last_token = self.last_token.max(token);
    }
}

impl Inbox {
    pub(crate) fn new(counters: Arc<Counters>) -> Self {
        Self {
            state: Mutex::default(),
            counters,
        }
    }

    /// For one who waits: before the first command that names the owner id is sent.
    pub(crate) fn register_waiter(&self, nonce: Nonce) -> Arc<Slot> {
        let slot = Arc::new(Slot::default());
        let registered = Some(Arc::clone(&slot));
        self.state.lock().slots.insert(nonce, registered);
        slot
    }

    /// For one who holds or only tries: nothing is pushed to it.
    pub(crate) fn register(&self, nonce: Nonce) {
        self.state.lock().slots.insert(nonce, None);
    }

    pub(crate) fn remove(&self, nonce: Nonce) {
        let removed = self.state.lock().slots.remove(&nonce);
        drop(removed);
    }

    pub(crate) fn knows(&self, nonce: Nonce) -> bool {
        self.state.lock().slots.contains_key(&nonce)
    }

    /// The server put that waiter into the queue of `key`: behind those of this manager that it
    /// put there before.
    pub(crate) fn enter_queue(&self, key: &Arc<str>, slot: &Arc<Slot>) -> Place {
        let mut state = self.state.lock();
        state.next_place += 1;
        let place = state.next_place;
        if !state.queues.contains_key(key) {
            state.queues.insert(Arc::clone(key), Queue::default());
        }
        if let Some(queue) = state.queues.get_mut(key) {
            queue.waiters.insert(place, Arc::clone(slot));
        }
        Place(place)
    }

    /// What a waiter saw of the holder. Says where it stands.
    pub(crate) fn see(
        &self,
        key: &str,
        place: Place,
        sighting: Option<Sighting>,
        token: Option<FencingToken>,
    ) -> Standing {
        let mut state = self.state.lock();
        let Some(queue) = state.queues.get_mut(key) else {
            return Standing::Behind;
        };
        queue.see(sighting, token);
        queue.standing(place)
    }

    /// What the waiters of this manager saw last of the holder of `key`.
    pub(crate) fn seen(&self, key: &str) -> Option<Sighting> {
        self.state.lock().queues.get(key)?.seen
    }

    /// The greatest token that the waiters of this manager saw for `key`.
    pub(crate) fn last_token(&self, key: &str) -> Option<FencingToken> {
        self.state.lock().queues.get(key)?.last_token
    }

    /// That waiter waits no longer. Where it got the lock, `sighting` and `token` are its own.
    /// Whoever is the foremost now is told.
    pub(crate) fn leave_queue(
        &self,
        key: &str,
        place: Place,
        sighting: Option<Sighting>,
        token: Option<FencingToken>,
    ) {
        let (left, next) = {
            let mut state = self.state.lock();
            let Some(queue) = state.queues.get_mut(key) else {
                return;
            };
            queue.see(sighting, token);
            let was_foremost = queue.standing(place) == Standing::Foremost;
            let left = queue.waiters.remove(&place.0);
            let next = queue.waiters.first_key_value();
            let next = next
                .filter(|_| was_foremost)
                .map(|(_, slot)| Arc::clone(slot));
            if queue.waiters.is_empty() {
                state.queues.remove(key);
            }
            (left, next)
        };
        drop(left);
        if let Some(next) = next {
            next.tell(Signal::Foremost, &self.counters);
        }
    }

    /// Whether somebody waited for it.
    pub(crate) fn tell(&self, nonce: Nonce, signal: Signal) -> bool {
        let slot = self.state.lock().slots.get(&nonce).cloned().flatten();
        if let Some(slot) = &slot {
            slot.tell(signal, &self.counters);
        }
        slot.is_some()
    }

    /// As [`tell`](Self::tell), for all whose owner ids begin like that: mostly one.
    pub(crate) fn tell_all(&self, short: ShortId, signal: Signal) -> bool {
        let slots: Vec<_> = {
            let state = self.state.lock();
            let alike = state.slots.range(short.nonces());
            alike.filter_map(|(_, slot)| slot.clone()).collect()
        };
        for slot in &slots {
            slot.tell(signal, &self.counters);
        }
        !slots.is_empty()
    }

    pub(crate) fn look_all(&self) {
        let slots: Vec<_> = self
            .state
            .lock()
            .slots
            .values()
            .flatten()
            .cloned()
            .collect();
        for slot in slots {
            slot.tell(Signal::Look, &self.counters);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant() -> Grant {
        Grant {
            token: FencingToken::new(1),
            received: Moment::from_millis(1),
            lease: Duration::from_secs(2),
            until: None,
        }
    }

    #[tokio::test]
    async fn a_grant_goes_before_everything_else() {
        let inbox = Inbox::default();
        let nonce = Nonce::random();
        let slot = inbox.register_waiter(nonce);
        let holder_ends = Moment::from_millis(5);
        assert!(inbox.tell(nonce, Signal::Head { holder_ends }));
        inbox.look_all();
        assert!(inbox.tell(nonce, Signal::Grant(grant())));
        assert_eq!(slot.next().await, Signal::Grant(grant()));
        assert_eq!(slot.next().await, Signal::Look);
        assert_eq!(slot.next().await, Signal::Head { holder_ends });
    }

    #[tokio::test]
    async fn a_signal_that_came_first_is_not_missed() {
        let inbox = Inbox::default();
        let nonce = Nonce::random();
        let slot = inbox.register_waiter(nonce);
        let waiting = tokio::spawn(async move { slot.next().await });
        tokio::task::yield_now().await;
        assert!(inbox.tell(nonce, Signal::Grant(grant())));
        assert_eq!(waiting.await.unwrap(), Signal::Grant(grant()));
    }

    #[tokio::test]
    async fn two_grants_at_once_are_confirmed_by_a_renewal() {
        let inbox = Inbox::default();
        let nonce = Nonce::random();
        let slot = inbox.register_waiter(nonce);
        let dated = Grant {
            until: Some(Moment::from_millis(2)),
            ..grant()
        };
        inbox.tell(nonce, Signal::Grant(dated));
        assert_eq!(slot.next().await, Signal::Grant(dated));
        inbox.tell(nonce, Signal::Grant(dated));
        inbox.tell(nonce, Signal::Grant(dated));
        assert_eq!(slot.next().await, Signal::Grant(grant()));
    }

    #[tokio::test]
    async fn the_head_is_found_by_its_first_digits() {
        let inbox = Inbox::default();
        let nonces = [1, 1, 2].map(|first: u128| {
            let random = Nonce::random().to_string();
            Nonce::parse(&format!("{first:08x}{}", &random[8..])).unwrap()
        });
        let slots = nonces.map(|nonce| inbox.register_waiter(nonce));
        let holder_ends = Moment::from_millis(5);
        assert!(inbox.tell_all(nonces[0].short(), Signal::Head { holder_ends }));
        for slot in &slots[..2] {
            assert_eq!(slot.next().await, Signal::Head { holder_ends });
        }
        assert_eq!(slots[2].signals.lock().take(), None);
        inbox.remove(nonces[2]);
        assert!(!inbox.tell_all(nonces[2].short(), Signal::Look));
    }

    #[tokio::test]
    async fn the_next_is_told_that_it_is_the_foremost() {
        let inbox = Inbox::default();
        let key: Arc<str> = "k".into();
        let slots = [(); 3].map(|()| inbox.register_waiter(Nonce::random()));
        let places = [0, 1, 2].map(|at: usize| inbox.enter_queue(&key, &slots[at]));
        let sighting = |ms| Sighting {
            at: Moment::from_millis(ms),
            holder_ends: Moment::from_millis(ms + 100),
        };
        let token = |number| Some(FencingToken::new(number));
        let see = |at: usize, ms| inbox.see(&key, places[at], Some(sighting(ms)), token(ms));
        assert_eq!(see(0, 7), Standing::Foremost);
        assert_eq!(see(1, 5), Standing::Behind);
        assert_eq!(inbox.seen(&key), Some(sighting(7)), "the youngest");
        assert_eq!(inbox.last_token(&key), token(7));
        inbox.leave_queue(&key, places[1], None, None);
        assert_eq!(
            slots[2].signals.lock().take(),
            None,
            "another is the foremost"
        );
        inbox.leave_queue(&key, places[0], Some(sighting(9)), token(9));
        assert_eq!(slots[2].next().await, Signal::Foremost);
        assert_eq!(inbox.seen(&key), Some(sighting(9)));
        assert_eq!(see(2, 10), Standing::Foremost);
        inbox.leave_queue(&key, places[2], None, None);
        assert!(inbox.state.lock().queues.is_empty());
    }

    #[test]
    fn nobody_is_told_for_a_nonce_that_does_not_wait() {
        let inbox = Inbox::default();
        let nonce = Nonce::random();
        assert!(!inbox.tell(nonce, Signal::Grant(grant())));
        inbox.register(nonce);
        assert!(inbox.knows(nonce) && !inbox.tell(nonce, Signal::Grant(grant())));
        inbox.remove(nonce);
        assert!(!inbox.knows(nonce));
    }
}
