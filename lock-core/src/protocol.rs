//! The protocol, as pure functions of an event and a time: no IO, no async, no public errors.

pub(crate) mod acquisition;
pub(crate) mod backoff;
pub(crate) mod cleanup;
pub(crate) mod clock;
pub(crate) mod clock_sync;
pub(crate) mod dialect;
pub(crate) mod duration_text;
pub(crate) mod error_line;
pub(crate) mod fencing_token;
pub(crate) mod glob;
pub(crate) mod inspection;
pub(crate) mod key;
pub(crate) mod kind;
pub(crate) mod lease;
pub(crate) mod local_queue;
pub(crate) mod lock_state;
pub(crate) mod loss;
pub(crate) mod mailbox;
pub(crate) mod nearest;
pub(crate) mod owner_id;
pub(crate) mod poll_schedule;
pub(crate) mod primary;
#[cfg(any(feature = "redis", test))]
pub(crate) mod quorum;
pub(crate) mod redirect;
pub(crate) mod renew;
pub(crate) mod revocation;
pub(crate) mod route;
pub(crate) mod ttl;
pub(crate) mod wire;
