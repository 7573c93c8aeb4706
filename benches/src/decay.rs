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
                "{:<38} {:>9.3}  measured",
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

    /// Returns a committed figure of these benches that was not measured, if there is one.
    #[must_use]
    pub fn missing(&self, benches: &BTreeSet<String>, measured: &Figures) -> Option<&str> {
        let names = self.committed().filter(|c| benches.contains(c.bench()));
        names
            .map(|c| &*c.name)
            .find(|name| !measured.contains_key(*name))
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
                    writeln!(text, "{:<38} {value:>9.3} {better}{slack}", committed.name)
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
            "{name}: the bench `{bench}` did not print it. If the bench failed, see its output. If \
             the figure was removed on purpose, remove its line."
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
mod tests;
