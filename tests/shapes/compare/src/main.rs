//! Builds and runs the shapes of each edition with and without `#[distributed_lock]`. Fails when a
//! warning, an outcome, an order of drops or the result of a test differs.
//!
//! The arguments are editions: `compare 2021` skips the others.

mod build;

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, ExitCode};

use build::{Built, Kind, Message};

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

/// Lints that may fire in a file with the attribute only, and the reason.
const LINT_EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "clippy::future_not_send",
        "src/returns.rs",
        "a confirmed release keeps the return value across an await",
    ),
    (
        "clippy::implicit_return",
        "src/returns.rs",
        "a function of type `!` has no value to return",
    ),
    (
        "clippy::pattern_type_mismatch",
        "src/made_by_macros.rs",
        "clippy finds the pattern in one of two functions of a macro",
    ),
    (
        "clippy::single_call_fn",
        "src/made_by_macros.rs",
        "clippy counts one call of two functions of a macro",
    ),
    (
        "clippy::used_underscore_binding",
        "src/captures.rs",
        "the body says the parameter's word, but means another variable",
    ),
];

/// A function of this file exists for the options of the attribute.
const SUPPORT: &str = "src/support.rs";

/// The attribute's tokens begin with this, and end with its parenthesis.
const ATTRIBUTE: &str = "distributed_lock(";

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
        self.lints(edition);
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
                Kind::Tests | Kind::Lints => &mut self.tests,
            };
            names.extend(without.iter().flatten().map(|line| shape(line).to_owned()));
            if let (Some(without), Some(with)) = (&without, &with) {
                self.lines(edition, without, with);
            }
        }
    }

    /// No lint may fire for a function with the attribute that does not fire for the plain one in the same line, not
    /// even one that nobody switches on for all of their code. Closures in the options are the user's code too, and
    /// may have warnings of their own.
    fn lints(&mut self, edition: &str) {
        let plain = build::build(edition, Kind::Lints, false);
        let attribute = build::build(edition, Kind::Lints, true);
        let place = |message: &Message| {
            let Message {
                file, line, code, ..
            } = message;
            (file.clone(), *line, code.clone())
        };
        let known: BTreeSet<_> = plain.messages.iter().map(place).collect();
        if known.is_empty() {
            self.add(edition, "no lint fires: are they switched on?");
        }
        for message in &attribute.messages {
            let (file, line, code) = place(message);
            if file == SUPPORT {
                continue;
            }
            // A variable with the name of a parameter also hides the parameter's second binding.
            let is_hiding = code == "clippy::shadow_unrelated"
                && ["clippy::shadow_reuse", "clippy::shadow_same"]
                    .iter()
                    .any(|lint| known.contains(&(file.clone(), line, (*lint).to_owned())));
            let exception = LINT_EXCEPTIONS
                .iter()
                .find(|(lint, place, _)| *lint == code && *place == file);
            if let Some((lint, ..)) = exception {
                self.excepted.insert(lint);
            } else if !(known.contains(&(file, line, code))
                || is_hiding
                || is_in_an_attribute(message))
            {
                self.add(edition, format!("only with the attribute: {message}"));
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
                Kind::Lints => None,
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
        let lints = LINT_EXCEPTIONS
            .iter()
            .map(|(lint, _, reason)| (lint, reason));
        let orders = EXCEPTIONS.iter().map(|(shape, reason)| (shape, reason));
        for (excepted, reason) in orders.chain(lints) {
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

/// Returns whether a message is about code that only the attribute contains, or a function that only it calls.
fn is_in_an_attribute(message: &Message) -> bool {
    let path = format!("{}/../{}", env!("CARGO_MANIFEST_DIR"), message.file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let number = usize::try_from(message.line).expect("a file has fewer lines");
    // Columns count letters from 1.
    let column = usize::try_from(message.column).expect("a line has fewer letters");
    let before: usize = lines[..number - 1].iter().map(|line| line.len()).sum();
    let within: usize = lines[number - 1]
        .chars()
        .take(column - 1)
        .map(char::len_utf8)
        .sum();
    let head = &text[..before + within];
    let Some(begin) = head.rfind(ATTRIBUTE) else {
        return false;
    };
    let mut open = 0_i32;
    for letter in head[begin..].chars() {
        open += i32::from(letter == '(') - i32::from(letter == ')');
        if letter == ')' && open == 0 {
            return false;
        }
    }
    true
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
