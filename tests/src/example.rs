//! The programs in `examples`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;
use test_support::Helper;

/// Returns the program of an example.
///
/// Cargo gives a test the paths of its own package's programs, and not those of other packages, so
/// this asks cargo. It builds nothing when the test run has built all examples.
#[track_caller]
pub fn example(name: &str) -> Helper {
    static PROGRAMS: OnceLock<BTreeMap<String, PathBuf>> = OnceLock::new();
    let programs = PROGRAMS.get_or_init(build);
    let program = programs
        .get(name)
        .unwrap_or_else(|| panic!("no example named `{name}`"));
    Helper::new(program)
}

fn build() -> BTreeMap<String, PathBuf> {
    // <target>/<profile>/deps/<this test>
    let this = std::env::current_exe().expect("the system knows the path of the program");
    let folder = |levels: usize| {
        this.ancestors()
            .nth(levels)
            .expect("cargo built this program")
    };
    let is_optimized = folder(2).ends_with("release");
    // Other packages, other features, or another profile would build most dependencies a second time. ./scripts/test
    // says what it builds.
    let selected = std::env::var("LOCK_TEST_SELECTED");
    let selected = selected.as_deref().unwrap_or("-p examples --all-features");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Cargo describes the package of a test in the environment. A dependency's build script that reads these variables
    // runs again when they differ, and all that depends on it is built again: now, and at the next run.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(name);
        }
    }
    let output = cargo
        .args(["build", "--examples"])
        .args(selected.split(' '))
        .args(is_optimized.then_some("--release"))
        .arg("--target-dir")
        .arg(folder(3))
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo can be started");
    assert!(output.status.success(), "the examples do not compile");
    let messages = String::from_utf8(output.stdout).expect("JSON is UTF-8");
    messages
        .lines()
        .filter_map(|line| {
            let message: Value = serde_json::from_str(line).expect("cargo writes JSON");
            let name = message["target"]["name"].as_str()?.to_owned();
            let program = message["executable"].as_str()?.into();
            (message["target"]["kind"][0] == "example").then_some((name, program))
        })
        .collect()
}
