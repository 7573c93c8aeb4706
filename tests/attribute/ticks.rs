//! The table of promises names its tests, and they are there.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const PLACES: [&str; 4] = [
    "tests/attribute",
    "tests/frameworks",
    "lock-macros/src",
    "lock-core/src",
];

fn functions(path: &Path, found: &mut BTreeSet<String>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).expect("a folder") {
            functions(&entry.expect("an entry").path(), found);
        }
    } else if path.extension().is_some_and(|end| end == "rs") {
        let text = fs::read_to_string(path).expect("text");
        for (at, _) in text.match_indices("fn ") {
            let name = text[at + 3..].split(|c: char| c != '_' && !c.is_alphanumeric());
            found.extend(name.take(1).map(ToOwned::to_owned));
        }
    }
}

#[test]
fn every_test_that_is_named_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the workspace");
    let mut known = BTreeSet::new();
    for place in PLACES {
        functions(&root.join(place), &mut known);
    }
    let table = fs::read_to_string(root.join("docs/attribute-tests.md")).expect("text");
    let rows = table.lines().filter(|line| line.starts_with("| "));
    let mut count = 0;
    for (line, tests) in rows.filter_map(|row| row.trim_end_matches(" |").rsplit_once(" | ")) {
        for name in tests.split('`').skip(1).step_by(2) {
            let there = match name.strip_prefix("ui/") {
                Some(program) => root.join(format!("tests/ui/{program}.stderr")).exists(),
                // A folder or a lint, which are no tests of one line.
                None if name.contains('/') || name == "expansion" => true,
                None => known.contains(name),
            };
            assert!(there, "{name} for {line}");
            count += 1;
        }
    }
    assert!(count > 100, "the table was read: {count} names");
}
