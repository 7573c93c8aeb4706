//! The example `quickstart`.

use std::path::Path;

use test_support::fixtures::SOON;

use super::example;

#[test]
fn order_is_charged_once_with_the_lock() {
    let shown = example("quickstart").spawn();
    assert!(shown.wait(SOON).success());
    let lines = shown.lines();
    let verdicts: Vec<&str> = lines
        .iter()
        .filter_map(|line| line.trim().strip_prefix("=> "))
        .collect();
    assert_eq!(
        verdicts,
        [
            "order 41 was charged 3 x: WRONG",
            "order 42 was charged 1 x: right",
            "order 41 was charged 1 x: right",
            "order 42 was charged 1 x: right",
        ],
        "{lines:#?}"
    );
}

/// Returns the lines in an order that doesn't depend on the scheduler, without times, and with one letter for
/// the tasks of order 41, of which any may come first.
fn essence<'a>(lines: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut essence: Vec<String> = lines
        .into_iter()
        .filter(|line| !line.is_empty())
        .map(|line| {
            let (_, text) = line.split_once("ms  ").unwrap_or(("", line));
            let text = text.trim();
            ["task B", "task C"]
                .iter()
                .fold(text.to_owned(), |text, task| text.replace(task, "task A"))
        })
        .collect();
    essence.sort();
    essence
}

#[test]
fn readme_shows_the_output() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let (_, rest) = readme
        .split_once("```text\nWithout a lock:\n")
        .expect("the README has a block with the output");
    let (block, _) = rest.split_once("```").unwrap();
    let shown = example("quickstart").spawn();
    assert!(shown.wait(SOON).success());
    let lines = shown.lines();
    let printed = lines.iter().map(String::as_str);
    let block = std::iter::once("Without a lock:").chain(block.lines());
    assert_eq!(essence(block), essence(printed));
}
