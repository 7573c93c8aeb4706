//! The plots of the results.

use crate::chart::{Chart, ChartRow, Missing, Scale};
use crate::figures::{
    COMMANDS_10, COMMANDS_100, HANDOFF_10, HANDOFF_100, LONGEST, PAIR, WAIT_P50, WAIT_P99,
};
use crate::results::{Failure, Measured, Results};

/// A plot: the name of its file, and what it shows.
#[derive(Clone, Copy, Debug)]
pub struct Plot {
    /// The name of the file.
    pub file: &'static str,
    title: &'static str,
    axis: &'static str,
    scale: Scale,
    /// The id of each figure, and its name in the legend.
    series: &'static [(&'static str, &'static str)],
}

/// All plots.
pub const PLOTS: [Plot; 4] = [
    Plot {
        file: "handoff.svg",
        title: "From a release to the next holder",
        axis: "round trips (about 1 ms), median; logarithmic; less is better",
        scale: Scale::Logarithmic,
        series: &[(HANDOFF_10.id, "10 tasks"), (HANDOFF_100.id, "100 tasks")],
    },
    Plot {
        file: "commands.svg",
        title: "Commands that clients send for one section",
        axis: "commands for one section; logarithmic; less is better",
        scale: Scale::Logarithmic,
        series: &[(COMMANDS_10.id, "10 tasks"), (COMMANDS_100.id, "100 tasks")],
    },
    Plot {
        file: "waits.svg",
        title: "Waits of 8 tasks with 25 sections of 1 ms each",
        axis: "milliseconds; logarithmic; less is better",
        scale: Scale::Logarithmic,
        series: &[
            (WAIT_P50, "median"),
            (WAIT_P99.id, "99 %"),
            (LONGEST.id, "longest"),
        ],
    },
    Plot {
        file: "pair.svg",
        title: "An uncontended acquire and release",
        axis: "times the raw pair of the same client; less is better",
        scale: Scale::FromZero(3.0),
        series: &[(PAIR.id, "ratio")],
    },
];

impl Plot {
    /// Draws the plot as SVG. Returns None when no program has its figures.
    ///
    /// # Errors
    ///
    /// Fails if the drawing library fails.
    pub fn draw(&self, results: &Results) -> Result<Option<String>, String> {
        let chart = self.chart(results);
        if chart.rows.is_empty() {
            Ok(None)
        } else {
            chart.draw().map(Some)
        }
    }

    fn chart(&self, results: &Results) -> Chart {
        let mut rows = Vec::new();
        for program in &results.programs {
            let measured = self.series.iter().map(|(id, _)| program.figures.get(*id));
            let measured: Vec<_> = measured.collect();
            let values: Vec<_> = measured
                .iter()
                .map(|m| m.and_then(Measured::median))
                .collect();
            let mut failures = measured.iter().flatten().filter_map(|m| m.failure.as_ref());
            let missing = failures.next_back().and_then(|failure| match failure {
                Failure::NotWithin(seconds) => Some(Missing::Longer(format!("> {seconds} s"))),
                Failure::Failed(_) => None,
            });
            // A program that does not run this scenario is in the table only.
            if missing.is_some() || values.iter().any(Option::is_some) {
                rows.push(ChartRow {
                    label: program.program.clone(),
                    is_ours: program.is_ours(),
                    values,
                    missing,
                });
            }
        }
        rows.sort_by(|a, b| a.order().total_cmp(&b.order()));
        Chart {
            title: self.title,
            axis: self.axis,
            scale: self.scale,
            series: self.series.iter().map(|(_, name)| *name).collect(),
            rows,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PLOTS;
    use crate::figures::{HANDOFF_10, HANDOFF_100};
    use crate::results::Failure;
    use crate::results::tests::results;

    #[test]
    fn a_chart_is_sorted_and_ends_with_those_without_a_value() {
        let mut results = results(&[
            ("lock-core", "lock-core"),
            ("a", "a"),
            ("b", "b"),
            ("c", "c"),
        ]);
        let ids = [HANDOFF_10.id.to_owned(), HANDOFF_100.id.to_owned()];
        results.programs[0].add(&ids, Ok(vec![2.0, 2.0]));
        results.programs[1].add(&ids, Err(Failure::NotWithin(60)));
        results.programs[2].add(&ids, Ok(vec![3.0, 1.0]));
        results.programs[3].add(&ids, Err(Failure::Failed("no".to_owned())));
        let chart = PLOTS[0].chart(&results);
        let labels: Vec<_> = chart.rows.iter().map(|row| row.label.as_str()).collect();
        assert_eq!(labels, ["b", "lock-core", "a"]);
    }

    #[test]
    fn a_plot_can_be_included_into_markdown() {
        let mut results = results(&[("lock-core", "lock-core"), ("a", "a")]);
        let ids = [HANDOFF_10.id.to_owned(), HANDOFF_100.id.to_owned()];
        results.programs[0].add(&ids, Ok(vec![2.0, 2.5]));
        results.programs[1].add(&ids, Ok(vec![30.0, 400.0]));
        let svg = PLOTS[0].draw(&results).unwrap().unwrap();
        // A blank line ends a block of HTML.
        assert!(svg.starts_with("<svg ") && svg.lines().all(|line| !line.trim().is_empty()));
        assert!(svg.lines().next().unwrap().ends_with('>'));
        assert!(svg.contains("lock-core") && svg.len() < 30_000);
        assert!(PLOTS[1].draw(&results).unwrap().is_none());
    }
}
