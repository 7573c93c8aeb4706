//! A held lock as text, on its way to another process.
//!
//! The text is `lt1.` and then, in hexadecimal digits:
//!
//! | Bytes | What |
//! |---|---|
//! | 16 | the owner id, under which the server keeps the lock for whoever resumes it |
//! | 8 | the fencing token |
//! | 8 | the end of the lease, in milliseconds since 1970 |
//! | 1 | the length of the prefix |
//! | 2 | the length of the name |
//! | the rest | the prefix and the name |
//!
//! A version that can hand over other kinds of locks writes another number than 1.

use std::fmt::{self, Write};
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error_line::write_line;
use crate::fencing_token::FencingToken;
use crate::key::{LockKey, LockName, MAX_NAME, MAX_PREFIX};
use crate::kind::Kind;
use crate::owner_id::OwnerId;

const VERSION: &str = "lt1.";
/// The bytes in front of the prefix.
const HEAD: usize = 16 + 8 + 8 + 1 + 2;

/// A held lock that its holder gave away. [`LockManager::resume`](struct.LockManager.html#method.resume) makes a guard of
/// it, in this process or in another one that uses the same server and prefix.
///
/// Made by [`LockGuard::into_ticket`](struct.LockGuard.html#method.into_ticket). The lock stays held until the ticket's
/// lease ends; then a ticket that nobody resumed is worthless. Only the first of several callers can resume a ticket.
///
/// [`to_string`](ToString::to_string) writes the ticket as one word of at most 2,250 ASCII letters, digits and a dot, and
/// [`parse`](str::parse) reads it. With the feature `serde`, the ticket is this text in every format.
///
/// **The text is a secret**: whoever has it can take the lock over. `{:?}` doesn't show the secret part, so a ticket can
/// be logged that way.
///
/// ```
/// # use std::time::Duration;
/// # use lock_protocol::ticket::LockTicket;
/// # let owner = "6f".repeat(16);
/// # let text = format!("lt1.{owner}{:016x}{:016x}0500086c6f636b3a6f726465723a3432", 7, 1_767_225_600_000_u64);
/// let ticket: LockTicket = text.parse()?;
/// assert_eq!(ticket.name(), "order:42");
/// assert_eq!(ticket.to_string(), text);
/// # Ok::<(), lock_protocol::ticket::InvalidTicket>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct LockTicket {
    key: LockKey,
    owner_id: OwnerId,
    token: FencingToken,
    expires_ms: u64,
}

impl LockTicket {
    /// Returns the ticket of a lock that this owner id holds for `remaining` from `now` on.
    #[doc(hidden)]
    #[must_use]
    pub fn new(
        key: LockKey,
        owner_id: OwnerId,
        token: FencingToken,
        now: SystemTime,
        remaining: Duration,
    ) -> Self {
        let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let expires = since_epoch.saturating_add(remaining).as_millis();
        Self {
            key,
            owner_id,
            token,
            expires_ms: u64::try_from(expires).unwrap_or(u64::MAX),
        }
    }

    /// Returns the key that is locked, including the prefix of the manager that made the ticket.
    #[must_use]
    pub fn key(&self) -> &str {
        self.key.as_str()
    }

    /// Returns the name of the lock: the key without the prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        self.key.name()
    }

    /// Returns the kind of the lock. Only exclusive locks have tickets.
    #[must_use]
    pub fn kind(&self) -> Kind {
        Kind::Exclusive
    }

    /// Returns the token under which the lock is held until it is resumed. It is greater than the token of the guard that
    /// made the ticket, and [`resume`](struct.LockManager.html#method.resume) gets an even greater one.
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.token
    }

    /// Returns when the lease of the ticket ends, by the clock of the machine that made it. Whether the lock is still
    /// held, only the server knows.
    #[must_use]
    pub fn expires_at(&self) -> SystemTime {
        let end = UNIX_EPOCH.checked_add(Duration::from_millis(self.expires_ms));
        end.unwrap_or(UNIX_EPOCH)
    }

    #[doc(hidden)]
    #[must_use]
    pub fn lock_key(&self) -> &LockKey {
        &self.key
    }

    #[doc(hidden)]
    #[must_use]
    pub fn owner_id(&self) -> OwnerId {
        self.owner_id
    }
}

impl fmt::Debug for LockTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockTicket")
            .field("key", &self.key())
            .field("fencing_token", &self.token)
            .field("expires_at", &self.expires_at())
            .finish_non_exhaustive()
    }
}

/// Writes the text that [`FromStr`] reads. It is a secret.
impl fmt::Display for LockTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, name) = (self.key(), self.name());
        let prefix_len = key.len() - name.len();
        let hex = |f: &mut fmt::Formatter<'_>, bytes: &[u8]| {
            bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
        };
        f.write_str(VERSION)?;
        // The text of the id has hyphens between its digits.
        let mut text = [0; OwnerId::LENGTH];
        for byte in self.owner_id.encode(&mut text) {
            if *byte != b'-' {
                f.write_char(char::from(*byte))?;
            }
        }
        write!(f, "{:016x}{:016x}", self.token.as_u64(), self.expires_ms)?;
        write!(f, "{prefix_len:02x}{:04x}", name.len())?;
        hex(f, key.as_bytes())
    }
}

impl FromStr for LockTicket {
    type Err = InvalidTicket;

    fn from_str(text: &str) -> Result<Self, InvalidTicket> {
        let Some(digits) = text.strip_prefix(VERSION) else {
            let is_newer = text
                .strip_prefix("lt")
                .and_then(|rest| rest.split_once('.'));
            return Err(match is_newer {
                Some((version, _)) if !version.is_empty() && version.len() <= 4 => {
                    InvalidTicket::Version
                }
                _ => InvalidTicket::Malformed,
            });
        };
        parse(digits).ok_or(InvalidTicket::Malformed)
    }
}

fn parse(digits: &str) -> Option<LockTicket> {
    if digits.len() > 2 * (HEAD + MAX_PREFIX + MAX_NAME) {
        return None;
    }
    let bytes = bytes_of(digits.as_bytes())?;
    let mut rest = bytes.as_slice();
    let owner_id = OwnerId::from_number(u128::from_be_bytes(take(&mut rest)?));
    let token = u64::from_be_bytes(take(&mut rest)?);
    let expires_ms = u64::from_be_bytes(take(&mut rest)?);
    let [prefix_len] = take(&mut rest)?;
    let name_len = u16::from_be_bytes(take(&mut rest)?);
    let (prefix, name) = rest.split_at_checked(usize::from(prefix_len))?;
    if prefix.len() > MAX_PREFIX || name.len() != usize::from(name_len) {
        return None;
    }
    let (prefix, name) = (
        std::str::from_utf8(prefix).ok()?,
        std::str::from_utf8(name).ok()?,
    );
    // These ids stand for a key without an owner, which a `min_hold` or a `once_per` keeps. It is nobody's to take over.
    let has_no_owner = owner_id == OwnerId::nil() || owner_id == OwnerId::done();
    if prefix.contains(['{', '}']) || has_no_owner {
        return None;
    }
    Some(LockTicket {
        key: LockKey::new(prefix, &LockName::from(name)).ok()?,
        owner_id,
        token: FencingToken::new(token),
        expires_ms,
    })
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

/// Reads lower-case digits only, so that each ticket has one text.
fn bytes_of(digits: &[u8]) -> Option<Vec<u8>> {
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    let byte = |[high, low]: &[u8; 2]| Some(value(*high)? << 4 | value(*low)?);
    pairs.iter().map(byte).collect()
}

/// The error of parsing a text that is no ticket. It doesn't show the text, which may be a secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidTicket {
    /// The text isn't a ticket, or isn't the whole ticket.
    #[error("this is no lock ticket, or not all of it; pass the text of `LockTicket` unchanged")]
    Malformed,
    /// The ticket is of another version of its format.
    #[error(
        "another version of the library made this lock ticket; use the same version on both sides"
    )]
    Version,
}

impl fmt::Debug for InvalidTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_line(f, "InvalidTicket", self)
    }
}

/// Serializes the ticket as its text, which is a secret.
#[cfg(feature = "serde")]
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
impl serde_core::Serialize for LockTicket {
    fn serialize<S: serde_core::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Deserializes the ticket from its text.
#[cfg(feature = "serde")]
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
impl<'de> serde_core::Deserialize<'de> for LockTicket {
    fn deserialize<D: serde_core::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl serde_core::de::Visitor<'_> for Text {
            type Value = LockTicket;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the text of a lock ticket")
            }

            fn visit_str<E: serde_core::de::Error>(self, text: &str) -> Result<LockTicket, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests;
