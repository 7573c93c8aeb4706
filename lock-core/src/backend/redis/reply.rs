//! Reads the replies of the scripts.

use std::str::FromStr;

use redis::{FromRedisValue, Value};

use crate::error::{BackendErrorKind, LockError};
use lock_protocol::clock::ServerMs;
use lock_protocol::fencing_token::FencingToken;
use lock_protocol::inspection::FoundText;
use lock_protocol::lock_state::{AcquireReply, RawHolder, ReleaseReply, RenewReply, Verdict};

mod dialects;

pub(crate) use dialects::{
    DialectReply, ReleaseMessage, dialect_acquire, dialect_renew, notifying_release, was_owner,
};

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

pub(crate) fn acquire(reply: Option<&[u8]>) -> Result<ScriptReply<AcquireReply>, LockError> {
    let mut words = Words::of(reply)?;
    let verdict = words.next()?;
    let server_us = words.time()?;
    let value = match verdict {
        b"late" => AcquireReply::Late,
        b"held" => AcquireReply::Held {
            token: words.token()?,
            remaining_ms: words.number()?,
        },
        b"queued" => AcquireReply::Queued {
            rank: words.number()?,
            holder: words.holder()?,
        },
        b"busy" => AcquireReply::Busy {
            holder: words.holder()?,
        },
        b"more" => AcquireReply::More,
        b"gone" => AcquireReply::NotOwner,
        b"foreign" => AcquireReply::Foreign {
            found: words.rest(),
        },
        _ => return Err(unexpected()),
    };
    Ok(ScriptReply { value, server_us })
}

/// Reads the reply to a release, and the server's time if the reply has it.
pub(crate) fn release(reply: Option<&[u8]>) -> Result<(ReleaseReply, Option<u64>), LockError> {
    let mut words = Words::of(reply)?;
    let verdict = match words.next()? {
        b"released" => Verdict::Free,
        b"handed" => Verdict::HandedOver,
        b"gone" => Verdict::NotOwner,
        _ => return Err(unexpected()),
    };
    if words.is_at_end() {
        let more = false;
        return Ok((ReleaseReply { verdict, more }, None));
    }
    let server_us = words.time()?;
    let more = match words.rest().as_str() {
        "" => false,
        "more" => true,
        _ => return Err(unexpected()),
    };
    Ok((ReleaseReply { verdict, more }, Some(server_us)))
}

/// Reads the reply to a renewal, and the value that a refused one found.
pub(crate) fn renew(
    reply: Option<&[u8]>,
) -> Result<ScriptReply<(RenewReply, Option<String>)>, LockError> {
    let mut words = Words::of(reply)?;
    let verdict = words.next()?;
    let server_us = words.time()?;
    let value = match verdict {
        b"held" => RenewReply::Held {
            token: words.token()?,
            remaining_ms: words.number()?,
        },
        b"gone" => RenewReply::NotOwner,
        _ => return Err(unexpected()),
    };
    let found = (!words.is_at_end()).then(|| words.rest());
    let value = (value, found);
    Ok(ScriptReply { value, server_us })
}

/// Returns the text of a reply that is one string.
pub(crate) fn text_of(reply: &Value) -> Option<&[u8]> {
    match reply {
        Value::BulkString(text) => Some(text),
        _ => None,
    }
}

/// The words of a native script's reply, separated by single spaces.
struct Words<'a> {
    left: Option<&'a [u8]>,
}

impl<'a> Words<'a> {
    fn of(reply: Option<&'a [u8]>) -> Result<Self, LockError> {
        let left = Some(reply.ok_or_else(unexpected)?);
        Ok(Self { left })
    }

    fn is_at_end(&self) -> bool {
        self.left.is_none()
    }

    fn next(&mut self) -> Result<&'a [u8], LockError> {
        let left = self.left.take().ok_or_else(unexpected)?;
        let Some(space) = left.iter().position(|byte| *byte == b' ') else {
            return Ok(left);
        };
        self.left = Some(&left[space + 1..]);
        Ok(&left[..space])
    }

    fn parse<T: FromStr>(&mut self) -> Result<T, LockError> {
        let word = str::from_utf8(self.next()?).map_err(|_| unexpected())?;
        word.parse().map_err(|_| unexpected())
    }

    fn number(&mut self) -> Result<u64, LockError> {
        self.parse()
    }

    fn time(&mut self) -> Result<u64, LockError> {
        Ok(micros_of(self.number()?, self.number()?))
    }

    fn token(&mut self) -> Result<FencingToken, LockError> {
        self.parse()
    }

    fn holder(&mut self) -> Result<RawHolder, LockError> {
        let remaining: i64 = self.parse()?;
        Ok(RawHolder {
            remaining_ms: u64::try_from(remaining).ok(),
            value: self.rest(),
        })
    }

    /// Returns everything that is left. A foreign client may write a value that is not text.
    fn rest(&mut self) -> String {
        let left = self.left.take().unwrap_or_default();
        String::from_utf8_lossy(left).into_owned()
    }
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

pub(crate) fn unexpected() -> LockError {
    LockError::backend(
        BackendErrorKind::Unsupported,
        "the server sent a reply that no script of this library returns",
    )
}

pub(super) struct Parts(std::vec::IntoIter<Value>);

impl Parts {
    pub(super) fn of(reply: Value) -> Result<Self, LockError> {
        match reply {
            Value::Array(parts) => Ok(Self(parts.into_iter())),
            _ => Err(unexpected()),
        }
    }

    fn next<T: FromRedisValue>(&mut self) -> Result<T, LockError> {
        let part = self.0.next().ok_or_else(unexpected)?;
        T::from_redis_value(part).map_err(|_| unexpected())
    }

    pub(super) fn text(&mut self) -> Result<String, LockError> {
        // A foreign client may write a value that is not text.
        let bytes: Vec<u8> = self.next()?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(super) fn texts(&mut self) -> Result<Vec<String>, LockError> {
        let mut texts = Vec::with_capacity(self.0.len());
        while self.0.len() > 0 {
            texts.push(self.text()?);
        }
        Ok(texts)
    }

    pub(super) fn number(&mut self) -> Result<u64, LockError> {
        self.next()
    }

    /// Returns the last element, if there is another one.
    fn last_number(&mut self) -> Result<Option<u64>, LockError> {
        (self.0.len() > 0).then(|| self.next()).transpose()
    }

    pub(super) fn found_text(&mut self) -> Result<FoundText, LockError> {
        let remaining: i64 = self.next()?;
        Ok(FoundText::new(u64::try_from(remaining).ok(), self.next()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::unnecessary_wraps, reason = "a reply may have no text")]
    fn bytes(text: &str) -> Option<&[u8]> {
        Some(text.as_bytes())
    }

    #[test]
    fn acquire_replies_are_read() {
        let held = acquire(bytes("held 3 7 12 30000")).unwrap();
        assert_eq!(held.server_us, 3_000_007);
        assert_eq!(
            held.value,
            AcquireReply::Held {
                token: FencingToken::new(12),
                remaining_ms: 30_000
            }
        );
        let busy = |remaining_ms, value: &str| {
            let value = value.into();
            AcquireReply::Busy {
                holder: RawHolder {
                    remaining_ms,
                    value,
                },
            }
        };
        for (reply, expected) in [
            ("busy 3 7 -1 abc", busy(None, "abc")),
            ("busy 3 7 5 a b  c ", busy(Some(5), "a b  c ")),
            ("busy 3 7 0 ", busy(Some(0), "")),
            ("more 3 7", AcquireReply::More),
            ("late 3 7", AcquireReply::Late),
            ("gone 3 7", AcquireReply::NotOwner),
            (
                "foreign 3 7 list",
                AcquireReply::Foreign {
                    found: "list".into(),
                },
            ),
        ] {
            assert_eq!(acquire(bytes(reply)).unwrap().value, expected, "{reply}");
        }
    }

    #[test]
    fn release_reply_may_say_more_and_have_no_time() {
        let verdict = Verdict::Free;
        for (reply, more, server_us) in [
            ("released", false, None),
            ("released 3 7", false, Some(3_000_007)),
            ("released 3 7 more", true, Some(3_000_007)),
        ] {
            let expected = (ReleaseReply { verdict, more }, server_us);
            assert_eq!(release(bytes(reply)).unwrap(), expected, "{reply}");
        }
        for odd in ["released 3 7 less", "released more", "released 3"] {
            assert!(release(bytes(odd)).is_err(), "{odd}");
        }
    }

    #[test]
    fn value_that_is_not_text_is_shown() {
        let reply = Some(&b"busy 3 7 5 \xffa"[..]);
        let AcquireReply::Busy { holder } = acquire(reply).unwrap().value else {
            panic!("not busy");
        };
        assert_eq!(holder.value, "\u{fffd}a");
    }

    #[test]
    fn unexpected_native_replies_are_errors() {
        let texts = [
            "",
            "held",
            "held 3 7 x 1",
            "held 3 7 1",
            "maybe 3 7",
            "held a 7 1 1",
        ];
        for odd in texts.map(bytes).into_iter().chain([None]) {
            assert!(acquire(odd).is_err(), "{odd:?}");
            assert!(release(odd).is_err(), "{odd:?}");
            assert!(renew(odd).is_err(), "{odd:?}");
        }
    }
}
