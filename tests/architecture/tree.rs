//! The files of the project, and the words of its Rust code.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use proc_macro2::{TokenStream, TokenTree};
use serde_json::Value;

/// The files that git has or would add, relative to the root of the workspace.
pub(crate) fn files() -> Vec<String> {
    let list = [
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ];
    let files = run("git", &list);
    let exists = |file: &&str| root().join(file).is_file();
    let files = files.split_terminator('\0').filter(exists);
    files.map(ToOwned::to_owned).collect()
}

/// The Rust files below one of these prefixes.
pub(crate) fn rust_files(prefixes: &[&str]) -> Vec<String> {
    let mut files = files();
    files.retain(|file| extension(file) == "rs" && prefixes.iter().any(|p| file.starts_with(p)));
    assert!(!files.is_empty(), "{prefixes:?} have no files");
    files
}

/// The words of the Rust files below `prefix`, without the files that only tests compile.
pub(crate) fn sources(prefix: &str) -> Vec<(String, Vec<String>)> {
    let mut files = rust_files(&[prefix]);
    files.retain(|file| module(file) != Some("tests"));
    let words = |file: String| (file.clone(), words(&read(&file)));
    files.into_iter().map(words).collect()
}

/// The top module of lock-core or lock-protocol that a file belongs to. None for lib.rs.
pub(crate) fn module(file: &str) -> Option<&str> {
    let path = ["lock-core/src/", "lock-protocol/src/"]
        .iter()
        .find_map(|folder| file.strip_prefix(folder))?;
    path.split(['/', '.']).next().filter(|name| *name != "lib")
}

/// The text of a file; empty when it is binary.
pub(crate) fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_default()
}

pub(crate) fn extension(file: &str) -> &str {
    let extension = Path::new(file).extension();
    extension.and_then(|text| text.to_str()).unwrap_or_default()
}

/// The packages of the workspace, as cargo describes them.
pub(crate) fn packages() -> Vec<Value> {
    let text = run(
        "cargo",
        &["metadata", "--no-deps", "--offline", "--format-version=1"],
    );
    let mut metadata: Value = serde_json::from_str(&text).expect("cargo prints JSON");
    let packages = metadata["packages"].as_array_mut();
    std::mem::take(packages.expect("cargo lists packages"))
}

/// The kind, the name and the root file of each target of the workspace.
pub(crate) fn targets() -> Vec<(String, String, String)> {
    let root = format!("{}/", root().display());
    let text = |value: &Value| value.as_str().expect("cargo gives a text").to_owned();
    let mut targets = Vec::new();
    for package in packages() {
        for target in package["targets"].as_array().expect("cargo lists targets") {
            let path = text(&target["src_path"]).replace(&root, "");
            targets.push((text(&target["kind"][0]), text(&target["name"]), path));
        }
    }
    targets
}

pub(crate) fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    root.canonicalize().expect("the workspace is there")
}

fn run(program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    let output = command.args(arguments).current_dir(root()).output();
    let output = output.unwrap_or_else(|e| panic!("cannot run {program}: {e}"));
    assert!(output.status.success(), "{program} failed: {output:?}");
    String::from_utf8(output.stdout).expect("the output is UTF-8")
}

/// The words of Rust code, without comments, literals, and items that only tests compile.
pub(crate) fn words(code: &str) -> Vec<String> {
    let mut words = Vec::new();
    add_words(code.parse().expect("the file is Rust"), &mut words);
    words
}

fn add_words(tokens: TokenStream, words: &mut Vec<String>) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(hash) if hash.as_char() == '#' && is_cfg_test(tokens.peek()) => {
                let is_end = |token: &TokenTree| token.to_string().starts_with([';', '{']);
                let _item = tokens.by_ref().find(is_end);
            }
            TokenTree::Group(group) => {
                let text = group.to_string();
                words.extend(text.get(..1).map(ToOwned::to_owned));
                add_words(group.stream(), words);
                words.extend(text.get(text.len() - 1..).map(ToOwned::to_owned));
            }
            TokenTree::Literal(_) => {}
            other => words.push(other.to_string()),
        }
    }
}

fn is_cfg_test(attribute: Option<&TokenTree>) -> bool {
    let text = attribute.map(ToString::to_string).unwrap_or_default();
    let text = text.replace(' ', "");
    text.starts_with("[cfg(test)") || text.starts_with("[cfg(all(test,")
}

/// The first names behind `crate::`.
pub(crate) fn imports(words: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for at in 3..words.len() {
        if words[at - 3..at] != ["crate", ":", ":"] {
            continue;
        }
        let mut depth = 0;
        let mut last = "{";
        for word in &words[at..] {
            match word.as_str() {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ if depth <= 1 && ["{", ","].contains(&last) => found.push(word.clone()),
                _ => {}
            }
            if depth == 0 {
                break;
            }
            last = word;
        }
    }
    found
}

/// The known files that the modules of a file of lock-core name in their paths: from `crate`, `super`, or a child.
pub(crate) fn used_files(file: &str, words: &[String], known: &[String]) -> Vec<String> {
    const ROOT: &str = "lock-core/src/";
    let own = file.strip_prefix(ROOT).unwrap_or(file);
    let own: Vec<&str> = own.trim_end_matches(".rs").split('/').collect();
    let mut used = Vec::new();
    for path in paths(words) {
        let mut base = own.clone();
        let mut steps = path.iter().map(String::as_str).peekable();
        match steps.peek() {
            Some(&"crate") => {
                base.clear();
                steps.next();
            }
            Some(&"self") => {
                steps.next();
            }
            _ => {
                while steps.next_if_eq(&"super").is_some() {
                    base.pop();
                }
            }
        }
        base.extend(steps);
        let target = (1..=base.len()).rev().find_map(|len| {
            let name = format!("{ROOT}{}.rs", base[..len].join("/"));
            known.contains(&name).then_some(name)
        });
        used.extend(target.filter(|target| target != file && !used.contains(target)));
    }
    used
}

/// The paths of at least two names, with their groups taken apart.
fn paths(words: &[String]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < words.len() {
        let before = at;
        if is_name(&words[at]) {
            add_paths(words, &mut at, &[], &mut found);
        }
        at = at.max(before + 1);
    }
    found.retain(|path| path.len() > 1);
    found
}

fn add_paths(words: &[String], at: &mut usize, prefix: &[String], found: &mut Vec<Vec<String>>) {
    let mut path = prefix.to_vec();
    while let Some(name) = words.get(*at).filter(|word| is_name(word)) {
        path.push(name.clone());
        *at += 1;
        let separator = words.get(*at..*at + 2);
        if separator.is_none_or(|separator| separator != [":", ":"]) {
            break;
        }
        *at += 2;
    }
    if words.get(*at).is_some_and(|word| word == "{") && words[*at - 1] == ":" {
        while words
            .get(*at)
            .is_some_and(|word| word == "{" || word == ",")
        {
            *at += 1;
            add_paths(words, at, &path, found);
            // A new name.
            while words
                .get(*at)
                .is_some_and(|word| word == "as" || is_name(word))
            {
                *at += 1;
            }
        }
        *at += 1;
    } else {
        found.push(path);
    }
}

fn is_name(word: &str) -> bool {
    word.starts_with(|letter: char| letter.is_alphabetic() || letter == '_') && word != "as"
}
