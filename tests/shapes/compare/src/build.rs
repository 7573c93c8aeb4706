//! Builds the shapes with cargo, and parses the messages of the compiler.

use std::fmt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Program,
    Tests,
    /// Checks with every lint of rustc and of clippy, and builds nothing that runs.
    Lints,
}

pub(crate) struct Built {
    /// Sorted.
    pub(crate) messages: Vec<Message>,
    /// `None` if there was an error.
    pub(crate) executable: Option<PathBuf>,
}

/// A warning or an error of the compiler.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Message {
    pub(crate) file: String,
    pub(crate) line: u64,
    pub(crate) column: u64,
    pub(crate) level: String,
    pub(crate) code: String,
    text: String,
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            line,
            column,
            level,
            code,
            text,
        } = self;
        write!(f, "{file}:{line}:{column}: {level} ({code}): {text}")
    }
}

/// Builds the package of an edition, with or without the attribute. It must run in the folder of
/// the workspace, from which cargo finds the package.
///
/// All lints are capped to warnings, even if a module denies them. A build then reports all of
/// them, and its program can always be run and compared.
pub(crate) fn build(edition: &str, kind: Kind, attribute: bool) -> Built {
    let package = format!("edition-{edition}");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let command = match kind {
        Kind::Program | Kind::Tests => "rustc",
        Kind::Lints => "clippy",
    };
    cargo
        .args([
            command,
            "--message-format=json",
            "--package",
            &package,
            "--bin",
            &package,
        ])
        .stderr(Stdio::piped());
    if kind == Kind::Tests {
        cargo.args(["--profile", "test"]);
    }
    if attribute {
        cargo.args(["--features", "attribute"]);
    }
    let output = cargo
        .args(["--", "--cap-lints=warn"])
        .args(if kind == Kind::Lints {
            all_lints()
        } else {
            Vec::new()
        })
        .output()
        .unwrap_or_else(|error| panic!("cargo cannot be started: {error}"));
    let mut built = Built {
        messages: Vec::new(),
        executable: None,
    };
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(line) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        if line["target"]["name"] != package.as_str() {
            continue;
        }
        if line["reason"] == "compiler-message" {
            built.messages.extend(read(&line["message"]));
        } else if let Some(executable) = line["executable"].as_str() {
            built.executable = Some(executable.into());
        }
    }
    built.messages.sort();
    let explained = built
        .messages
        .iter()
        .any(|message| message.level == "error");
    if !output.status.success() && !explained {
        panic!("cargo failed:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    built
}

/// Returns the arguments that switch on every lint: the groups of clippy, and each lint that rustc lists.
fn all_lints() -> Vec<String> {
    let groups = ["all", "pedantic", "nursery", "restriction", "cargo"];
    let mut lints: Vec<_> = groups.map(|group| format!("-Wclippy::{group}")).into();
    let output = Command::new("rustc").args(["-W", "help"]).output();
    let output = output.expect("rustc can be started");
    // A table: name, default level, meaning.
    let lines = String::from_utf8_lossy(&output.stdout);
    let known = lines.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (name, level) = (words.next()?, words.next()?);
        matches!(level, "allow" | "warn").then(|| format!("-W{name}"))
    });
    lints.extend(known);
    assert!(lints.len() > 100, "rustc lists its lints: {lints:?}");
    lints
}

/// Returns `None` for a message without a place, such as the number of warnings.
fn read(message: &Value) -> Option<Message> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let span = message["spans"]
        .as_array()?
        .iter()
        .find(|span| span["is_primary"] == true)?;
    let file = text(&span["file_name"]);
    Some(Message {
        // cargo gives source paths from the workspace: edition-2018/../src/main.rs
        file: file
            .split_once("/../")
            .map_or(file.clone(), |(_, file)| file.to_owned()),
        line: span["line_start"].as_u64()?,
        column: span["column_start"].as_u64()?,
        level: text(&message["level"]),
        code: text(&message["code"]["code"]),
        text: text(&message["message"]),
    })
}
