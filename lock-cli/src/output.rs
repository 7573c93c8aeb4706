//! What the program writes: results to stdout, all else to stderr.

use std::ffi::OsString;
use std::io::{self, Write};

use anstream::{AutoStream, ColorChoice};
use serde::Serialize;

use crate::args::{self, Color, GlobalArgs};
use crate::failure::Failure;
use crate::page::{self, Line, Page};

/// Writes results, warnings and failures.
pub(crate) struct Output {
    json: bool,
    quiet: bool,
    verbose: bool,
    color: ColorChoice,
}

#[derive(Serialize)]
struct FailureRecord<'a> {
    schema: &'static str,
    kind: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'a str>,
    text: &'a Line,
    exit: u8,
    #[serde(skip_serializing_if = "<[Line]>::is_empty")]
    causes: &'a [Line],
}

impl Output {
    pub(crate) fn new(global: &GlobalArgs) -> Self {
        Self {
            json: global.json,
            quiet: global.quiet,
            verbose: global.verbose,
            color: match global.color {
                Color::Auto => ColorChoice::Auto,
                Color::Always => ColorChoice::Always,
                Color::Never => ColorChoice::Never,
            },
        }
    }

    /// The output without flags of the user.
    pub(crate) fn plain(json: bool) -> Self {
        Self {
            json,
            quiet: false,
            verbose: false,
            color: ColorChoice::Auto,
        }
    }

    /// The output while the arguments are wrong.
    pub(crate) fn before_parsing(arguments: &[OsString]) -> Self {
        let json = args::own(arguments).any(|argument| argument == "--json");
        let color = match args::early_color(arguments) {
            Some(clap::ColorChoice::Always) => ColorChoice::Always,
            Some(clap::ColorChoice::Never) => ColorChoice::Never,
            _ => ColorChoice::Auto,
        };
        Self {
            color,
            ..Self::plain(json)
        }
    }

    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    pub(crate) fn is_verbose(&self) -> bool {
        self.verbose
    }

    /// Writes a page to stdout, without the styles that the reader cannot show.
    pub(crate) fn print(&self, page: &Page) -> io::Result<()> {
        let mut stdout = AutoStream::new(io::stdout(), self.color);
        stdout.write_all(page.as_str().as_bytes())?;
        stdout.flush()
    }

    /// Writes one object to stdout, as a line of JSON.
    pub(crate) fn record(&self, record: &impl Serialize) -> io::Result<()> {
        self.print(&page::json(record).map_err(io::Error::other)?)
    }

    /// Writes a line to stderr, unless the user wants no notes.
    pub(crate) fn note(&self, text: &str) {
        if !self.quiet {
            self.complain(text);
        }
    }

    /// Warns about the configuration. With `--quiet` too: the command may do something else than its user
    /// meant.
    pub(crate) fn warning(&self, text: &str) {
        self.complain(text);
    }

    /// Writes a line to stderr, if the user wants to see what happens.
    pub(crate) fn detail(&self, text: &str) {
        if self.verbose {
            self.complain(text);
        }
    }

    /// Reports a failure. With `--json`, as an object on stdout.
    pub(crate) fn failure(&self, failure: &Failure) -> io::Result<()> {
        if failure.is_silent {
            return Ok(());
        }
        let causes = if self.verbose {
            failure.causes.as_slice()
        } else {
            &[]
        };
        if self.json {
            return self.record(&FailureRecord {
                schema: "lockctl.error/1",
                kind: failure.kind,
                code: failure.code,
                text: &failure.text,
                exit: failure.exit.code(),
                causes,
            });
        }
        self.complain(failure.text.as_str());
        for cause in causes {
            self.complain(&format!("caused by: {cause}"));
        }
        Ok(())
    }

    /// Writes a line to stderr. Its text may come from outside.
    fn complain(&self, text: &str) {
        let mut stderr = AutoStream::new(io::stderr(), self.color);
        // The work does not depend on a reader of stderr.
        let _ = writeln!(stderr, "lockctl: {}", Line::new(text));
    }
}
