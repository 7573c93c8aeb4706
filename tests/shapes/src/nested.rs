//! Functions that call each other, and functions inside functions.
#![deny(warnings)]

use std::future::Future;
use std::pin::Pin;

use lock_core::LockError;

use crate::support::{Tracked, pause};

macro_rules! level {
    ($name:ident, $key:literal, $next:ident) => {
        #[cfg_attr(feature = "attribute", lock_core::distributed_lock(name = $key))]
        async fn $name(a: Tracked) -> Result<usize, LockError> {
            let local = Tracked(stringify!($name));
            let below = $next(Tracked("argument")).await?;
            Ok(below + a.length() + local.length())
        }
    };
}

level!(eight, "nested:8", seven);
level!(seven, "nested:7", six);
level!(six, "nested:6", five);
level!(five, "nested:5", four);
level!(four, "nested:4", three);
level!(three, "nested:3", two);
level!(two, "nested:2", one);

#[cfg_attr(feature = "attribute", lock_core::distributed_lock(name = "nested:1"))]
async fn one(a: Tracked) -> Result<usize, LockError> {
    pause().await;
    Ok(a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "nested:recursion:{depth}")
)]
async fn recursion(depth: usize, a: Tracked) -> Result<usize, LockError> {
    if depth == 0 {
        return Ok(a.length());
    }
    let below = Box::pin(recursion(depth - 1, Tracked("inner"))).await?;
    Ok(below + depth)
}

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

fn even(depth: usize) -> Boxed<Result<bool, LockError>> {
    Box::pin(even_or_odd(depth))
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "nested:even:{depth}")
)]
async fn even_or_odd(depth: usize) -> Result<bool, LockError> {
    match depth {
        0 => Ok(true),
        depth => even(depth - 1).await.map(|even| !even),
    }
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "nested:outer")
)]
async fn outer(a: Tracked) -> Result<usize, LockError> {
    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "nested:inner")
    )]
    async fn inner(a: Tracked) -> Result<usize, LockError> {
        Ok(a.length())
    }

    struct Local;

    impl Local {
        #[cfg_attr(
            feature = "attribute",
            lock_core::distributed_lock(name = "nested:local")
        )]
        async fn method(self, a: Tracked) -> Result<usize, LockError> {
            let Self = self;
            Ok(a.length())
        }
    }

    Ok(inner(Tracked("inner")).await? + Local.method(Tracked("local")).await? + a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "nested:concurrent")
)]
async fn concurrent(a: Tracked) -> Result<usize, LockError> {
    let (left, right) = tokio::join!(recursion(1, Tracked("left")), one(Tracked("right")));
    Ok(left? + right? + a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "nested:awaited_argument")
)]
async fn awaited_argument(
    a: Tracked,
    future: impl Future<Output = Result<usize, LockError>>,
) -> Result<usize, LockError> {
    Ok(future.await? + a.length())
}

pub(crate) async fn run() {
    show!(eight(Tracked("a")));
    show!(recursion(3, Tracked("a")));
    show!(even_or_odd(5));
    show!(outer(Tracked("a")));
    show!(concurrent(Tracked("a")));
    show!(awaited_argument(Tracked("a"), one(Tracked("inner"))));
}
