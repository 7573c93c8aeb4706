//! The figures of the comparison, and the rows that measure them.

/// One figure of the table. Smaller is better in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Figure {
    /// The name in the results file.
    pub(crate) id: &'static str,
    /// The head of its column.
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
    /// The number of decimals.
    pub(crate) decimals: usize,
}

const fn figure(
    id: &'static str,
    title: &'static str,
    unit: &'static str,
    decimals: usize,
) -> Figure {
    Figure {
        id,
        title,
        unit,
        decimals,
    }
}

pub(crate) const PAIR: Figure = figure("pair", "pair", "x raw", 2);
pub(crate) const TOTAL: Figure = figure("contended-total", "8 x 25 total", "ms", 0);
pub(crate) const WAIT_P99: Figure = figure("contended-wait-p99", "wait p99", "ms", 1);
pub(crate) const LONGEST: Figure = figure("contended-wait-longest", "longest wait", "ms", 1);
pub(crate) const HANDOFF_10: Figure = figure("handoff-10", "hand-off, 10", "round trips", 2);
pub(crate) const HANDOFF_100: Figure = figure("handoff-100", "hand-off, 100", "round trips", 2);
pub(crate) const COMMANDS_10: Figure = figure("commands-10", "commands, 10", "per section", 2);
pub(crate) const COMMANDS_100: Figure = figure("commands-100", "commands, 100", "per section", 2);
pub(crate) const KILLED_WAITER: Figure = figure("killed-waiter", "killed waiter", "ms", 1);
pub(crate) const KILLED_HOLDER: Figure =
    figure("killed-holder", "killed holder", "ms after the lease", 1);

/// The columns of the table.
pub(crate) const TABLE: [Figure; 10] = [
    PAIR,
    TOTAL,
    WAIT_P99,
    LONGEST,
    HANDOFF_10,
    HANDOFF_100,
    COMMANDS_10,
    COMMANDS_100,
    KILLED_WAITER,
    KILLED_HOLDER,
];

/// Figures that only the results file and the plots have.
pub(crate) const PAIR_TIME: &str = "pair-time-us";
pub(crate) const RAW_TIME: &str = "raw-time-us";
pub(crate) const WAIT_P50: &str = "contended-wait-p50";
pub(crate) const FROM_KILL: &str = "killed-holder-from-kill";

/// What one measurement runs. `--rows` takes their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// An uncontended acquire and release, relative to the raw pair.
    Pair,
    /// 8 tasks with 25 sections of 1 ms.
    Contended,
    /// Hand-off through a proxy, with this number of tasks.
    Handoff(usize),
    /// Commands per section, with this number of tasks.
    Commands(usize),
    /// The waiter at the head of the queue is killed.
    KilledWaiter,
    /// The holder is killed.
    KilledHolder,
}

/// All rows, in the order in which a round runs them.
pub const ROWS: [Row; 8] = [
    Row::Pair,
    Row::Contended,
    Row::Handoff(10),
    Row::Handoff(100),
    Row::Commands(10),
    Row::Commands(100),
    Row::KilledWaiter,
    Row::KilledHolder,
];

impl Row {
    /// Returns the name of the row.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Pair => "pair".to_owned(),
            Self::Contended => "contended".to_owned(),
            Self::Handoff(tasks) => format!("handoff-{tasks}"),
            Self::Commands(tasks) => format!("commands-{tasks}"),
            Self::KilledWaiter => "killed-waiter".to_owned(),
            Self::KilledHolder => "killed-holder".to_owned(),
        }
    }

    /// Returns the ids of the figures that the row measures.
    pub(crate) fn figures(self) -> Vec<String> {
        let ids: &[&str] = match self {
            Self::Pair => &[PAIR.id, PAIR_TIME, RAW_TIME],
            Self::Contended => &[TOTAL.id, WAIT_P50, WAIT_P99.id, LONGEST.id],
            Self::KilledHolder => &[KILLED_HOLDER.id, FROM_KILL],
            Self::Handoff(_) | Self::Commands(_) | Self::KilledWaiter => return vec![self.name()],
        };
        ids.iter().map(|id| (*id).to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{ROWS, TABLE};

    #[test]
    fn each_column_is_measured_by_one_row() {
        let measured: Vec<_> = ROWS.iter().flat_map(|row| row.figures()).collect();
        for figure in TABLE {
            let rows = measured.iter().filter(|id| *id == figure.id).count();
            assert_eq!(rows, 1, "{}", figure.id);
        }
    }
}
