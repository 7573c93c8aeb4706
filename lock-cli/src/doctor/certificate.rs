//! When certificates end.

use std::time::{Duration, SystemTime};

use lock_core::doctor::CertificateEnd;

use super::check::Check;
use crate::text::{human, rfc3339};

/// Warns about a certificate as soon as the library does.
pub(super) fn check(id: &'static str, end: &CertificateEnd) -> Check {
    let CertificateEnd {
        location,
        ends,
        notice,
        ..
    } = end;
    let left = ends.duration_since(SystemTime::now()).unwrap_or_default();
    let at = format!("{location}: valid until {}", rfc3339(*ends));
    let advice = "renew it; services read new files at their next connection";
    if left == Duration::ZERO {
        return Check::fail(id, format!("{at}, which is over")).advice(advice);
    }
    let text = format!("{at}, for {}", human(left));
    if left <= *notice {
        return Check::warn(id, text).advice(advice);
    }
    Check::ok(id, text)
}
