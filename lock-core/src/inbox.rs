//! The nonces of this manager that are out in the world, and what is pushed to them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::Moment;
use crate::nonce::Nonce;
use crate::token::FencingToken;

/// Locks a mutex whose holders cannot leave it half-written, panic or not.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

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
    look: bool,
}

impl Signals {
    fn take(&mut self) -> Option<Signal> {
        if let Some(grant) = self.grant.take() {
            return Some(Signal::Grant(grant));
        }
        if std::mem::take(&mut self.look) {
            return Some(Signal::Look);
        }
        let holder_ends = self.head.take()?;
        Some(Signal::Head { holder_ends })
    }
}

impl Slot {
    /// The next signal, the most important first.
    ///
    /// # Cancel safety
    /// Nothing is lost: a signal is taken in the poll that returns it.
    pub(crate) async fn next(&self) -> Signal {
        loop {
            if let Some(signal) = locked(&self.signals).take() {
                return signal;
            }
            self.notify.notified().await;
        }
    }

    fn tell(&self, signal: Signal) {
        let mut signals = locked(&self.signals);
        match signal {
            Signal::Grant(grant) => signals.grant = Some(grant),
            Signal::Head { holder_ends } => signals.head = Some(holder_ends),
            Signal::Look => signals.look = true,
        }
        drop(signals);
        self.notify.notify_one();
    }
}

/// All nonces that this manager has given out and not taken back.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    slots: Mutex<HashMap<Nonce, Option<Arc<Slot>>>>,
}

impl Inbox {
    /// For one who waits: before the first command that names the nonce is sent.
    pub(crate) fn register_waiter(&self, nonce: Nonce) -> Arc<Slot> {
        let slot = Arc::new(Slot::default());
        locked(&self.slots).insert(nonce, Some(Arc::clone(&slot)));
        slot
    }

    /// For one who holds or only tries: nothing is pushed to it.
    pub(crate) fn register(&self, nonce: Nonce) {
        locked(&self.slots).insert(nonce, None);
    }

    pub(crate) fn remove(&self, nonce: Nonce) {
        locked(&self.slots).remove(&nonce);
    }

    pub(crate) fn knows(&self, nonce: Nonce) -> bool {
        locked(&self.slots).contains_key(&nonce)
    }

    /// Whether somebody waited for it.
    pub(crate) fn tell(&self, nonce: Nonce, signal: Signal) -> bool {
        let slot = locked(&self.slots).get(&nonce).cloned().flatten();
        if let Some(slot) = &slot {
            slot.tell(signal);
        }
        slot.is_some()
    }

    pub(crate) fn look_all(&self) {
        let slots: Vec<_> = locked(&self.slots).values().flatten().cloned().collect();
        for slot in slots {
            slot.tell(Signal::Look);
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
