//! Rejects `held.release()` in a body. The compiler prefers the methods of these traits to the method of the
//! guard, whose error would be that `held` cannot be moved. Each trait has a type of its own, so that the error
//! names the builder's method for that type.

use std::future::Ready;

use crate::error::LockError;
use crate::guard::{LockGuard, LockSet};
use crate::typed::Held;

/// What `bind` names in a function with one name.
pub trait BoundGuard {
    /// Never compiles.
    fn release(self) -> Ready<Result<(), LockError>>
    where
        Self: GuardReleasedByTheCaller;
}

impl BoundGuard for &LockGuard {
    fn release(self) -> Ready<Result<(), LockError>>
    where
        Self: GuardReleasedByTheCaller,
    {
        unreachable!("no type implements `GuardReleasedByTheCaller`")
    }
}

/// A guard that the body may release. No type implements it.
#[diagnostic::on_unimplemented(
    message = "the body cannot release the lock of its own function",
    label = "the lock is released when the body ends",
    note = "return from the body, or use the builder, which returns an owned guard: `locks.lock(name).acquire().await?`",
    note = "for a spawned task, `held.watch()` returns a handle that reports the loss of the lock"
)]
pub trait GuardReleasedByTheCaller {}

/// What `bind` names in a function with a list of names.
pub trait BoundSet {
    /// Never compiles.
    fn release(self) -> Ready<Result<(), LockError>>
    where
        Self: SetReleasedByTheCaller;
}

impl BoundSet for &LockSet {
    fn release(self) -> Ready<Result<(), LockError>>
    where
        Self: SetReleasedByTheCaller,
    {
        unreachable!("no type implements `SetReleasedByTheCaller`")
    }
}

/// A set that the body may release. No type implements it.
#[diagnostic::on_unimplemented(
    message = "the body cannot release the locks of its own function",
    label = "the locks are released when the body ends",
    note = "return from the body, or use the builder, which returns an owned set: `locks.lock_all(names).acquire().await?`",
    note = "for a spawned task, `held.watch()` returns a handle that reports the loss of a lock"
)]
pub trait SetReleasedByTheCaller {}

/// What `bind` names in a function with a declared lock.
pub trait BoundHeld {
    /// Never compiles.
    fn release(self) -> Ready<Result<(), LockError>>
    where
        Self: HeldReleasedByTheCaller;
}

impl<L, M> BoundHeld for &Held<L, M> {
    fn release(self) -> Ready<Result<(), LockError>>
    where
        Self: HeldReleasedByTheCaller,
    {
        unreachable!("no type implements `HeldReleasedByTheCaller`")
    }
}

/// A proof that the body may release. No type implements it.
#[diagnostic::on_unimplemented(
    message = "the body cannot release the lock of its own function",
    label = "the lock is released when the body ends",
    note = "return from the body, or use the builder, which returns an owned proof: `locks.hold(lock).acquire().await?`, or `hold_read`, `hold_write` or `hold_permit`",
    note = "for a spawned task, `held.watch()` returns a handle that reports the loss of the lock"
)]
pub trait HeldReleasedByTheCaller {}
