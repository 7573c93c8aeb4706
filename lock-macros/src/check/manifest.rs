//! Checks whether the user's crate renames `lock-core`. The compiler would only report an unknown
//! crate, and advise to add one of that name.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// Returns the error for a crate that certainly has no `::lock_core`.
///
/// Reads the file for each function: an editor expands functions of many crates in one process,
/// and the file may change meanwhile.
pub(crate) fn error() -> Option<String> {
    let folder = env::var_os("CARGO_MANIFEST_DIR")?;
    let folder = Path::new(&folder);
    // The manifest of a script is a part of its own source.
    let path = env::var_os("CARGO_MANIFEST_PATH");
    let path = path.map_or_else(|| folder.join("Cargo.toml"), PathBuf::from);
    error_in(folder, &path)
}

fn error_in(folder: &Path, manifest: &Path) -> Option<String> {
    if manifest.file_name()? != "Cargo.toml" {
        return None;
    }
    let error = error_of(&fs::read_to_string(manifest).ok()?)?;
    (!renames_in_the_source(folder)).then_some(error)
}

/// Returns whether a source file has `extern crate locks as lock_core;`, which makes the path known.
fn renames_in_the_source(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| {
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type().is_ok_and(|found| found.is_dir()) {
            let is_source = name != "target" && !name.to_string_lossy().starts_with('.');
            return is_source && renames_in_the_source(&path);
        }
        path.extension().is_some_and(|extension| extension == "rs")
            && fs::read_to_string(&path).is_ok_and(|text| renames(&text))
    })
}

fn renames(source: &str) -> bool {
    source.split("extern crate").skip(1).any(|after| {
        let declaration = after.split(';').next().unwrap_or_default();
        declaration
            .split_whitespace()
            .skip(1)
            .eq(["as", "lock_core"])
    })
}

fn error_of(manifest: &str) -> Option<String> {
    if !manifest.contains("lock-core") && !manifest.contains("lock_core") {
        return Some(
            "Cargo.toml has no dependency `lock-core`; if it is renamed or re-exported, write its \
             path, such as `crate = ::locks`"
                .into(),
        );
    }
    let mut table = "";
    let mut renamed = None;
    for line in manifest.lines() {
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[') {
            table = header.trim_end_matches(']');
            if let Some((_, key)) = table.split_once("dependencies.")
                && is_lock_core(key)
            {
                return None;
            }
            continue;
        }
        let Some((key, value)) = line.split_once('=') else {
            continue;
        };
        // `locks.workspace = true`
        let key = key.trim();
        let (name, rest) = key.split_once('.').unwrap_or((key, ""));
        if table == "package" && name == "name" && is_lock_core(value) {
            return None;
        }
        let is_package = |value: &str| {
            let value = value.replace([' ', '\''], "").replace('"', "");
            value.starts_with("lock-core") && !value[9..].starts_with(is_part_of_a_name)
        };
        if table.ends_with("dependencies") {
            if is_lock_core(name) {
                return None;
            }
            let package = value.split_once("package").map(|(_, after)| after);
            let inline = package.and_then(|after| after.trim_start().strip_prefix('='));
            if inline.is_some_and(is_package) || (rest == "package" && is_package(value)) {
                renamed = Some(name);
            }
        } else if let Some((_, dependency)) = table.split_once("dependencies.")
            && key == "package"
            && is_package(value)
        {
            renamed = Some(dependency);
        }
    }
    renamed.map(|name| {
        let name = unquoted(name);
        let path = name.replace('-', "_");
        format!("`lock-core` is called `{name}` in Cargo.toml; add `crate = ::{path}`")
    })
}

fn is_part_of_a_name(letter: char) -> bool {
    letter.is_alphanumeric() || matches!(letter, '-' | '_')
}

fn unquoted(text: &str) -> &str {
    text.trim().trim_matches(['"', '\''])
}

fn is_lock_core(name: &str) -> bool {
    matches!(unquoted(name), "lock-core" | "lock_core")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependency_under_its_own_name_is_found() {
        for manifest in [
            "[dependencies]\nlock-core = \"0.1\"",
            "[dependencies]\nlock_core = { path = \"..\" }",
            "[dependencies]\nlock-core.workspace = true",
            "[dependencies]\n\"lock-core\" = \"0.1\"",
            "[dependencies.lock-core]\nversion = \"0.1\"",
            "[target.'cfg(unix)'.dependencies]\nlock-core = \"0.1\"",
            "[target.'cfg(unix)'.dependencies.lock-core]\nversion = \"0.1\"",
            "[dev-dependencies]\nlock-core = \"0.1\"",
            "[package]\nname = \"lock-core\"",
            // Under both names.
            "[dependencies]\nlocks = { package = \"lock-core\", version = \"0.1\" }\n\
             [dev-dependencies]\nlock-core = \"0.1\"",
            // The dependency cannot be found by its text, so there is no error.
            "# lock-core comes by way of another crate",
        ] {
            assert_eq!(error_of(manifest), None, "{manifest}");
        }
    }

    #[test]
    fn renamed_dependency_needs_the_crate_option() {
        for manifest in [
            "[dependencies]\nlocks = { package = \"lock-core\", version = \"0.1\" }",
            "[dependencies]\nlocks = { version = \"0.1\", package='lock-core' }",
            "[dependencies]\nlocks.package = \"lock-core\"\nlocks.version = \"0.1\"",
            "[dependencies.locks]\nversion = \"0.1\"\npackage = \"lock-core\"",
            "[target.'cfg(unix)'.dev-dependencies]\nlocks = { package = \"lock-core\" }",
        ] {
            assert_eq!(
                error_of(manifest).as_deref(),
                Some("`lock-core` is called `locks` in Cargo.toml; add `crate = ::locks`"),
                "{manifest}"
            );
        }
        let hyphenated = error_of("[dependencies]\nmy-locks = { package = \"lock-core\" }");
        let hyphenated = hyphenated.unwrap_or_default();
        assert!(
            hyphenated.ends_with("add `crate = ::my_locks`"),
            "{hyphenated}"
        );
        let other = "[dependencies]\nlocks = { package = \"lock-core-extras\" }";
        assert_eq!(error_of(other), None);
    }

    #[test]
    fn script_and_renamed_extern_crate_have_no_error() {
        let folder = env::temp_dir().join(format!("lock-macros-manifest-{}", std::process::id()));
        fs::create_dir_all(folder.join("src")).expect("created");
        let manifest = folder.join("Cargo.toml");
        fs::write(
            &manifest,
            "[dependencies]\nlocks = { package = \"lock-core\" }",
        )
        .expect("written");
        let source = |text: &str| fs::write(folder.join("src/main.rs"), text).expect("written");
        source("extern crate locks as other;");
        assert!(error_in(&folder, &manifest).is_some());
        assert_eq!(error_in(&folder, &folder.join("job.rs")), None);
        source("#[macro_use]\npub extern crate locks\n    as lock_core;\nfn main() {}");
        assert_eq!(error_in(&folder, &manifest), None);
        fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn missing_dependency_needs_the_crate_option() {
        let error = error_of("[dependencies]\nlocks.workspace = true").unwrap_or_default();
        assert!(error.contains("no dependency `lock-core`"), "{error}");
    }
}
