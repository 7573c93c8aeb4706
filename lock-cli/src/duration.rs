//! The text of a duration, in the grammar of the attribute: `1h30m`, `90s`, `500ms`.

use std::time::Duration;

/// The units with their milliseconds, in the order in which they must be written.
const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Reads the text of a duration, or returns the message of the error.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    if text.is_empty() {
        return Err("write a number and a unit, such as \"30s\"".into());
    }
    if text.contains(char::is_whitespace) {
        return Err("leave out the spaces".into());
    }
    if text.starts_with(['-', '+']) {
        return Err("leave out the sign".into());
    }
    if text.contains(['.', ',']) {
        return Err("only whole numbers; use a smaller unit, such as \"1500ms\"".into());
    }
    let mut rest = text;
    let mut smaller = UNITS.as_slice();
    let mut total = Some(0_u64);
    while !rest.is_empty() {
        let (number, after) = split(rest, |c| c.is_ascii_digit());
        let (unit, after) = split(after, |c| !c.is_ascii_digit());
        if number.is_empty() {
            return Err(format!("put a number before `{unit}`"));
        }
        if unit.is_empty() {
            return Err(format!("write it as \"{text}s\""));
        }
        if !UNITS.iter().any(|(known, _)| *known == unit) {
            return Err(format!(
                "unknown unit `{unit}`; expected `ms`, `s`, `m` or `h`"
            ));
        }
        let Some(place) = smaller.iter().position(|(known, _)| *known == unit) else {
            return Err("each unit once, in the order `h`, `m`, `s`, `ms`".into());
        };
        let (_, factor) = smaller[place];
        smaller = &smaller[place + 1..];
        total = number
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(factor))
            .and_then(|more| total?.checked_add(more));
        rest = after;
    }
    // A number that is too large for any clock breaks the limit of its option, which reports it.
    Ok(Duration::from_millis(total.unwrap_or(u64::MAX)))
}

fn split(text: &str, keep: impl Fn(char) -> bool) -> (&str, &str) {
    let end = text.find(|c| !keep(c)).unwrap_or(text.len());
    text.split_at(end)
}
