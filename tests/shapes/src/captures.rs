//! The ways in which the body names its arguments, and the order in which they are dropped.
#![deny(warnings)]

use lock_core::LockError;

use crate::support::{Tracked, log, pause};

macro_rules! touch {
    ($value:expr) => {
        log(concat!("touch ", stringify!($value)));
        let _ = &$value;
    };
}

macro_rules! consume {
    ($($value:ident),*) => { $(drop($value);)* };
}

macro_rules! written {
    ($format:literal, $($value:tt)*) => { format!($format, $($value)*) };
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:in_order")
)]
async fn in_order(a: Tracked, b: Tracked, c: Tracked) -> Result<usize, LockError> {
    Ok(a.length() + b.length() + c.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:in_reverse")
)]
async fn in_reverse(a: Tracked, b: Tracked, c: Tracked) -> Result<usize, LockError> {
    Ok(c.length() + b.length() + a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:in_disorder")
)]
async fn in_disorder(a: Tracked, b: Tracked, c: Tracked, d: Tracked) -> Result<usize, LockError> {
    let length = c.length();
    Ok(length + a.length() + d.length() + b.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:with_locals")
)]
async fn with_locals(a: Tracked, b: Tracked) -> Result<usize, LockError> {
    let first = Tracked("first");
    let second = Tracked("second");
    Ok(b.length() + second.length() + first.length() + a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:dropped_early")
)]
async fn dropped_early(a: Tracked, b: Tracked, c: Tracked) -> Result<usize, LockError> {
    drop(b);
    log("between");
    Ok(c.length() + a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:moved_to_local")
)]
async fn moved_to_local(a: Tracked, b: Tracked) -> Result<usize, LockError> {
    let local = a;
    let other = Tracked("other");
    Ok(b.length() + local.length() + other.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:first_unnamed")
)]
async fn first_unnamed(_a: Tracked, b: Tracked) -> Result<usize, LockError> {
    Ok(b.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:last_unnamed")
)]
async fn last_unnamed(a: Tracked, _b: Tracked) -> Result<usize, LockError> {
    Ok(a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:middle_unnamed")
)]
async fn middle_unnamed(a: Tracked, _b: Tracked, c: Tracked) -> Result<usize, LockError> {
    Ok(a.length() + c.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:unnamed")
)]
async fn unnamed(_a: Tracked, _b: Tracked) -> Result<usize, LockError> {
    let local = Tracked("local");
    Ok(local.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:only_in_name:{a}")
)]
#[cfg_attr(not(feature = "attribute"), allow(unused_variables))]
async fn only_in_name(a: Tracked, b: Tracked) -> Result<usize, LockError> {
    Ok(b.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:in_closure")
)]
async fn in_closure(a: Tracked, b: Tracked) -> Result<usize, LockError> {
    let length = || b.length();
    Ok(length() + a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:in_move_closure")
)]
async fn in_move_closure(a: Tracked, b: Tracked) -> Result<usize, LockError> {
    let outer = move || {
        let inner = || a.length();
        inner()
    };
    Ok(outer() + b.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:in_format")
)]
async fn in_format(a: Tracked, b: Tracked) -> Result<String, LockError> {
    Ok(format!("{b} {a}"))
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:in_format_spec")
)]
async fn in_format_spec(
    a: Tracked,
    width: usize,
    precision: usize,
    value: f64,
) -> Result<String, LockError> {
    Ok(format!("{a:?} {value:>width$.precision$}"))
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:in_own_format")
)]
async fn in_own_format(a: Tracked, b: Tracked) -> Result<String, LockError> {
    Ok(written!("{a} {}", b.length()))
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:in_write")
)]
async fn in_write(a: Tracked, b: Tracked) -> Result<String, LockError> {
    use std::fmt::Write;
    let mut text = String::new();
    write!(text, "{a}").map_err(|_| LockError::NotConfigured)?;
    writeln!(text, "{}", b).map_err(|_| LockError::NotConfigured)?;
    Ok(text)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:in_assert")
)]
async fn in_assert(a: Tracked, b: Tracked) -> Result<usize, LockError> {
    assert_eq!(a.length(), 1, "{a} is of another length");
    Ok(b.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:in_macro")
)]
async fn in_macro(a: Tracked, b: Tracked) -> Result<usize, LockError> {
    touch!(a);
    Ok(b.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:in_macro_only")
)]
async fn in_macro_only(a: Tracked, b: Tracked, c: Tracked) -> Result<(), LockError> {
    consume!(a, c, b);
    Ok(())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:in_vector")
)]
async fn in_vector(a: Tracked, b: Tracked) -> Result<Vec<Tracked>, LockError> {
    Ok(vec![b, a])
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:in_async_block")
)]
async fn in_async_block(a: Tracked, b: Tracked) -> Result<usize, LockError> {
    let length = async { b.length() }.await;
    Ok(length + a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:in_async_move_block")
)]
async fn in_async_move_block(a: Tracked, b: Tracked, c: Tracked) -> Result<usize, LockError> {
    let block = async move {
        pause().await;
        b.length()
    };
    log("before");
    let length = block.await;
    log("after");
    Ok(length + c.length() + a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:never_awaited")
)]
async fn never_awaited(a: Tracked, b: Tracked) -> Result<usize, LockError> {
    let _block = async move { a.length() };
    Ok(b.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:spawned")
)]
async fn spawned(a: Tracked, b: Tracked) -> Result<usize, LockError> {
    let task = tokio::spawn(async move { a.length() });
    let length = task.await.map_err(|_| LockError::NotConfigured)?;
    Ok(length + b.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:joined")
)]
async fn joined(a: Tracked, b: Tracked) -> Result<usize, LockError> {
    let (left, right) = tokio::join!(async { a.length() }, async { b.length() });
    Ok(left + right)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:selected")
)]
async fn selected(a: Tracked, b: Tracked) -> Result<usize, LockError> {
    tokio::select! {
        biased;
        length = async { a.length() } => Ok(length),
        _ = std::future::pending::<()>() => Ok(b.length()),
    }
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:shadowed")
)]
async fn shadowed(a: Tracked, b: Tracked) -> Result<usize, LockError> {
    let a = (a, Tracked("shadow"));
    Ok(a.0.length() + a.1.length() + b.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:shadowed_unused")
)]
async fn shadowed_unused(_a: Tracked, b: Tracked) -> Result<usize, LockError> {
    let _a = Tracked("shadow");
    Ok(b.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:in_inner_block")
)]
async fn in_inner_block(a: Tracked, b: Tracked) -> Result<usize, LockError> {
    {
        let a = Tracked("inner");
        log(a.0);
    }
    Ok(b.length() + a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:inner_function")
)]
async fn inner_function(_a: Tracked, b: Tracked) -> Result<usize, LockError> {
    fn length(_a: u8) -> usize {
        usize::from(_a)
    }
    Ok(length(1) + b.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:closure_parameter")
)]
async fn closure_parameter(_a: Tracked, b: Tracked) -> Result<usize, LockError> {
    let length = |_a: u8| usize::from(_a);
    Ok(length(1) + b.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:field_init")
)]
async fn field_init(a: Tracked, b: Tracked) -> Result<usize, LockError> {
    struct Both {
        a: Tracked,
        b: Tracked,
    }
    let both = Both { b, a };
    Ok(both.a.length() + both.b.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:bound_to_nothing")
)]
async fn bound_to_nothing(a: Tracked, b: Tracked) -> Result<(), LockError> {
    let _ = a;
    let _ = b;
    log("body");
    Ok(())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:matched")
)]
async fn matched(a: Option<Tracked>, b: Tracked) -> Result<usize, LockError> {
    match a {
        Some(inner) => Ok(inner.length() + b.length()),
        None => Ok(0),
    }
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "captures:returned_early")
)]
async fn returned_early(a: Tracked, b: Tracked, early: bool) -> Result<Tracked, LockError> {
    let local = Tracked("local");
    if early {
        return Ok(b);
    }
    drop(local);
    Ok(a)
}

pub(crate) async fn run() {
    let [a, b, c, d] = [
        || Tracked("a"),
        || Tracked("b"),
        || Tracked("c"),
        || Tracked("d"),
    ];
    show!(in_order(a(), b(), c()));
    show!(in_reverse(a(), b(), c()));
    show!(in_disorder(a(), b(), c(), d()));
    show!(with_locals(a(), b()));
    show!(dropped_early(a(), b(), c()));
    show!(moved_to_local(a(), b()));
    show!(first_unnamed(a(), b()));
    show!(last_unnamed(a(), b()));
    show!(middle_unnamed(a(), b(), c()));
    show!(unnamed(a(), b()));
    show!(only_in_name(a(), b()));
    show!(in_closure(a(), b()));
    show!(in_move_closure(a(), b()));
    show!(in_format(a(), b()));
    show!(in_format_spec(a(), 8, 2, 1.5));
    show!(in_own_format(a(), b()));
    show!(in_write(a(), b()));
    show!(in_assert(a(), b()));
    show!(in_macro(a(), b()));
    show!(in_macro_only(a(), b(), c()));
    show!(in_vector(a(), b()));
    show!(in_async_block(a(), b()));
    show!(in_async_move_block(a(), b(), c()));
    show!(never_awaited(a(), b()));
    show!(spawned(a(), b()));
    show!(joined(a(), b()));
    show!(selected(a(), b()));
    show!(shadowed(a(), b()));
    show!(shadowed_unused(a(), b()));
    show!(in_inner_block(a(), b()));
    show!(inner_function(a(), b()));
    show!(closure_parameter(a(), b()));
    show!(field_init(a(), b()));
    show!(bound_to_nothing(a(), b()));
    show!(matched(Some(a()), b()));
    show!(matched(None, b()));
    show!(returned_early(a(), b(), true));
    show!(returned_early(a(), b(), false));
}
