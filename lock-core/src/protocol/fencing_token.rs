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

/// As text where people read it, since numbers above 2^53 are not safe in every JSON reader;
/// as a number elsewhere.
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

/// Text or, also where people read it, a number.
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
    fn tokens_are_text_in_json_and_read_from_numbers_too() {
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
}
