//! The return types of annotated functions that can hold a [`LockError`].

use crate::error::LockError;

/// A return type that can hold a [`LockError`].
#[diagnostic::on_unimplemented(
    message = "a failed lock cannot be returned as `{Self}`",
    label = "cannot hold a `LockError`",
    note = "return `Result<T, E>` where `E: From<LockError>`, or say what to return with `on_error = |e| ...`"
)]
pub trait FromLockError {
    /// Makes the return value.
    fn from_lock_error(error: LockError) -> Self;
}

// Otherwise the compiler reports the missing `From`, and not what to do about it.
#[diagnostic::do_not_recommend]
impl<T, E: From<LockError>> FromLockError for Result<T, E> {
    fn from_lock_error(error: LockError) -> Self {
        Err(error.into())
    }
}

/// A handler that builds its own responses. The response has the error in its extensions.
#[cfg(feature = "axum-0-8")]
impl FromLockError for axum_core::response::Response {
    fn from_lock_error(error: LockError) -> Self {
        axum_core::response::IntoResponse::into_response(error)
    }
}

/// A handler that builds its own responses. `HttpResponse::error` returns the error.
#[cfg(feature = "actix-web-4")]
impl FromLockError for actix_web::HttpResponse {
    fn from_lock_error(error: LockError) -> Self {
        Self::from_error(error)
    }
}
