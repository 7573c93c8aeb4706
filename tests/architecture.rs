//! Rules about the tree that no compiler checks. A rule names path prefixes, and no files.

use std::collections::BTreeMap;
use std::path::Path;

use tree::{
    extension, files, imports, module, packages, read, rust_files, sources, targets, used_files,
};

#[path = "architecture/definitions.rs"]
mod definitions;
#[path = "architecture/public_items.rs"]
mod public_items;
#[path = "architecture/tree.rs"]
mod tree;

/// The modules of lock-core, from the bottom up: each imports from its own level and from below.
const LEVELS: [&[&str]; 13] = [
    &["sync"],
    &["error", "config", "dialect", "telemetry"],
    &["store"],
    &["memory", "faulty"],
    &["redis"],
    &["runtime"],
    &["guard"],
    &["run"],
    &["request", "lead", "typed"],
    &["manager", "admin", "health", "observe"],
    &["web"],
    &["macro_support"],
    &["testing"],
];

/// The modules that implement `Store`. Whatever works with locks sees the trait alone.
const STORES: [&str; 3] = ["memory", "faulty", "redis"];

/// The modules that make a manager with a store, and the faults of one.
const MAKE_STORES: [&str; 2] = ["manager", "testing"];

/// Folders whose files are compiled by a test, or by a workspace of their own.
const FIXTURES: [&str; 4] = [
    "benches/peers/",
    "tests/browser/",
    "tests/shapes/",
    "tests/compile-errors/ui/",
];

/// A module of unit tests may use the whole library.
fn is_test(file: &str) -> bool {
    file.ends_with("/tests.rs")
}

#[test]
fn imports_run_down() {
    let level = |module: &str| LEVELS.iter().position(|level| level.contains(&module));
    let mut faults = Vec::new();
    for (file, words) in sources("lock-core/src/") {
        if is_test(&file) {
            continue;
        }
        let Some(own) = module(&file) else { continue };
        let Some(height) = level(own) else {
            faults.push(format!("{file}: `{own}` has no level in this test"));
            continue;
        };
        for other in imports(&words) {
            if level(&other).is_none_or(|other| other > height) {
                faults.push(format!("{file}: `crate::{other}` is not below `{own}`"));
            }
        }
        // Imports from other modules begin with `crate`, so that the loop above sees them.
        let depth = file.matches('/').count() - 1;
        let leaves = vec!["super"; depth].join(" : : ") + " : : ";
        if words.join(" ").contains(&leaves) {
            faults.push(format!("{file}: `super` leaves `{own}`; write `crate`"));
        }
    }
    report(&faults);
}

/// A file stands above those that it uses, so that each can be read after those below it. The files of a folder may use
/// the file that the folder belongs to.
#[test]
fn no_files_below_redis_form_a_circle() {
    let sources = sources("lock-core/src/redis");
    let known: Vec<_> = sources.iter().map(|(file, _)| file.clone()).collect();
    let mut below: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (file, words) in sources.iter().filter(|(file, _)| !is_test(file)) {
        let is_parent = |other: &String| {
            let folder = other.strip_suffix(".rs").map(|folder| format!("{folder}/"));
            folder.is_some_and(|folder| file.starts_with(&folder))
        };
        let mut others = used_files(file, words, &known);
        others.retain(|other| !is_parent(other));
        below.insert(file.clone(), others);
    }
    assert!(below.values().flatten().count() > 100, "{below:#?}");
    // What uses nothing that is left, or is used by nobody, can be taken away; a circle stays.
    loop {
        let left: Vec<_> = below.keys().cloned().collect();
        let wanted: Vec<_> = below.values().flatten().cloned().collect();
        below.retain(|file, others| {
            others.iter().any(|other| left.contains(other)) && wanted.contains(file)
        });
        if below.len() == left.len() {
            break;
        }
    }
    let fault = |(file, others): (&String, &Vec<String>)| format!("{file} uses {others:?}");
    report(&below.iter().map(fault).collect::<Vec<_>>());
}

#[test]
fn cluster_and_quorum_do_not_know_each_other() {
    let sources = sources("lock-core/src/redis");
    let known: Vec<_> = sources.iter().map(|(file, _)| file.clone()).collect();
    let is_of = |file: &str, route: &str| file.starts_with(&format!("lock-core/src/redis/{route}"));
    let mut faults = Vec::new();
    for (own, other) in [("cluster", "quorum"), ("quorum", "cluster")] {
        let files = sources.iter().filter(|(file, _)| is_of(file, own));
        let mut count = 0;
        for (file, words) in files {
            count += 1;
            let used = used_files(file, words, &known);
            let used = used.into_iter().filter(|used| is_of(used, other));
            faults.extend(used.map(|used| format!("{file} uses {used}")));
        }
        assert!(count > 5, "{count} files of the {own}");
    }
    report(&faults);
}

#[test]
fn only_those_who_make_a_store_know_which_it_is() {
    let mut faults = Vec::new();
    for (file, words) in sources("lock-core/src/") {
        let Some(own) = module(&file).filter(|_| !is_test(&file)) else {
            continue;
        };
        let knows = |other: &&str| other == &own || (own == "faulty" && other == &"memory");
        let others = STORES.iter().filter(|other| !knows(other));
        let imports = imports(&words);
        let imported = others.filter(|other| imports.iter().any(|import| import == **other));
        if !MAKE_STORES.contains(&own) {
            faults.extend(imported.map(|other| format!("{file} imports `crate::{other}`")));
        }
    }
    report(&faults);
}

#[test]
fn only_stores_distinguish_dialects() {
    let mut faults = Vec::new();
    for (file, words) in sources("lock-core/src/") {
        if is_test(&file) {
            continue;
        }
        let level = |above: &&[&str]| module(&file).is_some_and(|own| above.contains(&own));
        let is_variant = |w: &[String]| {
            w[..3] == ["Dialect", ":", ":"] && w[3].starts_with(char::is_uppercase) && w[3] != "ALL"
        };
        if LEVELS[5..].iter().any(level) && words.windows(4).any(is_variant) {
            faults.push(format!("{file} names a dialect; use its `Capabilities`"));
        }
    }
    report(&faults);
}

#[test]
fn the_protocol_is_pure() {
    let mut faults = Vec::new();
    for (file, words) in sources("lock-protocol/src/") {
        let is_clock = file.ends_with("/clock.rs");
        for at in 0..words.len() {
            let is_impure = match words[at].as_str() {
                "async" | "await" | "LockError" | "redis" | "tracing" => true,
                "tokio" => !is_clock,
                "fs" | "io" | "net" | "process" | "thread" => at > 2 && words[at - 3] == "std",
                _ => false,
            };
            if is_impure {
                faults.push(format!("{file} uses `{}`", words[at]));
            }
        }
    }
    report(&faults);
}

/// A file without a `mod` line, a target or an `include_str!` is never compiled.
#[test]
fn every_file_is_registered() {
    let mut all = files();
    all.retain(|file| !FIXTURES.iter().any(|folder| file.starts_with(folder)));
    let targets: Vec<_> = targets().into_iter().map(|(_, _, path)| path).collect();
    let code: BTreeMap<String, String> = rust_files(&[""])
        .into_iter()
        .map(|file| (file.clone(), read(&file)))
        .collect();
    all.retain(|file| {
        let path = Path::new(file);
        let name = |part: Option<&std::ffi::OsStr>| part.unwrap().to_str().unwrap().to_owned();
        let folder = path.parent().unwrap();
        // A folder that several programs include has its module in `mod.rs`.
        let (path, folder) = if file.ends_with("/mod.rs") {
            (folder, folder.parent().unwrap())
        } else {
            (path, folder)
        };
        let declaration = format!("mod {};", name(path.file_stem()));
        let declares = |parent: &Path| {
            let parent = code.get(parent.to_str().unwrap());
            parent.is_some_and(|code| code.contains(&declaration))
        };
        let included = format!("/{}\"", name(path.file_name()));
        match extension(file) {
            "rs" if targets.contains(file) => false,
            "rs" => {
                let mut roots = targets.iter().map(Path::new);
                !declares(&folder.with_extension("rs"))
                    && !declares(&folder.join("mod.rs"))
                    && !roots.any(|root| root.parent() == Some(folder) && declares(root))
            }
            "c" | "h" | "lua" => !code.values().any(|code| code.contains(&included)),
            _ => false,
        }
    });
    report(&all);
}

/// `scripts/test` selects a program by the name of its executable, in which cargo writes `_` for `-`.
#[test]
fn test_programs_are_named_like_their_executables() {
    let mut names = targets();
    names.retain(|(kind, name, _)| kind == "test" && name.contains('-'));
    report(
        &names
            .into_iter()
            .map(|(_, name, _)| name)
            .collect::<Vec<_>>(),
    );
}

#[test]
fn every_example_is_run_by_a_test() {
    let tests: String = rust_files(&["tests/processes/", "tests/postgres/", "tests/lockctl/"])
        .iter()
        .map(|file| read(file))
        .collect();
    let mut examples = targets();
    examples.retain(|(kind, name, _)| {
        kind == "example"
            && !(tests.contains(&format!("\"{name}\""))
                || tests.contains(&format!("\"{name}-under-test\"")))
    });
    report(
        &examples
            .into_iter()
            .map(|(_, name, _)| name)
            .collect::<Vec<_>>(),
    );
}

/// Each crate runs the unit tests of its copy, so both accept the same texts.
#[test]
fn the_attribute_and_the_configuration_have_the_same_parsers() {
    for (of_the_library, of_the_attribute) in [
        (
            "lock-protocol/src/duration_text.rs",
            "lock-macros/src/parse/duration_text.rs",
        ),
        ("lock-protocol/src/nearest.rs", "lock-macros/src/nearest.rs"),
    ] {
        // The library's copy is public, because its crate is below `lock-core`, and rustfmt then breaks lines elsewhere.
        let copies = [of_the_library, of_the_attribute]
            .map(|file| read(file).replace("pub(crate) ", "pub "))
            .map(|text| text.split([' ', '\n', ',']).collect::<String>());
        assert!(copies[0].contains("pubfn"), "{of_the_library} is missing");
        let are_equal = copies[0] == copies[1];
        assert!(are_equal, "{of_the_library} and {of_the_attribute} differ");
    }
}

/// They are dependencies of lock-core, and a circle cannot be published.
#[test]
fn nothing_below_the_library_depends_on_it() {
    let mut packages = packages();
    packages.retain(|package| {
        matches!(
            package["name"].as_str(),
            Some("lock-macros" | "lock-protocol" | "test-support")
        )
    });
    assert_eq!(packages.len(), 3);
    assert!(
        !packages
            .iter()
            .any(|package| package["dependencies"].to_string().contains("lock-core"))
    );
}

#[test]
fn nothing_names_the_machine_it_was_written_on() {
    // Put together here, so that this file does not name them.
    let folders = ["work", "root", "home"].map(|folder| format!("/{folder}"));
    let mut faults = Vec::new();
    for file in files() {
        for (number, line) in read(&file).lines().enumerate() {
            let mut named = folders
                .iter()
                .flat_map(|folder| line.match_indices(folder.as_str()));
            let is_named = named.any(|(at, folder)| {
                // A folder of that name elsewhere, or a longer name, is another place.
                let before = line[..at].chars().next_back();
                let after = line[at + folder.len()..].chars().next();
                !before.is_some_and(|c| c.is_alphanumeric() || "._-)}>*/~".contains(c))
                    && !after.is_some_and(|c| c.is_alphanumeric() || "_-.".contains(c))
            });
            if is_named {
                faults.push(format!("{file}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    report(&faults);
}

/// The rules pass on an empty list of words too, so that this must hold.
#[test]
fn imports_are_found_however_they_are_written() {
    let code = r#"//! crate::comment
        use crate::{a::X, b::{self, c::*}};
        fn f() -> crate::d::Y { info!(x = crate::e::x(), "crate::text"); crate::g!() }
        mod inner { use crate::h; } #[cfg(test)] mod tests { use crate::never; }
        #[cfg(test)] use crate::never; #[cfg(all(test, unix))] fn f() { crate::never::f() }"#;
    assert_eq!(imports(&tree::words(code)), ["a", "b", "d", "e", "g", "h"]);
}

#[test]
fn used_files_are_found_however_they_are_named() {
    let code = "use super::{a::X, b::{self, c::*}}; use child::Y as Z; mod child; use std::io; use a::never;
        fn f() -> crate::d::D { super::super::e::f(Vec::new()); self::other::g() }";
    let known = [
        "a",
        "b",
        "b/c",
        "d",
        "e",
        "r/a",
        "r/b",
        "r/b/c",
        "r/own",
        "r/own/child",
        "r/own/other",
    ];
    let known = known.map(|file| format!("lock-core/src/{file}.rs"));
    let used = tree::used_files("lock-core/src/r/own.rs", &tree::words(code), &known);
    let files = [
        "r/a",
        "r/b",
        "r/b/c",
        "r/own/child",
        "d",
        "e",
        "r/own/other",
    ];
    assert_eq!(used, files.map(|file| format!("lock-core/src/{file}.rs")));
}

#[track_caller]
fn report(faults: &[String]) {
    assert!(faults.is_empty(), "\n\n{}\n", faults.join("\n"));
}
