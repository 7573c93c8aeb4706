//! What `#[derive(Lock)]` declares: the name, the kind and the times of a lock.

use std::time::Duration;

use lock_protocol::key::LockName;
use lock_protocol::kind::Kind;

/// A lock that is declared by a type. Derive it: `#[derive(Lock)]`.
///
/// The type says how the lock is named, who may hold it together, and for how long it outlives a crashed
/// holder. Its fields are the parameters of the name. [`LockManager::hold`](crate::LockManager::hold) and the
/// option `lock` of the attribute take a value of the type, and give a [`Held`](crate::Held).
///
/// | Option of `#[lock(..)]` | Value | Default |
/// |---|---|---|
/// | `name` | a template of the fields, such as `"order:{order_id}"` or `"order:{0}"`; or an expression of `self` | required |
/// | `ttl` | `"30s"`, a constant, or `dynamic(expression)` of `self` | the manager's `default_ttl`, 30 s |
/// | `wait` | `"5s"`, a constant, or `dynamic(expression)` of `self` | the manager's `default_wait`, 5 s |
/// | `mode` | `exclusive`, or `read_write`, which is taken with `hold_read` or `hold_write` | `exclusive` |
/// | `permits` | how many permits the lock has; `hold_permit` takes them | none: one holder |
/// | `weight` | how many of the permits one holder takes | 1 |
/// | `hash_tag` | a template | none |
/// | `crate` | the absolute path of `lock_core` | `::lock_core` |
///
/// Every field has to be in `name` or `hash_tag`, so that a [`Held`](crate::Held) of one value is no proof for
/// another. `#[lock(not_in_name)]` above a field says that the field doesn't tell locks apart.
/// `PhantomData` needs no mark, nor does a field that only `ttl` or `wait` uses.
///
/// ```
/// # use lock_core::{Lock, LockError, LockManager};
/// /// Guards the payment of one order.
/// #[derive(Lock)]
/// #[lock(name = "order:{order_id}", ttl = "30s")]
/// struct OrderLock {
///     order_id: u64,
/// }
///
/// #[derive(Lock)]
/// #[lock(name = "stock:{sku}", mode = read_write)]
/// struct Stock<'a> {
///     sku: &'a str,
/// }
///
/// #[derive(Lock)]
/// #[lock(name = "mailer", permits = 4)]
/// struct Mailer;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let locks = LockManager::in_memory();
/// let order = locks.hold(OrderLock { order_id: 7 }).acquire().await?;
/// let stock = locks.hold_read(Stock { sku: "a-1" }).acquire().await?;
/// let mailer = locks.hold_permit(Mailer).acquire().await?;
/// assert_eq!(order.guard().key(), "lock:order:7");
/// # drop((order, stock, mailer));
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a declared lock",
    label = "is not a declared lock",
    note = "declare it: `#[derive(Lock)] #[lock(name = \"order:{{id}}\")] struct OrderLock {{ id: u64 }}`"
)]
pub trait Lock: Sized {
    /// Whether the lock is exclusive, a read-write lock, or a semaphore.
    type Kind;

    /// Returns what the type declares.
    #[doc(hidden)]
    fn declaration(&self) -> Declaration;
}

/// What a type declares about its lock. Not an interface: it changes with the derive.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Declaration {
    /// The name of the lock.
    pub name: LockName,
    /// The kind of a semaphore. For other locks the mode decides.
    pub kind: Kind,
    /// `ttl = ..`
    pub ttl: Option<Duration>,
    /// `wait = ..`
    pub wait: Option<Duration>,
}

/// The kind of a lock with one holder.
#[derive(Debug)]
pub enum ExclusiveKind {}

/// The kind of a lock with many readers or one writer.
#[derive(Debug)]
pub enum ReadWriteKind {}

/// The kind of a lock with permits.
#[derive(Debug)]
pub enum SemaphoreKind {}

/// The mode of a lock with one holder: an exclusive lock, or a read-write lock that is held for writing.
///
/// ```
/// # use lock_core::typed::Write;
/// # use lock_core::{Held, Lock};
/// #[derive(Lock)]
/// #[lock(name = "catalog", mode = read_write)]
/// struct Catalog;
///
/// fn replace_prices(_proof: &Held<Catalog, Write>) {}
/// # let _ = replace_prices;
/// ```
#[derive(Debug)]
pub enum Write {}

/// The mode of a read-write lock that is held for reading.
///
/// ```
/// # use lock_core::typed::Read;
/// # use lock_core::{Held, Lock};
/// #[derive(Lock)]
/// #[lock(name = "catalog", mode = read_write)]
/// struct Catalog;
///
/// fn read_prices(_proof: &Held<Catalog, Read>) {}
/// # let _ = read_prices;
/// ```
#[derive(Debug)]
pub enum Read {}

/// The mode of a semaphore of which a permit is held.
///
/// ```
/// # use lock_core::typed::Permit;
/// # use lock_core::{Held, Lock};
/// #[derive(Lock)]
/// #[lock(name = "mailer", permits = 4)]
/// struct Mailer;
///
/// fn send_mail(_proof: &Held<Mailer, Permit>) {}
/// # let _ = send_mail;
/// ```
#[derive(Debug)]
pub enum Permit {}

/// A mode in which a lock is held.
#[doc(hidden)]
pub trait HeldMode {
    /// Returns the kind to request.
    fn kind(declared: Kind) -> Kind;
}

impl HeldMode for Write {
    fn kind(_: Kind) -> Kind {
        Kind::Exclusive
    }
}

impl HeldMode for Read {
    fn kind(_: Kind) -> Kind {
        Kind::Read
    }
}

impl HeldMode for Permit {
    fn kind(declared: Kind) -> Kind {
        declared
    }
}

/// The mode of a lock whose caller names none.
#[doc(hidden)]
pub trait DefaultMode {
    /// The mode.
    type Mode: HeldMode;
}

impl DefaultMode for ExclusiveKind {
    type Mode = Write;
}

impl DefaultMode for ReadWriteKind {
    type Mode = Write;
}

impl DefaultMode for SemaphoreKind {
    type Mode = Permit;
}

/// A declared lock with one holder. [`LockManager::hold`](crate::LockManager::hold) takes it.
///
/// Each type that derives [`Lock`] without `mode = read_write` and without `permits` implements it:
///
/// ```
/// # use lock_core::Lock;
/// # use lock_core::typed::ExclusiveLock;
/// #[derive(Lock)]
/// #[lock(name = "order:{0}")]
/// struct OrderLock(u64);
///
/// fn is_exclusive(_: impl ExclusiveLock) {}
/// is_exclusive(OrderLock(7));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an exclusive lock",
    label = "is not declared as this kind",
    note = "a name that no type declares is locked with `locks.lock(name)`",
    note = "a declared lock of another kind: take it with `hold_read`, `hold_write` or `hold_permit`, or declare it without `mode` and `permits`"
)]
pub trait ExclusiveLock: Lock {}

// Otherwise the compiler reports the kind, and not what to do about it.
#[diagnostic::do_not_recommend]
impl<L: Lock<Kind = ExclusiveKind>> ExclusiveLock for L {}

/// A declared lock with many readers or one writer. [`LockManager::hold_read`](crate::LockManager::hold_read) and
/// [`LockManager::hold_write`](crate::LockManager::hold_write) take it.
///
/// Each type that derives [`Lock`] with `mode = read_write` implements it:
///
/// ```
/// # use lock_core::Lock;
/// # use lock_core::typed::ReadWriteLock;
/// #[derive(Lock)]
/// #[lock(name = "stock:{0}", mode = read_write)]
/// struct Stock(u64);
///
/// fn has_readers(_: impl ReadWriteLock) {}
/// has_readers(Stock(7));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a read-write lock",
    label = "is not declared as this kind",
    note = "a name that no type declares is locked with `locks.lock(name)`",
    note = "a declared lock of another kind: declare it with `#[lock(.., mode = read_write)]`, or take it with `hold` or `hold_permit`"
)]
pub trait ReadWriteLock: Lock {}

#[diagnostic::do_not_recommend]
impl<L: Lock<Kind = ReadWriteKind>> ReadWriteLock for L {}

/// A declared lock with permits. [`LockManager::hold_permit`](crate::LockManager::hold_permit) takes it.
///
/// Each type that derives [`Lock`] with `permits` implements it:
///
/// ```
/// # use lock_core::Lock;
/// # use lock_core::typed::SemaphoreLock;
/// #[derive(Lock)]
/// #[lock(name = "mailer", permits = 4)]
/// struct Mailer;
///
/// fn has_permits(_: impl SemaphoreLock) {}
/// has_permits(Mailer);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a semaphore",
    label = "is not declared as this kind",
    note = "a name that no type declares is locked with `locks.lock(name)`",
    note = "a declared lock of another kind: declare it with `#[lock(.., permits = 4)]`, or take it with `hold`, `hold_read` or `hold_write`"
)]
pub trait SemaphoreLock: Lock {}

#[diagnostic::do_not_recommend]
impl<L: Lock<Kind = SemaphoreKind>> SemaphoreLock for L {}
