//! Finds where a reply or a message ends.

use super::number;

/// The most bytes of a reply to a command of a lock, and of a message. The longest ones are some hundred bytes: a value
/// is cut to 200 of them, and a set of locks has a short text for each.
pub const LOCK_REPLY: usize = 64 * 1024;

/// The most bytes of a reply to what operators read, such as a page of a list, and of the map of a cluster.
pub const OPERATOR_REPLY: usize = 16 * 1024 * 1024;

/// The most bytes of one line.
pub const MAX_LINE: usize = 64 * 1024;

/// Replies are nested two or three deep. A deeper one isn't a reply to a command of this library.
pub const MAX_DEPTH: usize = 16;

/// The fewest bytes of a value, which are those of a null: `_\r\n`.
const SMALLEST: u64 = 3;

/// Why bytes aren't a frame that this library reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("the server does not speak the protocol of Redis")]
    NotTheProtocol,
    #[error("the server sent a reply of more than {limit} bytes")]
    TooLarge { limit: usize },
}

/// Finds the end of a frame whose bytes arrive in pieces, without looking at any byte twice.
#[derive(Debug, Default)]
pub struct FrameScan {
    /// Everything in front of this place is passed.
    at: usize,
    /// There is no line end between `at` and this place.
    searched: usize,
    /// The end of a string whose length is known, with its line end.
    string_end: Option<usize>,
    /// How many values each open array still needs, the outermost first.
    open: [u64; MAX_DEPTH],
    depth: usize,
}

impl FrameScan {
    /// Returns the length of the first frame in `bytes`, or `None` while it is incomplete. The next call has to begin
    /// with the same bytes and may have more of them; after a length, it begins with the next frame.
    ///
    /// # Errors
    /// The bytes aren't a frame, or it has more than `largest` bytes.
    pub fn scan(&mut self, bytes: &[u8], largest: usize) -> Result<Option<usize>, Malformed> {
        let too_large = Malformed::TooLarge { limit: largest };
        loop {
            if let Some(end) = self.string_end {
                if end > largest {
                    return Err(too_large);
                }
                if bytes.len() < end {
                    return Ok(None);
                }
                if !bytes[..end].ends_with(b"\r\n") {
                    return Err(Malformed::NotTheProtocol);
                }
                self.at = end;
                self.string_end = None;
            } else {
                let Some(end) = self.line_end(bytes)? else {
                    return if bytes.len() > largest {
                        Err(too_large)
                    } else {
                        Ok(None)
                    };
                };
                if end > largest {
                    return Err(too_large);
                }
                let line = &bytes[self.at..end - 2];
                self.at = end;
                if !self.read_line(line, largest)? {
                    continue;
                }
            }
            // A value is complete, and so is each array of which it is the last.
            while self.depth > 0 {
                let missing = &mut self.open[self.depth - 1];
                *missing -= 1;
                if *missing > 0 {
                    break;
                }
                self.depth -= 1;
            }
            if self.depth == 0 {
                // `open` stays as it is: nothing reads it beyond `depth`.
                (self.searched, self.string_end) = (0, None);
                return Ok(Some(std::mem::take(&mut self.at)));
            }
        }
    }

    /// Returns the place behind the line that begins at `at`, or `None` while it is incomplete.
    fn line_end(&mut self, bytes: &[u8]) -> Result<Option<usize>, Malformed> {
        let from = self.searched.max(self.at);
        let Some(len) = bytes[from..].iter().position(|byte| *byte == b'\n') else {
            self.searched = bytes.len();
            return if bytes.len() - self.at > MAX_LINE {
                Err(Malformed::TooLarge { limit: MAX_LINE })
            } else {
                Ok(None)
            };
        };
        let end = from + len + 1;
        // At least a type, CR and LF.
        if end - self.at < 3 || !bytes[..end].ends_with(b"\r\n") {
            return Err(Malformed::NotTheProtocol);
        }
        Ok(Some(end))
    }

    /// Reads the line that begins a value. Returns whether the value is complete.
    fn read_line(&mut self, line: &[u8], largest: usize) -> Result<bool, Malformed> {
        let (kind, rest) = line.split_first().ok_or(Malformed::NotTheProtocol)?;
        let values = match kind {
            b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => return Ok(true),
            b'$' | b'!' | b'=' => {
                let Some(len) = length(rest)? else {
                    return Ok(true);
                };
                let end = usize::try_from(len).ok();
                let end = end.and_then(|len| self.at.checked_add(len)?.checked_add(2));
                self.string_end = Some(end.ok_or(Malformed::TooLarge { limit: largest })?);
                return Ok(false);
            }
            b'*' | b'~' | b'>' => length(rest)?.unwrap_or(0),
            b'%' => length(rest)?.unwrap_or(0).saturating_mul(2),
            // Attributes stand in front of the value that they describe.
            b'|' => length(rest)?
                .unwrap_or(0)
                .saturating_mul(2)
                .saturating_add(1),
            _ => return Err(Malformed::NotTheProtocol),
        };
        if values == 0 {
            return Ok(true);
        }
        let room = largest.saturating_sub(self.at) as u64;
        if values > room / SMALLEST {
            return Err(Malformed::TooLarge { limit: largest });
        }
        let open = self.open.get_mut(self.depth);
        *open.ok_or(Malformed::NotTheProtocol)? = values;
        self.depth += 1;
        Ok(false)
    }
}

/// Reads a length or a count; `None` for `-1`, which is a null.
fn length(digits: &[u8]) -> Result<Option<u64>, Malformed> {
    if digits == b"-1" {
        return Ok(None);
    }
    number(digits).ok_or(Malformed::NotTheProtocol).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    fn scan(bytes: &[u8]) -> Result<Option<usize>, Malformed> {
        FrameScan::default().scan(bytes, LOCK_REPLY)
    }

    #[test]
    fn frame_ends_where_its_last_value_ends() {
        for reply in REPLIES {
            let text = String::from_utf8_lossy(reply);
            assert_eq!(scan(reply), Ok(Some(reply.len())), "{text}");
            let followed = [reply, b"+next\r\n"].concat();
            assert_eq!(scan(&followed), Ok(Some(reply.len())), "{text}");
        }
    }

    #[test]
    fn cut_frame_is_incomplete() {
        for reply in REPLIES {
            for end in 0..reply.len() {
                let text = String::from_utf8_lossy(&reply[..end]);
                assert_eq!(scan(&reply[..end]), Ok(None), "{text}");
            }
        }
    }

    proptest! {
        /// Several frames that arrive in pieces of any size are cut at the same places.
        #[test]
        fn pieces_do_not_matter(
            which in proptest::collection::vec(0..REPLIES.len(), 1..6),
            pieces in proptest::collection::vec(1..7_usize, 1..200),
        ) {
            let bytes: Vec<u8> = which.iter().flat_map(|at| REPLIES[*at]).copied().collect();
            let (mut scan, mut begin, mut end) = (FrameScan::default(), 0, 0);
            let mut lens = Vec::new();
            let mut pieces = pieces.into_iter().cycle();
            while begin < bytes.len() {
                match scan.scan(&bytes[begin..end], LOCK_REPLY).unwrap() {
                    Some(len) => {
                        lens.push(len);
                        begin += len;
                    }
                    None => end = bytes.len().min(end + pieces.next().unwrap()),
                }
            }
            let expected: Vec<_> = which.iter().map(|at| REPLIES[*at].len()).collect();
            prop_assert_eq!(lens, expected);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _read = FrameScan::default().scan(&bytes, 100);
        }
    }

    #[test]
    fn other_bytes_are_malformed() {
        let deep = [b"*1\r\n".repeat(MAX_DEPTH + 1), b":1\r\n".to_vec()].concat();
        let odd: [&[u8]; 11] = [
            b"HTTP/1.1 400 Bad Request\r\n",
            b"$x\r\n",
            b"$-2\r\n",
            b"*?\r\n",
            b"*99999999999999999999\r\n",
            b"\r\n",
            b"\n",
            b"\r\n\r\n",
            b"+OK\n",
            b"$1\r\nabc\r\n",
            &deep,
        ];
        for bytes in odd {
            let text = String::from_utf8_lossy(bytes);
            assert_eq!(scan(bytes), Err(Malformed::NotTheProtocol), "{text}");
        }
        let deepest = [b"*1\r\n".repeat(MAX_DEPTH), b":1\r\n".to_vec()].concat();
        assert_eq!(scan(&deepest), Ok(Some(deepest.len())));
    }

    /// The announcement is enough: nothing of what it announces is waited for.
    #[test]
    fn frame_that_announces_too_much_is_refused_at_once() {
        let too_large = Err(Malformed::TooLarge { limit: LOCK_REPLY });
        for bytes in [
            &b"$65536\r\n"[..],
            b"$9223372036854775807\r\n",
            b"$18446744073709551615\r\n",
            b"*21845\r\n",
            b"*9223372036854775807\r\n",
            b"%18446744073709551615\r\n",
            b"*2\r\n$10\r\n0123456789\r\n!65520\r\n",
        ] {
            assert_eq!(scan(bytes), too_large, "{}", String::from_utf8_lossy(bytes));
        }
        assert_eq!(scan(b"$65500\r\n"), Ok(None));
    }

    #[test]
    fn endless_frames_are_refused_at_their_limit() {
        let line = vec![b'+'; MAX_LINE + 1];
        assert_eq!(scan(&line[..MAX_LINE]), Ok(None));
        assert_eq!(scan(&line), Err(Malformed::TooLarge { limit: MAX_LINE }));
        let mut array = b"*20000\r\n".to_vec();
        array.extend_from_slice(&b":12345\r\n".repeat(LOCK_REPLY / 8));
        assert_eq!(scan(&array), Err(Malformed::TooLarge { limit: LOCK_REPLY }));
    }

    /// The second call breaks its contract on purpose: only a scan that looks again sees the line end in the first bytes.
    #[test]
    fn beginning_of_a_line_is_not_searched_again() {
        let mut scan = FrameScan::default();
        assert_eq!(scan.scan(b"+abc", LOCK_REPLY), Ok(None));
        assert_eq!(scan.scan(b"+\nbc\r\n", LOCK_REPLY), Ok(Some(6)));
    }

    /// A string that arrives byte by byte is not looked at again and again: 16 MiB would take minutes.
    #[test]
    fn long_frame_in_small_pieces_is_scanned_once() {
        let len = OPERATOR_REPLY - 100;
        let mut bytes = format!("*2\r\n${len}\r\n").into_bytes();
        let begin = bytes.len();
        bytes.resize(begin + len, b'x');
        bytes.extend_from_slice(b"\r\n:1\r\n");
        let mut scan = FrameScan::default();
        for end in begin..bytes.len() {
            assert_eq!(scan.scan(&bytes[..end], OPERATOR_REPLY), Ok(None));
        }
        assert_eq!(scan.scan(&bytes, OPERATOR_REPLY), Ok(Some(bytes.len())));
    }
}
