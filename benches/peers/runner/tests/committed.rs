//! The committed page and plots show the committed results.

use std::fs;
use std::path::{Path, PathBuf};

use runner::{PLOTS, Results, render, replace_results};

/// Returns a file of the repository.
fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../..")
        .join(path)
}

fn read(path: &str) -> String {
    fs::read_to_string(file(path)).expect("the file exists")
}

fn results() -> Results {
    Results::read(&file("benches/peers/results.json")).expect("the results are committed")
}

const ADVICE: &str = "run ./scripts/peers --plots-only";

#[test]
fn the_page_shows_the_committed_results() {
    let page = read("lock-core/docs/performance.md");
    let expected = replace_results(&page, &render(&results())).expect("the page has the marks");
    assert!(
        page == expected,
        "lock-core/docs/performance.md is outdated; {ADVICE}"
    );
}

#[test]
fn the_plots_show_the_committed_results() {
    let results = results();
    for plot in PLOTS {
        let path = format!("lock-core/docs/plots/{}", plot.file);
        let drawn = plot.draw(&results).expect("the plot can be drawn");
        let drawn = drawn.expect("the results have the figures");
        assert!(drawn.len() < 30_000, "{path} is too large for a page");
        assert!(read(&path) == drawn, "{path} is outdated; {ADVICE}");
    }
}
