//! The example `assets` of lock-cli.

use test_support::fixtures::SOON;
use test_support::{Scratch, helper};

#[test]
fn manual_pages_and_completions_are_written() {
    let scratch = Scratch::new();
    let folder = scratch.path().join("assets");
    let program = helper!("assets-under-test").arg(&folder).spawn();
    assert!(program.wait(SOON).success());
    assert_eq!(program.lines(), [folder.display().to_string()]);
    let begins = |name: &str, start: &str| {
        let text = std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        assert!(text.contains(start), "{name}: {text}");
    };
    begins("lockctl.1", ".TH lockctl 1");
    begins("lockctl-run.1", ".TH lockctl-run 1");
    begins("lockctl.bash", "_lockctl()");
    begins("_lockctl", "#compdef lockctl");
    begins("lockctl.fish", "complete -c lockctl");
}
