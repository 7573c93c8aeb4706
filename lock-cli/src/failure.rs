//! What went wrong: a line of text, an exit code, and the causes.

use std::error::Error;
use std::io;

use lock_core::LockError;
use lock_core::error::{BackendErrorKind, InvalidKindReason, InvalidOncePerReason, InvalidSetting};

use crate::exit::Exit;
use crate::page::Line;
use crate::wording;

/// A failure of a command.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    /// The kind in `--json`: a word that does not change.
    pub(crate) kind: &'static str,
    /// The code of the library's error.
    pub(crate) code: Option<&'static str>,
    /// One line for people.
    pub(crate) text: Line,
    /// The causes, for `-v`.
    pub(crate) causes: Vec<Line>,
    /// The reader of the output has ended, so nothing is reported.
    pub(crate) is_silent: bool,
}

impl Failure {
    pub(crate) fn new(exit: Exit, kind: &'static str, text: impl AsRef<str>) -> Self {
        Self {
            exit,
            kind,
            code: None,
            text: Line::new(text.as_ref()),
            causes: Vec::new(),
            is_silent: false,
        }
    }

    pub(crate) fn internal(what: &str, cause: &dyn Error) -> Self {
        Self::new(Exit::Internal, "internal", format!("{what}: {cause}")).caused_by(cause)
    }

    /// Adds the causes of `error`.
    pub(crate) fn caused_by(mut self, error: &dyn Error) -> Self {
        let mut source = error.source();
        while let Some(cause) = source {
            self.causes.push(Line::new(&cause.to_string()));
            source = cause.source();
        }
        self
    }

    /// Makes the failure of an error of the library. `source` says where the URL came from.
    pub(crate) fn of_lock(error: &LockError, source: &str) -> Self {
        let (exit, kind) = class(error);
        let text = wording::of_lock(error, source);
        Self {
            code: Some(error.code()),
            ..Self::new(exit, kind, text).caused_by(error)
        }
    }
}

impl From<io::Error> for Failure {
    /// An error while this program writes its output.
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            // The reader has seen enough, as in `lockctl man | head`.
            return Self {
                is_silent: true,
                ..Self::new(Exit::Success, "closed", "the output was closed")
            };
        }
        Self::internal("cannot write the output", &error)
    }
}

/// Returns the exit code and the kind of an error.
fn class(error: &LockError) -> (Exit, &'static str) {
    match error {
        LockError::Contended { .. } => (Exit::Contended, "contended"),
        LockError::Timeout { .. } => (Exit::Contended, "timeout"),
        LockError::QueueFull { .. } => (Exit::Contended, "queue-full"),
        LockError::Done { .. } => (Exit::Contended, "done"),
        LockError::Lost { .. } => (Exit::Lost, "lost"),
        LockError::TicketEnded { .. } => (Exit::Contended, "ticket-ended"),
        LockError::ForeignKey { .. } => (Exit::Config, "foreign-key"),
        LockError::Invalid(setting) => invalid_class(setting),
        LockError::NotConfigured => (Exit::Config, "configuration"),
        LockError::NoQuorum { .. } => (Exit::Unavailable, "no-quorum"),
        LockError::Backend(error) => backend_class(error.kind()),
        _ => (Exit::Internal, "internal"),
    }
}

fn invalid_class(setting: &InvalidSetting) -> (Exit, &'static str) {
    match setting {
        InvalidSetting::Name { .. } => (Exit::Usage, "invalid-name"),
        InvalidSetting::Ttl { .. }
        | InvalidSetting::MaxHold { .. }
        | InvalidSetting::MinHold { .. }
        | InvalidSetting::OncePer {
            reason: InvalidOncePerReason::OutOfRange { .. },
            ..
        }
        | InvalidSetting::Wait { .. }
        | InvalidSetting::OutageWait { .. }
        | InvalidSetting::Renewal { .. } => (Exit::Usage, "invalid-time"),
        InvalidSetting::Kind {
            reason: InvalidKindReason::Weight | InvalidKindReason::TooManyNames,
            ..
        } => (Exit::Usage, "usage"),
        InvalidSetting::Dialect { .. }
        | InvalidSetting::Manager { .. }
        | InvalidSetting::Ticket { .. }
        | InvalidSetting::OncePer { .. }
        | InvalidSetting::Kind { .. } => (Exit::Config, "configuration"),
        // This program sets no overrides.
        _ => (Exit::Internal, "internal"),
    }
}

fn backend_class(kind: BackendErrorKind) -> (Exit, &'static str) {
    match kind {
        BackendErrorKind::InvalidUrl => (Exit::Config, "invalid-url"),
        BackendErrorKind::Tls => (Exit::Config, "tls"),
        BackendErrorKind::Unsupported | BackendErrorKind::ClocksDiffer => {
            (Exit::Config, "unsupported")
        }
        BackendErrorKind::Authentication => (Exit::Denied, "authentication"),
        BackendErrorKind::Permission => (Exit::Denied, "permission"),
        BackendErrorKind::Unreachable => (Exit::Unavailable, "unreachable"),
        BackendErrorKind::TimedOut
        | BackendErrorKind::Loading
        | BackendErrorKind::ScriptBusy
        | BackendErrorKind::OutOfMemory
        | BackendErrorKind::Misconfigured
        | BackendErrorKind::NoReplicas
        | BackendErrorKind::NotReplicated
        | BackendErrorKind::NotPrimary
        | BackendErrorKind::NoPrimary
        | BackendErrorKind::ClusterDown
        | BackendErrorKind::SlotMoving
        | BackendErrorKind::TooManyClients => (Exit::Unavailable, "unavailable"),
        _ => (Exit::Internal, "internal"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Nested(io::Error);

    impl std::fmt::Display for Nested {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("outer\x1b[31m")
        }
    }

    impl Error for Nested {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn texts_and_causes_are_escaped() {
        let error = Nested(io::Error::other("inner\x1b[31m\nlockctl: forged"));
        let failure = Failure::internal("cannot connect", &error);
        assert_eq!(failure.text.as_str(), "cannot connect: outer\\u{1b}[31m");
        let causes: Vec<_> = failure.causes.iter().map(Line::as_str).collect();
        assert_eq!(causes, ["inner\\u{1b}[31m\\u{a}lockctl: forged"]);
    }
}
