//! Reads complete replies.

use std::borrow::Cow;

use super::frame::FrameScan;
use super::number;

/// The replies in some bytes, one after the other. [`FrameScan`] has found their ends before.
#[derive(Clone, Debug, Default)]
pub struct Replies<'a> {
    bytes: &'a [u8],
    /// The length of the first reply, if it was found before.
    first: Option<usize>,
}

impl<'a> Replies<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, first: None }
    }

    /// Returns whether the first reply is an error.
    pub fn begins_with_error(&self) -> bool {
        matches!(self.bytes.first(), Some(b'-' | b'!'))
    }

    /// Cuts off the next `count` replies.
    pub fn take_part(&mut self, count: usize) -> Self {
        let mut part = Self::new(self.bytes);
        for at in 0..count {
            let is_any = self.next().is_some();
            if is_any && at == 0 {
                part.first = Some(part.bytes.len() - self.bytes.len());
            }
        }
        part.bytes = &part.bytes[..part.bytes.len() - self.bytes.len()];
        part
    }
}

impl<'a> Iterator for Replies<'a> {
    type Item = Reply<'a>;

    fn next(&mut self) -> Option<Reply<'a>> {
        let len = match self.first.take() {
            Some(len) => len,
            None => FrameScan::default().scan(self.bytes, usize::MAX).ok()??,
        };
        let (reply, rest) = self.bytes.split_at(len);
        self.bytes = rest;
        Some(Reply(without_attributes(reply)))
    }
}

/// Attributes describe the value behind them, and no command of this library asks for one.
fn without_attributes(mut reply: &[u8]) -> &[u8] {
    while let Some(rest) = reply.strip_prefix(b"|") {
        let Some((count, rest)) = split_line(rest) else {
            break;
        };
        let mut attributes = Replies::new(rest);
        let count = number(count).and_then(|count| usize::try_from(count).ok());
        attributes.take_part(count.map_or(0, |count| count.saturating_mul(2)));
        reply = attributes.bytes;
    }
    reply
}

/// One reply.
#[derive(Clone, Copy, Debug)]
pub struct Reply<'a>(&'a [u8]);

impl<'a> Reply<'a> {
    /// Returns the error that the server replied.
    pub fn error(self) -> Option<ServerError<'a>> {
        let (kind, rest) = self.0.split_first()?;
        let text = match kind {
            b'-' => split_line(rest)?.0,
            b'!' => string(rest)?,
            _ => return None,
        };
        Some(ServerError::parse(text))
    }

    /// Returns the bytes of a reply that is one string, and not a status.
    pub fn text(self) -> Option<&'a [u8]> {
        let (kind, rest) = self.0.split_first()?;
        match kind {
            b'$' => string(rest),
            // The first three letters name the format of the text.
            b'=' => string(rest)?.get(4..),
            _ => None,
        }
    }

    /// Returns the text of a status, such as `OK`.
    pub fn status(self) -> Option<&'a [u8]> {
        Some(split_line(self.0.strip_prefix(b"+")?)?.0)
    }

    /// Returns a string or a status, if it is text. Servers name things in either form.
    pub fn word(self) -> Option<&'a str> {
        str::from_utf8(self.text().or_else(|| self.status())?).ok()
    }

    pub fn integer(self) -> Option<i64> {
        let (digits, _) = split_line(self.0.strip_prefix(b":")?)?;
        str::from_utf8(digits).ok()?.parse().ok()
    }

    pub fn is_null(self) -> bool {
        matches!(self.0, b"$-1\r\n" | b"*-1\r\n" | b"_\r\n")
    }

    /// Returns the elements of an array, a set or a message. Those of a map are its names and values by turns.
    pub fn items(self) -> Option<Replies<'a>> {
        let (b'*' | b'~' | b'>' | b'%', rest) = self.0.split_first()? else {
            return None;
        };
        let (count, items) = split_line(rest)?;
        (count != b"-1").then(|| Replies::new(items))
    }

    /// Returns whether the server sent this without a command.
    pub fn is_push(self) -> bool {
        self.0.first() == Some(&b'>')
    }

    /// Returns all bytes of the reply.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }
}

/// Splits the bytes behind the first line end.
fn split_line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let line = bytes[..end].strip_suffix(b"\r")?;
    Some((line, &bytes[end + 1..]))
}

/// Returns the bytes of a string whose length stands in front.
fn string(bytes: &[u8]) -> Option<&[u8]> {
    let (len, rest) = split_line(bytes)?;
    rest.get(..usize::try_from(number(len)?).ok()?)
}

/// An error that the server replied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerError<'a> {
    line: &'a [u8],
    /// Where the code begins.
    code_at: usize,
    code_len: usize,
}

impl<'a> ServerError<'a> {
    /// Reads the line of an error, which begins with its code.
    ///
    /// Before Redis 7, an error in a script stands behind where it occurred: `ERR Error running script (call to f_..):
    /// @user_script:1: -READONLY You can't write ..`. Its own code stands behind the last `: -`.
    pub fn parse(line: &'a [u8]) -> Self {
        const INNER: &[u8] = b": -";
        let inner = line.windows(INNER.len()).rposition(|it| it == INNER);
        let inner = inner.map(|at| at + INNER.len());
        let inner = inner.filter(|at| code_len(&line[*at..]) > 0);
        let code_at = inner.unwrap_or(0);
        Self {
            line,
            code_at,
            code_len: code_len(&line[code_at..]),
        }
    }

    /// Returns the code, such as `READONLY`. Empty if the error has none.
    pub fn code(self) -> &'a str {
        let code = &self.line[self.code_at..self.code_at + self.code_len];
        str::from_utf8(code).unwrap_or_default()
    }

    /// Returns what stands behind the code.
    pub fn detail(self) -> Cow<'a, str> {
        let detail = &self.line[self.code_at + self.code_len..];
        String::from_utf8_lossy(detail.strip_prefix(b" ").unwrap_or(detail))
    }

    /// Returns everything that the server said.
    pub fn text(self) -> Cow<'a, str> {
        String::from_utf8_lossy(self.line)
    }
}

/// Returns the length of the code at the beginning of an error: a word in capital letters.
fn code_len(line: &[u8]) -> usize {
    let end = line.iter().position(|byte| *byte == b' ');
    let word = &line[..end.unwrap_or(line.len())];
    let is_code = !word.is_empty() && word.iter().all(u8::is_ascii_uppercase);
    if is_code { word.len() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(bytes: &[u8]) -> Reply<'_> {
        Replies::new(bytes).next().unwrap()
    }

    #[test]
    fn text_of_a_string_is_read() {
        for (bytes, text) in [
            (&b"$5\r\na\r\nbc\r\n"[..], &b"a\r\nbc"[..]),
            (b"$0\r\n\r\n", b""),
            (b"=7\r\ntxt:abc\r\n", b"abc"),
            (b"|1\r\n+ttl\r\n:3\r\n$1\r\nx\r\n", b"x"),
        ] {
            assert_eq!(first(bytes).text(), Some(text));
        }
        for other in [
            &b"$-1\r\n"[..],
            b"+OK\r\n",
            b":1\r\n",
            b"*0\r\n",
            b"=2\r\nab\r\n",
        ] {
            assert_eq!(first(other).text(), None);
        }
    }

    #[test]
    fn values_are_read_by_their_type_alone() {
        assert_eq!(first(b":-12\r\n").integer(), Some(-12));
        assert_eq!(first(b"$1\r\n7\r\n").integer(), None);
        assert_eq!(first(b"+OK\r\n").status(), Some(&b"OK"[..]));
        for null in [&b"$-1\r\n"[..], b"*-1\r\n", b"_\r\n"] {
            assert!(first(null).is_null());
            assert!(first(null).items().is_none());
        }
        assert!(!first(b"*0\r\n").is_null());
        assert!(first(b">1\r\n+a\r\n").is_push());
    }

    #[test]
    fn items_of_arrays_and_maps_are_iterated() {
        let items = first(b"*2\r\n$1\r\na\r\n*2\r\n:1\r\n:2\r\n").items();
        let items: Vec<_> = items.unwrap().collect();
        assert_eq!(items[0].text(), Some(&b"a"[..]));
        let inner: Vec<_> = items[1].items().unwrap().map(Reply::integer).collect();
        assert_eq!(inner, [Some(1), Some(2)]);
        assert_eq!(first(b"%1\r\n+a\r\n:2\r\n").items().unwrap().count(), 2);
    }

    #[test]
    fn part_has_that_many_replies() {
        let mut replies = Replies::new(b":1\r\n:2\r\n*1\r\n:3\r\n:4\r\n");
        let part: Vec<_> = replies.take_part(2).map(Reply::integer).collect();
        assert_eq!(part, [Some(1), Some(2)]);
        assert_eq!(replies.take_part(9).count(), 2);
        assert!(replies.next().is_none());
    }

    #[test]
    fn code_and_detail_of_an_error_are_separated() {
        for (line, code, detail) in [
            ("ERR syntax error", "ERR", "syntax error"),
            ("MOVED 1 h:1", "MOVED", "1 h:1"),
            ("LOADING", "LOADING", ""),
            (
                "max requests limit exceeded",
                "",
                "max requests limit exceeded",
            ),
            ("Denied by policy", "", "Denied by policy"),
            ("", "", ""),
            (
                "ERR Error running script (call to f_0a): @user_script:1: -READONLY You can't write",
                "READONLY",
                "You can't write",
            ),
            // What a script says itself isn't a code.
            (
                "ERR user_script:3: x: -1 is odd",
                "ERR",
                "user_script:3: x: -1 is odd",
            ),
        ] {
            for bytes in [
                format!("-{line}\r\n"),
                format!("!{}\r\n{line}\r\n", line.len()),
            ] {
                let error = first(bytes.as_bytes()).error().unwrap();
                assert_eq!((error.code(), &*error.detail()), (code, detail), "{line}");
                assert_eq!(error.text(), line);
            }
        }
        assert!(first(b"+OK\r\n").error().is_none());
    }
}
