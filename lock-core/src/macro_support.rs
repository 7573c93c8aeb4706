//! The functions and types that `#[distributed_lock]` expands to. They are no public interface and
//! change with the attribute.
//!
//! Little here is generic: an annotated function adds its own body and a few calls to a program.
//! `name` makes the lock's name, `options` holds its durations, `acquire` acquires it, and `polling`
//! runs the body.

mod acquire;
mod bound;
mod call;
mod declared;
mod from_lock_error;
mod name;
mod options;
mod polling;

use std::fmt;
use std::marker::PhantomData;

use crate::error::LockError;
use crate::web::FromSkipped;

pub use self::acquire::{acquire, acquire_all, manager};
pub use self::bound::{
    BoundGuard, BoundHeld, BoundSet, GuardReleasedByTheCaller, HeldReleasedByTheCaller,
    SetReleasedByTheCaller,
};
pub use self::call::{
    Acquire, AcquireFuture, AcquireOrContended, BoxFuture, GuardSlot, acquire_or_contended, guard,
};
pub use self::declared::{
    AcquireHeld, acquire_exclusive, acquire_held, acquire_read, acquire_write, declaration, held,
    without_proof,
};
pub use self::from_lock_error::FromLockError;
pub use self::name::{
    IntoLockName, NamePart, Placeholder, displayed, name_from_expression, name_from_template,
    name_with_hash_tag,
};
pub use self::options::{
    OnContended, Options, checked_max_hold, checked_max_queue, checked_min_hold, checked_once_per,
    checked_permits, checked_renew, checked_ttl, checked_weight, dynamic,
};
pub use self::polling::{
    Completing, HasSucceeded, MapOutcome, NoResult, OnLost, ReturnOutcome, RunBody,
    RunBodyThenRelease, Success, completing, map_error_with, run_body, run_body_then_release,
};
// The option `crate` imports the crate by this path.
pub use crate as lock_core;
pub use crate::typed::declaration::{Declaration, ExclusiveKind, ReadWriteKind, SemaphoreKind};
pub use lock_macros::__lock_name;
pub use lock_protocol::kind::Kind;
pub use lock_protocol::renew::Renew;

/// The return type of an annotated function, also where a body cannot write it.
pub struct ReturnType<R>(PhantomData<fn() -> R>);

impl<R> ReturnType<R> {
    /// Makes the marker. The compiler infers the type.
    #[must_use]
    pub const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<R> Default for ReturnType<R> {
    fn default() -> Self {
        Self::new()
    }
}

impl<R> Clone for ReturnType<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for ReturnType<R> {}

impl<R> fmt::Debug for ReturnType<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReturnType")
    }
}

/// Gives a block its type. The expansion calls it only in code that never runs.
#[must_use]
pub fn typed_return<R>(_: ReturnType<R>) -> R {
    unreachable!("the attribute writes this call only into code that never runs")
}

/// Returns whether another holder has the lock.
#[must_use]
pub fn is_contended(error: &LockError) -> bool {
    error.is_contended()
}

/// Returns `error` from an annotated function.
#[must_use]
pub fn return_error<R: FromLockError>(error: LockError) -> R {
    R::from_lock_error(error)
}

/// Returns from an annotated function whose lock has another holder.
#[must_use]
pub fn return_skipped<R: FromSkipped>(_: &LockError) -> R {
    R::skipped()
}

/// Returns the skipped value when another holder has the lock, and `error` otherwise.
#[must_use]
pub fn return_skipped_or_error<R: FromSkipped + FromLockError>(error: LockError) -> R {
    if is_contended(&error) {
        return_skipped(&error)
    } else {
        return_error(error)
    }
}

/// Calls the closure of `on_contended` or `on_error`. Its signature gives the closure its types.
pub fn call_handler<R>(
    _: ReturnType<R>,
    handler: impl FnOnce(LockError) -> R,
    error: LockError,
) -> R {
    handler(error)
}

/// Takes the value of an `on_error` that is no closure. Its signature gives the value its types.
pub fn handler<R, H: FnOnce(LockError) -> R>(_: ReturnType<R>, handler: H) -> H {
    handler
}

/// The type `!`, which stable Rust can only write as a return type.
pub type Never = <fn() -> ! as Returns>::Type;

/// Names the return type of a function pointer.
pub trait Returns {
    /// The return type.
    type Type;
}

impl<R> Returns for fn() -> R {
    type Type = R;
}
