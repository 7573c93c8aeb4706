//! Traits in scope whose methods exist on every type and take `self`. If a wrapper calls a method
//! by its name, such a method may be chosen first.
#![deny(warnings)]

use lock_core::LockError;

use crate::support::Tracked;

/// The return value of the methods of [`Hijack`]. No code can use it.
pub(crate) struct Hijacked;

macro_rules! hijack {
    ($($method:ident)*) => {
        #[allow(dead_code, clippy::should_implement_trait, clippy::wrong_self_convention)]
        trait Hijack: Sized {
            $(fn $method(self) -> Hijacked {
                let _ = self;
                Hijacked
            })*
        }
    };
}

hijack! {
    as_mut as_ref lost await_ poll new ttl wait renew max_hold min_hold into from clone map is_ok
    is_err unwrap branch into_future get_mut set is_lost take replace deref deref_mut borrow
    borrow_mut apply acquire release lock named manager fuse by_ref project into_inner to_owned
    try_into inside call call_once call_mut expect and_then ok err is_contended fmt to_string
}

impl<T> Hijack for T {}

/// The same for references, which a call with an automatic borrow would choose.
trait HijackReference {
    fn as_mut(&mut self) -> Hijacked {
        Hijacked
    }
    fn poll(&mut self) -> Hijacked {
        Hijacked
    }
}

impl<T: ?Sized> HijackReference for T {}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "traits:plain")
)]
async fn plain(a: Tracked) -> Result<usize, LockError> {
    Ok(Tracked::length(&a))
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(
        name = "traits:configured:{id}",
        hash_tag = "{id}",
        ttl = "10s",
        wait = "1s",
        renew = "1s",
        max_hold = "20s",
        min_hold = "1ms",
        on_contended = |_| Ok(0),
        on_error = |_| Ok(0),
        bind = _held,
        release = background,
    )
)]
async fn configured(id: usize, a: Tracked) -> Result<usize, LockError> {
    Ok(Tracked::length(&a) + id)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "traits:continued", on_lost = continue, on_contended = skip)
)]
async fn continued((a, b): (Tracked, Tracked)) -> Result<Option<usize>, LockError> {
    Ok(Some(Tracked::length(&a) + Tracked::length(&b)))
}

struct Owner {
    count: usize,
}

impl Owner {
    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "traits:method:{self.count}")
    )]
    async fn method(&mut self) -> Result<usize, LockError> {
        self.count += 1;
        Ok(self.count)
    }
}

pub(crate) async fn run() {
    // Uses these methods, so that the traits are used.
    let _ = Hijack::map(HijackReference::as_mut(&mut HijackReference::poll(&mut 1)));
    show!(plain(Tracked("a")));
    show!(configured(1, Tracked("a")));
    show!(continued((Tracked("a"), Tracked("b"))));
    show!(method => Owner { count: 1 }.method());
}
