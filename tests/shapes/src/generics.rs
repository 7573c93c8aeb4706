//! Type parameters, const parameters, lifetimes and trait objects.
#![deny(warnings)]

use std::fmt::{Debug, Display};
use std::future::Future;

use lock_core::LockError;

use crate::support::Tracked;

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "generics:{a}")
)]
async fn type_parameter<T: Display>(a: T, b: Tracked) -> Result<String, LockError> {
    Ok(format!("{a} {b}"))
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "generics:where_clause")
)]
async fn where_clause<T, U>(a: T, b: U) -> Result<(U, T), LockError>
where
    T: Debug,
    U: Clone + Debug,
{
    Ok((b.clone(), a))
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "generics:impl_trait")
)]
async fn impl_trait(a: impl Display, b: impl Into<String>) -> Result<String, LockError> {
    Ok(format!("{} {}", a, b.into()))
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "generics:iterator")
)]
async fn iterator(items: impl IntoIterator<Item = u8>) -> Result<u32, LockError> {
    let mut sum = 0;
    for item in items {
        sum += u32::from(item);
    }
    Ok(sum)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "generics:constant")
)]
async fn constant<const N: usize>(items: [u8; N]) -> Result<usize, LockError> {
    Ok(N + items.len())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "generics:elided")
)]
async fn elided(text: &str) -> Result<&str, LockError> {
    Ok(text.trim())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "generics:explicit")
)]
async fn explicit<'a>(a: &'a str, b: &str) -> Result<&'a str, LockError> {
    if b.is_empty() {
        return Ok("static");
    }
    Ok(a)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "generics:outlives")
)]
async fn outlives<'a: 'b, 'b>(a: &'a str, b: &'b str) -> Result<&'b str, LockError> {
    Ok(if a.len() > b.len() { a } else { b })
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "generics:bounded")
)]
async fn bounded<'a, T: ?Sized + Debug + 'a>(a: &'a T) -> Result<&'a T, LockError> {
    Ok(a)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "generics:dynamic")
)]
async fn dynamic(a: &dyn Display, b: Box<dyn Debug>) -> Result<String, LockError> {
    Ok(format!("{a} {b:?}"))
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "generics:closure")
)]
async fn closure<F>(f: F, a: Tracked) -> Result<usize, LockError>
where
    F: FnOnce(&Tracked) -> usize,
{
    Ok(f(&a))
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "generics:mutable_closure")
)]
async fn mutable_closure(mut f: impl FnMut() -> u8) -> Result<u8, LockError> {
    f();
    Ok(f())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "generics:async_closure")
)]
async fn async_closure<F, R>(f: F) -> Result<u8, LockError>
where
    F: Fn(u8) -> R,
    R: Future<Output = u8>,
{
    Ok(f(1).await + f(2).await)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "generics:pointer")
)]
async fn pointer(f: fn(u8) -> u8) -> Result<u8, LockError> {
    Ok(f(1))
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "generics:error")
)]
async fn error<E: From<LockError> + Debug>(a: u8) -> Result<u8, E> {
    Ok(a)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "generics:unsized")
)]
async fn slice<T: Debug>(items: &[T]) -> Result<Option<&T>, LockError> {
    Ok(items.first())
}

struct Holder<'h, T, const N: usize> {
    items: &'h [T; N],
}

impl<'h, T: Debug, const N: usize> Holder<'h, T, N> {
    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "generics:method")
    )]
    async fn method<U: Debug>(&self, other: U) -> Result<(&'h T, U, usize), LockError> {
        Ok((&self.items[0], other, N))
    }
}

pub(crate) async fn run() {
    show!(type_parameter(1, Tracked("b")));
    show!(where_clause(Tracked("a"), "b"));
    show!(impl_trait(1, "b"));
    show!(iterator(vec![1, 2]));
    show!(constant([1, 2, 3]));
    show!(elided(" a "));
    show!(explicit("a", "b"));
    show!(outlives("a", "bc"));
    show!(bounded("a"));
    show!(dynamic(&1, Box::new(Tracked("b"))));
    show!(closure(Tracked::length, Tracked("a")));
    let mut count = 0;
    let captured = Tracked("captured");
    show!(closure(
        move |a: &Tracked| a.length() + captured.length(),
        Tracked("a")
    ));
    show!(mutable_closure(|| {
        count += 1;
        count
    }));
    show!(async_closure(|n| async move { n + 1 }));
    show!(pointer(|n| n + 1));
    show!(error => error::<LockError>(1));
    show!(slice(&[Tracked("a")]));
    show!(method => Holder { items: &[1, 2] }.method(Tracked("other")));
}
