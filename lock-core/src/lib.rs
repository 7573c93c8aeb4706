#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]
#![cfg_attr(
    not(all(feature = "cluster", feature = "quorum")),
    allow(
        dead_code,
        reason = "the background worker and its clocks serve stores on servers, and some parts of \
                  them serve one topology"
    )
)]

pub mod admin;
pub mod config;
pub mod dialect;
pub mod error;
#[cfg(feature = "testing")]
mod faulty;
mod guard;
pub mod health;
mod lead;
mod manager;
mod memory;
pub mod observe;
#[cfg(feature = "redis")]
mod redis;
pub mod request;
mod run;
mod runtime;
mod store;
mod sync;
pub mod telemetry;
#[cfg(feature = "macros")]
pub mod typed;
#[cfg(all(feature = "__tls", not(any(feature = "tls", feature = "tls-aws-lc"))))]
compile_error!("enable the feature `tls` or `tls-aws-lc`");

#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;
pub mod web;

#[cfg(feature = "macros")]
#[doc(hidden)]
pub mod macro_support;

pub use error::holder::Holder;
pub use error::lock_error::LockError;
pub use guard::{LockGuard, LockSet, LockWatch, LossSignal};
#[cfg(feature = "macros")]
#[doc(inline)]
pub use lock_macros::distributed_lock;
#[doc(inline)]
pub use lock_protocol::fencing_token::FencingToken;
#[doc(inline)]
pub use lock_protocol::key::LockName;
#[doc(inline)]
pub use lock_protocol::kind::Kind;
#[doc(inline)]
pub use lock_protocol::loss::LossReason;
#[doc(inline)]
pub use lock_protocol::renew::Renew;
#[doc(inline)]
pub use lock_protocol::ticket::LockTicket;
pub use manager::{LockManager, LockManagerBuilder};
#[cfg(feature = "__doctor")]
#[doc(hidden)]
pub use redis::doctor;
pub use request::lock_request::LockRequest;
#[cfg(feature = "macros")]
#[doc(inline)]
pub use typed::{Held, Lock};

/// Builds a [`LockName`] from a template and expressions. Use it for [`LockManager::lock`], and for
/// names that the template of the attribute cannot express.
///
/// `{}` inserts the next expression. `{variable}` and `{variable.field.0}` insert a value that is
/// in scope. All values are percent-encoded, as in [`distributed_lock`](macro@distributed_lock), so
/// two different lists of values never give the same name. When a value is empty, each acquire of
/// the name fails with [`LockError::Invalid`].
///
/// ```
/// # use lock_core::{LockError, LockManager, distributed_lock, lock_name};
/// const TENANT: &str = "acme";
///
/// // `TENANT` is a constant. An `Option` has no `Display`, so the expression unwraps it.
/// #[distributed_lock(name = lock_name!("cart:{TENANT}:{}", user.unwrap_or(0)))]
/// async fn empty_cart(user: Option<u64>) -> Result<(), LockError> {
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let locks = LockManager::in_memory();
/// let order = 7;
/// let guard = locks.lock(lock_name!("order:{order}:{}", "a:b")).acquire().await?;
/// assert_eq!(guard.key(), "lock:order:7:a%3Ab");
/// # locks.scope(empty_cart(None)).await
/// # }
/// ```
#[cfg(feature = "macros")]
#[macro_export]
macro_rules! lock_name {
    ($($template:tt)*) => {
        $crate::macro_support::__lock_name!($crate, $($template)*)
    };
}

/// Guides: how to use the library, what it promises, and how it works. Each page begins with its question
/// and a short answer. The order of the front page is that in which a newcomer needs them.
pub mod guide {
    #[cfg(feature = "macros")]
    pub mod attribute {
        #![doc = include_str!("../docs/attribute.md")]
    }

    #[cfg(feature = "macros")]
    pub mod choosing {
        #![doc = include_str!("../docs/choosing.md")]
    }

    #[cfg(feature = "macros")]
    pub mod coming_from {
        #![doc = include_str!("../docs/coming_from.md")]
    }

    #[cfg(feature = "redis")]
    pub mod configuration {
        #![doc = include_str!("../docs/configuration.md")]
    }

    #[cfg(feature = "macros")]
    pub mod cookbook {
        #![doc = include_str!("../docs/cookbook.md")]
    }

    pub mod dialects {
        #![doc = include_str!("../docs/dialects.md")]
    }

    pub mod failure_modes {
        #![doc = include_str!("../docs/failure_modes.md")]
    }

    pub mod faq {
        #![doc = include_str!("../docs/faq.md")]
    }

    pub mod fencing {
        #![doc = include_str!("../docs/fencing.md")]
    }

    pub mod guarantees {
        #![doc = include_str!("../docs/guarantees.md")]
    }

    pub mod kinds {
        #![doc = include_str!("../docs/kinds.md")]
    }

    pub mod managed {
        #![doc = include_str!("../docs/managed.md")]
    }

    pub mod migrating {
        #![doc = include_str!("../docs/migrating.md")]
    }

    pub mod on_loss {
        #![doc = include_str!("../docs/on_loss.md")]
    }

    pub mod operations {
        #![doc = include_str!("../docs/operations.md")]
    }

    pub mod performance {
        #![doc = include_str!("../docs/performance.md")]
        // The images of the last section are for the repository's page: rustdoc has no such files.
        #![doc = "<style>.repository-only { display: none }</style>"]
        #![doc = ""]
        #![doc = include_str!("../docs/plots/handoff.svg")]
        #![doc = include_str!("../docs/plots/commands.svg")]
        #![doc = include_str!("../docs/plots/waits.svg")]
        #![doc = include_str!("../docs/plots/pair.svg")]
    }

    pub mod problems {
        #![doc = include_str!("../docs/problems.md")]
    }

    pub mod production {
        #![doc = include_str!("../docs/production.md")]
    }

    pub mod protocol {
        #![doc = include_str!("../docs/protocol.md")]
    }

    pub mod redis {
        #![doc = include_str!("../docs/redis.md")]
    }

    pub mod sizing {
        #![doc = include_str!("../docs/sizing.md")]
    }

    pub mod telemetry {
        #![doc = include_str!("../docs/telemetry.md")]
    }

    #[cfg(feature = "macros")]
    pub mod testing {
        #![doc = include_str!("../docs/testing.md")]
    }

    pub mod topologies {
        #![doc = include_str!("../docs/topologies.md")]
    }

    #[cfg(feature = "macros")]
    pub mod typed_locks {
        #![doc = include_str!("../docs/typed_locks.md")]
    }

    // It links to the items of all four features.
    #[cfg(all(
        feature = "macros",
        feature = "axum-0-8",
        feature = "actix-web-4",
        feature = "tonic-0-14",
        feature = "tower"
    ))]
    pub mod web {
        #![doc = include_str!("../docs/web.md")]
    }
}
