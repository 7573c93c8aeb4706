//! The lines of the log, and the results of the experiments.

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Tone {
    Info,
    Good,
    Bad,
}

/// The newest result of an experiment.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Finding {
    pub(crate) tone: Tone,
    pub(crate) text: String,
}

/// The experiments of the page.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Experiment {
    LockOff,
    LockOn,
    FrozenWithFence,
    FrozenWithoutFence,
    Killed,
}

/// How many experiments there are.
pub(crate) const EXPERIMENTS: usize = 5;

/// A line of the log.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Notice {
    pub(crate) id: u64,
    /// Seconds since the start of the demo.
    pub(crate) at: f64,
    pub(crate) tone: Tone,
    pub(crate) text: String,
}
