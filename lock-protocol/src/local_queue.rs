//! The waiters of one manager on one key. Only the first of them polls at the holder's expiry.

use std::collections::BTreeMap;

use crate::clock::Moment;
use crate::fencing_token::FencingToken;

/// The place of a waiter among its manager's waiters for the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LocalPosition {
    /// No other waiter of the manager is ahead of it, so it polls at the holder's expiry.
    First,
    Behind,
}

/// The end of the holder's lease, as a waiter of the manager saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ObservedExpiry {
    pub at: Moment,
    pub holder_expires_at: Moment,
}

/// What a waiter tells the other waiters of its manager on the same key, and learns from them.
pub trait Peers {
    /// Records that the server queued this waiter, behind the earlier ones of its manager, and what
    /// its reply said of the holder. Returns the waiter's position among them.
    fn enter(
        &mut self,
        observed_expiry: Option<ObservedExpiry>,
        token: Option<FencingToken>,
    ) -> LocalPosition;

    /// Leaves the local queue, if the waiter is in it. A waiter that acquired the lock passes the
    /// end of its own lease and its token. The next waiter becomes the first, if this one was.
    fn leave(&mut self, observed_expiry: Option<ObservedExpiry>, token: Option<FencingToken>);

    /// Returns the latest observation of the holder.
    fn last_observed(&self) -> Option<ObservedExpiry>;

    /// Returns the greatest token that any of them has observed.
    fn last_token(&self) -> Option<FencingToken>;
}

/// The waiters of one manager on one key, in the order in which the server queued them.
#[derive(Clone, Debug)]
pub struct LocalQueue<W> {
    /// Beside the map, because most keys have one waiter at most, and a map of one is large.
    first: Option<(QueuePlace, W)>,
    behind: BTreeMap<QueuePlace, W>,
    last_place: u64,
    last_observed: Option<ObservedExpiry>,
    last_token: Option<FencingToken>,
}

/// The place of a waiter in a [`LocalQueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueuePlace(u64);

impl<W> Default for LocalQueue<W> {
    fn default() -> Self {
        Self {
            first: None,
            behind: BTreeMap::new(),
            last_place: 0,
            last_observed: None,
            last_token: None,
        }
    }
}

impl<W> LocalQueue<W> {
    pub fn enter(&mut self, waiter: W) -> QueuePlace {
        self.last_place += 1;
        let place = QueuePlace(self.last_place);
        if self.first.is_none() {
            self.first = Some((place, waiter));
        } else {
            self.behind.insert(place, waiter);
        }
        place
    }

    /// Records what a waiter observed of the holder.
    pub fn observe(
        &mut self,
        observed_expiry: Option<ObservedExpiry>,
        token: Option<FencingToken>,
    ) {
        if let Some(observed_expiry) = observed_expiry
            && self
                .last_observed
                .is_none_or(|known| known.at <= observed_expiry.at)
        {
            self.last_observed = Some(observed_expiry);
        }
        self.last_token = self.last_token.max(token);
    }

    pub fn local_position(&self, place: QueuePlace) -> LocalPosition {
        match &self.first {
            Some((first, _)) if *first == place => LocalPosition::First,
            _ => LocalPosition::Behind,
        }
    }

    /// Removes a waiter. Returns it, for the caller to drop, and the waiter that is first now if the
    /// removed one was.
    pub fn leave(&mut self, place: QueuePlace) -> (Option<W>, Option<&W>) {
        if self.local_position(place) == LocalPosition::Behind {
            return (self.behind.remove(&place), None);
        }
        let next = self.behind.pop_first();
        let removed = std::mem::replace(&mut self.first, next);
        let next = self.first.as_ref().map(|(_, waiter)| waiter);
        (removed.map(|(_, waiter)| waiter), next)
    }

    /// Returns the waiter that is first.
    pub fn first(&self) -> Option<&W> {
        self.first.as_ref().map(|(_, waiter)| waiter)
    }

    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub fn last_observed(&self) -> Option<ObservedExpiry> {
        self.last_observed
    }

    pub fn last_token(&self) -> Option<FencingToken> {
        self.last_token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(at: u64, holder_expires_at: u64) -> ObservedExpiry {
        ObservedExpiry {
            at: Moment::from_millis(at),
            holder_expires_at: Moment::from_millis(holder_expires_at),
        }
    }

    #[test]
    fn waiter_that_entered_first_is_first_until_it_leaves() {
        let mut queue = LocalQueue::default();
        let places = ["a", "b", "c"].map(|name| queue.enter(name));
        let positions = places.map(|place| queue.local_position(place));
        let behind = LocalPosition::Behind;
        assert_eq!(positions, [LocalPosition::First, behind, behind]);
        assert_eq!(queue.leave(places[0]), (Some("a"), Some(&"b")));
        assert_eq!(queue.local_position(places[1]), LocalPosition::First);
        assert_eq!(queue.local_position(places[0]), behind);
    }

    #[test]
    fn next_waiter_is_returned_only_when_the_first_one_leaves() {
        let mut queue = LocalQueue::default();
        let [first, second, third] = ["a", "b", "c"].map(|name| queue.enter(name));
        assert_eq!(queue.leave(second), (Some("b"), None));
        assert_eq!(queue.leave(second), (None, None));
        assert_eq!(queue.leave(first), (Some("a"), Some(&"c")));
        assert!(!queue.is_empty());
        assert_eq!(queue.leave(third), (Some("c"), None));
        assert!(queue.is_empty());
    }

    #[test]
    fn latest_observation_of_the_holder_counts() {
        let mut queue = LocalQueue::<()>::default();
        assert_eq!(queue.last_observed(), None);
        queue.observe(Some(observed(7, 100)), None);
        queue.observe(Some(observed(5, 300)), None);
        queue.observe(None, None);
        assert_eq!(queue.last_observed(), Some(observed(7, 100)));
        // At the same moment, the later call knows more.
        queue.observe(Some(observed(7, 50)), None);
        assert_eq!(queue.last_observed(), Some(observed(7, 50)));
    }

    #[test]
    fn greatest_observed_token_counts() {
        let mut queue = LocalQueue::<()>::default();
        for number in [3, 9, 4] {
            queue.observe(None, Some(FencingToken::new(number)));
            queue.observe(None, None);
        }
        assert_eq!(queue.last_token(), Some(FencingToken::new(9)));
    }
}
