//! Times for people and for machines.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Writes a duration for people: `900 ms`, `1.5 s`, `12 s`, `3 min`, `5 h`, `2 days`.
pub(crate) fn human(time: Duration) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    match time.as_secs() {
        0 => format!("{} ms", time.as_nanos().div_ceil(1_000_000)),
        seconds @ 1..10 => match time.subsec_millis() / 100 {
            0 => format!("{seconds} s"),
            tenths => format!("{seconds}.{tenths} s"),
        },
        seconds @ 10..120 => format!("{seconds} s"),
        seconds if seconds < 2 * HOUR => format!("{} min", seconds / MINUTE),
        seconds if seconds < 2 * DAY => format!("{} h", seconds / HOUR),
        seconds => format!("{} days", seconds / DAY),
    }
}

/// Writes a duration as the flags take it: `500ms`, `1m30s`, `48h`.
pub(crate) fn flag(time: Duration) -> String {
    const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
    let mut rest = millis(time);
    let mut text = String::new();
    for (unit, factor) in UNITS {
        let count = rest / factor;
        rest %= factor;
        if count > 0 {
            // Writing to a string cannot fail.
            let _ = write!(text, "{count}{unit}");
        }
    }
    if text.is_empty() {
        text.push_str("0s");
    }
    text
}

/// Returns the whole milliseconds of a duration.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Writes a time as RFC 3339 in UTC, with milliseconds.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, rest) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    let millis = since.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// Returns year, month and day of a number of days since 1970-01-01, in the Gregorian calendar.
fn date(days: u64) -> (u64, u64, u64) {
    // Eras of 400 years, and years that begin in March, so that the leap day is the last day.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_for_machines_are_rfc_3339() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_763_700_000, "2025-11-21T04:40:00.000Z"),
            (4_102_444_799, "2099-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn times_of_flags_are_read_back() {
        for text in ["0s", "1ms", "1500ms", "48h", "1m30s", "1h1m1s1ms"] {
            let time = crate::duration::parse(text).unwrap();
            assert_eq!(crate::duration::parse(&flag(time)), Ok(time), "{text}");
        }
        assert_eq!(flag(Duration::from_secs(172_800)), "48h");
    }

    #[test]
    fn times_for_people_are_short() {
        for (millis, text) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_500, "1.5 s"),
            (12_900, "12 s"),
            (119_000, "119 s"),
            (120_000, "2 min"),
            (7_200_000, "2 h"),
            (172_800_000, "2 days"),
        ] {
            assert_eq!(human(Duration::from_millis(millis)), text);
        }
    }
}
