//! The text that an operator's revocation leaves in the key, for the holder and for other operators.

use std::sync::Arc;

use crate::wire::{MAX_LABEL, tidy};

/// How the label of a revoked lock begins. No manager may have such a label: a lock that its `min_hold` keeps
/// would look revoked.
pub const START: &str = "revoked by ";
/// Between the operator and the reason.
const COLON: &str = ": ";
/// The longest name of an operator, in bytes. It leaves 43 bytes for the reason.
const MAX_BY: usize = 40;

/// Returns the label of a revoked lock: `revoked by <by>: <reason>`, or `revoked by <by>`.
pub fn revoked_label(by: &str, reason: Option<&str>) -> String {
    // The first `: ` of the label ends the name.
    let by = tidy(by.replace(COLON, ":").trim(), MAX_BY);
    let reason = reason.map(str::trim).filter(|reason| !reason.is_empty());
    let label = match reason {
        Some(reason) => format!("{START}{by}{COLON}{reason}"),
        None => format!("{START}{by}"),
    };
    tidy(&label, MAX_LABEL)
}

/// Returns the operator and the reason of a revoked lock's label.
pub fn parse_revoked(label: &str) -> Option<(Arc<str>, Option<Arc<str>>)> {
    let text = tidy(label.strip_prefix(START)?, MAX_LABEL);
    match text.split_once(COLON) {
        Some((by, reason)) => Some((by.into(), Some(reason.into()))),
        None => Some((text.into(), None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_has_the_operator_and_the_reason() {
        for (by, reason, expected) in [
            (
                "ops@host",
                Some("stuck import"),
                "revoked by ops@host: stuck import",
            ),
            ("ops", None, "revoked by ops"),
            ("ops", Some("  "), "revoked by ops"),
            ("a: b", Some("c: d"), "revoked by a:b: c: d"),
            ("ops:", Some("x"), "revoked by ops:: x"),
            ("x\n\u{1b}[31m", Some("\u{202e}y"), "revoked by x[31m: y"),
        ] {
            assert_eq!(revoked_label(by, reason), expected);
        }
        let long = revoked_label(&"b".repeat(200), Some(&"r".repeat(200)));
        assert_eq!(long.len(), MAX_LABEL);
        let (by, reason) = parse_revoked(&long).unwrap();
        assert_eq!((by.len(), reason.unwrap().len()), (MAX_BY, 43));
    }

    #[test]
    fn operator_and_reason_are_read_back() {
        for (by, reason) in [("ops@host", Some("a: b")), ("ops", None)] {
            let (read_by, read_reason) = parse_revoked(&revoked_label(by, reason)).unwrap();
            assert_eq!((&*read_by, read_reason.as_deref()), (by, reason));
        }
        assert_eq!(parse_revoked("web-1:42"), None);
    }
}
