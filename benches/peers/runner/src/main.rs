//! Compares lock libraries. See `--help`; ./scripts/peers builds the required programs.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use runner::{Options, PLOTS, ROWS, Results, Row, render, replace_results, run};

const HELP: &str = "\
Measures lock libraries in one run, prints a table and draws plots.

  --clients FOLDER  sets the folder of the programs
  --only PROGRAM    runs only this program; repeat the option for more
  --rows NAMES      runs only these rows, separated by commas
  --rounds NUMBER   sets the number of rounds [5]
  --quick           runs one short round, to see that all works
  --results FILE    sets the file of the results
  --plots FOLDER    sets the folder of the plots
  --page FILE       writes the table into this page
  --plots-only      measures nothing: reads the results, and writes the plots and the page
  --list            lists the names of all rows";

/// The median of five does not follow one disturbed round.
const ROUNDS: usize = 5;

struct Command {
    options: Options,
    rounds: Option<usize>,
    results: PathBuf,
    plots: PathBuf,
    page: Option<PathBuf>,
    is_plots_only: bool,
}

fn main() -> ExitCode {
    let command = match parse(std::env::args().skip(1)) {
        Ok(Some(command)) => command,
        Ok(None) => return ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("peers: {fault}");
            return ExitCode::from(2);
        }
    };
    match execute(&command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("peers: {fault}");
            ExitCode::FAILURE
        }
    }
}

fn execute(command: &Command) -> Result<(), String> {
    let results = if command.is_plots_only {
        Results::read(&command.results)?
    } else {
        let mut options = command.options.clone();
        options.rounds = command
            .rounds
            .unwrap_or(if options.is_quick { 1 } else { ROUNDS });
        let results = run(&options, |line| eprintln!("{line}"))?;
        results.write(&command.results)?;
        // So that a later `--plots-only` draws the same.
        Results::read(&command.results)?
    };
    let table = render(&results);
    for plot in PLOTS {
        if let Some(svg) = plot.draw(&results)? {
            write(&command.plots.join(plot.file), &svg)?;
        }
    }
    if let Some(file) = &command.page {
        let page = fs::read_to_string(file);
        let page = page.map_err(|e| format!("cannot read {}: {e}", file.display()))?;
        write(file, &replace_results(&page, &table)?)?;
    }
    // The reader of a pipe may read the first lines only.
    let _ = writeln!(std::io::stdout(), "{table}");
    Ok(())
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|e| format!("cannot write {}: {e}", file.display()))
}

/// Returns None when the arguments only ask for a text.
fn parse(mut words: impl Iterator<Item = String>) -> Result<Option<Command>, String> {
    let mut command = Command {
        options: Options {
            clients: PathBuf::new(),
            only: Vec::new(),
            rows: ROWS.to_vec(),
            rounds: ROUNDS,
            is_quick: false,
        },
        rounds: None,
        results: PathBuf::new(),
        plots: PathBuf::new(),
        page: None,
        is_plots_only: false,
    };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--clients" => command.options.clients = value()?.into(),
            "--only" => command.options.only.push(value()?),
            "--rows" => command.options.rows = rows(&value()?)?,
            "--rounds" => command.rounds = Some(rounds(&value()?)?),
            "--quick" => command.options.is_quick = true,
            "--results" => command.results = value()?.into(),
            "--plots" => command.plots = value()?.into(),
            "--page" => command.page = Some(value()?.into()),
            "--plots-only" => command.is_plots_only = true,
            "--list" => {
                for row in ROWS {
                    println!("{}", row.name());
                }
                return Ok(None);
            }
            "--help" | "-h" => {
                println!("{HELP}");
                return Ok(None);
            }
            other => return Err(format!("unknown argument `{other}`; see --help")),
        }
    }
    Ok(Some(command))
}

fn rows(names: &str) -> Result<Vec<Row>, String> {
    let row = |name: &str| {
        let row = ROWS.into_iter().find(|row| row.name() == name);
        row.ok_or_else(|| format!("no row `{name}`; see --list"))
    };
    names.split(',').map(row).collect()
}

fn rounds(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("--rounds needs a number from 1, not `{text}`"))
}

#[cfg(test)]
mod tests {
    use runner::Row;

    use super::{parse, rows};

    #[test]
    fn rows_are_found_by_their_names() {
        assert_eq!(
            rows("pair,handoff-100"),
            Ok(vec![Row::Pair, Row::Handoff(100)])
        );
        assert!(rows("pair,").is_err());
    }

    #[test]
    fn faults_in_the_arguments_are_errors() {
        let parse = |line: &str| parse(line.split_whitespace().map(ToOwned::to_owned)).map(|_| ());
        assert!(parse("--quick --only rslock --rounds 2").is_ok());
        assert!(parse("--rounds 0").is_err());
        assert!(parse("--only").is_err());
        assert!(parse("--unknown").is_err());
    }
}
