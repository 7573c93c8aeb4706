//! The manual pages and the completions, from the definitions of the commands.

use std::io;
use std::path::Path;

use clap_complete::Shell;

use crate::args;
use crate::exit::{Exit, TABLE};
use crate::failure::Failure;
use crate::output::Output;
use crate::page::Page;

/// The shells for which files are written.
const SHELLS: [Shell; 5] = [
    Shell::Bash,
    Shell::Elvish,
    Shell::Fish,
    Shell::PowerShell,
    Shell::Zsh,
];

/// Prints the completions of a shell.
pub(crate) fn completions(shell: Shell, output: &Output) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut completed(), "lockctl", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    output.print(&Page::generated(script))?;
    Ok(Exit::Success)
}

/// Prints a manual page.
pub(crate) fn man(command: Option<&str>, output: &Output) -> Result<Exit, Failure> {
    let page = page(command)?;
    output.print(&Page::generated(page))?;
    Ok(Exit::Success)
}

fn page(command: Option<&str>) -> Result<String, Failure> {
    let mut root = public();
    // Gives the commands their full names.
    root.build();
    let Some(name) = command else {
        return Ok(render(&clap_mangen::Man::new(root.clone()), true)?);
    };
    let found = root
        .find_subcommand(name)
        .filter(|found| !found.is_hide_set());
    let Some(found) = found else {
        let text = format!("there is no command `{name}`; see `lockctl --help`");
        return Err(Failure::new(Exit::Usage, "usage", text));
    };
    Ok(render(&clap_mangen::Man::new(found.clone()), false)?)
}

fn render(man: &clap_mangen::Man, is_main: bool) -> io::Result<String> {
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if is_main {
        man.render_subcommands_section(&mut page)?;
        page.extend_from_slice(exit_section().as_bytes());
        man.render_version_section(&mut page)?;
    }
    Ok(String::from_utf8_lossy(&page).into_owned())
}

/// The exit codes in the language of manual pages.
fn exit_section() -> String {
    let rows = TABLE.iter().map(|(code, meaning)| {
        let meaning = meaning.replace('\\', "\\\\").replace('-', "\\-");
        format!(".TP\n\\fB{code}\\fR\n{meaning}\n")
    });
    format!(".SH \"EXIT STATUS\"\n{}", rows.collect::<String>())
}

/// The definitions of the commands.
fn public() -> clap::Command {
    args::definitions()
}

/// The definitions for completions, which do not leave out hidden flags by themselves.
fn completed() -> clap::Command {
    let mut definitions = public();
    for name in args::WITHOUT_SERVER {
        definitions = definitions.mut_subcommand(name, |command| {
            let is_shown = |arg: &&clap::Arg| !arg.is_hide_set() && arg.get_id() != "help";
            let shown: Vec<_> = command.get_arguments().filter(is_shown).cloned().collect();
            let mut fewer = clap::Command::new(name).args(shown);
            if let Some(about) = command.get_about() {
                fewer = fewer.about(about.clone());
            }
            if let Some(name) = command.get_bin_name() {
                fewer = fewer.bin_name(name.to_owned());
            }
            fewer
        });
    }
    definitions
}

/// Writes all manual pages and completions into a folder.
///
/// # Errors
/// The error of the file that cannot be written.
pub fn write_assets(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let write = |name: String, text: &str| std::fs::write(folder.join(name), text);
    let command = public();
    let other = |failure: Failure| io::Error::other(failure.text.to_string());
    write("lockctl.1".to_owned(), &page(None).map_err(other)?)?;
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let name = sub.get_name();
        let page = page(Some(name)).map_err(other)?;
        write(format!("lockctl-{name}.1"), &page)?;
    }
    for shell in SHELLS {
        clap_complete::generate_to(shell, &mut completed(), "lockctl", folder)?;
    }
    Ok(())
}
