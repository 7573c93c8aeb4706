//! The declared lock of an annotated function, and what `#[derive(Lock)]` expands to.

use std::marker::PhantomData;

use super::acquire::acquire_declared;
use super::call::{Acquire, AcquireFuture, GuardSlot, guard};
use super::options::Options;
use crate::guard::LockGuard;
use crate::manager::LockManager;
use crate::typed::declaration::Declaration;
use crate::typed::{
    DefaultMode, ExclusiveLock, Held, HeldMode, Lock, Read, ReadWriteLock, Write, prove,
};
use lock_protocol::key::LockName;

/// Makes the declaration of a lock.
#[must_use]
pub fn declaration(name: LockName, options: Options) -> Declaration {
    Declaration {
        name,
        kind: options.kind,
        ttl: options.ttl,
        wait: options.wait,
    }
}

/// The acquire of a declared lock, with the value that declares it. The value is in a box, so that the future of
/// the function does not grow with it.
#[must_use = "futures do nothing unless they are polled"]
pub struct AcquireHeld<L, M> {
    acquire: AcquireFuture,
    lock: Box<L>,
    mode: PhantomData<fn() -> M>,
}

impl<L: Lock, M: HeldMode> AcquireHeld<L, M> {
    fn new(manager: Option<LockManager>, lock: L, options: Options) -> Self {
        let mut declaration = lock.declaration();
        declaration.kind = M::kind(declaration.kind);
        Self {
            acquire: acquire_declared(manager, declaration, options),
            lock: Box::new(lock),
            mode: PhantomData,
        }
    }
}

/// Splits the acquire of a function without `bind`. The value only lives as long as the lock is held: nothing refers
/// to it, so it need not be `Sync`.
pub fn without_proof<L, M>(acquire: AcquireHeld<L, M>) -> (AcquireFuture, Box<L>) {
    (acquire.acquire, acquire.lock)
}

/// Returns what `bind` names in a function with a declared lock.
///
/// # Panics
///
/// See [`guard`].
pub fn held<L, M>(slot: &GuardSlot<Box<Held<L, M>>>) -> &Held<L, M> {
    guard::<Box<_>>(slot)
}

impl<L, M> Acquire for AcquireHeld<L, M> {
    type Granted = LockGuard;
    type Held = Box<Held<L, M>>;

    fn future(&mut self) -> &mut AcquireFuture {
        &mut self.acquire
    }

    fn into_held(self, granted: LockGuard) -> Self::Held {
        Box::new(prove(*self.lock, granted))
    }
}

/// Acquires a declared lock in the mode of its declaration.
///
/// `M` is a parameter, because a projection in the return type would repeat the error of a value that is no lock.
pub fn acquire_held<L: Lock<Kind: DefaultMode<Mode = M>>, M: HeldMode>(
    manager: Option<LockManager>,
    lock: L,
    options: Options,
) -> AcquireHeld<L, M> {
    AcquireHeld::new(manager, lock, options)
}

/// Acquires a declared lock with `mode = exclusive`.
pub fn acquire_exclusive<L: ExclusiveLock>(
    manager: Option<LockManager>,
    lock: L,
    options: Options,
) -> AcquireHeld<L, Write> {
    AcquireHeld::new(manager, lock, options)
}

/// Acquires a declared lock with `mode = read`.
pub fn acquire_read<L: ReadWriteLock>(
    manager: Option<LockManager>,
    lock: L,
    options: Options,
) -> AcquireHeld<L, Read> {
    AcquireHeld::new(manager, lock, options)
}

/// Acquires a declared lock with `mode = write`.
pub fn acquire_write<L: ReadWriteLock>(
    manager: Option<LockManager>,
    lock: L,
    options: Options,
) -> AcquireHeld<L, Write> {
    AcquireHeld::new(manager, lock, options)
}
