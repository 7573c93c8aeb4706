//! What must not be in the tree, or must not look where it looks. No compiler checks these, and
//! each has been broken somewhere by accident.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use serde_json::Value;

/// The files of lock-core/src from the bottom up: each imports only from lines above its own. `lib`
/// is on top of them all and not listed. A folder's own file stands without the slash, so that
/// `backend` is backend.rs (or backend/mod.rs).
const LEVELS: &[&str] = &[
    "clock nesting nonce retry sync token ttl",
    "counts dialect wire",
    "key",
    "error",
    "foreign options table url",
    "lease",
    "wait",
    "backend inbox",
    "backend/memory backend/redis/fault backend/redis/reply backend/redis/scripts hold table/tests",
    "backend/redis/connection backend/redis/differential",
    "keeper/common",
    "keeper/cleanup",
    "keeper",
    "backend/redis/connections shared",
    "backend/redis/server",
    "backend/redis/dialects/found backend/redis/push backend/redis/standalone",
    "backend/redis/dialects/take",
    "backend/redis/dialects/deadline backend/redis/dialects/owner backend/redis/dialects/watched",
    "backend/redis/dialects",
    "backend/redis",
    "guard",
    "acquire",
    "request",
    "manager",
    "macro_support/name macro_support/options",
    "macro_support/acquire",
    "macro_support/polling",
    "macro_support",
    "model/network model/rules",
    "model/state",
    "model/turn",
    "model/client model/server",
    "model/step",
    "model",
];

/// What stays true however the lines above are rearranged.
const ABOVE: &[(&str, &str)] = &[("keeper", "guard"), ("guard", "manager")];

/// Files below the first never see the second.
const NEVER_SEES: &[(&str, &str)] = &[("backend", "guard"), ("backend", "manager")];

/// Folders of files that are no modules of this workspace: a test hands each to the compiler by
/// itself, or they are a workspace of their own.
const FIXTURES: &[&str] = &["tests/shapes", "tests/ui"];

#[test]
fn imports_run_strictly_downward() {
    let source = root().join("lock-core/src");
    let files = modules(&source);
    let mut faults = Faults::default();
    let levels: BTreeMap<&str, usize> = LEVELS
        .iter()
        .enumerate()
        .flat_map(|(level, names)| names.split_whitespace().map(move |name| (name, level)))
        .collect();

    for name in levels.keys() {
        if !files.contains_key(*name) {
            faults.add(format!(
                "`{name}` is in LEVELS of tests/tidy.rs and is no file any more"
            ));
        }
    }
    for (below, above) in ABOVE {
        if let (Some(below_at), Some(above_at)) = (levels.get(below), levels.get(above))
            && below_at >= above_at
        {
            faults.add(format!("LEVELS must have `{below}` below `{above}`"));
        }
    }

    let names: BTreeSet<&str> = files.keys().map(String::as_str).collect();
    let root_names = re_exports(&source, &names);
    for (name, file) in &files {
        let Some(level) = levels.get(name.as_str()) else {
            faults.add(format!(
                "lock-core/src/{name}: a new file; say in LEVELS of tests/tidy.rs what it may \
                 import, by giving it a line above those that import it"
            ));
            continue;
        };
        let module: Vec<String> = name.split('/').map(str::to_owned).collect();
        for import in imports(&tokens(file), &module, &names) {
            let at = format!("{}:{}", shown(file), import.line);
            let Some(target) = resolve(&import.path, &names, &root_names) else {
                if !import.is_macro {
                    faults.add(format!(
                        "{at}: `crate::{}` is no module and nothing that lib.rs re-exports by \
                         name, so its level cannot be told; import it from its module",
                        import.path.join("::")
                    ));
                }
                continue;
            };
            if target == name.as_str() {
                continue;
            }
            let hidden = NEVER_SEES
                .iter()
                .find(|(below, never)| is_within(name, below) && is_within(target, never));
            if let Some((below, never)) = hidden {
                faults.add(format!("{at}: `{below}` never sees `{never}`"));
            } else if levels
                .get(target)
                .is_some_and(|target_level| target_level >= level)
            {
                faults.add(format!(
                    "{at}: `{name}` imports `{target}`, which is not below it"
                ));
            }
        }
    }
    faults.report();
}

#[test]
fn every_file_is_compiled() {
    let metadata = metadata();
    let mut reached = BTreeSet::new();
    let mut included = BTreeSet::new();
    for target in packages(&metadata).flat_map(targets) {
        follow(
            Path::new(text(&target["src_path"])),
            true,
            &mut reached,
            &mut included,
        );
    }
    let mut faults = Faults::default();
    for file in tracked() {
        let path = root().join(&file);
        if FIXTURES.iter().any(|folder| file.starts_with(folder)) {
            continue;
        }
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("rs") if !reached.contains(&path) => faults.add(format!(
                "{}: no `mod` line and no target of a Cargo.toml leads to it",
                file.display()
            )),
            Some("lua" | "c") if !included.contains(&path) => {
                faults.add(format!("{}: no `include_str!` has it", file.display()));
            }
            _ => {}
        }
    }
    faults.report();
}

#[test]
fn every_example_is_run_by_a_test() {
    let metadata = metadata();
    let examples: Vec<&str> = packages(&metadata)
        .flat_map(targets)
        .filter(|target| target["kind"] == serde_json::json!(["example"]))
        .map(|target| text(&target["name"]))
        .collect();
    let mut run = BTreeSet::new();
    let mut tests = Vec::new();
    walk(&root().join("tests/processes"), &mut tests);
    for test in tests {
        literals(tokens(&test), &mut run);
    }
    let mut faults = Faults::default();
    for example in examples {
        if !run.contains(example) {
            faults.add(format!(
                "example `{example}` is not run: tests/processes has no \"{example}\""
            ));
        }
    }
    faults.report();
}

#[test]
fn the_macros_know_nothing_of_the_library() {
    let metadata = metadata();
    let macros = packages(&metadata)
        .find(|package| package["name"] == "lock-macros")
        .expect("lock-macros is in the workspace");
    for dependency in macros["dependencies"]
        .as_array()
        .expect("cargo lists dependencies")
    {
        assert_ne!(
            dependency["name"], "lock-core",
            "lock-macros must not depend on lock-core, not even for its tests: it is the other \
             way round, and a circle cannot be published"
        );
    }
}

#[test]
fn nothing_names_the_machine_it_was_written_on() {
    // Put together here, so that this file does not name them.
    let folders = ["work", "root", "home"].map(|folder| format!("/{folder}"));
    let mut faults = Faults::default();
    for file in tracked() {
        let Ok(content) = fs::read_to_string(root().join(&file)) else {
            // Binary, or deleted and not yet committed.
            continue;
        };
        for (number, line) in content.lines().enumerate() {
            for folder in &folders {
                let named = line.match_indices(folder.as_str()).any(|(at, _)| {
                    // A folder of that name elsewhere, or a longer name, is another place.
                    let before = line[..at].chars().next_back();
                    let after = line[at + folder.len()..].chars().next();
                    !before.is_some_and(|c| c.is_alphanumeric() || "._-)}>*/~".contains(c))
                        && !after.is_some_and(|c| c.is_alphanumeric() || "_-.".contains(c))
                });
                if named {
                    faults.add(format!(
                        "{}:{}: {}",
                        file.display(),
                        number + 1,
                        line.trim()
                    ));
                }
            }
        }
    }
    faults.report();
}

/// The checks above pass on an empty list of imports too, so that this one must hold.
#[test]
fn imports_are_seen_however_they_are_written() {
    let names = BTreeSet::from(["a", "b", "b/c", "b/c/d"]);
    let content = r#"
        //! crate::a in a comment
        use crate::{a::X, b::{self, c::*}};
        pub(crate) use super::Outer as _;
        macro_rules! m { () => { $crate::a::log!("crate::b") } }
        fn f() -> super::super::a::Y { info!(x = crate::b::x(), "{}", d::new()); self::own() }
        mod inner { use super::d::Z; use std::crate_like::a; }
        #[cfg(test)]
        mod tests { use crate::never; }
        #[cfg(test)]
        use crate::never;
        fn last() { crate::name!() }
    "#;
    let module = ["b".to_owned(), "c".to_owned()];
    let found = imports(&content.parse().expect("it is Rust"), &module, &names);
    let seen: Vec<String> = found
        .iter()
        .map(|import| format!("{} {}", import.line, import.path.join("::")))
        .collect();
    assert_eq!(
        seen,
        [
            "3 a::X",
            "3 b",
            "3 b::c",
            "4 b::Outer",
            "5 a::log",
            "6 a::Y",
            "6 b::x",
            "6 b::c::d::new",
            "6 b::c::own",
            "7 b::c::d::Z",
            "12 name",
        ]
    );
    let resolved: Vec<_> = found
        .iter()
        .map(|import| resolve(&import.path, &names, &BTreeMap::new()))
        .collect();
    assert_eq!(resolved[2], Some("b/c"));
    assert_eq!(resolved[9], Some("b/c/d"));
    assert_eq!(resolved[10], None);
}

/// Collected, because who breaks one rule likes to know of all.
#[derive(Default)]
struct Faults(String);

impl Faults {
    fn add(&mut self, fault: impl AsRef<str>) {
        let _ = writeln!(self.0, "{}", fault.as_ref());
    }

    #[track_caller]
    fn report(self) {
        assert!(self.0.is_empty(), "\n\n{}", self.0);
    }
}

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    root.canonicalize()
        .expect("the crate is inside the workspace")
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root())
        .unwrap_or(path)
        .display()
        .to_string()
}

fn tokens(path: &Path) -> TokenStream {
    let content = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", shown(path)));
    content
        .parse()
        .unwrap_or_else(|e| panic!("{}: {e}", shown(path)))
}

fn text(value: &Value) -> &str {
    value.as_str().expect("cargo gives a text here")
}

fn metadata() -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--no-deps",
            "--offline",
            "--format-version",
            "1",
        ])
        .current_dir(root())
        .output()
        .expect("cargo runs this test and can be run by it");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON")
}

fn packages(metadata: &Value) -> impl Iterator<Item = &Value> {
    metadata["packages"]
        .as_array()
        .expect("cargo lists packages")
        .iter()
}

fn targets(package: &Value) -> impl Iterator<Item = &Value> {
    package["targets"]
        .as_array()
        .expect("cargo lists targets")
        .iter()
}

/// The files of the project, relative to its root: what git has or would take. Without git, as in
/// an unpacked archive, everything but build output.
fn tracked() -> Vec<PathBuf> {
    let git = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(root())
        .output();
    if let Ok(output) = git
        && output.status.success()
    {
        return String::from_utf8_lossy(&output.stdout)
            .split_terminator('\0')
            .map(PathBuf::from)
            // A file that was deleted and not yet committed is still listed.
            .filter(|file| root().join(file).is_file())
            .collect();
    }
    let mut files = Vec::new();
    walk(&root(), &mut files);
    files
        .iter()
        .map(|file| file.strip_prefix(root()).expect("below the root").into())
        .collect()
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder can be read") {
        let path = entry.expect("the folder can be read").path();
        if path.ends_with("target") || path.ends_with(".git") {
            continue;
        }
        if path.is_dir() {
            walk(&path, files);
        } else {
            files.push(path);
        }
    }
}

/// The modules below a crate's source folder, by name: `backend/redis` for backend/redis.rs and
/// for backend/redis/mod.rs.
fn modules(source: &Path) -> BTreeMap<String, PathBuf> {
    let mut files = Vec::new();
    walk(source, &mut files);
    files
        .into_iter()
        .filter(|file| file.extension().is_some_and(|extension| extension == "rs"))
        .filter(|file| *file != source.join("lib.rs"))
        .map(|file| {
            let name = file.with_extension("");
            let name = name.strip_prefix(source).expect("below the folder");
            let name = if name.ends_with("mod") {
                name.parent().unwrap_or(name)
            } else {
                name
            };
            (
                name.to_str().expect("file names are ASCII").to_owned(),
                file,
            )
        })
        .collect()
}

fn is_within(name: &str, folder: &str) -> bool {
    name.strip_prefix(folder)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A path from the crate's root that a file names.
struct Import {
    line: usize,
    path: Vec<String>,
    is_macro: bool,
}

/// All that a file names in its crate, in `use` lines and elsewhere, but for what is compiled in
/// its own tests only. On tokens and not on syntax, so that arguments of macros count as well, and
/// comments and strings do not.
fn imports(tokens: &TokenStream, module: &[String], names: &BTreeSet<&str>) -> Vec<Import> {
    let mut found = Vec::new();
    let tokens: Vec<TokenTree> = tokens.clone().into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        if let Some(after) = skip_test_item(&tokens, at) {
            at = after;
            continue;
        }
        if let (Some("mod"), Some(name), Some(TokenTree::Group(body))) = (
            ident(&tokens, at).as_deref(),
            ident(&tokens, at + 1),
            tokens.get(at + 2),
        ) {
            let inner: Vec<String> = module.iter().cloned().chain([name]).collect();
            found.extend(imports(&body.stream(), &inner, names));
            at += 3;
            continue;
        }
        if let TokenTree::Group(group) = &tokens[at] {
            found.extend(imports(&group.stream(), module, names));
        }
        let continues = at >= 2 && is_path_separator(&tokens, at - 2);
        if let Some(head) = ident(&tokens, at)
            && !continues
            && is_path_separator(&tokens, at + 1)
        {
            let child = format!("{}/{head}", module.join("/"));
            let base = match head.as_str() {
                "crate" => Some(Vec::new()),
                "self" => Some(module.to_vec()),
                "super" => Some(parent(module)),
                _ if names.contains(child.as_str()) => {
                    Some(module.iter().cloned().chain([head]).collect())
                }
                _ => None,
            };
            if let Some(base) = base {
                let line = tokens[at].span().start().line;
                at = flatten(&tokens, at + 3, base, line, &mut found);
                continue;
            }
        }
        at += 1;
    }
    found
}

/// Follows a path from behind a `::` to its ends, and says where the tokens go on.
fn flatten(
    tokens: &[TokenTree],
    mut at: usize,
    mut path: Vec<String>,
    line: usize,
    found: &mut Vec<Import>,
) -> usize {
    loop {
        if let Some(TokenTree::Group(group)) = tokens.get(at)
            && group.delimiter() == Delimiter::Brace
        {
            let inner: Vec<TokenTree> = group.stream().into_iter().collect();
            let mut next = 0;
            while next < inner.len() {
                next = flatten(&inner, next, path.clone(), line, found);
                while next < inner.len() && !is_punct(&inner, next, ',') {
                    next += 1;
                }
                next += 1;
            }
            return at + 1;
        }
        match ident(tokens, at).as_deref() {
            Some("super") => path = parent(&path),
            Some("self") | None => {}
            Some(name) => path.push(name.to_owned()),
        }
        at += 1;
        if !is_path_separator(tokens, at) {
            let is_macro = is_punct(tokens, at, '!');
            found.push(Import {
                line,
                path,
                is_macro,
            });
            return at;
        }
        at += 2;
    }
}

/// The module that a path leads into. None for a name that the root does not say the origin of.
fn resolve<'a>(
    path: &[String],
    names: &BTreeSet<&'a str>,
    root_names: &BTreeMap<String, &'a str>,
) -> Option<&'a str> {
    (1..=path.len())
        .rev()
        .find_map(|length| names.get(path[..length].join("/").as_str()).copied())
        .or_else(|| root_names.get(path.first()?).copied())
}

/// What lib.rs re-exports by name, and from which module: `crate::LockError` is then as good as
/// `crate::error::LockError`.
fn re_exports<'a>(source: &Path, names: &BTreeSet<&'a str>) -> BTreeMap<String, &'a str> {
    let mut all = BTreeMap::new();
    let tokens: Vec<TokenTree> = tokens(&source.join("lib.rs")).into_iter().collect();
    for at in 0..tokens.len() {
        if ident(&tokens, at).as_deref() != Some("use") {
            continue;
        }
        let mut found = Vec::new();
        flatten(&tokens, at + 1, Vec::new(), 0, &mut found);
        for import in found {
            let path: Vec<String> = import.path.into_iter().filter(|s| s != "crate").collect();
            if let (Some(module), Some(name)) =
                (resolve(&path, names, &BTreeMap::new()), path.last())
            {
                all.insert(name.clone(), module);
            }
        }
    }
    all
}

fn parent(module: &[String]) -> Vec<String> {
    module
        .split_last()
        .map(|(_, rest)| rest.to_vec())
        .unwrap_or_default()
}

/// Where the tokens go on behind an item that only tests compile, if one begins here.
fn skip_test_item(tokens: &[TokenTree], at: usize) -> Option<usize> {
    let attribute = attribute(tokens, at)?;
    let cfg: Vec<TokenTree> = attribute.into_iter().collect();
    let Some(TokenTree::Group(condition)) = cfg.get(1) else {
        return None;
    };
    let condition: Vec<TokenTree> = condition.stream().into_iter().collect();
    let is_test = ident(&cfg, 0)? == "cfg" && ident(&condition, 0)? == "test";
    if !is_test {
        return None;
    }
    let end = tokens[at..].iter().position(|token| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        TokenTree::Punct(punct) => punct.as_char() == ';',
        _ => false,
    });
    Some(end.map_or(tokens.len(), |length| at + length + 1))
}

/// The inside of the attribute that begins here, if one does.
fn attribute(tokens: &[TokenTree], at: usize) -> Option<TokenStream> {
    match tokens.get(at + 1) {
        Some(TokenTree::Group(group))
            if is_punct(tokens, at, '#') && group.delimiter() == Delimiter::Bracket =>
        {
            Some(group.stream())
        }
        _ => None,
    }
}

fn ident(tokens: &[TokenTree], at: usize) -> Option<String> {
    match tokens.get(at) {
        Some(TokenTree::Ident(ident)) => Some(ident.to_string()),
        _ => None,
    }
}

fn is_punct(tokens: &[TokenTree], at: usize, wanted: char) -> bool {
    matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == wanted)
}

fn is_path_separator(tokens: &[TokenTree], at: usize) -> bool {
    is_punct(tokens, at, ':') && is_punct(tokens, at + 1, ':')
}

/// Follows `mod` lines from a target's root, and notes what is included as text on the way.
fn follow(
    file: &Path,
    is_root: bool,
    reached: &mut BTreeSet<PathBuf>,
    included: &mut BTreeSet<PathBuf>,
) {
    let Ok(file) = file.canonicalize() else {
        // Behind a feature of another system, or a fault that the compiler reports better.
        return;
    };
    if !reached.insert(file.clone()) {
        return;
    }
    let folder = file.parent().expect("a file is in a folder").to_owned();
    let children = if is_root || file.ends_with("mod.rs") {
        folder.clone()
    } else {
        file.with_extension("")
    };
    follow_in(tokens(&file), &folder, &children, reached, included);
}

fn follow_in(
    tokens: TokenStream,
    folder: &Path,
    children: &Path,
    reached: &mut BTreeSet<PathBuf>,
    included: &mut BTreeSet<PathBuf>,
) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut moved: Option<PathBuf> = None;
    for (at, token) in tokens.iter().enumerate() {
        if let Some(attribute) = attribute(&tokens, at) {
            let attribute: Vec<TokenTree> = attribute.into_iter().collect();
            if ident(&attribute, 0).as_deref() == Some("path") {
                moved = attribute
                    .get(2)
                    .and_then(literal)
                    .map(|path| folder.join(path));
            }
        }
        match (ident(&tokens, at).as_deref(), tokens.get(at + 2)) {
            (Some("mod"), Some(TokenTree::Punct(_))) => {
                let name = ident(&tokens, at + 1).expect("`mod` is a keyword");
                let candidates = moved.take().map_or_else(
                    || {
                        vec![
                            children.join(format!("{name}.rs")),
                            children.join(name).join("mod.rs"),
                        ]
                    },
                    |path| vec![path],
                );
                for candidate in candidates {
                    follow(&candidate, false, reached, included);
                }
            }
            (Some("mod"), Some(TokenTree::Group(body))) => {
                let name = ident(&tokens, at + 1).expect("`mod` is a keyword");
                let inner = children.join(name);
                follow_in(body.stream(), folder, &inner, reached, included);
            }
            (Some("include_str"), Some(TokenTree::Group(path))) => {
                let path = path.stream().into_iter().next();
                let path = path
                    .as_ref()
                    .and_then(literal)
                    .map(|path| folder.join(path));
                included.extend(path.and_then(|path| path.canonicalize().ok()));
            }
            _ => {}
        }
        if let TokenTree::Group(group) = token {
            let is_module = at >= 2 && ident(&tokens, at - 2).as_deref() == Some("mod");
            if !is_module {
                follow_in(group.stream(), folder, children, reached, included);
            }
        }
    }
}

fn literals(tokens: TokenStream, found: &mut BTreeSet<String>) {
    for token in tokens {
        if let TokenTree::Group(group) = &token {
            literals(group.stream(), found);
        }
        found.extend(literal(&token));
    }
}

/// The text of a plain string literal.
fn literal(token: &TokenTree) -> Option<String> {
    let TokenTree::Literal(literal) = token else {
        return None;
    };
    let literal = literal.to_string();
    Some(literal.strip_prefix('"')?.strip_suffix('"')?.to_owned())
}
