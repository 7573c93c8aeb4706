//! The errors of the library in the words of the command line.
//!
//! The library's texts are for programs: they name settings of builders, types and pages by their paths.

use std::error::Error;

use lock_core::LockError;
use lock_core::error::{
    BackendError, BackendErrorKind, InvalidKindReason, InvalidOncePerReason, InvalidSetting,
};

use crate::text::flag;

/// Where the guide is.
const GUIDE: &str = "https://docs.rs/lock-core/latest/lock_core/guide";

/// What this program does not accept, though the library does.
pub(crate) const NOT_IN_MEMORY: &str =
    "locks in memory exist only in one process; use redis:// or unix://";

/// Returns the text of an error. `source` says where the URL came from.
pub(crate) fn of_lock(error: &LockError, source: &str) -> String {
    match error {
        LockError::Invalid(setting) => of_setting(setting),
        LockError::Lost { key, .. } => format!("the lock with the key `{key}` was lost"),
        LockError::Backend(backend) => of_backend(backend, source),
        // All others have nothing to do with the flags, or mean a fault of this program.
        other => plain(&other.to_string()),
    }
}

fn of_setting(invalid: &InvalidSetting) -> String {
    match invalid {
        InvalidSetting::Ttl { ttl, .. } => {
            format!(
                "invalid --ttl {}: use at least 100ms and at most 24h",
                flag(*ttl)
            )
        }
        InvalidSetting::MaxHold { longest, .. } => {
            format!(
                "invalid --max-hold {}: use more than the --ttl",
                flag(*longest)
            )
        }
        InvalidSetting::MinHold { shortest, .. } => {
            format!(
                "invalid --min-hold {}: use less than the --ttl",
                flag(*shortest)
            )
        }
        InvalidSetting::OncePer { reason, .. } => match reason {
            InvalidOncePerReason::OutOfRange { period, .. } => format!(
                "invalid --once-per {}: use at least 100ms and at most 8784h, which are 366 days",
                flag(*period)
            ),
            InvalidOncePerReason::Quorum => {
                "--once-per needs one server, Sentinel or a cluster; a quorum forgets what was done"
                    .to_owned()
            }
            _ => plain(&invalid.to_string()),
        },
        InvalidSetting::Manager {
            setting,
            value,
            advice,
            ..
        } => {
            let setting = match *setting {
                "command_timeout" => "--timeout",
                "address_map" => "--address-map",
                "prefix" => "--prefix",
                "label" => "--label",
                other => other,
            };
            format!("invalid {setting} `{value}`: {}", plain(advice))
        }
        InvalidSetting::Kind { kind, reason, .. } => match reason {
            InvalidKindReason::Weight => {
                format!("invalid --weight ({kind}): it must not be larger than --permits")
            }
            InvalidKindReason::Dialect => {
                "--read and --permits need one server, Sentinel or a cluster; at a quorum, \
                                           locks are exclusive"
                    .to_owned()
            }
            InvalidKindReason::TooManyNames => {
                "too many --name: a set has at most 64; use a name that stands for all of them"
                    .to_owned()
            }
            _ => plain(&invalid.to_string()),
        },
        other => plain(&other.to_string()),
    }
}

fn of_backend(error: &BackendError, source: &str) -> String {
    let text = error.to_string();
    match error.kind() {
        BackendErrorKind::Unreachable => unreachable(&text, source).unwrap_or_else(|| plain(&text)),
        BackendErrorKind::Other => match (text.strip_suffix(": see the cause"), error.source()) {
            // It begins with what the server said, which is the cause.
            (Some(text), _) if text.ends_with(" (the lock server rejected the command)") => {
                plain(text)
            }
            (Some(text), Some(cause)) => format!("{}: {cause}", plain(text)),
            _ => plain(&text),
        },
        _ => plain(&text),
    }
}

/// Returns the text of a failed connection, with the address and the source of the URL.
fn unreachable(text: &str, source: &str) -> Option<String> {
    let rest = text.strip_prefix("cannot connect to the lock server at ")?;
    let (server, _advice) = rest.split_once("):")?;
    // The URL doesn't have this address.
    if text.contains("`address_map`") {
        return None;
    }
    Some(format!(
        "cannot reach {server}); is the server running? URL from {source}"
    ))
}

/// Replaces the words of programs.
pub(crate) fn plain(text: &str) -> String {
    let redis = format!("the page \"Redis\" of the guide ({GUIDE}/redis/)");
    let text = [
        (
            "redis+cluster://, redis+quorum:// or memory://",
            "redis+cluster:// or redis+quorum://",
        ),
        ("`command_timeout`", "--timeout"),
        ("`address_map`", "--address-map"),
        ("`lock_core::guide::redis`", redis.as_str()),
        ("a longer `wait`", "a longer --wait"),
        // This program takes locks by scripts only.
        (
            ". Without the right to run scripts, use `Dialect::SetNxPx` with `ReleaseMethod::Auto`",
            "",
        ),
        ("`max_hold`", "--max-hold"),
        ("`min_hold`", "--min-hold"),
        ("`max_queue`", "--max-queue"),
        ("`outage_wait`", "--outage-wait"),
        ("`once_per`", "--once-per"),
        // The names of dialects are those of the guide.
        ("`Dialect::", "the dialect `"),
    ]
    .into_iter()
    .fold(text.to_owned(), |text, (theirs, ours)| {
        text.replace(theirs, ours)
    });
    text.replace(
        "the dialect `SetnxExpire` sets",
        "a service with the dialect `SetnxExpire` sets",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of programs, which a user of a shell does not know.
    const OF_PROGRAMS: [&str; 16] = [
        "::",
        "max_hold",
        "min_hold",
        "max_queue",
        "outage_wait",
        "once_per",
        "command_timeout",
        "address_map",
        "`wait`",
        "memory://",
        "builder",
        "LockManager",
        "lock_core",
        "Duration",
        "see the cause",
        "feature",
    ];

    #[track_caller]
    fn check(text: &str) {
        let text = text.replace(GUIDE, "");
        for word in OF_PROGRAMS {
            assert!(!text.contains(word), "{word}: {text}");
        }
    }

    #[test]
    fn texts_of_the_library_are_replaced() {
        for (theirs, ours) in [
            (
                "the URL is wrong: use redis://, redis+cluster://, redis+quorum:// or memory://",
                "the URL is wrong: use redis://, redis+cluster:// or redis+quorum://",
            ),
            (
                "no answer in time: check the server's load and the network, or raise `command_timeout`",
                "no answer in time: check the server's load and the network, or raise --timeout",
            ),
            (
                "if this client reaches the server at another one, set `address_map`",
                "if this client reaches the server at another one, set --address-map",
            ),
            (
                "if a service died between SETNX and EXPIRE, `Dialect::SetnxExpire` sets the missing \
                 expiry; otherwise remove the key, or use another name or prefix",
                "if a service died between SETNX and EXPIRE, a service with the dialect `SetnxExpire` \
                 sets the missing expiry; otherwise remove the key, or use another name or prefix",
            ),
            (
                "grant the user this right. Without the right to run scripts, use `Dialect::SetNxPx` with \
                 `ReleaseMethod::Auto`",
                "grant the user this right",
            ),
            (
                "the deadline `1` of `Dialect::DeadlineGetset` where `Dialect::Native` expects an owner",
                "the deadline `1` of the dialect `DeadlineGetset` where the dialect `Native` expects an owner",
            ),
        ] {
            assert_eq!(plain(theirs), ours);
            check(ours);
        }
    }

    /// Most errors of the library cannot be made here, so their texts come from its source: a new text
    /// with a word of programs is found.
    #[test]
    fn texts_of_backends_have_no_words_of_programs() {
        let source = include_str!("../../lock-core/src/error/backend.rs");
        let (_, advices) = source.split_once("fn advice(self)").unwrap();
        let (advices, _) = advices.split_once("\n    }\n}").unwrap();
        let advices: Vec<_> = advices
            .split('"')
            .skip(1)
            .step_by(2)
            .map(|text| {
                let lines: Vec<_> = text.split("\\\n").map(str::trim_start).collect();
                lines.concat()
            })
            .collect();
        assert!(advices.len() > 10, "{advices:?}");
        for advice in advices {
            if advice != "see the cause" {
                check(&plain(&advice));
            }
        }
    }
}
