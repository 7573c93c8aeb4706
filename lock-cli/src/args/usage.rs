//! What this program says about wrong arguments.

use std::ffi::OsString;

use clap::CommandFactory;
use clap::error::ErrorKind;

use super::{Cli, own};
use crate::exit::Exit;
use crate::failure::Failure;

/// Prints what clap has to say: the help, the version, or what is wrong with the arguments.
pub(crate) fn explain(refused: &clap::Error, arguments: &[OsString]) -> Result<Exit, Failure> {
    match refused.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            refused.print()?;
            Ok(Exit::Success)
        }
        _ => {
            let text = in_one_line(&refused.to_string(), command_in(arguments));
            Err(Failure::new(Exit::Usage, "usage", text))
        }
    }
}

/// Returns the command in the arguments, if it is one of ours.
fn command_in(arguments: &[OsString]) -> Option<&str> {
    let commands = Cli::command();
    own(arguments).find(|argument| commands.find_subcommand(argument).is_some())
}

/// Writes what clap has found in one line, as all other errors are. Its usage is left out: it calls
/// flags required that the environment has set.
fn in_one_line(text: &str, command: Option<&str>) -> String {
    let mut line = String::new();
    for paragraph in text.split("\n\n") {
        let words: Vec<_> = paragraph.split_whitespace().collect();
        let paragraph = words.join(" ");
        if let Some(error) = paragraph.strip_prefix("error: ") {
            line.push_str(error);
        } else if let Some(tip) = paragraph.strip_prefix("tip: ") {
            line.push_str("; ");
            line.push_str(tip);
        } else if paragraph.starts_with('[') {
            // The possible values.
            line.push(' ');
            line.push_str(&paragraph);
        }
    }
    let command = command
        .map(|command| format!("{command} "))
        .unwrap_or_default();
    format!("{line}; see `lockctl {command}--help`")
}
