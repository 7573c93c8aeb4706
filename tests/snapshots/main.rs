//! What must not move when the path to the server is rewritten: the bytes of the commands, in every dialect, and the
//! texts of the errors. Both are compared with the files in `recorded/`.
//! After an intended change, `SNAPSHOTS=overwrite cargo test -p tests --test snapshots` writes them again.

use std::path::Path;

mod commands;
mod errors;
mod recorder;

/// Compares `text` with a recorded file.
#[track_caller]
fn check(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("snapshots/recorded")
        .join(name);
    if std::env::var_os("SNAPSHOTS").is_some() {
        std::fs::write(path, text).expect("the folder is there");
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    if text == expected {
        return;
    }
    let (old, new): (Vec<_>, Vec<_>) = (expected.lines().collect(), text.lines().collect());
    let same = old.iter().zip(&new).take_while(|(old, new)| old == new);
    let at = same.count();
    let from = at.saturating_sub(3);
    let part = |lines: &[&str]| lines[from.min(lines.len())..(at + 5).min(lines.len())].join("\n");
    panic!(
        "{} differs from line {} on; SNAPSHOTS=overwrite writes it again. It was:\n{}\nIt is now:\n{}",
        path.display(),
        at + 1,
        part(&old),
        part(&new)
    );
}
