//! Why the times of an override are invalid, or do not fit a call.

use std::time::Duration;

use lock_protocol::dialect::InvalidDialectReason;

/// Why an [`Override`](crate::Override) is invalid, or does not fit a call. The message says what to
/// change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidOverrideReason {
    /// It sets nothing.
    #[error("it sets no time; set `ttl`, `wait` or `max_hold`, or remove the override")]
    Empty,
    /// The braces of the template are not balanced, so no lock has this template.
    #[error(
        "the braces of the template are not balanced; write the template as in the code, such as \
         `order:{{order_id}}`"
    )]
    Template,
    /// The ttl is out of range.
    #[error("`ttl` {ttl:?} is out of range; use at least 100 ms and at most 24 h")]
    #[non_exhaustive]
    Ttl {
        /// The ttl of the override.
        ttl: Duration,
    },
    /// The longest hold is not longer than the ttl.
    #[error(
        "`max_hold` {max_hold:?} must be longer than `ttl` {ttl:?}; set both in the override so \
         that they fit"
    )]
    #[non_exhaustive]
    MaxHold {
        /// The longest hold: that of the override, or else that of the call.
        max_hold: Duration,
        /// The ttl: that of the override, or else that of the call or the shortest one.
        ttl: Duration,
    },
    /// The override sets a longest hold, and the call is never renewed.
    #[error("`max_hold` needs renewal, and the call sets `renew = never`; remove `max_hold`")]
    NeverRenewed,
    /// The call sets a renewal interval that is too long for the ttl.
    #[error(
        "`ttl` {ttl:?} must be at least twice the renewal interval {every:?} of the call; raise `ttl`"
    )]
    #[non_exhaustive]
    Renewal {
        /// The renewal interval of the call.
        every: Duration,
        /// The ttl of the override.
        ttl: Duration,
    },
    /// The call sets a shortest hold that is too long for the ttl.
    #[error("`ttl` {ttl:?} must be longer than `min_hold` {min_hold:?} of the call; raise `ttl`")]
    #[non_exhaustive]
    MinHold {
        /// The shortest hold of the call.
        min_hold: Duration,
        /// The ttl of the override.
        ttl: Duration,
    },
    /// The dialect of the call does not support the ttl.
    #[error("`ttl` does not fit the dialect of the call: {0}")]
    Dialect(InvalidDialectReason),
}
