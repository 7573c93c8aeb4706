//! Types and modules of the user with the names of the standard library.
#![deny(warnings)]
#![allow(dead_code)]

use crate::support::Tracked;

/// Type names.
mod shadows {
    use lock_core::LockError;

    use super::Tracked;

    pub(super) struct Option;
    pub(super) struct Result;
    #[derive(Debug)]
    pub(super) struct Ok(u8);
    pub(super) struct Err;
    pub(super) struct Some;
    pub(super) struct None;
    pub(super) struct Box;
    pub(super) struct Pin;
    pub(super) struct Duration;
    pub(super) struct Vec;
    pub(super) struct String;
    pub(super) struct LockGuard;
    pub(super) struct LockManager;
    pub(super) struct Context;
    pub(super) struct Poll;
    pub(super) struct Ready;
    pub(super) trait Future {}
    pub(super) trait Send {}
    pub(super) trait Sync {}
    pub(super) trait Sized {}
    pub(super) trait Copy {}
    pub(super) trait Drop {}
    pub(super) trait Fn {}
    pub(super) trait FnOnce {}
    pub(super) trait Into {}
    pub(super) trait From {}
    pub(super) trait IntoFuture {}
    pub(super) trait Default {}

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "types:result")
    )]
    async fn result(a: Tracked) -> ::std::result::Result<usize, LockError> {
        ::std::result::Result::Ok(a.length())
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(
            name = "types:own:{id}",
            hash_tag = "{id}",
            ttl = "10s",
            wait = "1s",
            on_contended = |_| Ok(1),
            on_error = |_| Ok(2),
            bind = _held,
        )
    )]
    async fn own(id: u8) -> Ok {
        Ok(id)
    }

    pub(super) async fn run() {
        show!(result(Tracked("a")));
        show!(own(3));
    }
}

/// Names of crates.
mod crates {
    use ::lock_core::LockError;

    mod std {}
    mod core {}
    mod alloc {}
    mod lock_core {}
    mod lock_macros {}
    mod tokio {}

    #[cfg_attr(
        feature = "attribute",
        ::lock_core::distributed_lock(name = "types:crates:{a}")
    )]
    async fn crates(a: u8) -> Result<u8, LockError> {
        Ok(a)
    }

    pub(super) async fn run() {
        show!(crates(1));
    }
}

/// Names of primitive types.
mod primitives {
    #![allow(non_camel_case_types)]

    use lock_core::LockError;

    struct bool;
    struct str;
    struct u32;
    struct u64;
    struct usize;

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "types:primitives:{a}", ttl = "10s", wait = "1s")
    )]
    async fn primitives(a: u8) -> Result<u8, LockError> {
        Ok(a)
    }

    pub(super) async fn run() {
        show!(primitives(1));
    }
}

/// A generic parameter with the name of a type of the library.
mod parameters {
    use lock_core::LockError;

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "types:parameters")
    )]
    async fn parameters<Future, LockGuard, R, F, const N: usize>(
        a: Future,
        b: LockGuard,
        c: (R, F),
    ) -> Result<(Future, LockGuard, (R, F), usize), LockError> {
        Ok((a, b, c, N))
    }

    pub(super) async fn run() {
        show!(parameters => parameters::<_, _, _, _, 7>(1, 2, (3, 4)));
    }
}

pub(crate) async fn run() {
    shadows::run().await;
    crates::run().await;
    primitives::run().await;
    parameters::run().await;
}
