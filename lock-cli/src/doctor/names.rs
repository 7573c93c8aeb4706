//! The keys and the channel of the probes, and the patterns of a prefix.

use std::collections::hash_map::RandomState;
use std::fmt::Write as _;
use std::hash::{BuildHasher as _, Hasher as _};

use lock_core::doctor::Server;

/// How many names are tried until a node has the slot of one. A node with a sixteenth of the slots has one of these.
const TRIES: usize = 1_000;

/// The names of one probe.
pub(super) struct Names {
    pub(super) name: String,
    pub(super) key: String,
    pub(super) queue: String,
    pub(super) counter: String,
    pub(super) channel: String,
}

impl Names {
    /// Makes names that no other run has. Process ids repeat: each container has a process 1.
    pub(super) fn new(prefix: &str) -> Self {
        // The standard library seeds this hash with random numbers of the system.
        let suffix = RandomState::new().build_hasher().finish();
        let name = format!("lockctl-doctor:{suffix:016x}");
        let key = format!("{prefix}{name}");
        Self {
            queue: format!("{{{key}}}:q"),
            counter: format!("{{{key}}}:f"),
            channel: format!("lk1:{}:{name}", in_channel(prefix)),
            name,
            key,
        }
    }

    /// As [`new`](Self::new), with a key that this server has; `None` if it owns no slot, or so few that none is found.
    pub(super) fn at(server: &Server, prefix: &str) -> Option<Self> {
        let mut tries = (0..TRIES).map(|_| Self::new(prefix));
        let mut names = tries.find(|names| server.has_slot_of(&names.key))?;
        names.channel = server.channel(&names.channel, &names.key);
        Some(names)
    }
}

/// Encodes a prefix as the channels of managers have it.
pub(super) fn in_channel(prefix: &str) -> String {
    let mut encoded = String::new();
    for byte in prefix.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b':' | b'-') {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// Escapes the characters that have a meaning in a pattern.
pub(super) fn glob(text: &str) -> String {
    let mut escaped = String::new();
    for letter in text.chars() {
        if matches!(letter, '*' | '?' | '[' | ']' | '\\' | '^' | '-') {
            escaped.push('\\');
        }
        escaped.push(letter);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::Names;

    /// In containers, `doctor` often runs as process 1.
    #[test]
    fn probes_of_one_process_id_have_different_names() {
        let (first, second) = (Names::new("lock:"), Names::new("lock:"));
        assert_ne!(first.name, second.name);
        assert_ne!(first.key, second.key);
        assert_ne!(first.channel, second.channel);
    }
}
