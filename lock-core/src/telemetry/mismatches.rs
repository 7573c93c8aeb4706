//! Limits how often a manager warns about callers that give different numbers of permits.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::sync::Mutex;
use lock_protocol::clock::Moment;
use lock_protocol::key::LockKey;

/// Callers of such a name wait for each other at each acquire. One line in a minute is enough to see it.
const INTERVAL: Duration = Duration::from_secs(60);
/// The most keys that are kept. A name may have a value of a request in it. Further keys are counted, and not
/// warned about.
const MOST_KEYS: usize = 1_000;

/// The keys with a warning in the last minute.
#[derive(Debug, Default)]
pub(crate) struct Mismatches(Mutex<HashMap<Arc<str>, Moment>>);

impl Mismatches {
    /// Returns whether this key had a warning less than a minute ago. If not, it has one now.
    pub(crate) fn is_repeated(&self, key: &LockKey, now: Moment) -> bool {
        let is_recent = |last: Moment| now.since(last) < INTERVAL;
        let mut warned = self.0.lock();
        if warned.get(key.as_str()).copied().is_some_and(is_recent) {
            return true;
        }
        if warned.len() >= MOST_KEYS {
            warned.retain(|_, last| is_recent(*last));
        }
        let is_full = warned.len() >= MOST_KEYS;
        if !is_full {
            warned.insert(key.text(), now);
        }
        is_full
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_protocol::clock::Clock;
    use lock_protocol::key::LockName;

    fn key(name: &str) -> LockKey {
        LockKey::new("lock:", &LockName::from(name)).unwrap()
    }

    #[test]
    fn key_is_warned_about_once_a_minute() {
        let (mismatches, now) = (Mismatches::default(), Clock::System.now());
        assert!(!mismatches.is_repeated(&key("a"), now));
        assert!(!mismatches.is_repeated(&key("b"), now));
        let soon = now.plus(INTERVAL).minus(Duration::from_millis(1));
        assert!(mismatches.is_repeated(&key("a"), soon));
        assert!(!mismatches.is_repeated(&key("a"), now.plus(INTERVAL)));
        assert!(mismatches.is_repeated(&key("a"), now.plus(INTERVAL)));
    }

    #[test]
    fn keys_are_bounded_and_old_ones_make_room() {
        let (mismatches, now) = (Mismatches::default(), Clock::System.now());
        for number in 0..MOST_KEYS {
            assert!(!mismatches.is_repeated(&key(&number.to_string()), now));
        }
        assert!(mismatches.is_repeated(&key("one more"), now));
        assert!(!mismatches.is_repeated(&key("one more"), now.plus(INTERVAL)));
        assert_eq!(mismatches.0.lock().len(), 1);
    }
}
