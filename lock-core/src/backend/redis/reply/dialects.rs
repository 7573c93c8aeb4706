//! Reads the replies of the scripts of other dialects.

use redis::Value;

use super::{Parts, ScriptReply, unexpected};
use crate::error::LockError;
use lock_protocol::fencing_token::FencingToken;
use lock_protocol::lock_state::RawHolder;
use lock_protocol::loss::LossReason;

/// Reads whether the caller owned a lock of another dialect.
pub(crate) fn was_owner(reply: Value) -> Result<ScriptReply<bool>, LockError> {
    let mut parts = Parts::of(reply)?;
    let value = match parts.text()?.as_str() {
        "held" => true,
        "gone" => false,
        _ => return Err(unexpected()),
    };
    let server_us = parts.number()?;
    Ok(ScriptReply { value, server_us })
}

/// The message about a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReleaseMessage {
    /// How many subscriptions received it.
    pub(crate) receivers: usize,
    /// A command that the server refused, and its error.
    pub(crate) refused: Option<String>,
}

/// Reads the reply to a release that notifies all waiters. Returns no message if the caller did not hold the lock.
pub(crate) fn notifying_release(
    reply: Value,
) -> Result<ScriptReply<Option<ReleaseMessage>>, LockError> {
    let mut parts = Parts::of(reply)?;
    let verdict = parts.text()?;
    let server_us = parts.number()?;
    let value = match verdict.as_str() {
        "held" => Some(ReleaseMessage {
            receivers: usize::try_from(parts.next::<i64>()?).map_err(|_| unexpected())?,
            refused: parts.texts()?.into_iter().next(),
        }),
        "gone" => None,
        _ => return Err(unexpected()),
    };
    Ok(ScriptReply { value, server_us })
}

/// Reads the reply to a renewal in another dialect: why the lock was lost, if it was.
pub(crate) fn dialect_renew(reply: Value) -> Result<ScriptReply<Option<LossReason>>, LockError> {
    let mut parts = Parts::of(reply)?;
    let verdict = parts.text()?;
    let server_us = parts.number()?;
    let value = match verdict.as_str() {
        "held" => None,
        "gone" => Some(LossReason::from_value(
            parts.texts()?.first().map(String::as_str),
        )),
        _ => return Err(unexpected()),
    };
    Ok(ScriptReply { value, server_us })
}

/// The reply of a script that acquires a lock in another dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DialectReply {
    Late,
    Held {
        remaining_ms: u64,
        /// In a dialect with fencing tokens.
        token: Option<FencingToken>,
    },
    Busy {
        holder: RawHolder,
    },
    Foreign {
        found: String,
    },
}

pub(crate) fn dialect_acquire(reply: Value) -> Result<ScriptReply<DialectReply>, LockError> {
    let mut parts = Parts::of(reply)?;
    let verdict = parts.text()?;
    let server_us = parts.number()?;
    let value = match verdict.as_str() {
        "late" => DialectReply::Late,
        "held" => DialectReply::Held {
            remaining_ms: parts.number()?,
            token: parts.last_number()?.map(FencingToken::new),
        },
        "busy" => DialectReply::Busy {
            holder: parts.found_text()?.holder,
        },
        "foreign" => DialectReply::Foreign {
            found: parts.text()?,
        },
        _ => return Err(unexpected()),
    };
    Ok(ScriptReply { value, server_us })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::redis::reply::server_time;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn reply_in_a_dialect_may_have_a_token() {
        let held = |rest: &[i64]| {
            let mut parts = vec![text("held"), Value::Int(7), Value::Int(30_000)];
            parts.extend(rest.iter().map(|number| Value::Int(*number)));
            dialect_acquire(Value::Array(parts)).unwrap().value
        };
        for (rest, token) in [(&[][..], None), (&[12], Some(FencingToken::new(12)))] {
            let remaining_ms = 30_000;
            let expected = DialectReply::Held {
                remaining_ms,
                token,
            };
            assert_eq!(held(rest), expected);
        }
    }

    #[test]
    fn release_says_how_many_received_its_message() {
        let held = |receivers| vec![text("held"), Value::Int(7), Value::Int(receivers)];
        let message = |receivers, refused: Option<&str>| {
            let refused = refused.map(str::to_owned);
            Some(ReleaseMessage { receivers, refused })
        };
        let refused = [held(1), vec![text("PUBLISH: NOPERM no")]].concat();
        for (parts, expected) in [
            (held(0), message(0, None)),
            (held(3), message(3, None)),
            (refused, message(1, Some("PUBLISH: NOPERM no"))),
            (vec![text("gone"), Value::Int(7)], None),
        ] {
            let reply = notifying_release(Value::Array(parts)).unwrap();
            assert_eq!((reply.value, reply.server_us), (expected, 7));
        }
        for odd in [held(-1), vec![text("held"), Value::Int(7)], vec![]] {
            assert!(notifying_release(Value::Array(odd)).is_err());
        }
    }

    #[test]
    fn unexpected_replies_are_errors() {
        for odd in [
            Value::Nil,
            Value::Int(1),
            Value::Array(vec![]),
            Value::Array(vec![text("held")]),
            Value::Array(vec![text("held"), Value::Int(7), text("x"), Value::Int(1)]),
            Value::Array(vec![text("maybe"), Value::Int(7)]),
        ] {
            assert!(dialect_acquire(odd.clone()).is_err(), "{odd:?}");
        }
        for odd in [
            Value::Nil,
            Value::Array(vec![text("held")]),
            Value::Array(vec![text("busy"), Value::Int(7)]),
        ] {
            assert!(was_owner(odd.clone()).is_err(), "{odd:?}");
            assert!(server_time(odd.clone()).is_err(), "{odd:?}");
        }
    }
}
