//! A run: all rows of all programs, in rounds.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::conditions::Conditions;
use crate::figures::Row;
use crate::measure::Bench;
use crate::program::programs_in;
use crate::results::{Failure, ProgramResults, Results};

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder of the programs.
    pub clients: PathBuf,
    /// The names of the programs to run. Empty for all.
    pub only: Vec<String>,
    /// The rows to run.
    pub rows: Vec<Row>,
    /// The number of rounds.
    pub rounds: usize,
    /// Whether the measurements are short.
    pub is_quick: bool,
}

/// Runs all rows of all programs, and reports the progress.
///
/// In each round the programs run one after the other in each row, so that other work on the machine
/// affects all of them.
///
/// # Errors
///
/// Fails if there is no program, or if one does not say what it is. A row that fails is a result.
pub fn run(options: &Options, mut progress: impl FnMut(&str)) -> Result<Results, String> {
    let mut programs = programs_in(&options.clients)?;
    let is_wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|o| o == name);
    if let Some(unknown) = options
        .only
        .iter()
        .find(|o| !programs.iter().any(|p| p.name == **o))
    {
        return Err(format!(
            "{} has no program `{unknown}`",
            options.clients.display()
        ));
    }
    programs.retain(|program| is_wanted(&program.name));
    let mut results = Vec::new();
    for program in programs {
        let about = program.about()?;
        let name = program.name.clone();
        results.push((
            program,
            ProgramResults {
                program: name,
                about,
                figures: BTreeMap::new(),
            },
        ));
    }
    // This library first, then by language and name.
    results.sort_by_key(|(_, program)| {
        let about = &program.about;
        (
            !program.is_ours(),
            about.language.clone(),
            program.program.clone(),
        )
    });

    let bench = Bench::start(options.is_quick);
    let conditions = Conditions::of(
        &bench.server,
        options.rounds,
        options.is_quick,
        bench.is_pinned(),
    );
    for round in 0..options.rounds {
        for row in &options.rows {
            progress(&format!(
                "round {} of {}: {}",
                round + 1,
                options.rounds,
                row.name()
            ));
            let figures = row.figures();
            // Each program is the first one in some round.
            let programs = results.len();
            for at in 0..programs {
                let (program, result) = &mut results[(at + round) % programs];
                let has_failed = |id| result.figures.get(id).is_some_and(|m| m.failure.is_some());
                if figures.iter().any(has_failed) {
                    continue;
                }
                let values = bench.measure(program, *row, round);
                if let Err(failure) = &values {
                    progress(&format!("  {}: {}", program.name, describe(failure)));
                }
                result.add(&figures, values);
            }
        }
    }
    let programs = results.into_iter().map(|(_, program)| program).collect();
    Ok(Results {
        conditions,
        programs,
    })
}

/// Returns the text of a failure.
pub(crate) fn describe(failure: &Failure) -> String {
    match failure {
        Failure::NotWithin(seconds) => format!("a waiter had no lock after {seconds} s"),
        Failure::Failed(text) => text.clone(),
    }
}
