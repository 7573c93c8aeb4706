//! Reads the replies of the scripts.

use redis::{FromRedisValue, Value};

use crate::error::{BackendErrorKind, LockError};
use crate::protocol::clock::ServerMs;
use crate::protocol::fencing_token::FencingToken;
use crate::protocol::lock_state::{AcquireReply, RawHolder, ReleaseReply, RenewReply, Verdict};

/// The value of a reply, and the server's time in microseconds when the script ran.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ScriptReply<T> {
    pub(crate) value: T,
    pub(crate) server_us: u64,
}

impl<T> ScriptReply<T> {
    pub(crate) fn server_ms(&self) -> ServerMs {
        ServerMs::from_micros(self.server_us)
    }
}

pub(crate) fn acquire(reply: Value) -> Result<ScriptReply<AcquireReply>, LockError> {
    let mut parts = Parts::of(reply)?;
    let verdict = parts.text()?;
    let server_us = parts.number()?;
    let value = match verdict.as_str() {
        "late" => AcquireReply::Late,
        "held" => AcquireReply::Held {
            token: parts.token()?,
            remaining_ms: parts.number()?,
        },
        "queued" => AcquireReply::Queued {
            rank: parts.number()?,
            holder: parts.holder()?,
        },
        "busy" => AcquireReply::Busy {
            holder: parts.holder()?,
        },
        "more" => AcquireReply::More,
        "foreign" => AcquireReply::Foreign {
            found: parts.text()?,
        },
        _ => return Err(unexpected()),
    };
    Ok(ScriptReply { value, server_us })
}

pub(crate) fn release(reply: Value) -> Result<ScriptReply<ReleaseReply>, LockError> {
    let mut parts = Parts::of(reply)?;
    let verdict = match parts.text()?.as_str() {
        "released" => Verdict::Free,
        "handed" => Verdict::HandedOver,
        "gone" => Verdict::NotOwner,
        _ => return Err(unexpected()),
    };
    let server_us = parts.number()?;
    let more = match parts.rest() {
        None => false,
        Some(Value::BulkString(word)) if word == b"more" => true,
        Some(_) => return Err(unexpected()),
    };
    let value = ReleaseReply { verdict, more };
    Ok(ScriptReply { value, server_us })
}

pub(crate) fn renew(reply: Value) -> Result<ScriptReply<RenewReply>, LockError> {
    let mut parts = Parts::of(reply)?;
    let verdict = parts.text()?;
    let server_us = parts.number()?;
    let value = match verdict.as_str() {
        "held" => RenewReply::Held {
            token: parts.token()?,
            remaining_ms: parts.number()?,
        },
        "gone" => RenewReply::NotOwner,
        _ => return Err(unexpected()),
    };
    Ok(ScriptReply { value, server_us })
}

/// Reads the reply to TIME, in microseconds.
pub(crate) fn server_time(reply: Value) -> Result<u64, LockError> {
    let (seconds, micros): (u64, u64) = redis::from_redis_value(reply).map_err(|_| unexpected())?;
    Ok(micros_of(seconds, micros))
}

/// Combines the two numbers of TIME.
pub(crate) fn micros_of(seconds: u64, micros: u64) -> u64 {
    seconds.saturating_mul(1_000_000).saturating_add(micros)
}

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

/// The reply of a script that acquires a lock in another dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DialectReply {
    Late,
    Held { remaining_ms: u64 },
    Busy { holder: RawHolder },
    Foreign { found: String },
}

pub(crate) fn dialect_acquire(reply: Value) -> Result<ScriptReply<DialectReply>, LockError> {
    let mut parts = Parts::of(reply)?;
    let verdict = parts.text()?;
    let server_us = parts.number()?;
    let value = match verdict.as_str() {
        "late" => DialectReply::Late,
        "held" => DialectReply::Held {
            remaining_ms: parts.number()?,
        },
        "busy" => DialectReply::Busy {
            holder: parts.holder()?,
        },
        "foreign" => DialectReply::Foreign {
            found: parts.text()?,
        },
        _ => return Err(unexpected()),
    };
    Ok(ScriptReply { value, server_us })
}

pub(crate) fn unexpected() -> LockError {
    LockError::backend(
        BackendErrorKind::Unsupported,
        "the server sent a reply that no script of this library returns",
    )
}

struct Parts(std::vec::IntoIter<Value>);

impl Parts {
    fn of(reply: Value) -> Result<Self, LockError> {
        match reply {
            Value::Array(parts) => Ok(Self(parts.into_iter())),
            _ => Err(unexpected()),
        }
    }

    fn next<T: FromRedisValue>(&mut self) -> Result<T, LockError> {
        let part = self.0.next().ok_or_else(unexpected)?;
        T::from_redis_value(part).map_err(|_| unexpected())
    }

    /// Returns the next element, if there is one.
    fn rest(&mut self) -> Option<Value> {
        self.0.next()
    }

    fn text(&mut self) -> Result<String, LockError> {
        // A foreign client may write a value that is not text.
        let bytes: Vec<u8> = self.next()?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn number(&mut self) -> Result<u64, LockError> {
        self.next()
    }

    fn token(&mut self) -> Result<FencingToken, LockError> {
        self.text()?.parse().map_err(|_| unexpected())
    }

    fn holder(&mut self) -> Result<RawHolder, LockError> {
        let remaining: i64 = self.next()?;
        Ok(RawHolder {
            remaining_ms: u64::try_from(remaining).ok(),
            value: self.text()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn acquire_replies_are_read() {
        let held = acquire(Value::Array(vec![
            text("held"),
            Value::Int(7),
            text("12"),
            Value::Int(30_000),
        ]))
        .unwrap();
        assert_eq!(held.server_us, 7);
        assert_eq!(
            held.value,
            AcquireReply::Held {
                token: FencingToken::new(12),
                remaining_ms: 30_000
            }
        );
        let busy = acquire(Value::Array(vec![
            text("busy"),
            Value::Int(7),
            Value::Int(-1),
            text("abc"),
        ]))
        .unwrap();
        assert_eq!(
            busy.value,
            AcquireReply::Busy {
                holder: RawHolder {
                    remaining_ms: None,
                    value: "abc".into()
                }
            }
        );
    }

    #[test]
    fn release_reply_may_say_more() {
        let reply = |words: &[&str]| {
            let mut parts = vec![text(words[0]), Value::Int(7)];
            parts.extend(words[1..].iter().map(|word| text(word)));
            release(Value::Array(parts)).map(|reply| reply.value)
        };
        let verdict = Verdict::Free;
        assert_eq!(
            reply(&["released"]).unwrap(),
            ReleaseReply {
                verdict,
                more: false
            }
        );
        assert_eq!(
            reply(&["released", "more"]).unwrap(),
            ReleaseReply {
                verdict,
                more: true
            }
        );
        assert!(reply(&["released", "less"]).is_err());
        let more = acquire(Value::Array(vec![text("more"), Value::Int(7)]));
        assert_eq!(more.unwrap().value, AcquireReply::More);
    }

    #[test]
    fn value_that_is_not_text_is_shown() {
        let reply = Value::Array(vec![
            Value::BulkString(b"busy".to_vec()),
            Value::Int(7),
            Value::Int(5),
            Value::BulkString(vec![0xff, b'a']),
        ]);
        let AcquireReply::Busy { holder } = acquire(reply).unwrap().value else {
            panic!("not busy");
        };
        assert_eq!(holder.value, "\u{fffd}a");
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
            assert!(acquire(odd.clone()).is_err(), "{odd:?}");
            assert!(release(odd.clone()).is_err(), "{odd:?}");
            assert!(renew(odd.clone()).is_err(), "{odd:?}");
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
