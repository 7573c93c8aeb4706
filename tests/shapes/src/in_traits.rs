//! Async functions in traits: native ones, and those that other attributes generate.
#![deny(warnings)]

use std::cell::Cell;
use std::fmt::Debug;
use std::future::Future;

use async_recursion::async_recursion;
use async_trait::async_trait;
use lock_core::LockError;

use crate::support::{Tracked, pause};

struct Shelf {
    id: u8,
}

/// Native.
trait Native {
    async fn required(&self, a: Tracked) -> Result<usize, LockError>;

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "in_traits:provided")
    )]
    async fn provided(&self, a: Tracked) -> Result<usize, LockError> {
        let required = self.required(Tracked("inner")).await?;
        Ok(required + a.length())
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "in_traits:associated")
    )]
    async fn associated(a: Tracked) -> Result<Tracked, LockError>
    where
        Self: Sized,
    {
        Ok(a)
    }

    fn desugared(&self, a: Tracked) -> impl Future<Output = Result<usize, LockError>>;
}

impl Native for Shelf {
    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "in_traits:required:{self.id}")
    )]
    async fn required(&self, a: Tracked) -> Result<usize, LockError> {
        Ok(a.length())
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "in_traits:desugared")
    )]
    async fn desugared(&self, a: Tracked) -> Result<usize, LockError> {
        Ok(a.length())
    }
}

#[async_trait]
trait Boxed {
    async fn shared(&self, a: Tracked, b: Tracked) -> Result<usize, LockError>;
    async fn exclusive(&mut self, a: Tracked) -> Result<u8, LockError>;
    async fn by_value(self, a: Tracked) -> Result<u8, LockError>;
    async fn generic<T: Debug + Send>(&self, a: T) -> Result<T, LockError>;
    async fn borrowing<'a>(&'a self, a: &'a Tracked) -> Result<&'a Tracked, LockError>;
    async fn mutable(&self, a: Vec<u8>) -> Result<Vec<u8>, LockError>;
    async fn unnamed(&self, a: Tracked, b: Tracked) -> Result<u8, LockError>;
    async fn answered(&self, a: Tracked);

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "in_traits:boxed_default")
    )]
    async fn default(&self, a: Tracked) -> Result<usize, LockError>
    where
        Self: Sync,
    {
        let local = Tracked("local");
        let length = self.shared(Tracked("inner"), Tracked("other")).await?;
        Ok(length + a.length() + local.length())
    }
}

#[async_trait]
impl Boxed for Shelf {
    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "in_traits:shared:{self.id}")
    )]
    async fn shared(&self, a: Tracked, b: Tracked) -> Result<usize, LockError> {
        pause().await;
        Ok(b.length() + a.length())
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "in_traits:exclusive")
    )]
    async fn exclusive(&mut self, a: Tracked) -> Result<u8, LockError> {
        drop(a);
        self.id += 1;
        Ok(self.id)
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "in_traits:by_value")
    )]
    async fn by_value(mut self, a: Tracked) -> Result<u8, LockError> {
        drop(a);
        self.id = 9;
        Ok(self.id)
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "in_traits:generic")
    )]
    async fn generic<T: Debug + Send>(&self, a: T) -> Result<T, LockError> {
        Ok(a)
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "in_traits:borrowing")
    )]
    async fn borrowing<'a>(&'a self, a: &'a Tracked) -> Result<&'a Tracked, LockError> {
        Ok(a)
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "in_traits:mutable")
    )]
    async fn mutable(&self, mut a: Vec<u8>) -> Result<Vec<u8>, LockError> {
        a.push(self.id);
        Ok(a)
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "in_traits:unnamed")
    )]
    async fn unnamed(&self, _a: Tracked, _: Tracked) -> Result<u8, LockError> {
        Ok(self.id)
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "in_traits:answered", on_error = |e| crate::support::refused(e))
    )]
    async fn answered(&self, a: Tracked) {
        drop(a);
    }
}

#[async_trait(?Send)]
trait Local {
    async fn local(&self, a: &Cell<u8>) -> Result<u8, LockError>;

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "in_traits:local_default")
    )]
    async fn local_default(&self, a: Tracked) -> Result<u8, LockError> {
        let cell = Cell::new(1);
        drop(a);
        self.local(&cell).await
    }
}

#[async_trait(?Send)]
impl Local for Shelf {
    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "in_traits:local")
    )]
    async fn local(&self, a: &Cell<u8>) -> Result<u8, LockError> {
        a.set(a.get() + 1);
        pause().await;
        Ok(a.get())
    }
}

#[trait_variant::make(Stock: Send)]
#[allow(dead_code)]
trait LocalStock {
    async fn stock(&self, a: Tracked) -> Result<usize, LockError>;
}

impl Stock for Shelf {
    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "in_traits:stock")
    )]
    async fn stock(&self, a: Tracked) -> Result<usize, LockError> {
        pause().await;
        Ok(a.length())
    }
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "in_traits:recursion_below:{depth}")
)]
#[async_recursion]
async fn recursion_below(depth: u8, a: Tracked) -> Result<usize, LockError> {
    if depth == 0 {
        return Ok(a.length());
    }
    Ok(recursion_below(depth - 1, Tracked("inner")).await? + a.length())
}

#[async_recursion]
#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "in_traits:recursion_above:{depth}")
)]
async fn recursion_above(depth: u8, a: Tracked) -> Result<usize, LockError> {
    if depth == 0 {
        return Ok(a.length());
    }
    Ok(recursion_above(depth - 1, Tracked("inner")).await? + a.length())
}

#[async_recursion(?Send)]
#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "in_traits:recursion_local:{depth}")
)]
async fn recursion_local(depth: u8, a: &Cell<u8>) -> Result<u8, LockError> {
    a.set(a.get() + 1);
    if depth == 0 {
        return Ok(a.get());
    }
    recursion_local(depth - 1, a).await
}

fn assert_send<T: Send>(value: T) -> T {
    value
}

pub(crate) async fn run() {
    let [a, b] = [|| Tracked("a"), || Tracked("b")];
    let mut shelf = Shelf { id: 1 };
    show!(required => shelf.required(a()));
    show!(provided => shelf.provided(a()));
    show!(associated => Shelf::associated(a()));
    show!(desugared => shelf.desugared(a()));
    show!(shared => shelf.shared(a(), b()));
    show!(exclusive => shelf.exclusive(a()));
    show!(by_value => Shelf { id: 1 }.by_value(a()));
    show!(generic => shelf.generic(a()));
    show!(borrowing => shelf.borrowing(&b()));
    show!(mutable => shelf.mutable(vec![1]));
    show!(unnamed => shelf.unnamed(a(), b()));
    show!(answered => shelf.answered(a()));
    show!(default => shelf.default(a()));
    show!(local => shelf.local(&Cell::new(1)));
    show!(local_default => shelf.local_default(a()));
    show!(stock => assert_send(Stock::stock(&shelf, a())));
    show!(recursion_below => assert_send(recursion_below(2, a())));
    show!(recursion_above => assert_send(recursion_above(2, a())));
    show!(recursion_local(2, &Cell::new(0)));
}
