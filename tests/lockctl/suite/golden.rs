//! Compares the help, the manual pages and the completions with `golden/`.
//! After an intended change, `SNAPSHOTS=overwrite cargo test -p lockctl-tests` writes them again.

use std::path::{Path, PathBuf};

use crate::program::Lockctl;

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("golden")
        .join(name)
}

/// Compares `text` with a golden file.
#[track_caller]
pub(crate) fn check(name: &str, text: &str) {
    let path = path(name);
    if std::env::var_os("SNAPSHOTS").is_some() {
        std::fs::write(path, text).expect("the folder is there");
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        text == expected,
        "{} differs; SNAPSHOTS=overwrite writes it again. It is now:\n{text}",
        path.display()
    );
}

fn printed(arguments: &[&str]) -> String {
    let outcome = Lockctl::new(arguments).run();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(outcome.stderr, "");
    outcome.stdout
}

/// The version, which a release changes.
fn version() -> String {
    let line = printed(&["--version"]);
    let version = line.strip_prefix("lockctl ").expect("it names the program");
    version.trim_end().to_owned()
}

const COMMANDS: [&str; 8] = [
    "run",
    "list",
    "show",
    "release",
    "watch",
    "doctor",
    "completions",
    "man",
];

#[test]
fn help_man_completions_golden() {
    let printed = |arguments: &[&str]| printed(arguments).replace(&version(), "VERSION");
    check("help.txt", &printed(&["--help"]));
    check("help-short.txt", &printed(&["-h"]));
    check("man.txt", &printed(&["man"]));
    for command in COMMANDS {
        check(
            &format!("help-{command}.txt"),
            &printed(&[command, "--help"]),
        );
        check(&format!("man-{command}.txt"), &printed(&["man", command]));
    }
    for shell in ["bash", "fish", "zsh"] {
        let script = printed(&["completions", shell]);
        assert!(
            !script.contains("exec)"),
            "the guard process is not for people"
        );
        check(&format!("completions-{shell}.txt"), &script);
    }
}

/// These commands use no server, so they have no flag for one.
#[test]
fn help_leaves_out_what_a_command_ignores() {
    for arguments in [["man", "--help"], ["man", "man"], ["completions", "--help"]] {
        let text = printed(&arguments).replace('\\', "");
        for flag in ["--url", "--prefix", "--timeout", "--address-map"] {
            assert!(!text.contains(flag), "{arguments:?}: {text}");
        }
        assert!(text.contains("--color"), "{arguments:?}: {text}");
    }
    let fish = printed(&["completions", "fish"]);
    let of_man = fish
        .lines()
        .filter(|line| line.contains("using_subcommand man"));
    let of_man: Vec<_> = of_man.collect();
    assert!(of_man.iter().any(|line| line.contains("-l color")));
    assert!(!of_man.iter().any(|line| line.contains("-l url")));
}

/// As `lockctl man | head -1`.
#[test]
fn closed_output_is_no_error() {
    for arguments in ["man", "--help", "completions bash"] {
        let script = format!(
            "{{ {} {arguments}; echo code $? >&2; }} | true",
            crate::program::LOCKCTL
        );
        let output = std::process::Command::new("sh")
            .args(["-c", &script])
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(stderr, "code 0\n", "{arguments}");
    }
}

#[test]
fn colours_are_for_terminals() {
    let help = |arguments: &[&str]| Lockctl::new(arguments);
    assert!(!help(&["--help"]).run().stdout.contains('\x1b'));
    assert!(
        help(&["--color", "always", "--help"])
            .run()
            .stdout
            .contains('\x1b')
    );
    assert!(
        help(&["--help"])
            .env("CLICOLOR_FORCE", "1")
            .run()
            .stdout
            .contains('\x1b')
    );
    let never = help(&["--color=never", "--help"]).env("CLICOLOR_FORCE", "1");
    assert!(!never.run().stdout.contains('\x1b'));
}
