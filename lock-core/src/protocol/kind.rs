//! The kinds of locks.

use std::fmt;

/// The kind of a lock: how many may hold it at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// One holder at a time.
    #[default]
    Exclusive,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("exclusive"),
        }
    }
}
