//! Glob patterns of Redis: `*`, `?`, `[a-z]`, `[^a]`, and `\` before a special character.

/// Escapes a text, so that a pattern matches it literally.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        if matches!(letter, '*' | '?' | '[' | ']' | '\\') {
            escaped.push('\\');
        }
        escaped.push(letter);
    }
    escaped
}

/// Returns whether a pattern matches the whole text, byte by byte, as the server's `MATCH` does.
///
/// Takes at most the product of both lengths: after a mismatch, only the last `*` takes one byte more.
pub fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut at, mut seen) = (0, 0);
    let mut last_star = None;
    while seen < text.len() {
        if pattern.get(at) == Some(&b'*') {
            at += 1;
            last_star = Some((at, seen));
        } else if let Some(len) = matched_by(&pattern[at..], text[seen]) {
            at += len;
            seen += 1;
        } else if let Some((after, taken)) = last_star {
            at = after;
            seen = taken + 1;
            last_star = Some((after, seen));
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// Returns the length of the pattern's first element, if it matches the byte.
fn matched_by(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', class @ ..] => {
            let (is_match, len) = class_matches(class, byte);
            is_match.then_some(len + 1)
        }
        [b'\\', literal, ..] => (*literal == byte).then_some(2),
        [literal, ..] => (*literal == byte).then_some(1),
    }
}

/// Returns whether a class matches the byte, and its length with the closing bracket. A class without
/// one ends with the pattern.
fn class_matches(class: &[u8], byte: u8) -> (bool, usize) {
    let is_negated = class.first() == Some(&b'^');
    let mut at = usize::from(is_negated);
    let mut is_match = false;
    loop {
        match &class[at..] {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', literal, ..] => {
                is_match |= *literal == byte;
                at += 2;
            }
            [first, b'-', last, ..] => {
                let (low, high) = (*first.min(last), *first.max(last));
                is_match |= (low..=high).contains(&byte);
                at += 3;
            }
            [literal, ..] => {
                is_match |= *literal == byte;
                at += 1;
            }
        }
    }
    (is_match != is_negated, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_on_the_server() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a*", "a", true),
            ("a*b*c", "aXXbYYc", true),
            ("a*b*c", "aXXcYYb", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[ab]1", "b1", true),
            ("[^ab]1", "b1", false),
            ("[^ab]1", "c1", true),
            ("[c-a]", "b", true),
            ("[\\]x]", "]", true),
            ("[abc", "c", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("a\\", "a\\", true),
            ("*\\?", "what?", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn escaped_text_matches_only_itself() {
        for text in ["lock:", "a*b?[c]\\^-:", "[", "é*"] {
            assert!(matches(&escape(text), text), "{text}");
            assert!(!matches(&escape(text), &format!("{text}x")), "{text}");
        }
        assert!(!matches(&escape("a*"), "ab"));
        assert!(!matches(&escape("[ab]"), "a"));
    }

    #[test]
    fn many_stars_are_fast() {
        let pattern = "*a".repeat(200);
        let text = "a".repeat(199) + &"b".repeat(2_000);
        assert!(!matches(&pattern, &text));
    }
}
