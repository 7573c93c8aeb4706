//! The texts of a shared lock: the value of its key, and its members.

use std::fmt::{self, Write as _};

use super::SHARED;
use crate::clock::ServerMs;
use crate::fencing_token::FencingToken;
use crate::kind::Group;
use crate::owner_id::OwnerId;

/// The value of a key that several may hold together: `lks:<group> <token> <since> <label>`. The holders are
/// [`Member`]s of a zset. The key lives until the last of their leases ends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupValue {
    pub group: Group,
    /// The token that all holders of the group share.
    pub token: FencingToken,
    /// When the group was founded.
    pub since_ms: ServerMs,
    /// The label of its founder.
    pub label: String,
}

impl GroupValue {
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.strip_prefix(SHARED)?.splitn(4, ' ');
        Some(Self {
            group: Group::parse(parts.next()?)?,
            token: parts.next()?.parse().ok()?,
            since_ms: ServerMs::new(parts.next()?.parse().ok()?),
            label: parts.next()?.to_owned(),
        })
    }

    /// Reads the value from a reply, which has the number of members before the group: `lks:3:r 12 99 web-1`.
    pub(crate) fn parse_counted(text: &str) -> Option<(Self, u32)> {
        let (count, rest) = text.strip_prefix(SHARED)?.split_once(':')?;
        let value = Self::parse(&[SHARED, rest].concat())?;
        Some((value, count.parse().ok()?))
    }

    /// Returns the value as a reply has it, with the number of members.
    pub fn counted(&self, members: usize) -> String {
        let text = self.to_string();
        let rest = text.strip_prefix(SHARED).unwrap_or_default();
        format!("{SHARED}{members}:{rest}")
    }
}

impl fmt::Display for GroupValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            group,
            token,
            since_ms,
            label,
        } = self;
        write!(f, "{SHARED}{group} {token} {since_ms} {label}")
    }
}

/// A member of a shared lock: `<owner id> <number> <label>`. A holder of a weight has as many members, with the
/// numbers from 1. The score is the end of the lease.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    pub owner_id: OwnerId,
    pub number: u32,
    pub ownership: Ownership,
    pub label: String,
}

/// The first byte of a member that a `min_hold` keeps.
pub const KEPT: char = '-';

/// Whether a member still belongs to its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ownership {
    Owned,
    /// A `min_hold` keeps the permit, and its owner has released it. The text begins with [`KEPT`].
    Kept,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            owner_id,
            number,
            ownership,
            label,
        } = self;
        if *ownership == Ownership::Kept {
            f.write_char(KEPT)?;
        }
        write!(f, "{owner_id} {number} {label}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::is_native;

    #[test]
    fn values_of_groups_print_and_parse() {
        let value = GroupValue {
            group: Group::Permits(4),
            token: FencingToken::new(12),
            since_ms: ServerMs::new(99),
            label: "web 1".into(),
        };
        assert_eq!(value.to_string(), "lks:4 12 99 web 1");
        assert_eq!(GroupValue::parse(&value.to_string()), Some(value.clone()));
        assert_eq!(value.counted(3), "lks:3:4 12 99 web 1");
        assert_eq!(
            GroupValue::parse_counted("lks:3:4 12 99 web 1"),
            Some((value, 3))
        );
        for unknown in [
            "lks:",
            "lks:z 12 99 a",
            "lks:4 x 99 a",
            "lks:4 12 99",
            "lk1:4 12 99 a",
        ] {
            assert_eq!(GroupValue::parse(unknown), None, "{unknown}");
            assert_eq!(GroupValue::parse_counted(unknown), None, "{unknown}");
        }
        assert!(is_native("lks:z") && is_native("lk1:") && !is_native("lk2:"));
    }

    #[test]
    fn members_print_their_number_and_whether_they_are_kept() {
        let member = |ownership| Member {
            owner_id: OwnerId::from_number(7),
            number: 2,
            ownership,
            label: "web 1".into(),
        };
        let text = "00000000-0000-0000-0000-000000000007 2 web 1";
        assert_eq!(member(Ownership::Owned).to_string(), text);
        assert_eq!(member(Ownership::Kept).to_string(), ["-", text].concat());
    }
}
