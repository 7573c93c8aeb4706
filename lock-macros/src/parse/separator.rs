//! The text between two placeholders, which must separate their values.

/// Returns whether a value could begin with this text, so that the text separates nothing.
///
/// `lock_core` keeps some letters of a value and writes `%2F` for the bytes of all others. When no value
/// can begin with a separator, only one way of reading a name gives its first value, and so each further
/// value. A `%` separates only where the text goes on as no encoded letter does: `%-`, but not `%`, `%2`
/// or `a%20`.
pub(crate) fn begins_a_value(text: &str) -> bool {
    // The bytes so far of a letter with several.
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        rest = &rest[letter.len_utf8()..];
        if letter != '%' {
            if !bytes.is_empty() || !is_kept(letter) {
                return false;
            }
            continue;
        }
        let digits: String = rest.chars().take(2).collect();
        if !digits
            .bytes()
            .all(|it| matches!(it, b'0'..=b'9' | b'A'..=b'F'))
        {
            return false;
        }
        if digits.len() < 2 {
            return true;
        }
        rest = &rest[2..];
        bytes.extend(u8::from_str_radix(&digits, 16));
        match std::str::from_utf8(&bytes) {
            // A value writes this letter without a `%`.
            Ok(letter) if letter.chars().all(is_kept) => return false,
            Ok(_) => bytes.clear(),
            Err(error) if error.error_len().is_none() => {}
            Err(_) => return false,
        }
    }
    true
}

/// Returns whether a value keeps this letter. `lock_core` encodes all others.
fn is_kept(c: char) -> bool {
    c.is_ascii_alphanumeric()
        || matches!(c, '-' | '_' | '.')
        || (!c.is_ascii() && c.is_alphabetic())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fmt::Write;

    use super::*;

    /// Encodes a value as `lock_core` does.
    fn encoded(value: &str) -> String {
        let mut text = String::new();
        for letter in value.chars() {
            if is_kept(letter) {
                text.push(letter);
            } else {
                for byte in letter.to_string().bytes() {
                    write!(text, "%{byte:02X}").expect("a string takes all text");
                }
            }
        }
        text
    }

    /// Returns all texts of `letters`, up to a length.
    fn texts(letters: &[char], longest: usize) -> Vec<String> {
        let mut all = vec![String::new()];
        let mut begin = 0;
        for _ in 0..longest {
            let end = all.len();
            for at in begin..end {
                for letter in letters {
                    all.push(format!("{}{letter}", all[at]));
                }
            }
            begin = end;
        }
        all
    }

    #[test]
    fn exactly_the_separators_that_leave_one_reading_are_accepted() {
        let values = |longest| {
            let texts = texts(&['%', '2', '5', 'x'], longest);
            let encoded = texts[1..].iter().map(|value| encoded(value));
            encoded.collect::<Vec<String>>()
        };
        let (lefts, rights) = (values(3), values(4));
        for separator in texts(&['%', '2', 'x', ':'], 2) {
            let mut readings = BTreeMap::new();
            let mut is_ambiguous = false;
            for left in &lefts {
                for right in &rights {
                    let name = format!("{left}{separator}{right}");
                    let other = readings.insert(name, (left, right));
                    is_ambiguous |= other.is_some_and(|other| other != (left, right));
                }
            }
            assert_eq!(begins_a_value(&separator), is_ambiguous, "{separator:?}");
        }
    }

    #[test]
    fn letters_of_several_bytes_are_read_whole() {
        for part_of_a_value in [
            "",
            "ü",
            "-._",
            "%E2%80%93",
            "%E2%80%9",
            "%E2%80%",
            "%E2",
            "%E",
            "%F0%9F%94%92",
            "a%25",
            "%7F",
        ] {
            assert!(begins_a_value(part_of_a_value), "{part_of_a_value}");
        }
        for separator in [
            "…", "%%", "%-", "%2f", "%ü", "%41", "%2D", "%C3%A9", "%80", "%FF", "%C0%80", "%E2x",
            "%E2%8x", "%2:", "a%:", "%25/",
        ] {
            assert!(!begins_a_value(separator), "{separator}");
        }
    }
}
