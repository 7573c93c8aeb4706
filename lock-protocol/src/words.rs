//! Words of a configuration file.

use std::fmt;

use serde_core::de::{Error, Visitor};

use crate::nearest::nearest;

/// Returns the error for a word that isn't one of the known words.
pub fn not_one_of(what: &str, word: &str, known: &[&str]) -> String {
    let word: String = word.chars().take(40).collect();
    if let Some(meant) = nearest(&word, known.iter().copied()) {
        return format!("unknown {what} `{word}`; did you mean `{meant}`?");
    }
    let known: Vec<_> = known.iter().map(|known| format!("`{known}`")).collect();
    format!(
        "unknown {what} `{word}`; expected one of {}",
        known.join(", ")
    )
}

/// Reads one of the words of a table.
pub struct WordVisitor<T: 'static> {
    pub what: &'static str,
    pub words: &'static [(&'static str, T)],
}

impl<T: Copy> Visitor<'_> for WordVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the name of a {}", self.what)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        let known = self.words.iter().find(|(word, _)| *word == text);
        if let Some((_, value)) = known {
            return Ok(*value);
        }
        let words: Vec<_> = self.words.iter().map(|(word, _)| *word).collect();
        Err(E::custom(not_one_of(self.what, text, &words)))
    }
}
