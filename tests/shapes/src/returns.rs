//! Return types.
#![deny(warnings)]

use std::fmt::{Debug, Display};

use lock_core::LockError;

use crate::support::{Tracked, park};

type Answer<T> = Result<T, LockError>;
type Unit = Answer<()>;

#[derive(Debug)]
#[allow(dead_code)]
enum Failure {
    Lock,
    Own(u8),
}

impl From<LockError> for Failure {
    fn from(_: LockError) -> Self {
        Failure::Lock
    }
}

impl From<std::num::ParseIntError> for Failure {
    fn from(_: std::num::ParseIntError) -> Self {
        Failure::Own(1)
    }
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "returns:alias")
)]
async fn alias(a: u8) -> Answer<u8> {
    Ok(a)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "returns:unit_alias")
)]
async fn unit_alias() -> Unit {
    Ok(())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "returns:full_path")
)]
async fn full_path() -> std::result::Result<std::vec::Vec<u8>, lock_core::LockError> {
    Ok(vec![1])
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "returns:own_error")
)]
async fn own_error(text: &str) -> Result<u8, Failure> {
    let number = text.parse()?;
    if number > 9 {
        return Err(Failure::Own(number));
    }
    Ok(number)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "returns:boxed_error")
)]
async fn boxed_error(text: &str) -> Result<u8, Box<dyn std::error::Error + Send + Sync>> {
    if text.is_empty() {
        return Err("empty".into());
    }
    Ok(text.parse()?)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "returns:failed")
)]
async fn failed(a: Tracked) -> Result<bool, LockError> {
    let _local = Tracked("local");
    Err(LockError::NotConfigured)?;
    Ok(a.0.len() == 1)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "returns:impl_display")
)]
async fn impl_display(a: u8) -> Result<impl Display + Debug, LockError> {
    Ok(a)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "returns:impl_iterator")
)]
async fn impl_iterator(n: u8) -> Result<impl Iterator<Item = u8>, LockError> {
    Ok((0..n).map(|i| i * 2))
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "returns:impl_fn", on_error = |e| panic!("{}", e))
)]
async fn impl_fn() -> impl Fn(u8) -> u8 {
    |x| x + 1
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "returns:impl_fn_moved", on_error = |e| panic!("{}", e))
)]
async fn impl_fn_moved(a: Tracked) -> impl FnOnce(usize) -> usize {
    move |x| x + a.length()
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "returns:result_of_fn")
)]
async fn result_of_fn(by: u8) -> Result<impl Fn(u8) -> u8, LockError> {
    Ok(move |x| x + by)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "returns:boxed_fn")
)]
async fn boxed_fn(by: u8) -> Result<Box<dyn Fn(u8) -> u8>, LockError> {
    Ok(Box::new(move |x| x + by))
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "returns:coerced")
)]
async fn coerced(a: &'static str) -> Result<Box<dyn Debug>, LockError> {
    Ok(Box::new(a))
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "returns:coerced_value", on_error = |e| crate::support::refused(e))
)]
async fn coerced_value() -> Box<dyn Fn(u8) -> u8> {
    Box::new(|x| x + 1)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "returns:fn_pointer", on_error = |e| crate::support::refused(e))
)]
async fn fn_pointer() -> fn(u8) -> u8 {
    |x| x + 1
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "returns:never", on_error = |e| panic!("{}", e))
)]
async fn never(a: Tracked) -> ! {
    loop {
        park().await;
        assert_eq!(a.length(), 1);
    }
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "returns:never_panics", on_error = |e| panic!("{}", e))
)]
async fn never_panics(_a: Tracked) -> ! {
    panic!("out of work")
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "returns:never_inside")
)]
async fn never_inside() -> Result<std::convert::Infallible, LockError> {
    park().await;
    Err(LockError::NotConfigured)
}

macro_rules! returning {
    ($name:ident, $key:literal, $t:ty, $b:block) => {
        #[cfg_attr(
            feature = "attribute",
            lock_core::distributed_lock(name = $key, on_error = |e| panic!("{}", e))
        )]
        async fn $name() -> $t $b
    };
}

returning!(never_by_macro, "returns:never_by_macro", !, {
    park().await;
    panic!("out of work")
});

returning!(type_by_macro, "returns:type_by_macro", Option<u8>, {
    Some(1)
});

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "returns:option", on_error = |e| crate::support::refused(e))
)]
async fn option(a: Option<Tracked>) -> Option<usize> {
    let a = a?;
    Some(a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "returns:nothing", on_error = |e| crate::support::refused(e))
)]
async fn nothing(a: Tracked) {
    drop(a);
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "returns:empty", on_error = |e| crate::support::refused(e))
)]
async fn empty() {}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "returns:empty_unit", on_error = |e| crate::support::refused(e))
)]
#[allow(clippy::unused_unit)]
async fn empty_unit(_a: Tracked, _b: Tracked) -> () {}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "returns:tuple", on_error = |e| crate::support::refused(e))
)]
async fn tuple(a: Tracked) -> (usize, Tracked) {
    (a.length(), a)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "returns:borrowed", on_error = |e| crate::support::refused(e))
)]
async fn borrowed(a: &Tracked) -> &str {
    a.0
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "returns:dynamic_borrow")
)]
async fn dynamic_borrow(a: &Tracked) -> Result<Box<dyn Display + '_>, LockError> {
    Ok(Box::new(a))
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "returns:early")
)]
async fn early(a: u8) -> Result<u8, LockError> {
    if a == 0 {
        return Ok(9);
    }
    for i in 0..a {
        if i == 2 {
            return Ok(i);
        }
    }
    Ok(a)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "returns:only_return")
)]
#[allow(clippy::needless_return)]
async fn only_return(a: u8) -> Result<u8, LockError> {
    return Ok(a);
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "returns:inferred")
)]
async fn inferred() -> Result<Vec<u64>, LockError> {
    Ok("1 2"
        .split(' ')
        .filter_map(|word| word.parse().ok())
        .collect())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "returns:collected")
)]
async fn collected() -> Result<Vec<u8>, LockError> {
    vec![Ok(1), Ok(2)].into_iter().collect()
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "returns:nested")
)]
async fn nested() -> Result<Result<u8, Failure>, LockError> {
    Ok(Err(Failure::Own(3)))
}

pub(crate) async fn run() {
    show!(alias(1));
    show!(unit_alias());
    show!(full_path());
    show!(own_error("7"));
    show!(own_error("77"));
    show!(own_error("x"));
    show!(boxed_error("7"));
    show!(boxed_error(""));
    show!(failed(Tracked("a")));
    show!(impl_display(1));
    show!(impl_iterator => async { impl_iterator(3).await.map(Iterator::collect::<Vec<_>>) });
    show!(impl_fn => async { impl_fn().await(1) });
    show!(impl_fn_moved => async { impl_fn_moved(Tracked("a")).await(1) });
    show!(result_of_fn => async { result_of_fn(1).await.map(|add| add(1)) });
    show!(boxed_fn => async { boxed_fn(1).await.map(|add| add(1)) });
    show!(coerced("a"));
    show!(coerced_value => async { coerced_value().await(1) });
    show!(fn_pointer => async { fn_pointer().await(1) });
    show!(cancel never(Tracked("a")));
    show!(panicking never_panics(Tracked("a")));
    show!(cancel never_inside());
    show!(cancel never_by_macro());
    show!(type_by_macro());
    show!(option(Some(Tracked("a"))));
    show!(option(None));
    show!(nothing(Tracked("a")));
    show!(empty());
    show!(empty_unit(Tracked("a"), Tracked("b")));
    show!(tuple(Tracked("a")));
    show!(borrowed(&Tracked("a")));
    show!(dynamic_borrow => async { dynamic_borrow(&Tracked("a")).await.map(|a| a.to_string()) });
    show!(early(0));
    show!(early(1));
    show!(early(5));
    show!(only_return(1));
    show!(inferred());
    show!(collected());
    show!(nested());
}
