//! The return value of a skipped call.

/// A return type with a value for a call that did nothing, because another holder has the lock.
///
/// The attribute's `on_contended = skip` returns this value. Implement the trait for your own reply
/// types:
///
/// ```
/// use lock_core::web::FromSkipped;
///
/// enum Sweep {
///     Removed(u64),
///     AnotherInstanceSweeps,
/// }
///
/// impl FromSkipped for Sweep {
///     fn skipped() -> Self {
///         Self::AnotherInstanceSweeps
///     }
/// }
/// # assert!(matches!(Sweep::skipped(), Sweep::AnotherInstanceSweeps));
/// # assert!(matches!(Sweep::Removed(1), Sweep::Removed(1)));
/// ```
///
/// A framework's response is skipped with status 202, an empty body, and the header
/// `lock-outcome: skipped`. With tonic the metadata says so. These implementations need the features of
/// [`lock_core::web`](crate::web).
#[diagnostic::on_unimplemented(
    message = "`on_contended = skip` has nothing to return for `{Self}`",
    label = "has no value for a skipped call",
    note = "return `()`, `Option<_>`, a framework's response, or a `Result` of these; implement `lock_core::web::FromSkipped` for your own type; or write `on_contended = |e| ...`"
)]
pub trait FromSkipped {
    /// Returns the value of a call that did not run the body.
    fn skipped() -> Self;
}

impl FromSkipped for () {
    fn skipped() -> Self {}
}

impl<T> FromSkipped for Option<T> {
    fn skipped() -> Self {
        None
    }
}

impl<T: FromSkipped, E> FromSkipped for Result<T, E> {
    fn skipped() -> Self {
        Ok(T::skipped())
    }
}

/// The header, or the metadata, of a skipped response.
#[cfg(any(feature = "axum-0-8", feature = "actix-web-4", feature = "tonic-0-14"))]
pub(super) const OUTCOME: (&str, &str) = ("lock-outcome", "skipped");
