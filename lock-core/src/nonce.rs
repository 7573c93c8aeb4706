//! Who holds a lock: a number drawn for each acquisition.

use std::fmt;
use uuid::Uuid;

/// Ownership of one acquisition: a UUID v4 from the operating system's random source.
///
/// Never a thread, a task or a process: two tasks of one thread are two owners, and a process
/// that forked must not speak for its parent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Nonce(Uuid);

impl Nonce {
    pub(crate) fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// Nobody's: what a lock is kept under when its holder is done with it before its time.
    pub(crate) const fn nobody() -> Self {
        Self(Uuid::nil())
    }

    #[cfg(test)]
    pub(crate) fn from_number(number: u128) -> Self {
        Self(Uuid::from_u128(number))
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        // Other spellings of a UUID are somebody else's.
        (text.len() == 36)
            .then(|| Uuid::parse_str(text).ok().map(Self))
            .flatten()
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonces_differ_print_and_parse() {
        let nonce = Nonce::random();
        assert_ne!(nonce, Nonce::random());
        assert_eq!(nonce.to_string().len(), 36);
        assert_eq!(Nonce::parse(&nonce.to_string()), Some(nonce));
        assert_eq!(Nonce::parse("0"), None);
        assert_eq!(Nonce::parse(&nonce.to_string().replace('-', "")), None);
    }
}
