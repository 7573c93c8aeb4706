//! The names that Redisson derives from the name of a lock.

use super::LockKey;

/// The beginning of the channels of locks.
const CHANNEL: &str = "redisson_lock__channel";
/// The beginning of the counters of fenced locks.
const TOKEN: &str = "redisson_lock_token";

impl LockKey {
    /// The channel on which Redisson publishes the releases of this lock.
    pub fn redisson_channel(&self) -> String {
        self.redisson_companion(CHANNEL)
    }

    /// The key of the counter of a fenced lock of Redisson.
    pub fn redisson_counter(&self) -> String {
        self.redisson_companion(TOKEN)
    }

    /// Redisson (`RedissonObject.prefixName`) adds braces to each name without an opening brace. So its companions
    /// are in the slot of the key.
    fn redisson_companion(&self, start: &str) -> String {
        let key = self.as_str();
        if key.contains('{') {
            format!("{start}:{key}")
        } else {
            format!("{start}:{{{key}}}")
        }
    }
}

/// Returns the key of a channel of Redisson.
pub fn key_of_channel(channel: &str) -> Option<&str> {
    let name = channel.strip_prefix(CHANNEL)?.strip_prefix(':')?;
    let in_braces = name.strip_prefix('{').and_then(|it| it.strip_suffix('}'));
    // A name with a tag has text beside it.
    Some(in_braces.filter(|it| !it.contains('{')).unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::LockName;

    #[test]
    fn companions_of_redisson_share_the_slot_of_the_key() {
        let plain = LockKey::new("", &LockName::from("stock:17")).unwrap();
        assert_eq!(
            plain.redisson_channel(),
            "redisson_lock__channel:{stock:17}"
        );
        assert_eq!(plain.redisson_counter(), "redisson_lock_token:{stock:17}");
        let tagged = LockKey::new("lock:", &LockName::from("{user1}:cart")).unwrap();
        assert_eq!(
            tagged.redisson_channel(),
            "redisson_lock__channel:lock:{user1}:cart"
        );
        for key in [plain, tagged] {
            let channel = key.redisson_channel();
            assert_eq!(key_of_channel(&channel), Some(key.as_str()));
        }
        for other in ["redisson_lock__channel", "lk1:a:b", "redisson_rwlock:{a}"] {
            assert_eq!(key_of_channel(other), None, "{other}");
        }
    }
}
