//! The exit codes.

use std::process::ExitCode;

/// The outcome of the program, as its caller sees it. The sysexits codes 64 to 78 mean what they mean
/// in other programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The command did what it should do. Or CMD was left out by `--on-contended skip`.
    Success,
    /// The answer is no: nothing is held, the holder changed, a list lacks a node, or a check failed.
    No,
    /// The arguments are wrong.
    Usage,
    /// The server cannot be reached, or cannot grant locks now.
    Unavailable,
    /// A fault of this program or of its machine.
    Internal,
    /// Another holder has the lock.
    Contended,
    /// The user or its rights are not sufficient.
    Denied,
    /// The URL or the configuration is wrong, or the key is not a lock.
    Config,
    /// The lock was lost, and CMD was ended.
    Lost,
    /// CMD exists and cannot be run.
    CannotRun,
    /// CMD does not exist.
    NotFound,
    /// This signal ended CMD, or the wait.
    Signal(u8),
    /// The code of CMD, or of `--conflict-exit-code`.
    Chosen(u8),
}

/// The table for people: `man lockctl` and the long help show it.
pub(crate) const TABLE: [(&str, &str); 13] = [
    ("0", "success; or skipped by `--on-contended skip`"),
    (
        "1",
        "`release`: nothing is held, or the holder changed; `show`: free; `list`: a node of the cluster cannot be read; \
         `doctor`: a check failed",
    ),
    ("64", "wrong arguments"),
    (
        "69",
        "the server cannot be reached, or cannot grant locks now",
    ),
    ("70", "internal error"),
    (
        "75",
        "another holder has the lock, or had it for the whole `--wait`, or `--max-queue` callers wait already, or the work \
         of `--once-per` is done, or the ticket of `--resume` has ended; see `--conflict-exit-code`",
    ),
    ("77", "wrong user or password, or missing rights"),
    (
        "78",
        "wrong URL or configuration, or the key to lock or to release is not a lock",
    ),
    ("79", "the lock was lost, and the command was ended"),
    ("126", "the command cannot be run"),
    ("127", "the command was not found"),
    (
        "128+n",
        "signal n ended the command, or the wait: 130 is INT, 143 is TERM",
    ),
    ("other", "the code of the command"),
];

impl Exit {
    /// Returns the number of the code.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::No => 1,
            Self::Usage => 64,
            Self::Unavailable => 69,
            Self::Internal => 70,
            Self::Contended => 75,
            Self::Denied => 77,
            Self::Config => 78,
            Self::Lost => 79,
            Self::CannotRun => 126,
            Self::NotFound => 127,
            Self::Signal(number) => number.saturating_add(128),
            Self::Chosen(code) => code,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readme_has_the_table() {
        let readme = include_str!("../README.md");
        for (code, meaning) in TABLE {
            let row = format!("| {code} | {meaning} |");
            assert!(readme.contains(&row), "{row}");
        }
    }

    #[test]
    fn each_code_is_in_the_table() {
        for exit in [
            Exit::Success,
            Exit::No,
            Exit::Usage,
            Exit::Unavailable,
            Exit::Internal,
            Exit::Contended,
            Exit::Denied,
            Exit::Config,
            Exit::Lost,
            Exit::CannotRun,
            Exit::NotFound,
        ] {
            let code = exit.code().to_string();
            assert!(TABLE.iter().any(|(known, _)| *known == code), "{code}");
        }
        assert_eq!(Exit::Signal(15).code(), 143);
    }
}
