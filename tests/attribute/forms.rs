//! More forms of async functions than `signatures.rs` has.

use std::fmt::Display;
use std::future::Future;
use std::pin::Pin;

use lock_core::{LockError, LockManager, distributed_lock};

use crate::is_held;

#[distributed_lock(name = "fib:{n}", manager = locks)]
async fn recursive(locks: &LockManager, n: u64) -> Result<u64, LockError> {
    if n < 2 {
        return Ok(n);
    }
    let one = Box::pin(recursive(locks, n - 1)).await?;
    let two = Box::pin(recursive(locks, n - 2)).await?;
    Ok(one + two)
}

#[tokio::test]
async fn recursive_function_works_with_a_boxed_call() {
    let locks = LockManager::in_memory();
    assert_eq!(recursive(&locks, 7).await.expect("free"), 13);
}

#[distributed_lock(name = "outer", manager = locks)]
async fn outer(locks: &LockManager) -> Result<bool, LockError> {
    #[distributed_lock(name = "inner:{id}", manager = locks)]
    async fn inner(locks: &LockManager, id: u8) -> Result<bool, LockError> {
        Ok(is_held(locks, "outer").await && is_held(locks, "inner:1").await && id == 1)
    }
    inner(locks, 1).await
}

#[tokio::test]
async fn function_may_be_nested_in_a_function() {
    assert!(outer(&LockManager::in_memory()).await.expect("free"));
}

struct Shelf<'s, T, const N: usize> {
    locks: &'s LockManager,
    items: [T; N],
}

impl<'s, T, const N: usize> Shelf<'s, T, N>
where
    T: Copy + Display + Send + Sync,
{
    #[distributed_lock(name = "shelf:{key}", manager = self.locks)]
    async fn named<'a, 'b: 'a>(&'a self, key: &'b str, at: usize) -> Result<&'a T, LockError> {
        tokio::task::yield_now().await;
        Ok(&self.items[at.min(key.len())])
    }

    #[distributed_lock(name = "shelf:{key}", manager = self.locks)]
    async fn elided(&mut self, key: &str, item: T) -> Result<&mut [T; N], LockError> {
        assert!(!key.is_empty());
        self.items[0] = item;
        Ok(&mut self.items)
    }

    #[distributed_lock(name = "shelf:{item}", manager = self.locks)]
    pub(crate) async fn owned(self, mut item: T, more: &mut [T]) -> Result<(Self, T), LockError>
    where
        T: Default,
    {
        std::mem::swap(&mut item, &mut more[0]);
        Ok((self, item))
    }

    const fn locks(&self) -> &'s LockManager {
        self.locks
    }
}

#[tokio::test]
async fn method_may_have_lifetimes_and_generics() {
    let locks = LockManager::in_memory();
    let mut shelf = Shelf {
        locks: &locks,
        items: [1_u8, 2],
    };
    assert_eq!(*shelf.named("abc", 1).await.expect("free"), 2);
    assert_eq!(shelf.elided("k", 9).await.expect("free"), &[9, 2]);
    let mut more = [5];
    let (shelf, was) = shelf.owned(4, &mut more).await.expect("free");
    assert_eq!((was, more, shelf.items[0]), (5, [4], 9));
    assert!(!is_held(shelf.locks(), "shelf:4").await);
}

trait Ship {
    async fn native(&self, id: u8) -> Result<u8, LockError>;

    fn hidden(&self) -> impl Future<Output = Result<u8, LockError>> + Send;
}

struct Van<'l>(&'l LockManager);

impl Ship for Van<'_> {
    #[distributed_lock(name = "van:{id}", manager = self.0)]
    async fn native(&self, id: u8) -> Result<u8, LockError> {
        Ok(id)
    }

    #[distributed_lock(name = "van", manager = self.0)]
    async fn hidden(&self) -> Result<u8, LockError> {
        Ok(2)
    }
}

#[tokio::test]
async fn method_may_implement_a_native_async_trait_function() {
    let locks = LockManager::in_memory();
    assert_eq!(Van(&locks).native(1).await.expect("free"), 1);
    assert_eq!(Van(&locks).hidden().await.expect("free"), 2);
}

#[distributed_lock(name = "cb:{key}", manager = locks)]
async fn callback<F, R>(locks: &LockManager, key: &dyn Key, run: F) -> Result<R, LockError>
where
    F: AsyncFnOnce(&LockManager) -> R,
{
    Ok(run(locks).await)
}

/// A trait object as a parameter.
trait Key: Display + Send + Sync {}

impl Key for u8 {}

#[tokio::test]
async fn parameter_may_be_a_closure_or_a_trait_object() {
    let locks = LockManager::in_memory();
    let held = callback(&locks, &3, async |locks: &LockManager| {
        is_held(locks, "cb:3").await
    });
    assert!(held.await.expect("free"));
}

#[distributed_lock(name = "boxed", manager = locks)]
async fn erased(locks: LockManager) -> Result<u8, LockError> {
    tokio::task::yield_now().await;
    drop(locks);
    Ok(1)
}

type Handler = fn(LockManager) -> Pin<Box<dyn Future<Output = Result<u8, LockError>> + Send>>;

#[tokio::test]
async fn function_may_be_passed_as_a_value() {
    let handlers: [Handler; 1] = [|locks| Box::pin(erased(locks))];
    for handler in handlers {
        assert_eq!(handler(LockManager::in_memory()).await.expect("free"), 1);
    }
}

#[deny(unused_variables, unused_mut, unused_braces, unused_parens, dead_code)]
mod lints {
    use super::{LockError, LockManager, distributed_lock};

    #[allow(unused_variables, reason = "the attribute keeps attributes")]
    #[allow(
        clippy::mixed_attributes_style,
        reason = "the attribute must keep both"
    )]
    #[distributed_lock(name = "lint", manager = locks)]
    #[deprecated = "to see that it stays"]
    pub(super) async fn kept(locks: &LockManager, unused: u8) -> Result<(), LockError> {
        #![allow(unused_mut, reason = "inner attributes stay, too")]
        let mut never_changed = 1;
        assert_eq!(never_changed, 1);
        Ok(())
    }
}

#[tokio::test]
async fn lint_attributes_are_kept() {
    #[expect(deprecated, reason = "the function stays deprecated")]
    lints::kept(&LockManager::in_memory(), 1)
        .await
        .expect("free");
}

macro_rules! of_a_type {
    ($name:ident -> $output:ty) => {
        #[distributed_lock(name = "type", manager = locks, on_error = |_| std::process::abort())]
        async fn $name(locks: &LockManager) -> $output {
            std::future::pending().await
        }
    };
}

of_a_type!(never_of_a_macro -> !);

macro_rules! of_a_block {
    ($name:ident $body:block) => {
        #[distributed_lock(name = "block", manager = LockManager::in_memory())]
        async fn $name() -> Result<u8, LockError> $body
    };
}

of_a_block!(block_of_a_macro { Ok(1) });

#[distributed_lock(name = "adder", manager = locks, on_error = |error| unreachable!("{error}"))]
async fn adder(locks: &LockManager) -> impl Fn(u8) -> u8 {
    |number| number + 1
}

#[distributed_lock(name = "adder", manager = locks)]
async fn fallible_adder(locks: &LockManager) -> Result<impl Fn(u8) -> u8, LockError> {
    Ok(|number| number + 1)
}

#[tokio::test]
async fn return_type_may_be_a_closure_or_come_from_a_macro() {
    let locks = LockManager::in_memory();
    let brief = std::time::Duration::from_millis(20);
    let never = tokio::time::timeout(brief, never_of_a_macro(&locks));
    never.await.expect_err("the function never returns");
    assert_eq!(block_of_a_macro().await.expect("free"), 1);
    assert_eq!(adder(&locks).await(1), 2);
    assert_eq!(fallible_adder(&locks).await.expect("free")(1), 2);
}

macro_rules! chain {
    ($first:ident $($name:ident)*) => {
        chain!(@ $first $($name)* last);

        #[distributed_lock(name = "chain:last", manager = locks)]
        async fn last(locks: &LockManager, depth: u8) -> Result<u8, LockError> {
            tokio::task::yield_now().await;
            assert!(is_held(locks, "chain:last").await);
            Ok(depth)
        }
    };
    (@ $name:ident $next:ident $($rest:ident)*) => {
        #[distributed_lock(name = concat_names(stringify!($name)), manager = locks)]
        async fn $name(locks: &LockManager, depth: u8) -> Result<u8, LockError> {
            $next(locks, depth + 1).await
        }

        chain!(@ $next $($rest)*);
    };
    (@ $last:ident) => {};
}

fn concat_names(name: &str) -> String {
    format!("chain:{name}")
}

// The compiler's default limits for nested types allow this many calls; twice as many need
// `#![recursion_limit = "256"]`.
chain!(c1 c2 c3 c4 c5 c6 c7 c8 c9 c10 c11 c12 c13 c14);

#[tokio::test]
async fn call_chain_of_fifteen_annotated_functions_compiles() {
    let locks = LockManager::in_memory();
    let spawned = tokio::spawn(async move { c1(&locks, 1).await });
    assert_eq!(spawned.await.expect("no panic").expect("free"), 15);
}
