//! The code of the guide's page `web` is cut from the programs in this package.

use std::fs;
use std::path::Path;

/// The code blocks that no doctest compiles, because lock-core depends on no web framework.
fn blocks(page: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut before = "";
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(kind) = line.strip_prefix("```") {
            let block: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
            // `tests/guide` compares a block that names its file.
            if kind != "sh" && !before.starts_with("<!-- ") {
                assert_eq!(kind, "rust,custom", "a block of another kind");
                blocks.push(block.join("\n"));
            }
        }
        before = line;
    }
    blocks
}

fn programs(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("it is a folder") {
        let path = entry.expect("it is readable").path();
        if path.is_dir() {
            programs(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(fs::read_to_string(path).expect("it is text"));
        }
    }
}

#[test]
fn code_of_the_web_page_is_cut_from_these_programs() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = package.join("../../lock-core/docs/web.md");
    let page = fs::read_to_string(page).expect("the page exists");
    let mut found = Vec::new();
    programs(package, &mut found);
    let blocks = blocks(&page);
    assert!(blocks.len() > 10, "{}", blocks.len());
    for block in blocks {
        let is_cut = found.iter().any(|program| program.contains(&block));
        assert!(is_cut, "no program has this block:\n{block}");
    }
}
