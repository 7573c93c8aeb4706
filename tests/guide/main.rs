//! The pages of the guide, in `lock-core/docs`: their form, and their code.
//!
//! Rust code in a page is a doctest, or it is cut from a program that a test runs. A cut block follows a
//! comment with a file and a region of that file:
//!
//! ```text
//! <!-- examples/fenced_postgres.rs: account -->
//! ```
//!
//! In the file, `// region: account` and `// endregion` enclose the lines. A cut block that needs other
//! crates than `lock-core` is a block `rust,custom`, which rustdoc does not compile.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

mod blocks;

use blocks::{Block, blocks, region};
use test_support::guide::{acl_command, acl_command_for_clusters};

/// The width to which the pages are wrapped.
const WIDTH: usize = 115;

/// The page whose blocks `tests/frameworks` compares with its own programs.
const COMPARED_ELSEWHERE: &str = "web";

/// The longest answer at the top of a page, in lines.
const ANSWER: usize = 3;

fn read(file: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    fs::read_to_string(root.join(file)).unwrap_or_else(|e| panic!("cannot read {file}: {e}"))
}

/// Returns the names and the texts of all pages.
fn pages() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lock-core/docs");
    let mut pages = Vec::new();
    for entry in fs::read_dir(folder).expect("the guide has pages") {
        let path = entry.expect("the folder is readable").path();
        if path.extension().is_some_and(|end| end == "md") {
            let name = path.file_stem().and_then(|name| name.to_str());
            let name = name.expect("the names of pages are text").to_owned();
            let text = fs::read_to_string(&path).expect("a page is text");
            pages.push((name, text));
        }
    }
    assert!(pages.len() > 15, "{}", pages.len());
    pages.sort();
    pages
}

fn question(page: &str) -> &str {
    page.lines().next().unwrap_or_default()
}

#[track_caller]
fn report(faults: &[String]) {
    assert!(faults.is_empty(), "\n\n{}\n", faults.join("\n"));
}

#[test]
fn each_page_begins_with_its_question_and_a_short_answer() {
    let mut faults = Vec::new();
    for (name, page) in pages() {
        let mut paragraphs = page.split("\n\n");
        let question = paragraphs.next().unwrap_or_default();
        let answer = paragraphs.next().unwrap_or_default();
        if !question.ends_with('?') || question.contains('\n') {
            faults.push(format!(
                "{name}: the first paragraph is not one question: {question}"
            ));
        }
        let is_text = answer.starts_with(|c: char| c.is_alphanumeric() || "`[".contains(c));
        if !is_text || answer.starts_with("```") || !answer.ends_with('.') {
            faults.push(format!(
                "{name}: the second paragraph is not an answer: {answer}"
            ));
        }
        if answer.lines().count() > ANSWER || answer.lines().any(|line| line.len() > WIDTH) {
            faults.push(format!(
                "{name}: the answer is longer than {ANSWER} lines: {answer}"
            ));
        }
    }
    report(&faults);
}

#[test]
fn the_library_shows_each_page() {
    let library = read("lock-core/src/lib.rs");
    let mut faults = Vec::new();
    for (name, _) in pages() {
        let shown =
            format!("pub mod {name} {{\n        #![doc = include_str!(\"../docs/{name}.md\")]");
        if !library.contains(&shown) {
            faults.push(format!(
                "lib.rs has no module `guide::{name}` for docs/{name}.md"
            ));
        }
    }
    report(&faults);
}

#[test]
fn the_front_page_lists_each_page_by_its_question() {
    let front = read("lock-core/README.md").replace("\n  ", " ");
    let mut faults = Vec::new();
    for (name, page) in pages() {
        let entry = format!("- [`guide::{name}`]: {}", question(&page));
        if !front.lines().any(|line| line == entry) {
            faults.push(format!("README.md of lock-core needs the line: {entry}"));
        }
    }
    let listed = front.lines().filter(|line| line.starts_with("- [`guide::"));
    assert_eq!(listed.count(), pages().len(), "an entry has no page");
    report(&faults);
}

#[test]
fn rust_code_is_a_doctest_or_cut_from_a_program() {
    let mut faults = Vec::new();
    let mut all = pages();
    all.retain(|(name, _)| name != COMPARED_ELSEWHERE);
    all.push(("README".to_owned(), read("lock-core/README.md")));
    for (name, page) in all {
        for Block {
            line, tags, source, ..
        } in blocks(&page)
        {
            let is_compiled = tags.iter().all(|tag| {
                ["rust", "no_run", "should_panic", "compile_fail"].contains(&tag.as_str())
                    || tag.starts_with("edition")
            });
            // SQL is no doctest: only a program can show that it works.
            let needs_source = tags.iter().any(|tag| tag == "rust" || tag == "sql");
            if needs_source && !is_compiled && source.is_none() {
                faults.push(format!(
                    "{name}.md:{line}: neither a doctest nor cut from a program"
                ));
            }
        }
    }
    report(&faults);
}

#[test]
fn cut_blocks_are_the_lines_of_their_programs() {
    let mut faults = Vec::new();
    for (name, page) in pages() {
        for Block {
            line,
            lines,
            source,
            ..
        } in blocks(&page)
        {
            let Some((file, part)) = source else { continue };
            let Some(code) = region(&read(&file), &part) else {
                faults.push(format!("{name}.md:{line}: {file} has no region `{part}`"));
                continue;
            };
            if code != lines {
                let code = code.join("\n");
                faults.push(format!(
                    "{name}.md:{line}: {file}, `{part}`, is now:\n{code}"
                ));
            }
        }
    }
    report(&faults);
}

#[test]
fn each_region_of_the_examples_is_on_a_page() {
    let mut used = BTreeSet::new();
    for (_, page) in pages() {
        used.extend(blocks(&page).into_iter().filter_map(|block| block.source));
    }
    // Each of the kinds: with a database, a service, and a recipe.
    assert!(used.len() >= 13, "{used:#?}");
    let mut faults = Vec::new();
    let mut folders = vec!["examples".to_owned()];
    while let Some(folder) = folders.pop() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("..")
            .join(&folder);
        for entry in fs::read_dir(path).expect("the folder exists") {
            let entry = entry.expect("the folder is readable");
            let file = format!("{folder}/{}", entry.file_name().display());
            if entry.path().is_dir() {
                folders.push(file);
            } else if entry.path().extension().is_some_and(|end| end == "rs") {
                for line in read(&file).lines() {
                    if let Some(part) = line.trim().strip_prefix("// region: ")
                        && !used.contains(&(file.clone(), part.to_owned()))
                    {
                        faults.push(format!("{file}: no page shows the region `{part}`"));
                    }
                }
            }
        }
    }
    report(&faults);
}

#[test]
fn the_faq_answers_twenty_questions_with_sources() {
    let page = read("lock-core/docs/faq.md");
    let (list, sources) = page.split_once("\n# Next").expect("the list ends");
    let items: Vec<&str> = list
        .split("\n\n")
        .find(|block| block.starts_with("1. **"))
        .unwrap_or_default()
        .split('\n')
        .collect();
    let items = items.join(" ").replace("   ", " ");
    let mut faults = Vec::new();
    for number in 1..=20 {
        let begin = format!("{number}. **");
        let Some(at) = items.find(&begin) else {
            faults.push(format!("there is no question {number}"));
            continue;
        };
        let item = &items[at + begin.len()..];
        let item = item
            .split(&format!(" {}. **", number + 1))
            .next()
            .unwrap_or_default();
        let answer = item.split_once("** ").map_or("", |(_, answer)| answer);
        let Some((answer, issues)) = answer.split_once("[[") else {
            faults.push(format!("question {number} has no source"));
            continue;
        };
        if answer.len() < 20 || answer.len() > 240 {
            faults.push(format!("the answer to {number} is not one line: {answer}"));
        }
        for issue in issues.trim_end_matches([']', ' ']).split("], [") {
            if !sources.contains(&format!("[{issue}]: https://github.com/")) {
                faults.push(format!("question {number}: no address of {issue}"));
            }
        }
    }
    report(&faults);
}

/// Services take the rules of `ACL SETUSER` in their consoles, without a password and without a shell.
#[test]
fn rights_to_paste_are_those_of_the_commands() {
    let page = read("lock-core/docs/managed.md");
    for command in [acl_command("locks"), acl_command_for_clusters()] {
        let rules = command.iter().skip_while(|word| *word != "locks").skip(1);
        let rules: Vec<&str> = rules
            .map(String::as_str)
            .filter(|rule| !rule.starts_with('>'))
            .collect();
        let line = rules.join(" ");
        assert!(
            page.lines().any(|it| it == line),
            "managed.md needs the line: {line}"
        );
    }
}

/// Returns the lines of a page from a line that begins with `first` to the line `last`.
fn lines_between<'a>(page: &'a str, first: &str, last: &'a str) -> Vec<&'a str> {
    let mut lines = page.lines().skip_while(|line| !line.starts_with(first));
    let mut found: Vec<_> = lines.by_ref().take_while(|line| *line != last).collect();
    assert!(!found.is_empty(), "no line begins with `{first}`");
    found.push(last);
    found
}

/// The first example of the project charges a card. Without the check inside the lock, the second caller would
/// wait, and then charge the card again. The front page of the library compiles and runs the same lines.
#[test]
fn first_example_checks_inside_the_lock_on_each_page() {
    let pay = |file| {
        let page = read(file);
        assert!(
            page.contains("heck inside the lock: the next caller runs after you."),
            "{file}"
        );
        let lines = lines_between(&page, "#[distributed_lock(", "}");
        lines.join("\n")
    };
    let front = pay("lock-core/README.md");
    let [check, charge, mark] = ["is_paid(", "charge_card(", "mark_as_paid("].map(|call| {
        let found = front.find(call);
        found.unwrap_or_else(|| panic!("the example doesn't call `{call}`:\n{front}"))
    });
    assert!(check < charge && charge < mark, "{front}");
    assert_eq!(pay("README.md"), front);
    assert_eq!(pay("lock-core/docs/attribute.md"), front);
}

/// One run of the gallery gives the figures of all pages.
#[test]
fn figures_of_the_gallery_are_the_same_on_each_page() {
    let rows = |file| {
        let page = read(file);
        let rows = lines_between(&page, "| The mistake |", "");
        let rows = rows.into_iter().filter(|line| line.starts_with("| "));
        rows.map(str::to_owned).collect::<Vec<_>>()
    };
    let guide = rows("lock-core/docs/redis.md");
    let front = rows("README.md");
    assert!(
        front.len() > 3 && guide.len() == 12,
        "{front:#?} {guide:#?}"
    );
    for row in front {
        assert!(guide.contains(&row), "the guide has other figures: {row}");
    }
}

#[test]
fn readme_names_the_oldest_rust_of_the_library_and_of_its_examples() {
    let readme = read("README.md");
    let oldest = |file| {
        let manifest = read(file);
        let mut lines = manifest.lines();
        let line = lines.find_map(|line| line.strip_prefix("rust-version = \""));
        line.expect("a version").trim_end_matches('"').to_owned()
    };
    let library = oldest("Cargo.toml");
    assert!(readme.contains(&format!("[MSRV {library}]")));
    let examples = oldest("examples/Cargo.toml");
    let sentence = format!(
        "The library needs Rust {library}; its tests, examples and benches need Rust {examples}."
    );
    assert!(readme.contains(&sentence), "README.md needs: {sentence}");
}
