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
    let profile = match folder(2).file_name().and_then(|name| name.to_str()) {
        None | Some("debug") => "test",
        Some(profile) => profile,
    };
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        // As ./scripts/test builds them: other packages, other features, or another profile would build most
        // dependencies a second time.
        .args(["test", "--no-run", "--all-features", "--examples"])
        .args(["--profile", profile, "--target-dir"])
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
