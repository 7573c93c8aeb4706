#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]
//!
//! Each machine is a function of an event and a time. The caller owns the clock, the connection and the tasks, and does
//! what a machine returns.

pub mod acquisition;
pub mod backoff;
pub mod cleanup;
pub mod clock;
pub mod clock_sync;
#[cfg(feature = "wire")]
pub mod codec;
#[warn(missing_docs, reason = "`lock-core` re-exports it")]
pub mod dialect;
pub mod duration_text;
pub mod error_line;
#[warn(missing_docs, reason = "`lock-core` re-exports it")]
pub mod fencing_token;
pub mod glob;
#[cfg(feature = "wire")]
pub mod identity;
pub mod inspection;
#[warn(missing_docs, reason = "`lock-core` re-exports it")]
pub mod key;
#[warn(missing_docs, reason = "`lock-core` re-exports it")]
pub mod kind;
pub mod lease;
pub mod local_queue;
pub mod lock_state;
#[warn(missing_docs, reason = "`lock-core` re-exports it")]
pub mod loss;
pub mod mailbox;
pub mod nearest;
pub mod op;
pub mod owner_id;
pub mod poll_schedule;
pub mod primary;
pub mod quorum;
pub mod redirect;
#[warn(missing_docs, reason = "`lock-core` re-exports it")]
pub mod renew;
pub mod renewal;
#[cfg(feature = "wire")]
pub mod resp;
pub mod revocation;
pub mod route;
#[cfg(feature = "wire")]
pub mod scripts;
#[warn(missing_docs, reason = "`lock-core` re-exports it")]
pub mod ticket;
pub mod ttl;
pub mod unconfirmed;
pub mod wire;
#[cfg(feature = "serde")]
pub mod words;

#[cfg(test)]
mod tests;
