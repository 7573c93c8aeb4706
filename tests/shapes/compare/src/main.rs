//! Builds and runs the shapes of each edition with and without `#[distributed_lock]`. Fails when a
//! warning, an outcome, an order of drops or the result of a test differs.
//!
//! The arguments are editions: `compare 2021` skips the others.

mod build;

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, ExitCode};

use build::{Built, Kind};

const EDITIONS: [&str; 3] = ["2018", "2021", "2024"];

/// The only file that may cause warnings, and only the same ones with the attribute.
const WARNED: &str = "src/warned.rs";

/// An argument that the body does not name stays in the function, which outlives the body.
const UNNAMED: &str = "what the body does not name is dropped after the lock is released";

/// A pattern binds in the function, not in the body. Unbound parts of the value stay in the
/// function.
const UNBOUND: &str = "what a pattern does not bind is dropped after the lock is released";

/// Shapes whose drop order may differ with the attribute, and the reason. Nothing else of them may
/// differ. An unnecessary entry is a failure, so that this list stays correct.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("bodies::tail_temporary_and_arguments", UNNAMED),
    ("captures::last_unnamed", UNNAMED),
    ("captures::middle_unnamed", UNNAMED),
    ("dropped::never_polled", UNNAMED),
    ("dropped::pattern (cancel)", UNNAMED),
    ("patterns::nested_in_part", UNBOUND),
    ("patterns::wild_and_named", UNNAMED),
];

fn main() -> ExitCode {
    let chosen: Vec<String> = std::env::args().skip(1).collect();
    if let Some(unknown) = chosen.iter().find(|c| !EDITIONS.contains(&c.as_str())) {
        eprintln!(
            "shapes: unknown edition `{unknown}`; the editions are {}",
            EDITIONS.join(", ")
        );
        return ExitCode::FAILURE;
    }
    let editions = EDITIONS
        .iter()
        .filter(|edition| chosen.is_empty() || chosen.iter().any(|c| c == *edition));
    let mut result = Comparison::default();
    let mut compared = 0;
    for edition in editions {
        result.edition(edition);
        compared += 1;
    }
    result.unused_exceptions(compared == EDITIONS.len());
    for difference in &result.differences {
        println!("{difference}");
    }
    let summary = format!(
        "shapes: {compared} editions, {} shapes, {} tests",
        result.shapes.len(),
        result.tests.len()
    );
    match result.differences.len() {
        0 => {
            println!("{summary}, no difference");
            ExitCode::SUCCESS
        }
        1 => {
            println!("{summary}, 1 difference");
            ExitCode::FAILURE
        }
        count => {
            println!("{summary}, {count} differences");
            ExitCode::FAILURE
        }
    }
}

#[derive(Default)]
struct Comparison {
    differences: Vec<String>,
    shapes: BTreeSet<String>,
    tests: BTreeSet<String>,
    /// The exceptions that a shape needed.
    excepted: BTreeSet<&'static str>,
}

impl Comparison {
    fn edition(&mut self, edition: &str) {
        for kind in [Kind::Program, Kind::Tests] {
            // The second build replaces the program of the first one, so the first program runs
            // before it.
            let plain = build::build(edition, kind, false);
            let without = self.run(edition, kind, "without the attribute", &plain);
            let attribute = build::build(edition, kind, true);
            let with = self.run(edition, kind, "with the attribute", &attribute);

            self.messages(edition, &plain, &attribute);
            let names = match kind {
                Kind::Program => &mut self.shapes,
                Kind::Tests => &mut self.tests,
            };
            names.extend(without.iter().flatten().map(|line| shape(line).to_owned()));
            if let (Some(without), Some(with)) = (&without, &with) {
                self.lines(edition, without, with);
            }
        }
    }

    fn messages(&mut self, edition: &str, plain: &Built, attribute: &Built) {
        for message in &plain.messages {
            if message.level == "error" {
                self.add(
                    edition,
                    format!("does not build without the attribute: {message}"),
                );
            } else if message.file != WARNED {
                self.add(
                    edition,
                    format!("not clean without the attribute: {message}"),
                );
            }
        }
        // After an error the compiler stops before it has reported all warnings.
        if attribute.executable.is_some() {
            for message in missing(&plain.messages, &attribute.messages) {
                self.add(edition, format!("only without the attribute: {message}"));
            }
        }
        for message in missing(&attribute.messages, &plain.messages) {
            self.add(edition, format!("only with the attribute: {message}"));
        }
    }

    /// Returns the program's output, in lines such as `shape: outcome; drops`. `None` if it was not
    /// built.
    fn run(&mut self, edition: &str, kind: Kind, mode: &str, built: &Built) -> Option<Vec<String>> {
        let output = match Command::new(built.executable.as_ref()?).output() {
            Ok(output) => output,
            Err(error) => {
                self.add(edition, format!("cannot be started {mode}: {error}"));
                return None;
            }
        };
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let stderr = stderr.trim().replace('\n', "\n    ");
            self.add(
                edition,
                format!("failed {mode}, {}\n    {stderr}", output.status),
            );
        }
        let lines = String::from_utf8_lossy(&output.stdout)
            .lines()
            .filter_map(|line| match kind {
                Kind::Program => Some(line.to_owned()),
                // Of the output of tests only the results are compared: the rest contains times.
                Kind::Tests => {
                    let (test, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
                    Some(format!("{test}: {result}"))
                }
            })
            .collect();
        Some(lines)
    }

    fn lines(&mut self, edition: &str, plain: &[String], attribute: &[String]) {
        let (plain, attribute) = (by_shape(plain), by_shape(attribute));
        let names: BTreeSet<&str> = plain.keys().chain(attribute.keys()).copied().collect();
        for name in names {
            let without = plain.get(name).cloned().unwrap_or_default();
            let with = attribute.get(name).cloned().unwrap_or_default();
            if without == with {
                continue;
            }
            let exception = EXCEPTIONS.iter().find(|(excepted, _)| *excepted == name);
            if let Some((excepted, _)) = exception
                && same_but_for_order(&without, &with)
            {
                self.excepted.insert(excepted);
                continue;
            }
            let mut text = format!("{name} differs");
            for (mode, lines) in [("without", &without), ("with   ", &with)] {
                for line in lines {
                    text.push_str(&format!("\n    {mode}: {line}"));
                }
                if lines.is_empty() {
                    text.push_str(&format!("\n    {mode}: not run"));
                }
            }
            self.add(edition, text);
        }
    }

    /// Only a run over all editions can show that an exception is unnecessary.
    fn unused_exceptions(&mut self, all: bool) {
        for (excepted, reason) in EXCEPTIONS {
            if all && !self.excepted.contains(excepted) {
                self.differences.push(format!(
                    "{excepted} is listed as an exception ({reason}), but does not differ"
                ));
            }
        }
    }

    fn add(&mut self, edition: &str, difference: impl AsRef<str>) {
        let difference = format!("edition {edition}: {}", difference.as_ref());
        // The tests and the program are built from the same files.
        if !self.differences.contains(&difference) {
            self.differences.push(difference);
        }
    }
}

/// Returns the items that occur more often in the first list than in the second. Both are sorted.
fn missing<'m, T: Ord>(these: &'m [T], those: &[T]) -> Vec<&'m T> {
    let mut rest = these.iter().collect::<Vec<_>>();
    for that in those {
        if let Some(at) = rest.iter().position(|this| *this == that) {
            rest.remove(at);
        }
    }
    rest
}

/// Returns the name of the shape that a line is about.
fn shape(line: &str) -> &str {
    line.split_once(": ").map_or(line, |(name, _)| name)
}

/// Groups the lines by shape: one line for each run.
fn by_shape(lines: &[String]) -> BTreeMap<&str, Vec<&str>> {
    let mut shapes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in lines {
        let name = shape(line);
        let rest = line.get(name.len() + 2..).unwrap_or_default();
        shapes.entry(name).or_default().push(rest);
    }
    shapes
}

/// Returns whether the outcomes and the set of dropped values are the same.
fn same_but_for_order(without: &[&str], with: &[&str]) -> bool {
    let sorted = |lines: &[&str]| -> Vec<(String, Vec<String>)> {
        lines
            .iter()
            .map(|line| {
                let (outcome, log) = line.rsplit_once("; ").unwrap_or((line, ""));
                let mut log: Vec<String> = log.split(", ").map(str::to_owned).collect();
                log.sort();
                (outcome.to_owned(), log)
            })
            .collect()
    };
    sorted(without) == sorted(with)
}
