//! Which servers have what the scripts need.
//!
//! Their version says so, which every connection reads anyway. Only a server that hides it, in `INFO` and in `HELLO`, is
//! asked for the option of `SET` that the scripts need: one more round trip for such a server, and none for others.
//!
//! The question is the command itself rather than a script, so that it needs no right that locks don't need, and none to
//! a command of the server's introspection. It cannot write: its expiry is one that each server refuses. A server without
//! the option doesn't get so far, and calls it a syntax error. The key is the prefix, which no lock has for a key, and
//! which the patterns of a user match. Any other reply proves nothing, such as a missing right or the redirection of a
//! cluster's node, and lets the connection pass.

use super::preparation::ask;
use crate::error::{BackendErrorKind, LockError};
use crate::redis::dial::Stream;
use crate::redis::node::Node;
use lock_protocol::op::{Refusal, RefusalKind};
use lock_protocol::resp::{CommandBuf, Replies, Reply};
use lock_protocol::scripts::ScriptForm;
use lock_protocol::wire::{MAX_LABEL, tidy};

/// The first version with `SET` with `PXAT`, which the scripts need in each form.
const OLDEST: (u32, u32) = (6, 2);

/// The first version that accepts the first line of the scripts.
const FIRST_WITH_FLAGS: (u32, u32) = (7, 0);

/// What to use instead of a server that is too old.
const ADVICE: &str =
    "use Redis 6.2 or later, Valkey, or a compatible service with version 6.2 or later";

/// Fails for a version that cannot run the scripts. Otherwise returns the form in which it runs them, and `None` for a
/// server that hides its version.
pub(super) fn check_version(
    node: &Node,
    version: Option<&str>,
) -> Result<Option<ScriptForm>, LockError> {
    let Some((text, numbers)) = version.and_then(|text| Some((text, numbers_of(text)?))) else {
        return Ok(None);
    };
    if numbers < OLDEST {
        return Err(LockError::advised(
            BackendErrorKind::Unsupported,
            format!(
                "the lock server at {} is Redis {}, which does not have the options of SET that locks need",
                node.text(),
                tidy(text, MAX_LABEL)
            ),
            ADVICE,
        ));
    }
    Ok(Some(if numbers < FIRST_WITH_FLAGS {
        ScriptForm::Plain
    } else {
        ScriptForm::Flagged
    }))
}

/// Fails for a server that doesn't know the option of `SET` that the scripts need.
pub(super) async fn check_options_of_set(
    node: &Node,
    stream: &mut Stream,
    prefix: &str,
) -> Result<(), LockError> {
    let question = |out: &mut CommandBuf<'_>| {
        let mut set = out.command("SET");
        set.arg(prefix).arg("").arg("NX").arg("PXAT").arg(0_u32);
    };
    let replies = ask(node, stream, question).await?;
    let refusal = Replies::new(&replies).next().and_then(Reply::error);
    if refusal.is_none_or(|error| Refusal::of(error).kind != RefusalKind::UnknownCommand) {
        return Ok(());
    }
    Err(LockError::advised(
        BackendErrorKind::Unsupported,
        format!(
            "the lock server at {} does not have SET with PXAT, which locks need",
            node.text()
        ),
        ADVICE,
    ))
}

/// Returns the first two numbers of a version.
fn numbers_of(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next().flatten().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_two_numbers() {
        for (version, expected) in [
            ("6.0.16", Some((6, 0))),
            ("6.2.14", Some((6, 2))),
            ("6.10", Some((6, 10))),
            ("7", Some((7, 0))),
            ("7.rc1", Some((7, 0))),
            ("255.255.255", Some((255, 255))),
            ("", None),
            ("unknown", None),
        ] {
            assert_eq!(numbers_of(version), expected, "{version}");
        }
        assert!((5, 0) < OLDEST && (6, 10) > OLDEST && (6, 10) < FIRST_WITH_FLAGS);
    }
}
