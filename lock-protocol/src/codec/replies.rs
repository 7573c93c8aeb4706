//! Reads the replies of the dialects' scripts, which are arrays: a verdict, the server's time in microseconds, and more.

use crate::fencing_token::FencingToken;
use crate::identity::time_of;
use crate::inspection::FoundText;
use crate::lock_state::RawHolder;
use crate::loss::LossReason;
use crate::op::Refusal;
use crate::resp::{Replies, Reply, ServerError};

/// The elements of an array.
#[derive(Clone, Debug)]
pub(super) struct Parts<'a>(Replies<'a>);

impl<'a> Parts<'a> {
    pub(super) fn of(reply: Reply<'a>) -> Result<Self, Refusal> {
        reply.items().map(Self).ok_or_else(Refusal::unreadable)
    }

    fn next(&mut self) -> Result<Reply<'a>, Refusal> {
        self.0.next().ok_or_else(Refusal::unreadable)
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Refusal> {
        self.next()?.text().ok_or_else(Refusal::unreadable)
    }

    /// Reads a text. A foreign client may write a value that isn't one.
    pub(super) fn text(&mut self) -> Result<String, Refusal> {
        let bytes = self.bytes()?;
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }

    /// Reads all texts that are left.
    pub(super) fn texts(&mut self) -> Result<Vec<String>, Refusal> {
        let mut texts = Vec::new();
        while !self.is_at_end() {
            texts.push(self.text()?);
        }
        Ok(texts)
    }

    /// Reads the time to the expiry and the value of a key.
    pub(super) fn found_text(&mut self) -> Result<FoundText, Refusal> {
        let remaining_ms = u64::try_from(self.number()?).ok();
        Ok(FoundText::new(remaining_ms, self.bytes()?.to_vec()))
    }

    pub(super) fn number(&mut self) -> Result<i64, Refusal> {
        self.next()?.integer().ok_or_else(Refusal::unreadable)
    }

    /// Reads a number that is never negative.
    pub(super) fn count(&mut self) -> Result<u64, Refusal> {
        u64::try_from(self.number()?).map_err(|_| Refusal::unreadable())
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.0.clone().next().is_none()
    }

    /// Reads the last text, if there is one.
    pub(super) fn last_text(&mut self) -> Result<Option<String>, Refusal> {
        if self.is_at_end() {
            return Ok(None);
        }
        self.text().map(Some)
    }
}

/// Reads the two numbers of TIME, in microseconds.
pub(super) fn server_time(reply: Reply<'_>) -> Result<u64, Refusal> {
    time_of(reply).ok_or_else(Refusal::unreadable)
}

/// Returns the reply, or the error that the server replied instead.
pub fn accepted(reply: Option<Reply<'_>>) -> Result<Reply<'_>, Refusal> {
    let reply = reply.ok_or_else(Refusal::unreadable)?;
    match reply.error() {
        Some(error) => Err(Refusal::of(error)),
        None => Ok(reply),
    }
}

/// Returns the error of a reply whose key has another type than the command is for.
pub(super) fn wrong_type<'a>(reply: &Reply<'a>) -> Option<ServerError<'a>> {
    reply.error().filter(|error| error.code() == "WRONGTYPE")
}

/// A value, and the server's time in microseconds.
pub(super) type Timed<T> = (T, u64);

/// Reads whether the caller owned the lock.
pub(super) fn was_owner(reply: Option<Reply<'_>>) -> Result<Timed<bool>, Refusal> {
    let mut parts = Parts::of(accepted(reply)?)?;
    let value = match parts.bytes()? {
        b"held" => true,
        b"gone" => false,
        _ => return Err(Refusal::unreadable()),
    };
    Ok((value, parts.count()?))
}

/// Reads why a renewed lock was lost, if it was.
pub(super) fn loss(reply: Option<Reply<'_>>) -> Result<Timed<Option<LossReason>>, Refusal> {
    let mut parts = Parts::of(accepted(reply)?)?;
    let verdict = parts.bytes()?;
    let server_us = parts.count()?;
    let loss = match verdict {
        b"held" => None,
        b"gone" => Some(LossReason::from_value(parts.last_text()?.as_deref())),
        _ => return Err(Refusal::unreadable()),
    };
    Ok((loss, server_us))
}

/// The message about a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReleaseMessage {
    /// How many subscriptions received it.
    pub(super) receivers: usize,
    /// A command that the server refused, and its error.
    pub(super) refused: Option<String>,
}

/// Reads the reply to a release that notifies all waiters. There is no message if the caller didn't hold the lock.
pub(super) fn notifying_release(
    reply: Option<Reply<'_>>,
) -> Result<Timed<Option<ReleaseMessage>>, Refusal> {
    let mut parts = Parts::of(accepted(reply)?)?;
    let verdict = parts.bytes()?;
    let server_us = parts.count()?;
    let message = match verdict {
        b"held" => Some(ReleaseMessage {
            receivers: usize::try_from(parts.number()?).map_err(|_| Refusal::unreadable())?,
            refused: parts.last_text()?,
        }),
        b"gone" => None,
        _ => return Err(Refusal::unreadable()),
    };
    Ok((message, server_us))
}

/// What a script that acquires a lock replied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ScriptAcquire {
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

/// Reads the reply of a script that acquires a lock.
pub(super) fn acquired(reply: Reply<'_>) -> Result<Timed<ScriptAcquire>, Refusal> {
    let mut parts = Parts::of(reply)?;
    let verdict = parts.bytes()?;
    let server_us = parts.count()?;
    let value = match verdict {
        b"late" => ScriptAcquire::Late,
        b"held" => {
            let remaining_ms = parts.count()?;
            let is_last = parts.is_at_end();
            let token = (!is_last).then(|| parts.count()).transpose()?;
            ScriptAcquire::Held {
                remaining_ms,
                token: token.map(FencingToken::new),
            }
        }
        b"busy" => {
            let remaining_ms = u64::try_from(parts.number()?).ok();
            let value = parts.text()?;
            ScriptAcquire::Busy {
                holder: RawHolder {
                    remaining_ms,
                    value,
                },
            }
        }
        b"foreign" => ScriptAcquire::Foreign {
            found: parts.text()?,
        },
        _ => return Err(Refusal::unreadable()),
    };
    Ok((value, server_us))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(parts: &[&str]) -> String {
        let element = |part: &&str| match part.parse::<i64>() {
            Ok(number) => format!(":{number}\r\n"),
            Err(_) => format!("${}\r\n{part}\r\n", part.len()),
        };
        let elements: String = parts.iter().map(element).collect();
        format!("*{}\r\n{elements}", parts.len())
    }

    fn first(bytes: &str) -> Option<Reply<'_>> {
        Replies::new(bytes.as_bytes()).next()
    }

    #[test]
    fn reply_to_an_acquire_may_have_a_token() {
        for (rest, token) in [(&[][..], None), (&["12"], Some(FencingToken::new(12)))] {
            let reply = array(&[&["held", "7", "30000"], rest].concat());
            let remaining_ms = 30_000;
            let expected = ScriptAcquire::Held {
                remaining_ms,
                token,
            };
            assert_eq!(acquired(first(&reply).unwrap()), Ok((expected, 7)));
        }
        let reply = array(&["busy", "7", "-1", "x y"]);
        let holder = RawHolder {
            remaining_ms: None,
            value: "x y".into(),
        };
        let expected = ScriptAcquire::Busy { holder };
        assert_eq!(acquired(first(&reply).unwrap()), Ok((expected, 7)));
    }

    #[test]
    fn release_says_how_many_received_its_message() {
        let message = |receivers, refused: Option<&str>| {
            let refused = refused.map(str::to_owned);
            Some(ReleaseMessage { receivers, refused })
        };
        for (parts, expected) in [
            (&["held", "7", "0"][..], message(0, None)),
            (&["held", "7", "3"], message(3, None)),
            (
                &["held", "7", "1", "PUBLISH: NOPERM no"],
                message(1, Some("PUBLISH: NOPERM no")),
            ),
            (&["gone", "7"], None),
        ] {
            let reply = array(parts);
            assert_eq!(notifying_release(first(&reply)), Ok((expected, 7)));
        }
        for odd in [&["held", "7", "-1"][..], &["held", "7"], &[]] {
            assert!(notifying_release(first(&array(odd))).is_err());
        }
    }

    #[test]
    fn unexpected_replies_are_refused() {
        for odd in [
            "_\r\n",
            ":1\r\n",
            "*0\r\n",
            "+OK\r\n",
            &array(&["held"]),
            &array(&["held", "7", "x"]),
            &array(&["held", "-7", "1"]),
            &array(&["maybe", "7"]),
        ] {
            assert!(acquired(first(odd).unwrap()).is_err(), "{odd:?}");
        }
        for odd in ["_\r\n", &array(&["held"]), &array(&["busy", "7"])] {
            assert!(was_owner(first(odd)).is_err(), "{odd:?}");
            assert!(loss(first(odd)).is_err(), "{odd:?}");
            assert!(server_time(first(odd).unwrap()).is_err(), "{odd:?}");
        }
        assert!(was_owner(None).is_err());
        let time = "*2\r\n$1\r\n3\r\n$1\r\n7\r\n";
        assert_eq!(server_time(first(time).unwrap()), Ok(3_000_007));
    }
}
