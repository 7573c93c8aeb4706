//! Percent-decoding of the parts of a URL.

use super::advised;
use crate::error::LockError;

/// Decodes a part of a URL. An error names the part, and does not show its text.
pub(super) fn decode(text: &str, what: &str) -> Result<String, LockError> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let (Some(high), Some(low)) = (hex_digit(rest.next()), hex_digit(rest.next())) else {
            return Err(advised(
                format!("{what} in the lock URL has a `%` without two hexadecimal digits"),
                "percent-encode `%` as `%25`",
            ));
        };
        decoded.push(high << 4 | low);
    }
    String::from_utf8(decoded).map_err(|_| {
        advised(
            format!("{what} in the lock URL is not UTF-8"),
            "percent-encode the bytes of its UTF-8 text",
        )
    })
}

fn hex_digit(byte: Option<u8>) -> Option<u8> {
    match byte? {
        digit @ b'0'..=b'9' => Some(digit - b'0'),
        digit @ b'a'..=b'f' => Some(digit - b'a' + 10),
        digit @ b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}
