//! Fencing tokens.

use std::fmt;
use std::str::FromStr;

use crate::error_line::write_line;

/// A number that grows with every grant of a lock. A resource uses it to refuse late writes. Readers that hold a lock
/// together share one token, and so do the holders of permits.
///
/// A client can pause between its check of the lock and its write, and a lock service cannot see
/// the pause. A resource can detect the late write: it remembers the highest token that it has
/// seen, and refuses every lower token. Send the token with the first *read* too. M. Kleppmann
/// describes fencing tokens in "How to do distributed locking" (2016). M. Burrows describes them as
/// sequencers in "The Chubby lock service" (2006).
///
/// Tokens are ordered. They print and parse as decimal numbers. Compare only tokens of the same key.
/// `u64::from(token)` and `i64::try_from(token)` convert a token to a number; the second fails with `TokenRangeError`
/// where [`as_i64`](Self::as_i64) returns `None`.
///
/// ```
/// # use lock_protocol::fencing_token::FencingToken;
/// let token = FencingToken::from(1_767_225_600_000_001);
/// // For a header or for JSON.
/// assert_eq!(token.to_string().parse(), Ok(token));
/// // For a column of the type `bigint`.
/// assert_eq!(token.as_i64(), Some(1_767_225_600_000_001));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// Returns the token as a number, for resources that store an unsigned number.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// Returns the token as a signed number, for a column such as `bigint`.
    ///
    /// The tokens of locks fit. A greater number, which only a conversion from `u64` or from text gives, is `None`: cut to
    /// `i64::MAX`, two such tokens would be equal for the resource, and it would accept a late write. As a parameter of an
    /// SQL statement, `None` is `NULL`, so `WHERE token <= $1` refuses the write.
    #[must_use]
    pub const fn as_i64(self) -> Option<i64> {
        if self.0 <= i64::MAX.cast_unsigned() {
            Some(self.0.cast_signed())
        } else {
            None
        }
    }

    #[doc(hidden)]
    pub const fn new(value: u64) -> Self {
        Self(value)
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Makes a token of a number that a resource has stored.
impl From<u64> for FencingToken {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

/// As [`FencingToken::as_i64`], with an error instead of `None`.
impl TryFrom<FencingToken> for i64 {
    type Error = TokenRangeError;

    fn try_from(token: FencingToken) -> Result<Self, Self::Error> {
        token.as_i64().ok_or(TokenRangeError(token))
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}

/// The error of parsing a fencing token from text that is not a decimal number.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("a fencing token is a decimal number")]
pub struct ParseTokenError(#[source] std::num::ParseIntError);

impl fmt::Debug for ParseTokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            f.debug_tuple("ParseTokenError").field(&self.0).finish()
        } else {
            write_line(f, "ParseTokenError", self)
        }
    }
}

/// The error of converting a fencing token to an `i64` that is too small for it.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the fencing token {0} doesn't fit a signed 64-bit number; keep it as text or as an unsigned number"
)]
pub struct TokenRangeError(FencingToken);

impl fmt::Debug for TokenRangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_line(f, "TokenRangeError", self)
    }
}

impl FromStr for FencingToken {
    type Err = ParseTokenError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self).map_err(ParseTokenError)
    }
}

/// Serializes the token as text in human-readable formats, because some JSON readers lose the
/// precision of numbers above 2^53. Serializes it as a number in other formats.
#[cfg(feature = "serde")]
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
impl serde_core::Serialize for FencingToken {
    fn serialize<S: serde_core::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            serializer.serialize_u64(self.0)
        }
    }
}

/// Deserializes the token from text or a number in human-readable formats, and from a number in
/// other formats.
#[cfg(feature = "serde")]
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
impl<'de> serde_core::Deserialize<'de> for FencingToken {
    fn deserialize<D: serde_core::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde_core::de::Visitor<'_> for Visitor {
            type Value = FencingToken;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a fencing token, which is a decimal number")
            }

            fn visit_u64<E: serde_core::de::Error>(self, value: u64) -> Result<Self::Value, E> {
                Ok(FencingToken(value))
            }

            fn visit_str<E: serde_core::de::Error>(self, text: &str) -> Result<Self::Value, E> {
                text.parse().map_err(E::custom)
            }
        }
        if deserializer.is_human_readable() {
            deserializer.deserialize_any(Visitor)
        } else {
            deserializer.deserialize_u64(Visitor)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "serde")]
    #[test]
    fn token_is_text_in_json_and_also_reads_from_a_number() {
        let token = FencingToken::new(u64::MAX);
        let json = serde_json::to_string(&token).unwrap();
        assert_eq!(json, "\"18446744073709551615\"");
        assert_eq!(serde_json::from_str::<FencingToken>(&json).unwrap(), token);
        let number = serde_json::from_str::<FencingToken>("12").unwrap();
        assert_eq!(number, FencingToken::new(12));
        assert!(serde_json::from_str::<FencingToken>("-1").is_err());
        assert!(serde_json::from_str::<FencingToken>("\"x\"").is_err());
    }

    #[test]
    fn tokens_print_parse_and_compare() {
        let token: FencingToken = "9007199254740993".parse().unwrap();
        assert_eq!(token.to_string(), "9007199254740993");
        assert!(token > FencingToken::new(9_007_199_254_740_992));
        assert_eq!(u64::from(token), token.as_u64());
        assert!("12x".parse::<FencingToken>().is_err());
        assert!("-1".parse::<FencingToken>().is_err());
    }

    #[test]
    fn token_that_does_not_fit_a_signed_number_is_never_changed() {
        let largest = FencingToken::from(i64::MAX.cast_unsigned());
        assert_eq!(largest.as_i64(), Some(i64::MAX));
        assert_eq!(i64::try_from(largest), Ok(i64::MAX));
        let number = i64::MAX.cast_unsigned() + 1;
        let beyond = FencingToken::from(number);
        assert_eq!((beyond.as_i64(), u64::from(beyond)), (None, number));
        let error = i64::try_from(beyond).unwrap_err();
        let text = "the fencing token 9223372036854775808 doesn't fit a signed 64-bit number; keep it as text or as \
                    an unsigned number";
        assert_eq!(error.to_string(), text);
        assert_eq!(format!("{error:?}"), format!("TokenRangeError: {text}"));
    }
}
