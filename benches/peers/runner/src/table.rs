//! The table of the results, in markdown.

use std::fmt::Write;

use crate::figures::{Figure, TABLE};
use crate::results::{Failure, Measured, ProgramResults, Results};
use crate::run::describe;

/// Marks a value that is better than that of this library.
const AHEAD: &str = "▲";

/// Returns the conditions, the table, and what is ahead of this library, as markdown.
#[must_use]
pub fn render(results: &Results) -> String {
    let figures = measured(results);
    let mut reasons = Vec::new();
    let mut text = format!("{}\n\n| library |", results.conditions.sentence());
    for figure in &figures {
        let _ = write!(text, " {} ({}) |", figure.title, figure.unit);
    }
    text += "\n|---|";
    text += &"--:|".repeat(figures.len());
    text += "\n";
    for program in &results.programs {
        let name = name(program);
        let _ = write!(
            text,
            "| {} |",
            if program.is_ours() {
                format!("**{name}**")
            } else {
                name
            }
        );
        for figure in &figures {
            let cell = cell(results, program, figure, &mut reasons);
            let _ = write!(text, " {cell} |");
        }
        text += "\n";
    }
    if !reasons.is_empty() {
        text += "\n";
    }
    for (number, reason) in reasons.iter().enumerate() {
        let _ = writeln!(text, "- ({}) {reason}", number + 1);
    }
    text + "\n" + &ahead(results, &figures) + "\n" + &how_they_wait(results)
}

/// Returns the figures that at least one program has.
fn measured(results: &Results) -> Vec<Figure> {
    let has = |figure: &Figure| {
        results
            .programs
            .iter()
            .any(|p| p.figures.contains_key(figure.id))
    };
    TABLE.into_iter().filter(has).collect()
}

fn name(program: &ProgramResults) -> String {
    let about = &program.about;
    // Versions of Go begin with a letter.
    let version = about.version.trim_start_matches('v');
    format!("{} {version} ({})", program.program, about.language)
}

fn cell(
    results: &Results,
    program: &ProgramResults,
    figure: &Figure,
    reasons: &mut Vec<String>,
) -> String {
    let nothing = Measured::default();
    let measured = program.figures.get(figure.id).unwrap_or(&nothing);
    let value = measured.median().map(|value| number(value, figure));
    let value = match value {
        Some(value) if program.is_ours() => Some(format!("**{value}**")),
        Some(value) if is_ahead(results, program, figure) => Some(format!("{value} {AHEAD}")),
        value => value,
    };
    match (&measured.failure, value) {
        (None, value) => value.unwrap_or_else(|| "–".to_owned()),
        (Some(Failure::NotWithin(seconds)), None) => format!("> {seconds} s"),
        (Some(failure), value) => {
            let reason = format!("{}: {}", program.program, describe(failure));
            let known = reasons.iter().position(|known| *known == reason);
            let number = known.unwrap_or_else(|| {
                reasons.push(reason);
                reasons.len() - 1
            });
            format!("{} ({})", value.as_deref().unwrap_or("–"), number + 1)
        }
    }
}

/// Returns the value as the table shows it.
fn number(value: f64, figure: &Figure) -> String {
    let text = format!("{value:.*}", figure.decimals);
    // A negative value that rounds to zero.
    let is_zero = text
        .trim_start_matches('-')
        .chars()
        .all(|c| "0.".contains(c));
    if is_zero {
        text.trim_start_matches('-').to_owned()
    } else {
        text
    }
}

/// Returns whether the table shows a smaller value than that of this library. A difference that the
/// table does not show is none.
fn is_ahead(results: &Results, program: &ProgramResults, figure: &Figure) -> bool {
    let shown = |program: &ProgramResults| {
        let value = program.median(figure.id)?;
        number(value, figure).parse::<f64>().ok()
    };
    let ours = results.ours().and_then(shown);
    let pair = ours.zip(shown(program));
    !program.is_ours() && pair.is_some_and(|(ours, theirs)| theirs < ours)
}

/// Returns one line for each figure in which another library is ahead.
fn ahead(results: &Results, figures: &[Figure]) -> String {
    let mut text = String::new();
    for figure in figures {
        let ours = results.ours().and_then(|program| program.median(figure.id));
        let Some(ours) = ours else { continue };
        let ahead = results
            .programs
            .iter()
            .filter(|program| is_ahead(results, program, figure));
        let mut ahead: Vec<_> = ahead
            .filter_map(|program| Some((program.median(figure.id)?, program)))
            .collect();
        ahead.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let by = ahead.iter().map(|(theirs, program)| {
            let less = ours - theirs;
            let percent = less / ours * 100.0;
            format!(
                "{} by {} ({percent:.0} %)",
                program.program,
                number(less, figure)
            )
        });
        let by: Vec<_> = by.collect();
        if !by.is_empty() {
            let _ = writeln!(
                text,
                "- {} ({}): {}",
                figure.title,
                figure.unit,
                by.join(", ")
            );
        }
    }
    if text.is_empty() {
        "No other library is ahead in any column.\n".to_owned()
    } else {
        format!("{AHEAD}: another library is ahead of `lock-core`.\n\n{text}")
    }
}

/// Returns one line for each program.
fn how_they_wait(results: &Results) -> String {
    let mut text = "How each of them waits:\n\n".to_owned();
    for program in &results.programs {
        let about = &program.about;
        let _ = writeln!(
            text,
            "- `{}` ({}): {}",
            program.program, about.kind, about.notes
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{is_ahead, number, render};
    use crate::figures::{COMMANDS_10, KILLED_HOLDER, PAIR};
    use crate::results::Failure;
    use crate::results::tests::results;

    #[test]
    fn render_marks_who_is_ahead_and_by_how_much() {
        let mut results = results(&[
            ("lock-core", "lock-core"),
            ("quick", "quick"),
            ("slow", "slow"),
        ]);
        let pair = [PAIR.id.to_owned()];
        for (program, value) in [(0, 1.25), (1, 1.0), (2, 1.5)] {
            results.programs[program].add(&pair, Ok(vec![value]));
        }
        let text = render(&results);
        assert!(
            text.contains("| **lock-core 1.0 (Rust)** | **1.25** |"),
            "{text}"
        );
        assert!(text.contains("| quick 1.0 (Rust) | 1.00 ▲ |"), "{text}");
        assert!(text.contains("| slow 1.0 (Rust) | 1.50 |"), "{text}");
        assert!(
            text.contains("- pair (x raw): quick by 0.25 (20 %)\n"),
            "{text}"
        );
    }

    #[test]
    fn render_shows_the_median_of_the_rounds() {
        let mut results = results(&[("lock-core", "lock-core")]);
        for value in [9.0, 2.0, 1.0] {
            results.programs[0].add(&[PAIR.id.to_owned()], Ok(vec![value]));
        }
        assert!(render(&results).contains("| **2.00** |"));
        assert!(render(&results).contains("No other library is ahead"));
    }

    #[test]
    fn render_names_the_reason_of_each_missing_value() {
        let mut results = results(&[("lock-core", "lock-core"), ("a", "a"), ("b", "b")]);
        let figures = [PAIR.id.to_owned(), COMMANDS_10.id.to_owned()];
        results.programs[0].add(&figures, Ok(vec![1.0, 2.0]));
        results.programs[1].add(&figures, Err(Failure::NotWithin(60)));
        results.programs[2].add(&figures, Err(Failure::Failed("no such command".to_owned())));
        let text = render(&results);
        assert!(
            text.contains("| a 1.0 (Rust) | > 60 s | > 60 s |"),
            "{text}"
        );
        assert!(text.contains("| b 1.0 (Rust) | – (1) | – (1) |"), "{text}");
        assert!(text.contains("- (1) b: no such command\n"), "{text}");
    }

    #[test]
    fn a_failure_in_a_later_round_is_named_beside_the_value() {
        let mut results = results(&[("lock-core", "lock-core"), ("a", "a")]);
        let pair = [PAIR.id.to_owned()];
        results.programs[1].add(&pair, Ok(vec![3.0]));
        results.programs[1].add(&pair, Err(Failure::NotWithin(60)));
        let text = render(&results);
        assert!(text.contains("| 3.00 (1) |"), "{text}");
        assert!(
            text.contains("- (1) a: a waiter had no lock after 60 s"),
            "{text}"
        );
    }

    #[test]
    fn a_difference_that_the_table_does_not_show_is_none() {
        let mut results = results(&[("lock-core", "lock-core"), ("a", "a")]);
        let pair = [PAIR.id.to_owned()];
        results.programs[0].add(&pair, Ok(vec![1.004]));
        results.programs[1].add(&pair, Ok(vec![1.001]));
        assert!(!is_ahead(&results, &results.programs[1], &PAIR));
        assert_eq!(number(-0.01, &KILLED_HOLDER), "0.0");
    }
}
