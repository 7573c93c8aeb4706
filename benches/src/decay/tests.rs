//! The rules of the guard.

use super::*;

const FILE: &str = "# A comment.\n\na.cost 2 lower\na.rate 10 higher\nb.idle 0 lower 0.5\n";

/// Checks against runs that print these texts, and returns the failures and the benches that ran.
fn check(file: &str, outputs: &[&str]) -> (Vec<String>, Vec<Vec<String>>) {
    let baseline = Baseline::parse(file).expect("the file is valid");
    let mut runs = Vec::new();
    let verdict = baseline.check(|benches| {
        runs.push(benches.iter().cloned().collect());
        Ok::<_, ()>(figures(outputs[runs.len() - 1]))
    });
    (verdict.expect("no run fails").failures, runs)
}

#[test]
fn figures_are_read_from_the_lines_of_a_bench() {
    let read = figures("a.cost 2.5 x (target <= 3)\n\nnot pinned to one core\nb.idle 0.1 /s\n");
    let expected = [("a.cost".to_owned(), 2.5), ("b.idle".to_owned(), 0.1)];
    assert_eq!(read, Figures::from(expected));
}

#[test]
fn values_within_the_margin_pass_in_one_run() {
    let (failures, runs) = check(FILE, &["a.cost 2.4 x\na.rate 8.1 x\nb.idle 0.4 /s\n"]);
    assert_eq!(failures, [""; 0]);
    assert_eq!(runs, [["a", "b"]]);
}

#[test]
fn a_value_that_is_worse_three_times_fails_and_says_what_to_do() {
    let (worse, other) = ("a.cost 2.6\na.rate 10\nb.idle 0", "a.cost 2.7\na.rate 10");
    let (failures, runs) = check(FILE, &[worse, other, worse]);
    assert_eq!(runs, [vec!["a", "b"], vec!["a"], vec!["a"]]);
    assert_eq!(failures.len(), 1, "{failures:?}");
    let text = &failures[0];
    assert!(text.starts_with("a.cost: measured 2.600, 2.700, 2.600; committed 2.000, limit 2.500"));
    assert!(text.contains("--bench a\n"), "{text}");
    assert!(text.contains("./scripts/bench-guard --accept a"), "{text}");
}

#[test]
fn a_value_that_must_be_high_fails_when_it_is_low() {
    let low = "a.cost 2\na.rate 7.9\nb.idle 0";
    let (failures, _) = check(FILE, &[low, low, low]);
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert!(failures[0].starts_with("a.rate: "), "{failures:?}");
}

#[test]
fn a_value_that_is_worse_twice_passes() {
    let (bad, good) = (
        "a.cost 9\na.rate 10\nb.idle 9",
        "a.cost 2\na.rate 10\nb.idle 0",
    );
    let (failures, runs) = check(FILE, &[bad, bad, good]);
    assert_eq!(failures, [""; 0]);
    assert_eq!(runs.len(), 3);
}

#[test]
fn two_values_that_are_worse_in_turn_pass() {
    let (first, second) = (
        "a.cost 9\na.rate 10\nb.idle 0",
        "a.cost 2\na.rate 1\nb.idle 9",
    );
    let (failures, runs) = check(FILE, &[first, second, first]);
    assert_eq!(failures, [""; 0]);
    assert_eq!(runs.len(), 2);
}

#[test]
fn a_figure_that_no_bench_prints_fails() {
    let missing = "a.cost 2\na.rate 10";
    let (failures, _) = check(FILE, &[missing, missing, missing]);
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert!(failures[0].contains("did not print it"), "{failures:?}");
}

#[test]
fn a_decayed_file_fails_with_its_own_values() {
    let baseline = Baseline::parse(FILE).expect("the file is valid");
    for name in ["a.cost", "a.rate"] {
        let decayed = baseline.clone().decayed(name);
        let verdict = decayed.check(|_| Ok::<_, ()>(figures(FILE)));
        let failures = verdict.expect("no run fails").failures;
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert!(failures[0].starts_with(name), "{failures:?}");
    }
}

#[test]
fn accepted_values_replace_the_committed_ones_and_nothing_else() {
    let baseline = Baseline::parse(FILE).expect("the file is valid");
    let accepted = baseline.with_values(&figures("a.cost 1.5\nb.idle 0.2\nc.other 7"));
    let words = |text: &str| -> Vec<Vec<String>> {
        let lines = text.lines();
        lines
            .map(|line| line.split_whitespace().map(ToOwned::to_owned).collect())
            .collect()
    };
    let expected =
        "# A comment.\n\na.cost 1.500 lower\na.rate 10.000 higher\nb.idle 0.200 lower 0.5\n";
    assert_eq!(words(&accepted), words(expected));
    assert!(Baseline::parse(&accepted).is_ok());
}

#[test]
fn a_much_better_value_is_reported() {
    let baseline = Baseline::parse(FILE).expect("the file is valid");
    let verdict = baseline.check(|_| Ok::<_, ()>(figures("a.cost 1\na.rate 10\nb.idle 0")));
    let table = verdict.expect("no run fails").table;
    let lines: Vec<_> = table
        .lines()
        .filter(|line| line.contains("better"))
        .collect();
    assert_eq!(lines.len(), 1, "{table}");
    assert!(lines[0].starts_with("a.cost"), "{table}");
}

#[test]
fn a_line_that_is_no_figure_is_refused() {
    for line in [
        "a.cost",
        "a.cost x lower",
        "a.cost 1 smaller",
        "cost 1 lower",
        "a.b 1 lower 1 1",
    ] {
        assert!(Baseline::parse(line).is_err(), "{line}");
    }
}

#[test]
fn a_figure_that_was_not_measured_is_not_accepted() {
    let baseline = Baseline::parse(FILE).expect("the file is valid");
    let benches = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    let measured = figures("a.cost 1\na.rate 10");
    assert_eq!(
        baseline.missing(&benches(&["a", "b"]), &measured),
        Some("b.idle")
    );
    assert_eq!(baseline.missing(&benches(&["a"]), &measured), None);
}
