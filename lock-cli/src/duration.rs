//! The text of a duration, in the grammar of the attribute: `1h30m`, `90s`, `500ms`.

use std::time::Duration;

/// The shortest interval of `watch`: each look reads all locks.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(10);

/// Reads the interval of `watch`.
pub(crate) fn parse_interval(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        interval if interval >= SHORTEST_INTERVAL => Ok(interval),
        _ => Err("use at least \"10ms\"".to_owned()),
    }
}

/// Reads the text of a duration, or returns the message of the error.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    lock_core::config::parse_duration(text).map_err(|message| {
        // clap says that the value is invalid, and quotes it.
        match message.split_once(": ") {
            Some((start, advice)) if start.starts_with("invalid duration") => advice.to_owned(),
            _ => message,
        }
    })
}
