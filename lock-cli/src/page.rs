//! The one door for text on its way to the output. Names, labels and error texts come from outside, and may hold escape
//! sequences of terminals, or a line feed that forges a line. Here they lose their effect, and only behind it do pages
//! get the styles of this program.

use std::fmt::{self, Write as _};

use serde::Serialize;

/// A style of text. The output removes it where it is not wanted.
#[derive(Clone, Copy)]
pub(crate) struct Paint(&'static str);

pub(crate) const BOLD: Paint = Paint("1");
pub(crate) const RED: Paint = Paint("1;31");
pub(crate) const GREEN: Paint = Paint("32");
pub(crate) const YELLOW: Paint = Paint("33");

/// One line of text without control characters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Line(String);

impl Line {
    /// Escapes what could forge a line, or what a terminal would obey.
    pub(crate) fn new(text: &str) -> Self {
        let mut line = String::with_capacity(text.len());
        for letter in text.chars() {
            if is_harmful(letter) {
                line.extend(letter.escape_unicode());
            } else {
                line.push(letter);
            }
        }
        Self(line)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Whether a terminal may do more with a character than show it: control characters, and those that change the
/// direction of the text or break lines.
fn is_harmful(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

/// Lines of text with styles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Page(String);

impl Page {
    /// A page that this program has generated from its own definitions, such as a manual page.
    pub(crate) fn generated(text: String) -> Self {
        Self(text)
    }

    /// Adds text.
    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        self.0.push_str(Line::new(text).as_str());
        self
    }

    /// Adds text in a style.
    pub(crate) fn painted(&mut self, paint: Paint, text: &str) -> &mut Self {
        let Paint(code) = paint;
        // Writing to a string cannot fail.
        let _ = write!(self.0, "\x1b[{code}m{}\x1b[0m", Line::new(text));
        self
    }

    /// Ends a line.
    pub(crate) fn end_line(&mut self) -> &mut Self {
        self.0.push('\n');
        self
    }

    /// Adds a line.
    pub(crate) fn line(&mut self, text: &str) -> &mut Self {
        self.text(text).end_line()
    }

    /// Adds the lines of another page.
    pub(crate) fn append(&mut self, other: &Self) -> &mut Self {
        self.0.push_str(&other.0);
        self
    }

    /// Returns the first lines, each as a page without a line feed, cut to the width of a terminal.
    pub(crate) fn cut(&self, columns: usize, lines: usize) -> impl Iterator<Item = Self> {
        let shown = self.0.lines().take(lines);
        shown.map(move |line| Self(cut(line, columns)))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Cuts a line that is wider than the terminal. Styles have no width, and end behind the cut too.
fn cut(line: &str, columns: usize) -> String {
    let mut shown = String::with_capacity(line.len());
    let mut width = 0;
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        if letter == '\x1b' {
            shown.push(letter);
            for letter in letters.by_ref() {
                shown.push(letter);
                if letter == 'm' {
                    break;
                }
            }
        } else if width < columns {
            width += 1;
            shown.push(letter);
        }
    }
    shown
}

/// Returns a record as a line of JSON. Its values stay exact: JSON escapes most control characters by itself, and here
/// the others get the same form. They only occur inside strings.
pub(crate) fn json(record: &impl Serialize) -> serde_json::Result<Page> {
    let text = serde_json::to_string(record)?;
    let mut line = String::with_capacity(text.len() + 1);
    for letter in text.chars() {
        if is_harmful(letter) {
            // Writing to a string cannot fail. All these characters have one code unit.
            let _ = write!(line, "\\u{:04x}", u32::from(letter));
        } else {
            line.push(letter);
        }
    }
    line.push('\n');
    Ok(Page(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A red text, a line feed, the one-character form of ESC `[`, and a change of direction.
    const HOSTILE: &str = "a\x1b[31mb\nc\u{9b}31md\u{202e}e";
    const ESCAPED: &str = "a\\u{1b}[31mb\\u{a}c\\u{9b}31md\\u{202e}e";

    #[test]
    fn text_from_outside_has_no_effect_on_a_terminal() {
        assert_eq!(Line::new(HOSTILE).as_str(), ESCAPED);
        // A text may pass the door twice.
        assert_eq!(Line::new(ESCAPED).as_str(), ESCAPED);
        let mut page = Page::default();
        page.painted(BOLD, HOSTILE).text("größe ").line(HOSTILE);
        let expected = format!("\x1b[1m{ESCAPED}\x1b[0mgröße {ESCAPED}\n");
        assert_eq!(page.as_str(), expected);
    }

    #[test]
    fn json_keeps_values_and_has_no_effect_on_a_terminal() {
        let page = json(&[HOSTILE]).unwrap();
        let letters = page.as_str().trim_end_matches('\n');
        assert!(!letters.contains(is_harmful), "{letters:?}");
        let values: Vec<String> = serde_json::from_str(letters).unwrap();
        assert_eq!(values, [HOSTILE]);
    }

    #[test]
    fn lines_are_cut_to_the_width_of_the_terminal() {
        for (line, cut_line) in [
            ("12345", "12345"),
            ("123456", "12345"),
            ("größer", "größe"),
            ("\x1b[1m123456\x1b[0m", "\x1b[1m12345\x1b[0m"),
            ("\x1b[1m123\x1b[0m", "\x1b[1m123\x1b[0m"),
        ] {
            assert_eq!(cut(line, 5), cut_line);
        }
    }
}
