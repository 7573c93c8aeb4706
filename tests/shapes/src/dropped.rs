//! Functions that do not run to their end: never polled, dropped at an await, or panicking.
#![deny(warnings)]

use lock_core::LockError;

use crate::support::{Tracked, log, park, pause};

struct Both {
    a: Tracked,
    b: Tracked,
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "dropped:never_polled")
)]
async fn never_polled(a: Tracked, b: Tracked, _c: Tracked) -> Result<usize, LockError> {
    log("body");
    Ok(b.length() + a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "dropped:pattern")
)]
async fn pattern(a: Tracked, Both { a: c, b }: Both, _: Tracked) -> Result<usize, LockError> {
    park().await;
    Ok(a.length() + b.length() + c.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "dropped:at_await")
)]
async fn at_await(a: Tracked, b: Tracked) -> Result<usize, LockError> {
    let first = Tracked("first");
    pause().await;
    let second = Tracked("second");
    park().await;
    let third = Tracked("third");
    Ok(b.length() + a.length() + first.length() + second.length() + third.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "dropped:some_gone")
)]
async fn some_gone(a: Tracked, b: Tracked, c: Tracked) -> Result<usize, LockError> {
    drop(b);
    let moved = c;
    park().await;
    Ok(moved.length() + a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "dropped:temporaries")
)]
async fn temporaries(a: Tracked) -> Result<usize, LockError> {
    let local = Tracked("local");
    Ok(waiting(&Tracked("temporary"), &Tracked("another")).await + a.length() + local.length())
}

async fn waiting(a: &Tracked, b: &Tracked) -> usize {
    park().await;
    a.length() + b.length()
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "dropped:unused")
)]
async fn unused(_a: Tracked, b: Tracked) -> Result<usize, LockError> {
    let local = Tracked("local");
    park().await;
    Ok(local.length() + b.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "dropped:inner_future")
)]
async fn inner_future(a: Tracked, b: Tracked) -> Result<usize, LockError> {
    let local = Tracked("local");
    let length = async move {
        park().await;
        b.length()
    }
    .await;
    Ok(length + a.length() + local.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "dropped:reassigned")
)]
async fn reassigned(mut a: Tracked, mut b: Both) -> Result<usize, LockError> {
    let before = a.length();
    a = Tracked("new a");
    b.a = Tracked("new b.a");
    park().await;
    Ok(before + a.length() + b.a.length() + b.b.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "dropped:panics_first")
)]
async fn panics_first(_a: Tracked, b: Tracked) -> Result<usize, LockError> {
    let _local = Tracked("local");
    if b.length() == 1 {
        panic!("at once");
    }
    Ok(1)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "dropped:panics_later")
)]
async fn panics_later(a: Tracked, b: Tracked) -> Result<usize, LockError> {
    let first = Tracked("first");
    pause().await;
    let second = Tracked("second");
    assert!(a.length() + b.length() == 0, "later");
    Ok(first.length() + second.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "dropped:panics_moved")
)]
async fn panics_moved(a: Both, b: Tracked) -> Result<usize, LockError> {
    let moved = a.b;
    drop(b);
    if moved.length() == 1 {
        panic!("moved");
    }
    Ok(a.a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "dropped:panics_in_tail")
)]
async fn panics_in_tail(a: Tracked) -> Result<usize, LockError> {
    let local = Tracked("local");
    Ok(fail(&Tracked("temporary"), &local) + a.length())
}

fn fail(_a: &Tracked, _b: &Tracked) -> usize {
    panic!("in the tail")
}

struct Owner(Tracked);

impl Owner {
    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "dropped:method")
    )]
    async fn method(self, a: Tracked) -> Result<usize, LockError> {
        park().await;
        Ok(self.0.length() + a.length())
    }
}

/// After it has dropped the shape, the caller acquires the same lock.
#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "dropped:again", wait = "5s")
)]
async fn again(a: Tracked, stay: bool) -> Result<usize, LockError> {
    if stay {
        park().await;
    }
    Ok(a.length())
}

pub(crate) async fn run() {
    let [a, b, c] = [|| Tracked("a"), || Tracked("b"), || Tracked("c")];
    let both = || Both { a: a(), b: b() };
    show!(abandon never_polled(a(), b(), c()));
    show!(never_polled(a(), b(), c()));
    show!(abandon pattern(Tracked("first"), both(), c()));
    show!(cancel pattern(Tracked("first"), both(), c()));
    show!(abandon at_await(a(), b()));
    show!(cancel at_await(a(), b()));
    show!(cancel some_gone(a(), b(), c()));
    show!(cancel temporaries(a()));
    show!(cancel unused(a(), b()));
    show!(cancel inner_future(a(), b()));
    show!(cancel reassigned(c(), both()));
    show!(panicking panics_first(a(), b()));
    show!(panicking panics_later(a(), b()));
    show!(panicking panics_moved(both(), c()));
    show!(panicking panics_in_tail(a()));
    show!(abandon method => Owner(Tracked("self")).method(a()));
    show!(cancel method => Owner(Tracked("self")).method(a()));
    show!(cancel again(a(), true));
    show!(again(b(), false));
}
