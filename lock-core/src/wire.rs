//! The texts that stand in the server: the value of a lock key and the entry of a waiter.

use std::fmt;

use crate::nonce::Nonce;
use crate::token::FencingToken;

/// What the value of a native lock begins with; everything else is foreign.
pub(crate) const NATIVE: &str = "lk1:";

/// The value of a lock key: `lk1:<nonce> <token> <label>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnerValue {
    pub(crate) nonce: Nonce,
    pub(crate) token: FencingToken,
    pub(crate) label: String,
}

impl OwnerValue {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.strip_prefix(NATIVE)?.splitn(3, ' ');
        Some(Self {
            nonce: Nonce::parse(parts.next()?)?,
            token: parts.next()?.parse().ok()?,
            label: parts.next()?.to_owned(),
        })
    }
}

impl fmt::Display for OwnerValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{NATIVE}{} {} {}", self.nonce, self.token, self.label)
    }
}

/// The value of a lock key in the dialects that write an owner: `<nonce> <label>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlainOwner {
    pub(crate) nonce: Nonce,
    pub(crate) label: String,
}

impl PlainOwner {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (nonce, label) = text.split_once(' ')?;
        Some(Self {
            nonce: Nonce::parse(nonce)?,
            label: label.to_owned(),
        })
    }
}

impl fmt::Display for PlainOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.nonce, self.label)
    }
}

/// How a waiter learns that it was given the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Mode {
    /// By a push on its channel. Skipped when nobody listens there.
    Subscribed,
    /// By asking. Never skipped while its wait lasts, nothing is published to it.
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

/// A waiter in the queue: `<nonce> <mode> <lease> <gone_at> <channel> <label>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Entry {
    pub(crate) nonce: Nonce,
    pub(crate) mode: Mode,
    /// The lease that a hand-over gives, in milliseconds.
    pub(crate) lease_ms: u64,
    /// Server time in milliseconds after which nobody waits here any more.
    pub(crate) gone_at_ms: u64,
    pub(crate) channel: String,
    pub(crate) label: String,
}

impl Entry {
    #[cfg(test)]
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(6, ' ');
        Some(Self {
            nonce: Nonce::parse(parts.next()?)?,
            mode: match parts.next()? {
                "s" => Mode::Subscribed,
                "p" => Mode::Polling,
                _ => return None,
            },
            lease_ms: parts.next()?.parse().ok()?,
            gone_at_ms: parts.next()?.parse().ok()?,
            channel: parts.next()?.to_owned(),
            label: parts.next()?.to_owned(),
        })
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} {} {} {} {}",
            self.nonce,
            self.mode.letter(),
            self.lease_ms,
            self.gone_at_ms,
            self.channel,
            self.label
        )
    }
}

/// What a push says to a waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Push {
    /// `g nonce token server_us lease_ms`: the lock is yours for the lease, from that time on.
    Grant {
        nonce: Nonce,
        token: FencingToken,
        server_us: u64,
        lease_ms: u64,
    },
    /// `h nonce server_us holder_pttl`: you are the first in the queue, and the key ends then.
    Head {
        nonce: Nonce,
        server_us: u64,
        holder_ms: u64,
    },
}

impl Push {
    pub(crate) fn nonce(&self) -> Nonce {
        match self {
            Self::Grant { nonce, .. } | Self::Head { nonce, .. } => *nonce,
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(' ');
        let kind = parts.next()?;
        let nonce = Nonce::parse(parts.next()?)?;
        let push = match kind {
            "g" => Self::Grant {
                nonce,
                token: parts.next()?.parse().ok()?,
                server_us: parts.next()?.parse().ok()?,
                lease_ms: parts.next()?.parse().ok()?,
            },
            "h" => Self::Head {
                nonce,
                server_us: parts.next()?.parse().ok()?,
                holder_ms: parts.next()?.parse().ok()?,
            },
            _ => return None,
        };
        parts.next().is_none().then_some(push)
    }
}

impl fmt::Display for Push {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Grant {
                nonce,
                token,
                server_us,
                lease_ms,
            } => write!(f, "g {nonce} {token} {server_us} {lease_ms}"),
            Self::Head {
                nonce,
                server_us,
                holder_ms,
            } => write!(f, "h {nonce} {server_us} {holder_ms}"),
        }
    }
}

/// People read labels in `redis-cli`; a long one is paid for in every value and entry.
pub(crate) const MAX_LABEL: usize = 60;

/// Cuts a label to what may stand in a value: at most 60 bytes, no control characters.
pub(crate) fn tidy_label(label: &str) -> String {
    let mut tidy = String::with_capacity(MAX_LABEL);
    for letter in label.chars().filter(|letter| !letter.is_control()) {
        if tidy.len() + letter.len_utf8() > MAX_LABEL {
            break;
        }
        tidy.push(letter);
    }
    tidy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_print_and_parse() {
        let value = OwnerValue {
            nonce: Nonce::from_number(7),
            token: FencingToken::new(12),
            label: "web 1".into(),
        };
        assert_eq!(
            value.to_string(),
            "lk1:00000000-0000-0000-0000-000000000007 12 web 1"
        );
        assert_eq!(OwnerValue::parse(&value.to_string()), Some(value));
        for foreign in [
            "",
            "lk1:",
            "lk1:x 1 a",
            "4e2a",
            "lk2:00000000-0000-0000-0000-000000000007 1 a",
        ] {
            assert_eq!(OwnerValue::parse(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn entries_print_and_parse() {
        for (mode, label) in [(Mode::Subscribed, "a b"), (Mode::Polling, "")] {
            let entry = Entry {
                nonce: Nonce::from_number(1),
                mode,
                lease_ms: 2000,
                gone_at_ms: 99,
                channel: "lk1:c".into(),
                label: label.into(),
            };
            assert_eq!(Entry::parse(&entry.to_string()), Some(entry));
        }
    }

    #[test]
    fn pushes_print_and_parse() {
        let nonce = Nonce::from_number(3);
        for push in [
            Push::Grant {
                nonce,
                token: FencingToken::new(u64::MAX >> 1),
                server_us: 5,
                lease_ms: 2000,
            },
            Push::Head {
                nonce,
                server_us: 5,
                holder_ms: 0,
            },
        ] {
            assert_eq!(Push::parse(&push.to_string()), Some(push));
        }
        for bad in [
            "",
            "g",
            "x 1",
            "g 1 2 3 4",
            &format!("h {nonce} 1"),
            &format!("h {nonce} 1 2 3"),
        ] {
            assert_eq!(Push::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn labels_are_cut_on_a_character_and_lose_control_characters() {
        assert_eq!(tidy_label("web\n1\u{7f}"), "web1");
        assert_eq!(tidy_label(&"é".repeat(40)).len(), 60);
        assert_eq!(tidy_label(&"x".repeat(61)).len(), 60);
    }
}
