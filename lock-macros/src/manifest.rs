//! Whether the user's crate calls `lock-core` by another name. The compiler would report an
//! unknown crate, and advise to add one of that name.

use std::path::Path;
use std::{env, fs};

/// What to say where `::lock_core` will not be found; nothing when that is not certain.
///
/// Read for each function: an editor's process expands those of many crates, and the file may
/// change meanwhile.
pub(crate) fn error() -> Option<String> {
    let folder = env::var_os("CARGO_MANIFEST_DIR")?;
    let manifest = fs::read_to_string(Path::new(&folder).join("Cargo.toml")).ok()?;
    error_of(&manifest)
}

fn error_of(manifest: &str) -> Option<String> {
    if !manifest.contains("lock-core") && !manifest.contains("lock_core") {
        return Some(
            "Cargo.toml has no dependency `lock-core`; if it is renamed or re-exported, say where \
             it is, such as `crate = ::locks`"
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
            value.starts_with("lock-core") && !value[9..].starts_with(is_of_a_name)
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

fn is_of_a_name(letter: char) -> bool {
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
    fn a_dependency_of_its_own_name_is_found() {
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
            // Both names.
            "[dependencies]\nlocks = { package = \"lock-core\", version = \"0.1\" }\n\
             [dev-dependencies]\nlock-core = \"0.1\"",
            // Not understood, and so not judged.
            "# lock-core comes by way of another crate",
        ] {
            assert_eq!(error_of(manifest), None, "{manifest}");
        }
    }

    #[test]
    fn a_renamed_dependency_leads_to_the_option() {
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
        let dashed = error_of("[dependencies]\nmy-locks = { package = \"lock-core\" }");
        let dashed = dashed.unwrap_or_default();
        assert!(dashed.ends_with("add `crate = ::my_locks`"), "{dashed}");
        let other = "[dependencies]\nlocks = { package = \"lock-core-extras\" }";
        assert_eq!(error_of(other), None);
    }

    #[test]
    fn a_crate_without_the_dependency_is_asked_for_the_path() {
        let error = error_of("[dependencies]\nlocks.workspace = true").unwrap_or_default();
        assert!(error.contains("no dependency `lock-core`"), "{error}");
    }
}
