//! Attributes of the language.
#![deny(warnings)]

use lock_core::LockError;

use crate::support::{Tracked, pause};

/// Documented above.
#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "attributes:documented")
)]
/// Documented below.
#[doc = "And once more."]
async fn documented(a: Tracked) -> Result<usize, LockError> {
    //! Documented inside.
    Ok(a.length())
}

#[must_use]
#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "attributes:must_use", on_error = |e| crate::support::refused(e))
)]
async fn must_use(a: Tracked) -> usize {
    a.length()
}

#[inline]
#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "attributes:inlined")
)]
async fn inlined(a: Tracked) -> Result<usize, LockError> {
    Ok(a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "attributes:cold")
)]
#[cold]
#[inline(never)]
async fn cold(a: Tracked) -> Result<usize, LockError> {
    Ok(a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "attributes:obsolete")
)]
#[deprecated(note = "use another one")]
async fn obsolete(a: Tracked) -> Result<usize, LockError> {
    Ok(a.length())
}

#[allow(deprecated)]
#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "attributes:calls_obsolete")
)]
async fn calls_obsolete(a: Tracked) -> Result<usize, LockError> {
    obsolete(a).await
}

#[allow(unused_variables, unused_mut)]
#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "attributes:allowed")
)]
async fn allowed(mut a: Tracked, b: Tracked) -> Result<u8, LockError> {
    let unused = 1;
    Ok(1)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "attributes:allowed_below")
)]
#[allow(unused_variables, unused_mut, unused_assignments)]
async fn allowed_below(mut a: Tracked, mut b: u8) -> Result<u8, LockError> {
    b = 1;
    b = 2;
    Ok(1)
}

#[expect(unused_variables)]
#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "attributes:expected")
)]
async fn expected(a: Tracked) -> Result<u8, LockError> {
    Ok(1)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "attributes:expected_below")
)]
#[expect(unused_variables, unused_assignments)]
async fn expected_below(a: Tracked) -> Result<u8, LockError> {
    let mut unused = 1;
    unused = 2;
    Ok(1)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "attributes:expected_unreachable")
)]
#[expect(unreachable_code)]
async fn expected_unreachable(a: Tracked) -> Result<usize, LockError> {
    return Ok(a.length());
    #[allow(unused_must_use)]
    pause();
}

#[cfg(all())]
#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "attributes:conditional")
)]
#[cfg(not(any()))]
async fn conditional(a: Tracked) -> Result<usize, LockError> {
    Ok(a.length())
}

#[rustfmt::skip]
#[cfg_attr(feature = "attribute", lock_core::distributed_lock(name = "attributes:unformatted"))]
async fn unformatted(a:Tracked)->Result<usize,LockError>{Ok(a.length())}

#[allow(improper_ctypes_definitions)]
#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "attributes:extern_c")
)]
async extern "C" fn extern_c(a: u8) -> Result<u8, LockError> {
    Ok(a)
}

#[track_caller]
#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "attributes:first")
)]
#[allow(ungated_async_fn_track_caller)]
async fn tracked_caller(a: Tracked) -> Result<usize, LockError> {
    Ok(a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "attributes:crate", crate = ::lock_core)
)]
async fn named_crate(a: Tracked) -> Result<usize, LockError> {
    Ok(a.length())
}

pub(crate) async fn run() {
    let [a, b] = [|| Tracked("a"), || Tracked("b")];
    show!(documented(a()));
    show!(must_use(a()));
    show!(inlined(a()));
    show!(cold(a()));
    show!(calls_obsolete(a()));
    show!(allowed(a(), b()));
    show!(allowed_below(a(), 7));
    show!(expected(a()));
    show!(expected_below(a()));
    show!(expected_unreachable(a()));
    show!(conditional(a()));
    show!(unformatted(a()));
    show!(extern_c(1));
    show!(tracked_caller(a()));
    show!(named_crate(a()));
}
