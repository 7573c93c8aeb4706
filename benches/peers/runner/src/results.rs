//! The results file: what was measured, and under which conditions.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::conditions::Conditions;
use crate::stats::median;

/// All results of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// The machine, the versions and the size of the run.
    pub(crate) conditions: Conditions,
    /// The programs in the order of the table: this library first.
    pub(crate) programs: Vec<ProgramResults>,
}

/// The results of one program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProgramResults {
    /// The name of its file.
    pub(crate) program: String,
    #[serde(flatten)]
    pub(crate) about: About,
    /// By the id of the figure.
    pub(crate) figures: BTreeMap<String, Measured>,
}

/// What a program says about its library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct About {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) language: String,
    pub(crate) kind: String,
    pub(crate) notes: String,
}

/// The values of a figure: one for each round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) values: Vec<f64>,
    /// Why a round has no value. The later rounds were not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<Failure>,
}

/// Why there is no value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Failure {
    /// A wait reached its end, in seconds.
    NotWithin(u64),
    /// The program failed, with this last line on stderr.
    Failed(String),
}

impl Measured {
    pub(crate) fn median(&self) -> Option<f64> {
        median(&self.values)
    }
}

impl ProgramResults {
    /// Returns whether the program is this library.
    pub(crate) fn is_ours(&self) -> bool {
        self.about.name == "lock-core"
    }

    /// Returns the median of a figure.
    pub(crate) fn median(&self, id: &str) -> Option<f64> {
        self.figures.get(id)?.median()
    }

    /// Adds what one round measured.
    pub(crate) fn add(&mut self, figures: &[String], round: Result<Vec<f64>, Failure>) {
        match round {
            Ok(values) => {
                for (id, value) in figures.iter().zip(values) {
                    // More digits say nothing.
                    let value = (value * 1e3).round() / 1e3;
                    let measured = self.figures.entry(id.clone()).or_default();
                    measured.values.push(value);
                }
            }
            Err(failure) => {
                for id in figures {
                    self.figures.entry(id.clone()).or_default().failure = Some(failure.clone());
                }
            }
        }
    }
}

impl Results {
    /// Reads a results file.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read or is no results file.
    pub fn read(file: &Path) -> Result<Self, String> {
        let fault = |e: &dyn std::fmt::Display| format!("cannot read {}: {e}", file.display());
        let text = fs::read_to_string(file).map_err(|e| fault(&e))?;
        serde_json::from_str(&text).map_err(|e| fault(&e))
    }

    /// Writes a results file.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be written.
    pub fn write(&self, file: &Path) -> Result<(), String> {
        let fault = |e: &dyn std::fmt::Display| format!("cannot write {}: {e}", file.display());
        let text = serde_json::to_string_pretty(self).map_err(|e| fault(&e))?;
        fs::write(file, text + "\n").map_err(|e| fault(&e))
    }

    /// Returns the program that the others are compared with.
    pub(crate) fn ours(&self) -> Option<&ProgramResults> {
        self.programs
            .iter()
            .find(|program| program.program == "lock-core")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use super::{About, Failure, ProgramResults, Results};
    use crate::conditions::Conditions;

    /// Returns results without figures: for each program its file and the name of its library.
    pub(crate) fn results(programs: &[(&str, &str)]) -> Results {
        let program = |(program, name): &(&str, &str)| ProgramResults {
            program: (*program).to_owned(),
            about: About {
                name: (*name).to_owned(),
                version: "1.0".to_owned(),
                language: "Rust".to_owned(),
                kind: "lock".to_owned(),
                notes: "polls".to_owned(),
            },
            figures: BTreeMap::new(),
        };
        Results {
            conditions: Conditions {
                date: "2026-01-31".to_owned(),
                processor: "P".to_owned(),
                cores: 2,
                system: "S".to_owned(),
                server: "Redis 7".to_owned(),
                rounds: 1,
                is_quick: false,
                is_pinned: true,
            },
            programs: programs.iter().map(program).collect(),
        }
    }

    #[test]
    fn a_results_file_is_read_as_it_was_written() {
        let mut results = results(&[("lock-core", "lock-core"), ("a", "a")]);
        results.programs[0].add(&["pair".to_owned()], Ok(vec![1.5]));
        results.programs[1].add(&["pair".to_owned()], Err(Failure::NotWithin(60)));
        let scratch = test_support::Scratch::new();
        let file = scratch.path().join("results.json");
        results.write(&file).unwrap();
        assert_eq!(Results::read(&file).unwrap(), results);
        assert!(Results::read(&scratch.path().join("other.json")).is_err());
    }
}
