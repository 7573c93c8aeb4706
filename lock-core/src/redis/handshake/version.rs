//! Which versions of the server have what the scripts need.

use crate::error::{BackendErrorKind, LockError};
use crate::redis::node::Node;
use lock_protocol::scripts::ScriptForm;
use lock_protocol::wire::{MAX_LABEL, tidy};

/// The first version with `SET` with `PXAT`, which the scripts need in each form.
const OLDEST: (u32, u32) = (6, 2);

/// The first version that accepts the first line of the scripts.
const FIRST_WITH_FLAGS: (u32, u32) = (7, 0);

/// Fails for a version that cannot run the scripts. Otherwise returns the form in which it runs them. A server that
/// hides its version may be of any.
pub(super) fn check_version(node: &Node, version: Option<&str>) -> Result<ScriptForm, LockError> {
    let Some((text, numbers)) = version.and_then(|text| Some((text, numbers_of(text)?))) else {
        return Ok(ScriptForm::Flagged);
    };
    if numbers < OLDEST {
        return Err(LockError::advised(
            BackendErrorKind::Unsupported,
            format!(
                "the lock server at {} is Redis {}, which does not have the options of SET that locks need",
                node.text(),
                tidy(text, MAX_LABEL)
            ),
            "use Redis 6.2 or later, Valkey, or a compatible service with version 6.2 or later",
        ));
    }
    Ok(if numbers < FIRST_WITH_FLAGS {
        ScriptForm::Plain
    } else {
        ScriptForm::Flagged
    })
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
