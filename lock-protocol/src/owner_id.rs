//! The identity of an owner: a random number for each acquisition.

use std::fmt;
use std::ops::RangeInclusive;
use uuid::Uuid;

/// The identity of one acquisition: a UUID v4 from the operating system's random source.
///
/// It is never the id of a thread, a task or a process: two tasks of one thread are two owners, and a
/// forked process must not own its parent's locks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId(Uuid);

impl OwnerId {
    /// The length of its text.
    pub const LENGTH: usize = 36;

    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// The id that no acquisition has. It keeps a key locked after a release, until `min_hold` ends.
    pub const fn nil() -> Self {
        Self(Uuid::nil())
    }

    /// The id that no acquisition has, either: the highest UUID. It keeps a key locked after the work that the lock
    /// protects has succeeded, until the period of `once_per` ends.
    pub const fn done() -> Self {
        Self(Uuid::max())
    }

    pub fn from_number(number: u128) -> Self {
        Self(Uuid::from_u128(number))
    }

    /// Returns random bits, which need no call of the operating system.
    pub fn random_bits(self) -> u64 {
        let (high, low) = self.0.as_u64_pair();
        high ^ low
    }

    /// The short form, for messages that other clients may read.
    pub fn short(self) -> ShortId {
        let [a, b, c, d, ..] = self.0.into_bytes();
        ShortId(u32::from_be_bytes([a, b, c, d]))
    }

    /// Writes the text of the id.
    pub fn encode(self, text: &mut [u8; Self::LENGTH]) -> &[u8] {
        self.0.as_hyphenated().encode_lower(text).as_bytes()
    }

    pub fn parse(text: &str) -> Option<Self> {
        // Another spelling of a UUID is another client's value.
        (text.len() == Self::LENGTH)
            .then(|| Uuid::parse_str(text).ok().map(Self))
            .flatten()
    }
}

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The first eight hex digits of an owner id: enough to find a waiter, too few to act as that owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShortId(u32);

impl ShortId {
    /// All owner ids that begin with these digits.
    pub fn owner_ids(self) -> RangeInclusive<OwnerId> {
        let first = u128::from(self.0) << 96;
        OwnerId(Uuid::from_u128(first))..=OwnerId(Uuid::from_u128(first | (u128::MAX >> 32)))
    }

    pub fn parse(text: &str) -> Option<Self> {
        let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        (text.len() == 8 && text.bytes().all(is_hex))
            .then(|| u32::from_str_radix(text, 16).ok().map(Self))
            .flatten()
    }
}

impl fmt::Display for ShortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_ids_differ_print_and_parse() {
        let owner_id = OwnerId::random();
        assert_ne!(owner_id, OwnerId::random());
        assert_eq!(owner_id.to_string().len(), 36);
        assert_eq!(OwnerId::parse(&owner_id.to_string()), Some(owner_id));
        assert_eq!(OwnerId::parse("0"), None);
        assert_eq!(OwnerId::parse(&owner_id.to_string().replace('-', "")), None);
    }

    #[test]
    fn short_ids_print_parse_and_find_their_owner_ids() {
        let owner_id = OwnerId::random();
        let short = owner_id.short();
        assert_eq!(short.to_string(), owner_id.to_string()[..8]);
        assert_eq!(ShortId::parse(&short.to_string()), Some(short));
        assert!(short.owner_ids().contains(&owner_id));
        let other = OwnerId::from_number(0x0123_4567_ffff << 80);
        assert_eq!(other.short().to_string(), "01234567");
        assert!(!other.short().owner_ids().contains(&OwnerId::nil()));
        for bad in [
            "",
            "0123456",
            "012345678",
            "0123456G",
            "ABCDEF01",
            "+1234567",
        ] {
            assert_eq!(ShortId::parse(bad), None, "{bad}");
        }
    }
}
