//! The guide's page about failure modes and the tests agree.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Returns the text of all Rust sources below a folder.
fn sources(folder: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(folder).expect("the folder exists") {
        let path = entry.expect("the entry is readable").path();
        if path.is_dir() {
            text.push_str(&sources(&path));
        } else if path.extension().is_some_and(|end| end == "rs") {
            text.push_str(&fs::read_to_string(&path).expect("the file is text"));
        }
    }
    text
}

/// Returns the number of a test or a row that begins with `f01`.
fn number(name: &str) -> Option<u32> {
    let digits = name.strip_prefix('f')?.get(..2)?;
    digits.parse().ok()
}

/// Returns the names of the numbered tests in the sources.
fn tests(sources: &str) -> BTreeSet<&str> {
    let functions = sources.lines().filter_map(|line| {
        let line = line.trim_start();
        let line = line.strip_prefix("async ").unwrap_or(line);
        line.strip_prefix("fn ")?.split(['(', '<']).next()
    });
    let has_number = |name: &&str| number(name).is_some() && name.get(3..4) == Some("_");
    functions.filter(has_number).collect()
}

/// Returns the number and the last cell of each row.
fn rows(page: &str) -> Vec<(u32, &str)> {
    let rows = page.lines().filter_map(|line| {
        let row = line.strip_prefix("| ")?.strip_suffix(" |")?;
        Some((number(row)?, row.rsplit(" | ").next()?))
    });
    rows.collect()
}

/// Returns the parts of a cell between backticks.
fn spans(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

#[test]
fn failure_modes_page_names_exactly_the_existing_tests() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = package.join("../lock-core/docs/failure_modes.md");
    let page = fs::read_to_string(page).expect("the page exists");
    let sources = sources(package);
    let tests = tests(&sources);
    let rows = rows(&page);

    let numbers: Vec<u32> = rows.iter().map(|(number, _)| *number).collect();
    let expected: Vec<u32> = (1..).take(numbers.len()).collect();
    assert_eq!(numbers, expected, "the numbers on the page have a gap");

    let mut named = BTreeMap::new();
    for (row, cell) in &rows {
        assert!(
            cell.len() > 5,
            "f{row:02} names no test, no fault and no reason"
        );
        for span in spans(cell) {
            if span.contains('-') || !span.contains('_') {
                let fault = format!("\"{span}\"");
                assert!(sources.contains(&fault), "f{row:02}: no fault named {span}");
            } else {
                assert_eq!(
                    number(span),
                    Some(*row),
                    "f{row:02} names a test of another number: {span}"
                );
                named.insert(span, *row);
            }
        }
    }
    let named: BTreeSet<&str> = named.into_keys().collect();
    let missing: Vec<_> = tests.difference(&named).collect();
    let unknown: Vec<_> = named.difference(&tests).collect();
    assert!(
        missing.is_empty() && unknown.is_empty(),
        "not on the page: {missing:#?}\nno such tests: {unknown:#?}"
    );
}
