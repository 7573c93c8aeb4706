//! Fails if a figure of the benches is worse than its committed value: `./scripts/bench-guard`

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use benches::decay::{Baseline, Figures, RUNS, figures};

const USAGE: &str = "\
Compares ratios and counts of short benches with those in benches/figures.txt. Fails if one is worse \
by more than 25 % in three runs in a row.

  bench-guard                    compares all figures
  bench-guard --accept           writes the measured values of all figures to the file
  bench-guard --accept a b       writes those of the benches a and b
  bench-guard --self-test        checks that a decayed value is found
";

/// Its counts are exact, and it takes a second.
const SELF_TEST: &str = "allocations.guard_pair";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        [] => compare(),
        ["--accept", ref benches @ ..] => accept(benches),
        ["--self-test"] => self_test(),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("bench-guard: {error}");
        ExitCode::FAILURE
    })
}

fn compare() -> Result<ExitCode, Box<dyn Error>> {
    let verdict = baseline()?.check(run)?;
    print!("{}", verdict.table);
    if verdict.failures.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    println!("\nWorse by more than 25 % in {RUNS} runs in a row:");
    for failure in &verdict.failures {
        println!("{failure}");
    }
    Ok(ExitCode::FAILURE)
}

fn accept(benches: &[&str]) -> Result<ExitCode, Box<dyn Error>> {
    let baseline = baseline()?;
    let known = baseline.benches();
    let chosen: BTreeSet<String> = if benches.is_empty() {
        known.clone()
    } else {
        benches.iter().map(ToString::to_string).collect()
    };
    if let Some(unknown) = chosen.difference(&known).next() {
        return Err(format!("benches/figures.txt has no figure of a bench `{unknown}`").into());
    }
    let measured = run(&chosen)?;
    if let Some(missing) = baseline.missing(&chosen, &measured) {
        return Err(format!("no bench printed {missing}; benches/figures.txt is unchanged").into());
    }
    fs::write(file(), baseline.with_values(&measured))?;
    println!("benches/figures.txt has the new values; see `git diff`");
    Ok(ExitCode::SUCCESS)
}

fn self_test() -> Result<ExitCode, Box<dyn Error>> {
    let verdict = baseline()?.decayed(SELF_TEST).check(run)?;
    match &verdict.failures[..] {
        [failure] if failure.starts_with(SELF_TEST) => {
            println!("a decayed value is found:\n{failure}");
            Ok(ExitCode::SUCCESS)
        }
        _ => Err(format!("a decayed value was not found:\n{}", verdict.table).into()),
    }
}

fn file() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("figures.txt")
}

fn baseline() -> Result<Baseline, Box<dyn Error>> {
    Ok(Baseline::parse(&fs::read_to_string(file())?)?)
}

/// Runs the short form of benches, and returns their figures. On a loaded machine a bench may fail; then
/// its figures are missing in this run, as if they were worse.
fn run(benches: &BTreeSet<String>) -> Result<Figures, Box<dyn Error>> {
    let built = cargo(benches).arg("--no-run").status()?;
    if !built.success() {
        return Err("the benches do not compile".into());
    }
    let output = cargo(benches)
        .args(["--no-fail-fast", "--", "--short"])
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        eprintln!("bench-guard: a bench failed; see above");
    }
    Ok(figures(&String::from_utf8(output.stdout)?))
}

fn cargo(benches: &BTreeSet<String>) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    // The profile of the other release builds, so that the dependencies are compiled once.
    cargo.args([
        "bench",
        "--quiet",
        "--profile",
        "release",
        "--package",
        "benches",
    ]);
    for bench in benches {
        cargo.args(["--bench", bench]);
    }
    cargo
}
