//! What can go wrong: the causes and reasons inside of [`LockError`], and the errors of a few calls with types of their
//! own.
//!
//! | Error | Carries |
//! |---|---|
//! | [`LockError::Invalid`] | an [`InvalidSetting`], whose variants name the setting and the reason |
//! | [`LockError::Backend`] | a [`BackendError`], with its [`BackendErrorKind`] |
//! | [`LockError::Lost`] | a [`LossReason`](crate::LossReason) |
//! | [`LockError::Contended`], [`LockError::Timeout`], [`LockError::QueueFull`] | the [`Holder`], if the server names it |
//!
//! [`AdminError`](crate::admin::AdminError) is the error of an operator's release, [`ShutdownIncomplete`] of
//! [`shutdown`](crate::LockManager::shutdown), [`InvalidName`] of [`LockName::new`](crate::LockName::new),
//! [`InvalidTicket`] of parsing a [`LockTicket`](crate::LockTicket), and [`ParseTokenError`] and [`TokenRangeError`] of a
//! [fencing token](crate::FencingToken)'s conversions.

mod backend;
mod debug;
pub(crate) mod foreign_key;
pub(crate) mod holder;
mod invalid;
pub(crate) mod lock_error;
#[cfg(feature = "redis")]
mod provider;
mod shutdown;
#[cfg(feature = "redis")]
pub(crate) mod texts;

#[doc(inline)]
pub use lock_protocol::dialect::InvalidDialectReason;
#[doc(inline)]
pub use lock_protocol::fencing_token::{ParseTokenError, TokenRangeError};
#[doc(inline)]
pub use lock_protocol::key::{InvalidName, InvalidNameReason};
#[doc(inline)]
pub use lock_protocol::kind::InvalidKindReason;
#[doc(inline)]
pub use lock_protocol::ticket::InvalidTicket;

pub use self::backend::{BackendError, BackendErrorKind};
pub(crate) use self::holder::{Holder, HolderState, without_tag};
pub use self::invalid::{
    InvalidOncePerReason, InvalidOverrideReason, InvalidSetting, InvalidTicketReason,
};
#[doc(no_inline)]
pub use self::lock_error::LockError;
pub use self::shutdown::ShutdownIncomplete;

#[cfg(test)]
mod tests;
