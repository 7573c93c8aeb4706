//! Finds the end of a reply in the bytes that were read, without an intermediate value.

use std::ops::Range;

use redis::{RedisResult, Value};

/// Replies are nested two or three deep. A deeper one is not a reply to a command of this library.
const MAX_DEPTH: usize = 16;

/// The bytes are not a reply in the protocol of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backend::redis) struct Malformed;

/// Returns the length of the first reply in `bytes`; `None` if it is incomplete.
pub(in crate::backend::redis) fn reply_len(bytes: &[u8]) -> Result<Option<usize>, Malformed> {
    let mut scan = Scan { bytes, at: 0 };
    Ok(scan.value(MAX_DEPTH)?.map(|()| scan.at))
}

/// Returns the range of the text in a reply that is one string; `None` for any other reply.
pub(in crate::backend::redis) fn text_range(reply: &[u8]) -> Option<Range<usize>> {
    let mut scan = Scan {
        bytes: reply,
        at: 0,
    };
    let line = scan.line()?;
    let len = match reply.get(line.start)? {
        b'$' => number(&reply[line.start + 1..line.end]).ok()?,
        _ => return None,
    };
    let end = scan.at.checked_add(usize::try_from(len).ok()?)?;
    (end + 2 == reply.len()).then_some(scan.at..end)
}

/// Returns whether the reply is an error of the server.
pub(in crate::backend::redis) fn is_error(reply: &[u8]) -> bool {
    matches!(reply.first(), Some(b'-' | b'!'))
}

/// Reads all replies as values of the client library.
pub(in crate::backend::redis) fn parse_all(mut replies: &[u8]) -> RedisResult<Vec<Value>> {
    let mut values = Vec::new();
    while let Ok(Some(len)) = reply_len(replies) {
        let (reply, rest) = replies.split_at(len);
        values.push(redis::parse_redis_value(reply)?);
        replies = rest;
    }
    Ok(values)
}

/// Returns the second reply, the fourth, and so on.
pub(in crate::backend::redis) fn every_second(mut replies: &[u8]) -> RedisResult<Vec<u8>> {
    let mut kept = Vec::new();
    let mut is_kept = false;
    while !replies.is_empty() {
        let len = match reply_len(replies) {
            Ok(Some(len)) => len,
            Ok(None) | Err(Malformed) => {
                return Err((redis::ErrorKind::Parse, "incomplete replies").into());
            }
        };
        let (reply, rest) = replies.split_at(len);
        if is_kept {
            kept.extend_from_slice(reply);
        }
        is_kept = !is_kept;
        replies = rest;
    }
    Ok(kept)
}

struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Scan<'_> {
    /// Passes one value. Returns `None` if it is incomplete.
    fn value(&mut self, depth: usize) -> Result<Option<()>, Malformed> {
        let Some(line) = self.line() else {
            return Ok(None);
        };
        self.check_line_end()?;
        let (kind, rest) = self.bytes[line].split_first().ok_or(Malformed)?;
        let values = match kind {
            b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => 0,
            b'$' | b'!' | b'=' => return self.bulk(number(rest)?),
            b'*' | b'~' | b'>' => number(rest)?,
            b'%' => number(rest)?.saturating_mul(2),
            // Attributes stand before the value that they describe.
            b'|' => number(rest)?.saturating_mul(2).saturating_add(1),
            _ => return Err(Malformed),
        };
        let deeper = depth.checked_sub(1).ok_or(Malformed)?;
        for _ in 0..values {
            if self.value(deeper)?.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(()))
    }

    /// Passes a line, and returns its range without the line end; `None` if it is incomplete.
    fn line(&mut self) -> Option<Range<usize>> {
        let start = self.at;
        let len = self.bytes[start..].iter().position(|byte| *byte == b'\n')?;
        self.at = start + len + 1;
        // A line ends with CR and LF.
        Some(start..(start + len).saturating_sub(1).max(start))
    }

    /// Passes the bytes of a string, and the line end behind it. A negative length is a null.
    fn bulk(&mut self, len: i64) -> Result<Option<()>, Malformed> {
        let Ok(len) = usize::try_from(len) else {
            return Ok(Some(()));
        };
        let end = len
            .checked_add(2)
            .and_then(|len| self.at.checked_add(len))
            .ok_or(Malformed)?;
        if self.bytes.len() < end {
            return Ok(None);
        }
        self.at = end;
        self.check_line_end()?;
        Ok(Some(()))
    }

    /// Checks that a line end was passed. Otherwise the replies are not where they seem to be, and a
    /// caller could get the reply to another command.
    fn check_line_end(&self) -> Result<(), Malformed> {
        if self.bytes[..self.at].ends_with(b"\r\n") {
            Ok(())
        } else {
            Err(Malformed)
        }
    }
}

fn number(digits: &[u8]) -> Result<i64, Malformed> {
    let digits = str::from_utf8(digits).map_err(|_| Malformed)?;
    digits.parse().map_err(|_| Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_second_reply_is_kept() {
        let kept = every_second(b"+OK\r\n$1\r\na\r\n+OK\r\n-MOVED 1 h:1\r\n");
        assert_eq!(kept.unwrap(), b"$1\r\na\r\n-MOVED 1 h:1\r\n");
        assert!(every_second(b"+OK\r\n$5\r\na").is_err());
    }

    const REPLIES: [&[u8]; 18] = [
        b"+OK\r\n",
        b"-ERR no\r\n",
        b":-12\r\n",
        b"_\r\n",
        b",1.5\r\n",
        b"#t\r\n",
        b"(123456789012345678901234567890\r\n",
        b"$5\r\na\r\nbc\r\n",
        b"$0\r\n\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
        b"%1\r\n+a\r\n~2\r\n:1\r\n:2\r\n",
        b"!8\r\nERR what\r\n",
        b"=7\r\ntxt:abc\r\n",
        b">2\r\n+message\r\n+b\r\n",
        b"|1\r\n+ttl\r\n:3\r\n$1\r\nx\r\n",
    ];

    #[test]
    fn reply_ends_where_its_last_value_ends() {
        for reply in REPLIES {
            let text = String::from_utf8_lossy(reply);
            assert_eq!(reply_len(reply), Ok(Some(reply.len())), "{text}");
            let followed = [reply, b"+next\r\n"].concat();
            assert_eq!(reply_len(&followed), Ok(Some(reply.len())), "{text}");
        }
    }

    #[test]
    fn cut_reply_is_incomplete() {
        for reply in REPLIES {
            for end in 0..reply.len() {
                let text = String::from_utf8_lossy(&reply[..end]);
                assert_eq!(reply_len(&reply[..end]), Ok(None), "{text}");
            }
        }
    }

    #[test]
    fn other_bytes_are_malformed() {
        let deep = [b"*1\r\n".repeat(MAX_DEPTH + 1), b":1\r\n".to_vec()].concat();
        let odd: [&[u8]; 9] = [
            b"HTTP/1.1 400 Bad Request\r\n",
            b"$x\r\n",
            b"*9223372036854775808\r\n",
            b"\r\n",
            b"\n",
            b"+OK\n",
            b"$1\r\nabc\r\n",
            b"$9223372036854775807\r\n",
            &deep,
        ];
        for bytes in odd {
            let text = String::from_utf8_lossy(bytes);
            let is_refused = reply_len(bytes) == Err(Malformed);
            // A length that no memory holds is waited for, until the time limit of the command.
            let is_endless = bytes[1..].starts_with(b"9223372036854775807");
            assert!(is_refused || is_endless, "{text}");
        }
    }

    #[test]
    fn text_of_a_string_is_found() {
        let text = |reply: &'static [u8]| text_range(reply).map(|range| &reply[range]);
        assert_eq!(text(b"$5\r\na\r\nbc\r\n"), Some(&b"a\r\nbc"[..]));
        assert_eq!(text(b"$0\r\n\r\n"), Some(&b""[..]));
        for other in [&b"$-1\r\n"[..], b"+OK\r\n", b":1\r\n", b"*0\r\n", b""] {
            assert_eq!(text(other), None);
        }
        assert!(is_error(b"-ERR no\r\n") && is_error(b"!2\r\nno\r\n") && !is_error(b"+no\r\n"));
    }
}
