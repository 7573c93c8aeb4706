#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]
#![cfg_attr(
    not(feature = "redis"),
    allow(
        dead_code,
        reason = "the keeper and its clocks serve backends on servers"
    )
)]

mod acquire;
mod backend;
mod clock;
mod counts;
mod dialect;
mod error;
mod foreign;
mod guard;
mod hold;
mod inbox;
mod keeper;
mod key;
mod lease;
mod manager;
#[cfg(test)]
mod model;
mod nesting;
mod nonce;
mod options;
mod request;
mod retry;
mod shared;
mod sync;
mod table;
mod token;
mod ttl;
mod url;
mod wait;
mod wire;

#[cfg(feature = "macros")]
#[doc(hidden)]
pub mod macro_support;

pub use counts::Counts;
pub use dialect::{Capabilities, Dialect, DialectFault, ReleaseBy};
pub use error::{BackendError, BackendErrorKind, Holder, LockError, ShutdownIncomplete};
pub use guard::{LockGuard, LockWatch, Lost};
pub use key::{LockName, NameFault};
pub use manager::{LockManager, LockManagerBuilder};
pub use options::Renew;
pub use request::LockRequest;
#[cfg(debug_assertions)]
#[doc(hidden)]
pub use sync::held_mutexes;
pub use token::{FencingToken, ParseTokenError};

#[cfg(feature = "macros")]
#[doc(inline)]
pub use lock_macros::distributed_lock;

pub mod dialects {
    #![doc = include_str!("../docs/dialects.md")]

    pub mod migrating {
        #![doc = include_str!("../docs/migrating.md")]
    }
}

#[cfg(feature = "macros")]
pub mod attribute {
    #![doc = include_str!("../docs/attribute.md")]

    pub mod coming_from {
        #![doc = include_str!("../docs/coming-from.md")]
    }
}
