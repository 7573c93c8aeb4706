//! The text of a duration: `1h30m`, `90s`, `500ms`.
//!
//! The attribute of `lock-macros` and the configuration of `lock-core` read the same texts. A crate
//! of procedural macros exports nothing else, so both crates have a copy of this file. A test
//! compares the copies.

use std::time::Duration;

/// The units with their milliseconds, in the order in which they must be written.
const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Reads the text of a duration, or returns the message of the error.
pub fn parse(text: &str) -> Result<Duration, String> {
    if text.is_empty() {
        return Err("invalid duration \"\": write a number and a unit, such as \"30s\"".into());
    }
    let invalid = |advice: &str| Err(format!("invalid duration \"{text}\": {advice}"));
    if text.contains(char::is_whitespace) {
        return invalid("leave out the spaces");
    }
    if text.starts_with(['-', '+']) {
        return invalid("leave out the sign");
    }
    if text.contains(['.', ',']) {
        return invalid("only whole numbers; use a smaller unit, such as \"1500ms\"");
    }
    let mut rest = text;
    let mut smaller = UNITS.as_slice();
    let mut total = Some(0_u64);
    while !rest.is_empty() {
        let (number, after) = split(rest, |c| c.is_ascii_digit());
        let (unit, after) = split(after, |c| !c.is_ascii_digit());
        if number.is_empty() {
            return invalid(&format!("put a number before `{unit}`"));
        }
        if unit.is_empty() {
            return invalid(&format!(
                "add a unit, such as \"{text}s\" (`ms`, `s`, `m`, `h`)"
            ));
        }
        let Some((_, factor)) = UNITS.iter().find(|(known, _)| *known == unit) else {
            return Err(format!(
                "unknown unit `{unit}` in \"{text}\"; expected `ms`, `s`, `m` or `h`"
            ));
        };
        let Some(place) = smaller.iter().position(|(known, _)| *known == unit) else {
            return invalid("each unit once, in the order `h`, `m`, `s`, `ms`");
        };
        smaller = &smaller[place + 1..];
        total = number
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(*factor))
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

/// Says how to write a value that is no text: `30`, `30s`, `1m30s`, `1.5s`, `true`. `digits` and
/// `suffix` are the parts of a number; `digits` is empty when the value is no number.
pub fn not_text(written: &str, digits: &str, suffix: &str) -> String {
    let suggestion = match digits {
        "" => None,
        decimal if decimal.contains(['.', 'e', 'E']) => milliseconds(decimal, suffix),
        whole => rewritten(whole, suffix),
    };
    let suggestion = suggestion.unwrap_or_else(|| "30s".into());
    format!("invalid duration `{written}`: write it as \"{suggestion}\"")
}

/// Returns the duration that a number and its suffix probably mean.
fn rewritten(digits: &str, suffix: &str) -> Option<String> {
    if suffix.is_empty() || is_type_suffix(suffix) {
        return Some(format!("{digits}s"));
    }
    let text = format!("{digits}{suffix}");
    if parse(&text).is_ok() {
        return Some(text);
    }
    let unit = meant_unit(suffix)?;
    Some(match unit {
        "d" => format!("{}h", digits.parse::<u64>().ok()?.checked_mul(24)?),
        unit => format!("{digits}{unit}"),
    })
}

/// Rewrites `1.5s` as `1500ms`.
fn milliseconds(number: &str, suffix: &str) -> Option<String> {
    let factor = match meant_unit(suffix) {
        Some("h") => 3_600_000.0,
        Some("m") => 60_000.0,
        Some("ms") => return None,
        _ => 1_000.0,
    };
    let milliseconds = (number.parse::<f64>().ok()? * factor).round();
    (1.0..1e12)
        .contains(&milliseconds)
        .then(|| format!("{milliseconds}ms"))
}

fn is_type_suffix(suffix: &str) -> bool {
    let (kind, bits) = suffix.split_at(suffix.len().min(1));
    matches!(kind, "u" | "i" | "f") && matches!(bits, "8" | "16" | "32" | "64" | "128" | "size")
}

/// Returns the unit that a suffix probably means. `d` is no unit here, and is rewritten in hours.
fn meant_unit(suffix: &str) -> Option<&'static str> {
    Some(match suffix.to_lowercase().as_str() {
        "h" | "hr" | "hrs" | "hour" | "hours" => "h",
        "m" | "min" | "mins" | "minute" | "minutes" => "m",
        "s" | "sec" | "secs" | "second" | "seconds" => "s",
        "ms" | "msec" | "msecs" | "milli" | "millis" | "millisecond" | "milliseconds" => "ms",
        "d" | "day" | "days" => "d",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(text: &str) -> Result<u128, String> {
        parse(text).map(|duration| duration.as_millis())
    }

    #[test]
    fn units_add_up() {
        assert_eq!(millis("500ms"), Ok(500));
        assert_eq!(millis("30s"), Ok(30_000));
        assert_eq!(millis("1m"), Ok(60_000));
        assert_eq!(millis("1m30s"), Ok(90_000));
        assert_eq!(millis("24h"), Ok(86_400_000));
        assert_eq!(millis("1h2m3s4ms"), Ok(3_723_004));
        assert_eq!(millis("1h4ms"), Ok(3_600_004));
        assert_eq!(millis("90m"), Ok(5_400_000));
        assert_eq!(millis("007s"), Ok(7_000));
        assert_eq!(millis("0s"), Ok(0));
    }

    #[test]
    fn missing_unit_is_suggested() {
        assert_eq!(
            millis("30"),
            Err(
                "invalid duration \"30\": add a unit, such as \"30s\" (`ms`, `s`, `m`, `h`)".into()
            )
        );
        assert_eq!(
            millis("1m30"),
            Err(
                "invalid duration \"1m30\": add a unit, such as \"1m30s\" (`ms`, `s`, `m`, `h`)"
                    .into()
            )
        );
    }

    #[test]
    fn unknown_unit_is_quoted() {
        for (text, unit) in [
            ("30sec", "sec"),
            ("30S", "S"),
            ("1m30secs", "secs"),
            ("1d", "d"),
            ("5µs", "µs"),
            ("1_000ms", "_"),
        ] {
            assert_eq!(
                millis(text),
                Err(format!(
                    "unknown unit `{unit}` in \"{text}\"; expected `ms`, `s`, `m` or `h`"
                ))
            );
        }
    }

    #[test]
    fn units_are_ordered_and_unique() {
        for text in ["30s1m", "1s1s", "1ms1h", "1m1h1s"] {
            assert_eq!(
                millis(text),
                Err(format!(
                    "invalid duration \"{text}\": each unit once, in the order `h`, `m`, `s`, `ms`"
                ))
            );
        }
    }

    #[test]
    fn other_mistakes_are_explained() {
        let advice = |text| {
            let message = millis(text).err().unwrap_or_default();
            message
                .split_once(": ")
                .map(|(_, advice)| advice.to_owned())
                .unwrap_or_default()
        };
        assert_eq!(advice(""), "write a number and a unit, such as \"30s\"");
        assert_eq!(advice("1m 30s"), "leave out the spaces");
        assert_eq!(advice(" 30s"), "leave out the spaces");
        assert_eq!(advice("-30s"), "leave out the sign");
        assert_eq!(advice("s"), "put a number before `s`");
        assert_eq!(
            advice("1.5s"),
            "only whole numbers; use a smaller unit, such as \"1500ms\""
        );
    }

    #[test]
    fn huge_numbers_do_not_wrap() {
        assert_eq!(millis("99999999999999999999h"), Ok(u128::from(u64::MAX)));
        assert_eq!(millis("18446744073709551615s"), Ok(u128::from(u64::MAX)));
        assert_eq!(millis("99999999999999999999h1s"), Ok(u128::from(u64::MAX)));
    }

    #[test]
    fn value_without_quotes_is_rewritten() {
        for (written, digits, suffix, meant) in [
            ("30", "30", "", "30s"),
            ("500ms", "500", "ms", "500ms"),
            ("30u64", "30", "u64", "30s"),
            ("1.5", "1.5", "", "1500ms"),
            ("5min", "5", "min", "5m"),
            ("5_0min", "50", "min", "50m"),
            ("500millis", "500", "millis", "500ms"),
            ("1m30s", "1", "m30s", "1m30s"),
            ("2hours", "2", "hours", "2h"),
            ("2d", "2", "d", "48h"),
            ("30SEC", "30", "SEC", "30s"),
            ("1.5h", "1.5", "h", "5400000ms"),
            ("0.25s", "0.25", "s", "250ms"),
            ("3parsecs", "3", "parsecs", "30s"),
            ("true", "", "", "30s"),
        ] {
            assert_eq!(
                not_text(written, digits, suffix),
                format!("invalid duration `{written}`: write it as \"{meant}\"")
            );
        }
    }
}
