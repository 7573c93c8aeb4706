//! How fast the queues of locks moved lately. A caller that a full queue refuses learns it, and so when to come back.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::sync::Mutex;
use lock_protocol::key::LockKey;

/// More than the templates of a service. Locks without a template count by their names, of which there may be more: then
/// all paces are forgotten.
const MOST_NAMES: usize = 1_024;

/// The mean time from one turn to the next, by the template of the lock or, without one, by its name.
#[derive(Default)]
pub(crate) struct Paces {
    /// Empty until a request limits its queue, so that other managers record nothing.
    by_name: OnceLock<Mutex<HashMap<Arc<str>, Duration>>>,
}

impl Paces {
    /// Begins to record paces, unless that has begun.
    pub(crate) fn begin(&self) {
        self.by_name.get_or_init(Mutex::default);
    }

    /// Records a waiter that got the lock after this time, and after as many turns of others and its own.
    pub(crate) fn record(&self, key: &LockKey, time: Duration, turns: u64) {
        let Some(by_name) = self.by_name.get() else {
            return;
        };
        let pace = time / u32::try_from(turns).unwrap_or(u32::MAX).max(1);
        let mut by_name = by_name.lock();
        let name = name_of(key);
        if let Some(mean) = by_name.get_mut(name) {
            // A quarter for the last one: the mean follows a change within some turns.
            *mean = (*mean / 4 * 3).saturating_add(pace / 4);
            return;
        }
        if by_name.len() == MOST_NAMES {
            by_name.clear();
        }
        by_name.insert(name.into(), pace);
    }

    /// Returns the pace of the lock's queue, if a waiter of this manager has got it.
    pub(crate) fn of(&self, key: &LockKey) -> Option<Duration> {
        self.by_name.get()?.lock().get(name_of(key)).copied()
    }
}

fn name_of(key: &LockKey) -> &str {
    key.template().unwrap_or(key.name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_protocol::key::LockName;

    fn key(name: &str) -> LockKey {
        LockKey::new("", &LockName::from(name)).unwrap()
    }

    fn of_template(name: &str) -> LockKey {
        let name = LockName::from(name).with_template("order:{id}");
        LockKey::new("", &name).unwrap()
    }

    #[test]
    fn pace_is_the_mean_time_of_a_turn() {
        let (paces, ms) = (Paces::default(), Duration::from_millis);
        paces.record(&key("a"), ms(400), 4);
        assert_eq!(paces.of(&key("a")), None, "nobody limits a queue");
        paces.begin();
        paces.record(&key("a"), ms(400), 4);
        assert_eq!(paces.of(&key("a")), Some(ms(100)));
        paces.record(&key("a"), ms(200), 1);
        assert_eq!(paces.of(&key("a")), Some(ms(125)));
        assert_eq!(paces.of(&key("b")), None);
        // Without a turn there is no division by zero, and no overflow.
        paces.record(&key("b"), Duration::MAX, 0);
        paces.record(&key("b"), Duration::MAX, u64::MAX);
        assert!(paces.of(&key("b")).is_some());
    }

    #[test]
    fn locks_of_a_template_have_one_pace() {
        let paces = Paces::default();
        paces.begin();
        let second = Duration::from_secs(1);
        paces.record(&of_template("order:1"), second, 1);
        assert_eq!(paces.of(&of_template("order:2")), Some(second));
    }

    #[test]
    fn number_of_paces_is_bounded() {
        let paces = Paces::default();
        paces.begin();
        for number in 0..=MOST_NAMES {
            paces.record(&key(&format!("k{number}")), Duration::from_secs(1), 1);
        }
        let by_name = paces.by_name.get().unwrap().lock();
        assert_eq!(by_name.len(), 1);
    }
}
