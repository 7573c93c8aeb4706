//! The resource of a race: a number in a file, and behind it the fencing token of its last writer.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use tokio::time::sleep;

/// Why a section could not increment the counter.
#[derive(Debug, PartialEq, Eq)]
pub enum CounterFault {
    /// The file holds this text: another process is writing it.
    Torn(String),
    /// The token is not greater than that of the last writer.
    OldToken {
        /// The token of this section.
        token: u64,
        /// The token in the file.
        last: u64,
    },
}

/// A number, and the token of its last writer if the lock has tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// The number of completed sections.
    pub count: u64,
    /// The token of the last section.
    pub token: Option<u64>,
}

impl Counter {
    /// Parses the content of the file.
    pub fn parse(text: &str) -> Option<Self> {
        let (count, token) = match text.split_once(' ') {
            Some((count, token)) => (count, Some(token.parse().ok()?)),
            None => (text, None),
        };
        let count = count.parse().ok()?;
        Some(Self { count, token })
    }

    /// Returns the counter after a section with this token.
    ///
    /// # Errors
    /// Fails if the token is not greater than the last one.
    pub fn next(self, token: Option<u64>) -> Result<Self, CounterFault> {
        if let (Some(token), Some(last)) = (token, self.token)
            && token <= last
        {
            return Err(CounterFault::OldToken { token, last });
        }
        Ok(Self {
            count: self.count + 1,
            token,
        })
    }

    fn text(self) -> String {
        match self.token {
            Some(token) => format!("{} {token}", self.count),
            None => self.count.to_string(),
        }
    }
}

/// Increments the counter in two steps, and returns the new number.
///
/// # Errors
/// Fails if another process writes at the same time, or if the token is old.
pub async fn increment(file: &Path, token: Option<u64>) -> Result<u64, CounterFault> {
    let text = fs::read_to_string(file).expect("the counter file exists");
    let counter = Counter::parse(&text).ok_or(CounterFault::Torn(text))?;
    let next = counter.next(token)?;
    sleep(Duration::from_millis(1)).await;
    // One write without truncation: a kill leaves the old text or the new one. The text only grows.
    let mut out = File::options().write(true).open(file);
    let out = out.as_mut().expect("the counter file exists");
    out.write_all(next.text().as_bytes())
        .expect("the counter is writable");
    Ok(next.count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_survives_writing() {
        for text in ["0", "41", "41 17"] {
            assert_eq!(
                Counter::parse(text).map(Counter::text).as_deref(),
                Some(text)
            );
        }
        for torn in ["", "4 ", "x", "4 5 6"] {
            assert_eq!(Counter::parse(torn), None, "{torn}");
        }
    }

    #[test]
    fn token_has_to_grow() {
        let counter = Counter {
            count: 3,
            token: Some(7),
        };
        assert!(counter.next(Some(8)).is_ok_and(|next| next.count == 4));
        assert_eq!(
            counter.next(Some(7)),
            Err(CounterFault::OldToken { token: 7, last: 7 })
        );
    }
}
