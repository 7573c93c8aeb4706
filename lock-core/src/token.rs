//! Fencing tokens.

use std::fmt;
use std::str::FromStr;

/// A number that grows with every grant of a lock, for resources that can refuse the past.
///
/// A client can stop between its check of the lock and its write: no lock service can see
/// that. A resource that remembers the highest token it has seen, and refuses every lower one,
/// can. Present the token on the first *read* too. Described by M. Kleppmann, "How to do
/// distributed locking" (2016), and before him by M. Burrows, "The Chubby lock service" (2006),
/// as sequencers.
///
/// Tokens are ordered, and print and parse as decimal numbers. Compare tokens of one key only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// The token as a number, for resources that store one. It fits a signed 64-bit column.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    pub(crate) const fn new(value: u64) -> Self {
        Self(value)
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}

/// What was read is not a fencing token, which is a decimal number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a fencing token is a decimal number")]
pub struct ParseTokenError(#[source] std::num::ParseIntError);

impl FromStr for FencingToken {
    type Err = ParseTokenError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self).map_err(ParseTokenError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_print_parse_and_compare() {
        let token: FencingToken = "9007199254740993".parse().unwrap();
        assert_eq!(token.to_string(), "9007199254740993");
        assert!(token > FencingToken::new(9_007_199_254_740_992));
        assert_eq!(u64::from(token), token.as_u64());
        assert!("12x".parse::<FencingToken>().is_err());
        assert!("-1".parse::<FencingToken>().is_err());
    }
}
