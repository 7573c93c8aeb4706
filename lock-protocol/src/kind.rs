//! The kinds of locks.

use std::fmt;

/// The most permits that a name may have.
pub const MAX_PERMITS: u32 = 10_000;
/// The most permits that one holder may take: each of them is a member of a set on the server.
pub const MAX_WEIGHT: u32 = 256;
/// The most names of one set of locks.
pub const MAX_NAMES: usize = 64;

/// The kind of a lock: how many may hold it at one time.
///
/// All holders of a key are of one kind at any time: one exclusive holder, or any number of readers, or
/// holders of permits out of the same number. A caller of another kind waits until they are gone.
///
/// ```
/// # use lock_protocol::kind::Kind;
/// let kind = Kind::Permits { of: 8, weight: 2 };
/// assert_eq!(kind.to_string(), "2 of 8 permits");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// One holder at a time. A writer is an exclusive holder.
    #[default]
    Exclusive,
    /// Any number of readers at a time, and no writer.
    Read,
    /// Holders with at most `of` permits together.
    Permits {
        /// How many permits the name has, from 1 to 10,000.
        of: u32,
        /// How many of them one holder takes, from 1 to 256, and at most `of`.
        weight: u32,
    },
}

/// The kinds of holders that may hold a key together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// Readers.
    Read,
    /// Holders of permits out of this number.
    Permits(u32),
}

impl Kind {
    /// Returns the group of holders that the lock joins; `None` for an exclusive lock.
    #[doc(hidden)]
    pub fn group(self) -> Option<Group> {
        match self {
            Self::Exclusive => None,
            Self::Read => Some(Group::Read),
            Self::Permits { of, .. } => Some(Group::Permits(of)),
        }
    }

    /// Returns how many permits the name has; `None` for other kinds.
    #[doc(hidden)]
    pub fn permits(self) -> Option<u32> {
        match self {
            Self::Permits { of, .. } => Some(of),
            Self::Exclusive | Self::Read => None,
        }
    }

    /// Returns the kind as one word, for labels of metrics.
    #[doc(hidden)]
    pub fn word(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Read => "read",
            Self::Permits { .. } => "permits",
        }
    }

    /// Returns how many members the holder has in the set of holders.
    #[doc(hidden)]
    pub fn weight(self) -> u32 {
        match self {
            Self::Exclusive | Self::Read => 1,
            Self::Permits { weight, .. } => weight,
        }
    }

    /// Returns whether several may hold the lock at one time.
    #[doc(hidden)]
    pub fn is_shared(self) -> bool {
        self != Self::Exclusive
    }

    /// Checks the numbers of the kind.
    #[doc(hidden)]
    pub fn check(self) -> Result<(), InvalidKindReason> {
        let Self::Permits { of, weight } = self else {
            return Ok(());
        };
        if !(1..=MAX_PERMITS).contains(&of) {
            return Err(InvalidKindReason::Permits);
        }
        if !(1..=MAX_WEIGHT.min(of)).contains(&weight) {
            return Err(InvalidKindReason::Weight);
        }
        Ok(())
    }

    /// Reads the text of a kind on the server: `""`, `r`, `<of>` or `<of>x<weight>`.
    #[doc(hidden)]
    pub fn parse(text: &str) -> Option<Self> {
        let kind = match text {
            "" => Self::Exclusive,
            "r" => Self::Read,
            _ => match text.split_once('x') {
                None => Self::Permits {
                    of: number(text)?,
                    weight: 1,
                },
                Some((of, weight)) => Self::Permits {
                    of: number(of)?,
                    weight: number(weight).filter(|weight| *weight > 1)?,
                },
            },
        };
        kind.check().ok().map(|()| kind)
    }

    /// Returns the text of the kind on the server.
    #[doc(hidden)]
    pub fn wire(self) -> WireKind {
        WireKind(self)
    }
}

impl Group {
    /// Reads the text of a group on the server: `r`, or a number of permits.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "r" => Some(Self::Read),
            _ => number(text)
                .filter(|of| (1..=MAX_PERMITS).contains(of))
                .map(Self::Permits),
        }
    }

    /// Returns the kind of a holder with one member.
    pub fn kind(self) -> Kind {
        match self {
            Self::Read => Kind::Read,
            Self::Permits(of) => Kind::Permits { of, weight: 1 },
        }
    }

    /// Returns how many members the group may have; `None` for any number.
    pub fn limit(self) -> Option<u32> {
        match self {
            Self::Read => None,
            Self::Permits(of) => Some(of),
        }
    }
}

/// Reads a number as the library writes it: without a sign and without leading zeros.
fn number(text: &str) -> Option<u32> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    is_plain.then(|| text.parse().ok()).flatten()
}

/// The text of a kind on the server.
#[derive(Clone, Copy, Debug)]
pub struct WireKind(Kind);

impl fmt::Display for WireKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Kind::Exclusive => Ok(()),
            Kind::Read => f.write_str("r"),
            Kind::Permits { of, weight: 1 } => write!(f, "{of}"),
            Kind::Permits { of, weight } => write!(f, "{of}x{weight}"),
        }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read => f.write_str("r"),
            Self::Permits(of) => write!(f, "{of}"),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("exclusive"),
            Self::Read => f.write_str("read"),
            Self::Permits { of, weight: 1 } => write!(f, "{of} permits"),
            Self::Permits { of, weight } => write!(f, "{weight} of {of} permits"),
        }
    }
}

/// Why a kind of lock, or a set of locks, is invalid. The message says what to use instead.
/// [`InvalidSetting::Kind`](enum.InvalidSetting.html#variant.Kind) carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidKindReason {
    /// The number of permits is out of range.
    #[error("use at least 1 permit and at most 10000, such as `permits(4)`")]
    Permits,
    /// The weight is out of range.
    #[error("use a weight of at least 1, at most 256, and at most the number of permits")]
    Weight,
    /// A weight was given for a lock without permits.
    #[error("a weight needs permits; write `permits(8).weight(2)`")]
    WeightWithoutPermits,
    /// The lock's dialect, or a quorum of servers, has exclusive locks only.
    #[error(
        "only exclusive locks exist here; use the native dialect on one server, with Sentinel or in a \
         cluster, or an exclusive lock"
    )]
    Dialect,
    /// `min_hold` was given for a read lock.
    #[error("`min_hold` cannot be combined with a read lock; use an exclusive lock or permits")]
    MinHold,
    /// `once_per` was given for a read lock or for permits.
    #[error(
        "`once_per` needs an exclusive lock: with others, several callers would do the work at once"
    )]
    OncePer,
    /// A set has too many names.
    #[error("a set has at most 64 names; lock a name that stands for all of them")]
    TooManyNames,
    /// A set has no name.
    #[error("a set needs at least one name")]
    NoNames,
    /// A leader requested a read lock.
    #[error("any number of readers would lead at once; use an exclusive lock, or permits")]
    Leader,
    /// The guard cannot become a read lock.
    #[error(
        "only an exclusive lock without `min_hold` and `once_per` can be downgraded to a read lock"
    )]
    Downgrade,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_kinds_are_read_as_they_are_written() {
        for (kind, text, shown) in [
            (Kind::Exclusive, "", "exclusive"),
            (Kind::Read, "r", "read"),
            (Kind::Permits { of: 4, weight: 1 }, "4", "4 permits"),
            (
                Kind::Permits { of: 64, weight: 8 },
                "64x8",
                "8 of 64 permits",
            ),
            (
                Kind::Permits {
                    of: 10_000,
                    weight: 256,
                },
                "10000x256",
                "256 of 10000 permits",
            ),
        ] {
            assert_eq!(kind.wire().to_string(), text);
            assert_eq!(Kind::parse(text), Some(kind));
            assert_eq!(kind.to_string(), shown);
        }
        for unknown in [
            "w", "0", "04", "4x", "4x1", "4x5", "x2", "-4", "+4", "10001", "300x257", "4x2x2", "4 ",
        ] {
            assert_eq!(Kind::parse(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn groups_are_readers_and_numbers_of_permits() {
        assert_eq!(Group::parse("r"), Some(Group::Read));
        assert_eq!(Group::parse("4"), Some(Group::Permits(4)));
        for unknown in ["", "z", "0", "4x2", "10001"] {
            assert_eq!(Group::parse(unknown), None, "{unknown}");
        }
        let heavy = Kind::Permits { of: 4, weight: 3 };
        assert_eq!(heavy.group(), Group::parse("4"));
        assert_eq!(Kind::Exclusive.group(), None);
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        let check = |of, weight| Kind::Permits { of, weight }.check();
        for of in [0, 10_001] {
            assert_eq!(check(of, 1), Err(InvalidKindReason::Permits));
        }
        for (of, weight) in [(4, 0), (4, 5), (1_000, 257)] {
            assert_eq!(check(of, weight), Err(InvalidKindReason::Weight));
        }
        assert_eq!(check(10_000, 256), Ok(()));
    }
}
