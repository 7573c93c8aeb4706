//! The `error.type` of an error.

use crate::error::{BackendErrorKind, InvalidSetting, LockError};

/// Returns the `error.type` of an error: a short word from a fixed list, for labels of metrics and spans.
///
/// The word is the name of the variant in snake case, such as `contended` or `foreign_key`. A failure of the server
/// gives the name of its [`BackendErrorKind`], such as `unreachable` or `timed_out`. No word has a value of the request
/// in it.
#[must_use]
pub fn error_type(error: &LockError) -> &'static str {
    match error {
        LockError::Contended { .. } => "contended",
        LockError::Timeout { .. } => "timeout",
        LockError::Lost { .. } => "lost",
        LockError::WouldDeadlock { .. } => "would_deadlock",
        LockError::ForeignKey { .. } => "foreign_key",
        LockError::Invalid(InvalidSetting::Dialect { .. }) => "invalid_dialect",
        LockError::Invalid(InvalidSetting::Name { .. }) => "invalid_name",
        LockError::Invalid(InvalidSetting::Ttl { .. }) => "invalid_ttl",
        LockError::Invalid(InvalidSetting::Manager { .. }) => "invalid_setting",
        LockError::Invalid(InvalidSetting::Override { .. }) => "invalid_override",
        LockError::Invalid(InvalidSetting::Renewal { .. }) => "invalid_renewal",
        LockError::Invalid(InvalidSetting::MaxHold { .. }) => "invalid_max_hold",
        LockError::Invalid(InvalidSetting::MinHold { .. }) => "invalid_min_hold",
        LockError::Invalid(InvalidSetting::Wait { .. }) => "invalid_wait",
        LockError::Invalid(InvalidSetting::Kind { .. }) => "invalid_kind",
        LockError::NotConfigured => "not_configured",
        LockError::NoRuntime => "no_runtime",
        LockError::AlreadyInstalled => "already_installed",
        LockError::ShuttingDown => "shutting_down",
        LockError::Forked => "forked",
        LockError::NoQuorum { .. } => "no_quorum",
        LockError::Backend(error) => kind_type(error.kind()),
    }
}

fn kind_type(kind: BackendErrorKind) -> &'static str {
    match kind {
        BackendErrorKind::InvalidUrl => "invalid_url",
        BackendErrorKind::Unreachable => "unreachable",
        BackendErrorKind::TimedOut => "timed_out",
        BackendErrorKind::Loading => "loading",
        BackendErrorKind::ScriptBusy => "script_busy",
        BackendErrorKind::OutOfMemory => "out_of_memory",
        BackendErrorKind::Misconfigured => "misconfigured",
        BackendErrorKind::NoReplicas => "no_replicas",
        BackendErrorKind::NotReplicated => "not_replicated",
        BackendErrorKind::NotPrimary => "not_primary",
        BackendErrorKind::Tls => "tls",
        BackendErrorKind::NoPrimary => "no_primary",
        BackendErrorKind::ClusterDown => "cluster_down",
        BackendErrorKind::SlotMoving => "slot_moving",
        BackendErrorKind::Authentication => "authentication",
        BackendErrorKind::Permission => "permission",
        BackendErrorKind::TooManyClients => "too_many_clients",
        BackendErrorKind::Unsupported => "unsupported",
        BackendErrorKind::ClocksDiffer => "clocks_differ",
        BackendErrorKind::ReleaseUnconfirmed => "release_unconfirmed",
        BackendErrorKind::BackgroundWorker => "background_worker",
        BackendErrorKind::Other => "other",
    }
}
