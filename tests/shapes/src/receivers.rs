//! Methods: each form of `self`.
#![deny(warnings)]

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use lock_core::LockError;

use crate::support::Tracked;

struct Store {
    item: Tracked,
    count: usize,
}

fn store() -> Store {
    Store {
        item: Tracked("item"),
        count: 1,
    }
}

impl Store {
    const SIZE: usize = 3;

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "receivers:none")
    )]
    async fn none(a: Tracked) -> Result<Self, LockError> {
        Ok(Self {
            item: a,
            count: Self::SIZE,
        })
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "receivers:value")
    )]
    async fn value(self, a: Tracked) -> Result<usize, LockError> {
        Ok(self.item.length() + a.length())
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "receivers:value_unused")
    )]
    async fn value_unused(self, a: Tracked) -> Result<usize, LockError> {
        Ok(a.length())
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "receivers:value_moved")
    )]
    async fn value_moved(self, a: Tracked) -> Result<Tracked, LockError> {
        drop(a);
        Ok(self.item)
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "receivers:shared:{self.count}")
    )]
    async fn shared(&self, a: Tracked) -> Result<usize, LockError> {
        Ok(self.count + a.length())
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "receivers:borrowing")
    )]
    async fn borrowing(&self) -> Result<&Tracked, LockError> {
        Ok(&self.item)
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "receivers:exclusive")
    )]
    async fn exclusive(&mut self, by: usize) -> Result<&mut usize, LockError> {
        self.count += by;
        Ok(&mut self.count)
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "receivers:replaced")
    )]
    async fn replaced(&mut self, a: Tracked) -> Result<(), LockError> {
        self.item = a;
        Ok(())
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "receivers:calling")
    )]
    async fn calling(&mut self) -> Result<usize, LockError> {
        let before = *self.exclusive(2).await?;
        self.replaced(Tracked("new")).await?;
        Ok(before + self.shared(Tracked("argument")).await?)
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "receivers:mutable")
    )]
    async fn mutable(mut self, a: Tracked) -> Result<Self, LockError> {
        self.item = a;
        self.count = 2;
        Ok(self)
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "receivers:mutable_field")
    )]
    async fn mutable_field(mut self) -> Result<usize, LockError> {
        self.count = 5;
        Ok(self.count)
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "receivers:arc")
    )]
    async fn arc(self: Arc<Self>, a: Tracked) -> Result<usize, LockError> {
        Ok(Arc::strong_count(&self) + a.length())
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "receivers:arc_reference")
    )]
    async fn arc_reference(self: &Arc<Self>) -> Result<Arc<Self>, LockError> {
        Ok(Arc::clone(self))
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "receivers:rc")
    )]
    async fn rc(self: Rc<Self>) -> Result<usize, LockError> {
        Ok(self.count)
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "receivers:boxed")
    )]
    async fn boxed(self: Box<Self>, a: Tracked) -> Result<Tracked, LockError> {
        drop(a);
        Ok(self.item)
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "receivers:pinned")
    )]
    async fn pinned(mut self: Pin<&mut Self>) -> Result<usize, LockError> {
        self.count += 1;
        Ok(self.count)
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "receivers:pinned_again")
    )]
    async fn pinned_again(mut self: Pin<&mut Self>) -> Result<usize, LockError> {
        let first = self.as_mut().pinned().await?;
        Ok(first + self.count)
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "receivers:explicit")
    )]
    async fn explicit<'a>(self: &'a Self, other: &'a Tracked) -> Result<&'a Tracked, LockError> {
        if self.count == 0 {
            return Ok(&self.item);
        }
        Ok(other)
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "receivers:in_closure")
    )]
    async fn in_closure(&self) -> Result<usize, LockError> {
        let length = || self.item.length() + self.count;
        Ok(length())
    }
}

pub(crate) async fn run() {
    show!(none => Store::none(Tracked("a")).await_count());
    show!(value => store().value(Tracked("a")));
    show!(value_unused => store().value_unused(Tracked("a")));
    show!(value_moved => store().value_moved(Tracked("a")));
    show!(shared => store().shared(Tracked("a")));
    let kept = store();
    show!(borrowing => kept.borrowing());
    show!(in_closure => kept.in_closure());
    let other = Tracked("other");
    show!(explicit => kept.explicit(&other));
    let mut kept = kept;
    show!(exclusive => kept.exclusive(2));
    show!(replaced => kept.replaced(Tracked("a")));
    show!(calling => kept.calling());
    show!(pinned => Pin::new(&mut kept).pinned());
    show!(pinned_again => Pin::new(&mut kept).pinned_again());
    show!(mutable => store().mutable(Tracked("a")).await_count());
    show!(mutable_field => store().mutable_field());
    show!(arc => Arc::new(store()).arc(Tracked("a")));
    let shared = Arc::new(store());
    show!(arc_reference => async { shared.arc_reference().await.map(|again| again.count) });
    show!(rc => Rc::new(store()).rc());
    show!(boxed => Box::new(store()).boxed(Tracked("a")));
}

/// For outcomes that cannot be printed.
trait AwaitCount {
    async fn await_count(self) -> Result<usize, LockError>;
}

impl<F: std::future::Future<Output = Result<Store, LockError>>> AwaitCount for F {
    async fn await_count(self) -> Result<usize, LockError> {
        self.await.map(|store| store.count)
    }
}
