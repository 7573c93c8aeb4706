//! The guard against decay: compares measured figures with committed ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};

/// How much worse a figure may be.
const MARGIN: f64 = 1.25;
/// A figure fails when it is worse in so many runs in a row.
pub const RUNS: usize = 3;

/// Measured figures: names and values.
pub type Figures = BTreeMap<String, f64>;

/// Reads the figures from the output of a bench. Other lines are ignored.
#[must_use]
pub fn figures(output: &str) -> Figures {
    let lines = output.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (name, value) = (words.next()?, words.next()?);
        let is_figure = name.contains('.');
        Some((name.to_owned(), value.parse().ok()?)).filter(|_| is_figure)
    });
    lines.collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Better {
    Lower,
    Higher,
}

/// A figure of the committed file.
#[derive(Clone, Debug, PartialEq)]
struct Committed {
    name: String,
    value: f64,
    better: Better,
    /// Added to the margin, for figures near zero.
    slack: f64,
}

impl Committed {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let (name, value) = (words.next()?, words.next()?);
        let better = match words.next()? {
            "lower" => Better::Lower,
            "higher" => Better::Higher,
            _ => return None,
        };
        let slack = words.next().map_or(Some(0.0), |slack| slack.parse().ok());
        Some(Self {
            name: name.to_owned(),
            value: value.parse().ok()?,
            better,
            slack: slack?,
        })
        .filter(|_| words.next().is_none() && name.contains('.'))
    }

    fn limit(&self) -> f64 {
        match self.better {
            Better::Lower => self.value * MARGIN + self.slack,
            Better::Higher => self.value / MARGIN - self.slack,
        }
    }

    fn is_worse(&self, measured: f64) -> bool {
        match self.better {
            Better::Lower => measured > self.limit(),
            Better::Higher => measured < self.limit(),
        }
    }

    /// Whether it is better by more than the margin, so that a later loss could hide in the gain.
    fn is_much_better(&self, measured: f64) -> bool {
        match self.better {
            Better::Lower => measured * MARGIN + self.slack < self.value,
            Better::Higher => measured / MARGIN - self.slack > self.value,
        }
    }

    fn bench(&self) -> &str {
        self.name.split('.').next().unwrap_or_default()
    }
}

/// The committed file: a line for each figure, and comments.
#[derive(Clone, Debug)]
pub struct Baseline {
    lines: Vec<Line>,
}

#[derive(Clone, Debug)]
enum Line {
    Comment(String),
    Figure(Committed),
}

/// A line of the committed file that is not a figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidLine(String);

impl fmt::Display for InvalidLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no figure: `{}`; expected `<bench>.<figure> <value> <lower|higher> [<slack>]`",
            self.0
        )
    }
}

impl std::error::Error for InvalidLine {}

/// What a comparison found.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// One line for each figure.
    pub table: String,
    /// What is wrong, and what to do; one paragraph for each figure.
    pub failures: Vec<String>,
}

impl Baseline {
    /// Reads a committed file.
    ///
    /// # Errors
    ///
    /// Fails if a line is neither a figure nor a comment.
    pub fn parse(text: &str) -> Result<Self, InvalidLine> {
        let lines = text.lines().map(|line| {
            if line.trim().is_empty() || line.starts_with('#') {
                return Ok(Line::Comment(line.to_owned()));
            }
            let figure = Committed::parse(line).ok_or_else(|| InvalidLine(line.to_owned()))?;
            Ok(Line::Figure(figure))
        });
        Ok(Self {
            lines: lines.collect::<Result<_, _>>()?,
        })
    }

    fn committed(&self) -> impl Iterator<Item = &Committed> {
        self.lines.iter().filter_map(|line| match line {
            Line::Figure(figure) => Some(figure),
            Line::Comment(_) => None,
        })
    }

    /// Returns the benches that measure the figures.
    #[must_use]
    pub fn benches(&self) -> BTreeSet<String> {
        self.committed().map(|c| c.bench().to_owned()).collect()
    }

    /// Runs the benches, and compares their figures. `run` returns the figures of some benches. A bench
    /// with a worse figure runs again. A figure fails if it is worse in three runs in a row.
    ///
    /// # Errors
    ///
    /// Fails if `run` fails.
    pub fn check<E>(
        &self,
        mut run: impl FnMut(&BTreeSet<String>) -> Result<Figures, E>,
    ) -> Result<Verdict, E> {
        let first = run(&self.benches())?;
        let mut worse: Vec<&Committed> = self
            .committed()
            .filter(|c| is_worse_in(c, &first))
            .collect();
        let mut runs = vec![first];
        while runs.len() < RUNS && !worse.is_empty() {
            let again = worse.iter().map(|c| c.bench().to_owned()).collect();
            let figures = run(&again)?;
            worse.retain(|c| is_worse_in(c, &figures));
            runs.push(figures);
        }
        Ok(Verdict {
            table: self.table(&runs),
            failures: worse.iter().map(|c| failure(c, &runs)).collect(),
        })
    }

    fn table(&self, runs: &[Figures]) -> String {
        let mut table = String::new();
        for committed in self.committed() {
            let measured = measured(committed, runs);
            let _ = write!(
                table,
                "{:<34} {:>9.3}  measured",
                committed.name, committed.value
            );
            for value in &measured {
                let _ = write!(table, " {value:.3}");
            }
            if measured
                .iter()
                .all(|value| committed.is_much_better(*value))
                && !measured.is_empty()
            {
                table.push_str("  better: accept it, so that a later loss is noticed");
            }
            table.push('\n');
        }
        table
    }

    /// Returns the text of the file with these values.
    #[must_use]
    pub fn with_values(&self, figures: &Figures) -> String {
        let mut text = String::new();
        for line in &self.lines {
            let _ = match line {
                Line::Comment(comment) => writeln!(text, "{comment}"),
                Line::Figure(committed) => {
                    let value = figures.get(&committed.name).unwrap_or(&committed.value);
                    let better = match committed.better {
                        Better::Lower => "lower",
                        Better::Higher => "higher",
                    };
                    let slack = committed.slack;
                    let slack = if slack > 0.0 {
                        format!(" {slack}")
                    } else {
                        String::new()
                    };
                    writeln!(text, "{:<34} {value:>9.3} {better}{slack}", committed.name)
                }
            };
        }
        text
    }

    /// Returns a file with this figure alone, whose value is so good that the measured one is decayed.
    #[must_use]
    pub fn decayed(mut self, name: &str) -> Self {
        for line in &mut self.lines {
            if let Line::Figure(committed) = line
                && committed.name == name
            {
                match committed.better {
                    Better::Lower => committed.value /= 2.0,
                    Better::Higher => committed.value *= 2.0,
                }
            }
        }
        self.lines
            .retain(|line| matches!(line, Line::Figure(committed) if committed.name == name));
        self
    }
}

fn is_worse_in(committed: &Committed, figures: &Figures) -> bool {
    figures
        .get(&committed.name)
        .is_none_or(|value| committed.is_worse(*value))
}

fn measured(committed: &Committed, runs: &[Figures]) -> Vec<f64> {
    let runs = runs.iter();
    runs.filter_map(|run| run.get(&committed.name).copied())
        .collect()
}

fn failure(committed: &Committed, runs: &[Figures]) -> String {
    let (name, bench) = (&committed.name, committed.bench());
    let measured = measured(committed, runs);
    if measured.is_empty() {
        return format!(
            "{name}: the bench `{bench}` did not print it. If it was removed on purpose, remove its line."
        );
    }
    let values: Vec<_> = measured.iter().map(|v| format!("{v:.3}")).collect();
    format!(
        "{name}: measured {}; committed {:.3}, limit {:.3}.\n  See the full figures: cargo bench -p \
         benches --bench {bench}\n  If the change is worth its cost, accept the new values: \
         ./scripts/bench-guard --accept {bench}",
        values.join(", "),
        committed.value,
        committed.limit(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# A comment.\n\na.cost 2 lower\na.rate 10 higher\nb.idle 0 lower 0.5\n";

    /// Checks against runs that print these texts, and returns the failures and the benches that ran.
    fn check(file: &str, outputs: &[&str]) -> (Vec<String>, Vec<Vec<String>>) {
        let baseline = Baseline::parse(file).expect("the file is valid");
        let mut runs = Vec::new();
        let verdict = baseline.check(|benches| {
            runs.push(benches.iter().cloned().collect());
            Ok::<_, ()>(figures(outputs[runs.len() - 1]))
        });
        (verdict.expect("no run fails").failures, runs)
    }

    #[test]
    fn figures_are_read_from_the_lines_of_a_bench() {
        let read = figures("a.cost 2.5 x (target <= 3)\n\nnot pinned to one core\nb.idle 0.1 /s\n");
        let expected = [("a.cost".to_owned(), 2.5), ("b.idle".to_owned(), 0.1)];
        assert_eq!(read, Figures::from(expected));
    }

    #[test]
    fn values_within_the_margin_pass_in_one_run() {
        let (failures, runs) = check(FILE, &["a.cost 2.4 x\na.rate 8.1 x\nb.idle 0.4 /s\n"]);
        assert_eq!(failures, [""; 0]);
        assert_eq!(runs, [["a", "b"]]);
    }

    #[test]
    fn a_value_that_is_worse_three_times_fails_and_says_what_to_do() {
        let (worse, other) = ("a.cost 2.6\na.rate 10\nb.idle 0", "a.cost 2.7\na.rate 10");
        let (failures, runs) = check(FILE, &[worse, other, worse]);
        assert_eq!(runs, [vec!["a", "b"], vec!["a"], vec!["a"]]);
        assert_eq!(failures.len(), 1, "{failures:?}");
        let text = &failures[0];
        assert!(
            text.starts_with("a.cost: measured 2.600, 2.700, 2.600; committed 2.000, limit 2.500")
        );
        assert!(text.contains("--bench a\n"), "{text}");
        assert!(text.contains("./scripts/bench-guard --accept a"), "{text}");
    }

    #[test]
    fn a_value_that_must_be_high_fails_when_it_is_low() {
        let low = "a.cost 2\na.rate 7.9\nb.idle 0";
        let (failures, _) = check(FILE, &[low, low, low]);
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert!(failures[0].starts_with("a.rate: "), "{failures:?}");
    }

    #[test]
    fn a_value_that_is_worse_twice_passes() {
        let (bad, good) = (
            "a.cost 9\na.rate 10\nb.idle 9",
            "a.cost 2\na.rate 10\nb.idle 0",
        );
        let (failures, runs) = check(FILE, &[bad, bad, good]);
        assert_eq!(failures, [""; 0]);
        assert_eq!(runs.len(), 3);
    }

    #[test]
    fn two_values_that_are_worse_in_turn_pass() {
        let (first, second) = (
            "a.cost 9\na.rate 10\nb.idle 0",
            "a.cost 2\na.rate 1\nb.idle 9",
        );
        let (failures, runs) = check(FILE, &[first, second, first]);
        assert_eq!(failures, [""; 0]);
        assert_eq!(runs.len(), 2);
    }

    #[test]
    fn a_figure_that_no_bench_prints_fails() {
        let missing = "a.cost 2\na.rate 10";
        let (failures, _) = check(FILE, &[missing, missing, missing]);
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert!(failures[0].contains("did not print it"), "{failures:?}");
    }

    #[test]
    fn a_decayed_file_fails_with_its_own_values() {
        let baseline = Baseline::parse(FILE).expect("the file is valid");
        for name in ["a.cost", "a.rate"] {
            let decayed = baseline.clone().decayed(name);
            let verdict = decayed.check(|_| Ok::<_, ()>(figures(FILE)));
            let failures = verdict.expect("no run fails").failures;
            assert_eq!(failures.len(), 1, "{failures:?}");
            assert!(failures[0].starts_with(name), "{failures:?}");
        }
    }

    #[test]
    fn accepted_values_replace_the_committed_ones_and_nothing_else() {
        let baseline = Baseline::parse(FILE).expect("the file is valid");
        let accepted = baseline.with_values(&figures("a.cost 1.5\nb.idle 0.2\nc.other 7"));
        let words = |text: &str| -> Vec<Vec<String>> {
            let lines = text.lines();
            lines
                .map(|line| line.split_whitespace().map(ToOwned::to_owned).collect())
                .collect()
        };
        let expected =
            "# A comment.\n\na.cost 1.500 lower\na.rate 10.000 higher\nb.idle 0.200 lower 0.5\n";
        assert_eq!(words(&accepted), words(expected));
        assert!(Baseline::parse(&accepted).is_ok());
    }

    #[test]
    fn a_much_better_value_is_reported() {
        let baseline = Baseline::parse(FILE).expect("the file is valid");
        let verdict = baseline.check(|_| Ok::<_, ()>(figures("a.cost 1\na.rate 10\nb.idle 0")));
        let table = verdict.expect("no run fails").table;
        let lines: Vec<_> = table
            .lines()
            .filter(|line| line.contains("better"))
            .collect();
        assert_eq!(lines.len(), 1, "{table}");
        assert!(lines[0].starts_with("a.cost"), "{table}");
    }

    #[test]
    fn a_line_that_is_no_figure_is_refused() {
        for line in [
            "a.cost",
            "a.cost x lower",
            "a.cost 1 smaller",
            "cost 1 lower",
            "a.b 1 lower 1 1",
        ] {
            assert!(Baseline::parse(line).is_err(), "{line}");
        }
    }
}
