//! Locks in web services: what a client learns about a [`LockError`](crate::LockError), and which
//! manager a request uses.
//!
//! Each framework has a feature, which names the framework's major version. All of them are off by
//! default:
//!
//! | Feature | Adds |
//! |---|---|
//! | `axum-0-8` | `IntoResponse` for `LockError` and `Problem`; [`FromSkipped`] for responses |
//! | `actix-web-4` | `ResponseError` for `LockError`, `Responder` for `Problem`; `FromSkipped` for responses |
//! | `tonic-0-14` | `From<LockError>` for `tonic::Status`; `FromSkipped` for `tonic::Response` |
//! | `tower` | `ScopeLayer`, for axum and tonic; with `axum-0-8` also `ProblemLayer` |
//!
//! So a handler with [`#[distributed_lock]`](macro@crate::distributed_lock) needs no `on_error`: it
//! returns a `Result` with the framework's error type, or the framework's response. The guide
//! `lock_core::guide::web` shows a service for each framework.

#[cfg(feature = "actix-web-4")]
mod actix_web_4;
#[cfg(feature = "axum-0-8")]
mod axum_0_8;
mod from_skipped;
#[cfg(any(feature = "axum-0-8", feature = "actix-web-4", feature = "tonic-0-14"))]
pub(crate) mod mapping;
#[cfg(any(feature = "axum-0-8", feature = "actix-web-4"))]
mod problem;
#[cfg(all(feature = "axum-0-8", feature = "tower"))]
mod problem_layer;
#[cfg(any(feature = "axum-0-8", feature = "actix-web-4", feature = "tonic-0-14"))]
mod retry_after;
#[cfg(feature = "tower")]
mod scope_layer;
#[cfg(feature = "tonic-0-14")]
mod tonic_0_14;

pub use self::from_skipped::FromSkipped;
#[cfg(any(feature = "axum-0-8", feature = "actix-web-4"))]
pub use self::problem::Problem;
#[cfg(all(feature = "axum-0-8", feature = "tower"))]
pub use self::problem_layer::{ProblemLayer, ProblemService};
#[cfg(feature = "tower")]
pub use self::scope_layer::{ScopeLayer, ScopeService};
