//! The texts on the server: the value of a lock key, a waiter's queue entry, and notifications.

use std::fmt::{self, Write};
use std::sync::Arc;

use crate::clock::ServerMs;
use crate::fencing_token::FencingToken;
use crate::kind::Kind;
use crate::owner_id::{OwnerId, ShortId};

mod group;

pub use self::group::{GroupValue, KEPT, Member, Ownership};

/// The beginning of the value of an exclusive native lock.
pub const NATIVE: &str = "lk1:";

/// The beginning of the value of a shared native lock.
pub const SHARED: &str = "lks:";

/// Returns whether a value is that of a native lock. Any other value is foreign.
pub fn is_native(value: &str) -> bool {
    value.starts_with(NATIVE) || value.starts_with(SHARED)
}

/// The value of a lock key: `lk1:<owner id> <token> <since> <label>`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OwnerValue {
    pub owner_id: OwnerId,
    pub token: FencingToken,
    /// When the lock was granted.
    pub since_ms: ServerMs,
    pub label: String,
}

impl OwnerValue {
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.strip_prefix(NATIVE)?.splitn(4, ' ');
        Some(Self {
            owner_id: OwnerId::parse(parts.next()?)?,
            token: parts.next()?.parse().ok()?,
            since_ms: ServerMs::new(parts.next()?.parse().ok()?),
            label: parts.next()?.to_owned(),
        })
    }
}

impl fmt::Display for OwnerValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            owner_id,
            token,
            since_ms,
            label,
        } = self;
        write!(f, "{NATIVE}{owner_id} {token} {since_ms} {label}")
    }
}

/// The value of a lock key in the dialects that write an owner: `<owner id> <label>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainOwner {
    pub owner_id: OwnerId,
    pub label: String,
}

impl PlainOwner {
    pub fn parse(text: &str) -> Option<Self> {
        let (owner_id, label) = text.split_once(' ')?;
        Some(Self {
            owner_id: OwnerId::parse(owner_id)?,
            label: label.to_owned(),
        })
    }
}

impl fmt::Display for PlainOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.owner_id, self.label)
    }
}

/// As [`PlainOwner`], without a copy of the label.
#[derive(Clone, Copy, Debug)]
pub struct OwnerText<'a> {
    pub owner_id: OwnerId,
    pub label: &'a str,
}

impl fmt::Display for OwnerText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.owner_id, self.label)
    }
}

/// Whether a value reads as milliseconds since the epoch, in the years 2001 to 2286. An owner is
/// unlikely to be a number of that length.
pub fn is_deadline(value: &str) -> bool {
    value.len() == 13 && value.bytes().all(|byte| byte.is_ascii_digit())
}

/// How a waiter learns that the server granted it the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// By a notification on its channel. The server skips it when its channel has no subscriber.
    Subscribed,
    /// By polling, because it gets no notifications. The server skips it when its entry has expired.
    /// Each poll writes the entry with a new expiry.
    Polling,
}

impl Mode {
    fn letter(self) -> char {
        match self {
            Self::Subscribed => 's',
            Self::Polling => 'p',
        }
    }
}

/// The kind of lock that an entry waits for.
///
/// A client that does not know a kind never removes or passes an entry of that kind while its waiter is
/// alive. Clients of a newer version handle it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// `""`, `r`, `<of>` or `<of>x<weight>`.
    Known(Kind),
    /// The text of a kind of another version.
    Unknown(Box<str>),
}

impl EntryKind {
    pub fn parse(text: &str) -> Self {
        Kind::parse(text).map_or_else(|| Self::Unknown(text.into()), Self::Known)
    }

    /// Returns the kind, if this version knows it.
    pub fn known(&self) -> Option<Kind> {
        match self {
            Self::Known(kind) => Some(*kind),
            Self::Unknown(_) => None,
        }
    }
}

impl fmt::Display for EntryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(kind) => kind.wire().fmt(f),
            Self::Unknown(text) => f.write_str(text),
        }
    }
}

/// A waiter in the queue: `<owner id> <mode><kind> <lease> <expires_at> <channel> <label>`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QueueEntry {
    pub owner_id: OwnerId,
    pub mode: Mode,
    pub kind: EntryKind,
    /// The lease that a handover gives, in milliseconds.
    pub lease_ms: u64,
    /// The server time after which the entry has expired.
    pub expires_at_ms: ServerMs,
    /// Shared by all entries of a manager, as the label is: a manager may have thousands of waiters.
    pub channel: Arc<str>,
    pub label: Arc<str>,
}

impl QueueEntry {
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(6, ' ');
        let owner_id = OwnerId::parse(parts.next()?)?;
        let (mode, kind) = parts.next()?.split_at_checked(1)?;
        Some(Self {
            owner_id,
            mode: match mode {
                "s" => Mode::Subscribed,
                "p" => Mode::Polling,
                _ => return None,
            },
            kind: EntryKind::parse(kind),
            lease_ms: parts.next()?.parse().ok()?,
            expires_at_ms: ServerMs::new(parts.next()?.parse().ok()?),
            channel: parts.next()?.into(),
            label: parts.next()?.into(),
        })
    }
}

impl fmt::Display for QueueEntry {
    /// Writes part by part, which takes half of the time of `write!`: each waiting acquire has an entry.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.owner_id.fmt(f)?;
        f.write_char(' ')?;
        f.write_char(self.mode.letter())?;
        self.kind.fmt(f)?;
        f.write_char(' ')?;
        self.lease_ms.fmt(f)?;
        f.write_char(' ')?;
        self.expires_at_ms.fmt(f)?;
        f.write_char(' ')?;
        f.write_str(&self.channel)?;
        f.write_char(' ')?;
        f.write_str(&self.label)
    }
}

/// A notification to a waiter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum WireNotification {
    /// `g owner-id token server_us lease_ms`: the waiter has the lock for the lease, counted from this
    /// server time.
    Grant {
        owner_id: OwnerId,
        token: FencingToken,
        server_us: u64,
        lease_ms: u64,
    },
    /// `h short-id server_us holder_pttl`: the waiter is the first in the queue, and the key expires
    /// after this time. It has only the first digits of the owner id: any subscriber can read this
    /// message, and with the whole id it could forge a grant.
    Head {
        to: ShortId,
        server_us: u64,
        holder_ms: u64,
    },
}

impl WireNotification {
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(' ');
        let notification = match parts.next()? {
            "g" => Self::Grant {
                owner_id: OwnerId::parse(parts.next()?)?,
                token: parts.next()?.parse().ok()?,
                server_us: parts.next()?.parse().ok()?,
                lease_ms: parts.next()?.parse().ok()?,
            },
            "h" => Self::Head {
                to: ShortId::parse(parts.next()?)?,
                server_us: parts.next()?.parse().ok()?,
                holder_ms: parts.next()?.parse().ok()?,
            },
            _ => return None,
        };
        parts.next().is_none().then_some(notification)
    }
}

impl fmt::Display for WireNotification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Grant {
                owner_id,
                token,
                server_us,
                lease_ms,
            } => write!(f, "g {owner_id} {token} {server_us} {lease_ms}"),
            Self::Head {
                to,
                server_us,
                holder_ms,
            } => write!(f, "h {to} {server_us} {holder_ms}"),
        }
    }
}

/// People read labels in `redis-cli`, and each value and each entry carries one.
pub const MAX_LABEL: usize = 96;

/// Cuts a label to at most 96 bytes, after [`tidy`] removed characters.
pub fn tidy_label(label: &str) -> String {
    tidy(label, MAX_LABEL)
}

/// The longest tag of a holder: a trace id has 32 digits.
pub const MAX_TAG: usize = 32;

/// Returns the tag of a label: the text after its last ` #`, if that is one to 32 visible ASCII letters.
pub fn label_tag(label: &str) -> Option<&str> {
    let (_, tag) = label.rsplit_once(" #")?;
    let is_tag = (1..=MAX_TAG).contains(&tag.len()) && tag.bytes().all(|b| b.is_ascii_graphic());
    is_tag.then_some(tag)
}

/// Makes foreign text safe for an error or a log line. It removes control characters, and characters
/// that change the direction of the text: they could forge a line or hide a part of it.
pub fn tidy(text: &str, limit: usize) -> String {
    let mut tidy = String::new();
    for letter in text.chars().filter(|letter| is_harmless(*letter)) {
        if tidy.len() + letter.len_utf8() > limit {
            break;
        }
        tidy.push(letter);
    }
    tidy
}

/// Makes a name safe for an error or a log line: characters that could forge a line become `\u{a}`.
pub fn escaped(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len());
    for letter in name.chars() {
        if is_harmless(letter) {
            escaped.push(letter);
        } else {
            escaped.extend(letter.escape_unicode());
        }
    }
    escaped
}

fn is_harmless(letter: char) -> bool {
    let changes_lines_or_direction = matches!(
        letter,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    !letter.is_control() && !changes_lines_or_direction
}

/// Encodes a prefix as a part of a channel: every byte outside `[A-Za-z0-9_.:-]` is
/// percent-encoded. So a pattern in a server's access list separates the channels of two prefixes,
/// and no byte of the prefix ends the channel in a queue entry.
pub fn in_channel(prefix: &str) -> String {
    let mut encoded = String::with_capacity(prefix.len());
    for byte in prefix.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b':' | b'-') {
            encoded.push(char::from(byte));
        } else {
            use fmt::Write as _;
            let _infallible = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_since_the_epoch_are_deadlines() {
        assert!(is_deadline("1763700000000"));
        for owner in ["", "1763700000", "17637000000000", "176370000000x", "lk1:1"] {
            assert!(!is_deadline(owner), "{owner}");
        }
    }

    #[test]
    fn lock_values_print_and_parse() {
        let value = OwnerValue {
            owner_id: OwnerId::from_number(7),
            token: FencingToken::new(12),
            since_ms: ServerMs::new(99),
            label: "web 1".into(),
        };
        assert_eq!(
            value.to_string(),
            "lk1:00000000-0000-0000-0000-000000000007 12 99 web 1"
        );
        assert_eq!(OwnerValue::parse(&value.to_string()), Some(value));
        for foreign in [
            "",
            "lk1:",
            "lk1:x 1 a",
            "4e2a",
            "lk2:00000000-0000-0000-0000-000000000007 1 2 a",
            "lk1:00000000-0000-0000-0000-000000000007 1 web 1",
        ] {
            assert_eq!(OwnerValue::parse(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn tag_is_the_last_word_of_a_label() {
        let long = "x".repeat(33);
        for (label, expected) in [
            ("web-1:42 #4bf92f3577b34da6", Some("4bf92f3577b34da6")),
            ("a #b #c", Some("c")),
            ("#a", None),
            ("web-1:42", None),
            ("a #", None),
            ("a #b c", None),
            ("a #\u{e9}", None),
            (&format!("a #{long}"), None),
            (&format!("a #{}", &long[1..]), Some(&long[1..])),
        ] {
            assert_eq!(label_tag(label), expected, "{label}");
        }
    }

    #[test]
    fn queue_entries_print_and_parse() {
        for (mode, kind, label) in [
            (Mode::Subscribed, "", "a b"),
            (Mode::Polling, "", ""),
            (Mode::Subscribed, "4x2", "x"),
            (Mode::Polling, "r", "x"),
            (Mode::Polling, "z9", "x"),
        ] {
            let entry = QueueEntry {
                owner_id: OwnerId::from_number(1),
                mode,
                kind: EntryKind::parse(kind),
                lease_ms: 2000,
                expires_at_ms: ServerMs::new(99),
                channel: "lk1:c".into(),
                label: label.into(),
            };
            assert_eq!(QueueEntry::parse(&entry.to_string()), Some(entry));
        }
    }

    #[test]
    fn notifications_print_and_parse() {
        let owner_id = OwnerId::from_number(3);
        for notification in [
            WireNotification::Grant {
                owner_id,
                token: FencingToken::new(u64::MAX >> 1),
                server_us: 5,
                lease_ms: 2000,
            },
            WireNotification::Head {
                to: owner_id.short(),
                server_us: 5,
                holder_ms: 0,
            },
        ] {
            assert_eq!(
                WireNotification::parse(&notification.to_string()),
                Some(notification)
            );
        }
        for bad in [
            "",
            "g",
            "x 1",
            "g 1 2 3 4",
            &format!("h {owner_id} 1 2"),
            "h 00000000 1",
            "h 00000000 1 2 3",
        ] {
            assert_eq!(WireNotification::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn labels_are_cut_at_a_character_and_lose_misleading_ones() {
        assert_eq!(tidy_label("web\n1\u{7f}"), "web1");
        assert_eq!(
            tidy_label("\u{1b}[31mred\u{202e}der\u{2028}x\u{9b}"),
            "[31mredderx"
        );
        assert_eq!(tidy_label(&"é".repeat(60)).len(), 96);
        assert_eq!(tidy_label(&"x".repeat(97)).len(), 96);
    }

    #[test]
    fn prefix_in_a_channel_has_no_special_bytes() {
        assert_eq!(in_channel("lock:"), "lock:");
        assert_eq!(in_channel("a b*?[é]%"), "a%20b%2A%3F%5B%C3%A9%5D%25");
    }
}
