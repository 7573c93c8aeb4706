//! `#[tracing::instrument]` above and below the lock attribute, on functions, methods and in
//! traits.
#![deny(warnings)]

use async_trait::async_trait;
use lock_core::LockError;
use tracing::instrument;

use crate::support::{Tracked, pause};

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "traced:below")
)]
#[instrument]
async fn below(a: Tracked, b: Tracked) -> Result<usize, LockError> {
    let local = Tracked("local");
    pause().await;
    Ok(b.length() + a.length() + local.length())
}

#[instrument]
#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "traced:above")
)]
async fn above(a: Tracked, b: Tracked) -> Result<usize, LockError> {
    let local = Tracked("local");
    pause().await;
    Ok(b.length() + a.length() + local.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "traced:err_below")
)]
#[instrument(err)]
async fn err_below(a: Tracked, fail: bool) -> Result<usize, LockError> {
    if fail {
        return Err(LockError::NotConfigured);
    }
    Ok(a.length())
}

#[instrument(err)]
#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "traced:err_above")
)]
async fn err_above(a: Tracked, fail: bool) -> Result<usize, LockError> {
    if fail {
        return Err(LockError::NotConfigured);
    }
    Ok(a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "traced:ret_below")
)]
#[instrument(ret)]
async fn ret_below(a: Tracked) -> Result<usize, LockError> {
    Ok(a.length())
}

#[instrument(ret)]
#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "traced:ret_above")
)]
async fn ret_above(a: Tracked) -> Result<usize, LockError> {
    Ok(a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "traced:skip_below")
)]
#[instrument(skip_all)]
async fn skip_below(a: Tracked, b: Tracked) -> Result<usize, LockError> {
    Ok(a.length() + b.length())
}

#[instrument(skip_all)]
#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "traced:skip_above")
)]
async fn skip_above(a: Tracked, b: Tracked) -> Result<usize, LockError> {
    Ok(a.length() + b.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "traced:all_below")
)]
#[instrument(err, ret, level = "debug", skip(b), fields(length = b.length()))]
async fn all_below(a: u8, b: Tracked) -> Result<usize, LockError> {
    Ok(usize::from(a) + b.length())
}

#[instrument(err, ret, level = "debug", skip(b), fields(length = b.length()))]
#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "traced:all_above")
)]
async fn all_above(a: u8, b: Tracked) -> Result<usize, LockError> {
    Ok(usize::from(a) + b.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "traced:pattern_below")
)]
#[instrument(skip_all)]
async fn pattern_below((a, b): (Tracked, Tracked), _: Tracked) -> Result<usize, LockError> {
    Ok(b.length() + a.length())
}

#[instrument(skip_all)]
#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "traced:pattern_above")
)]
async fn pattern_above((a, b): (Tracked, Tracked), _: Tracked) -> Result<usize, LockError> {
    Ok(b.length() + a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "traced:impl_below")
)]
#[instrument]
async fn impl_below(a: u8) -> Result<impl Fn(u8) -> u8, LockError> {
    Ok(move |x| x + a)
}

#[instrument(ret, err)]
#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "traced:empty", on_error = |_| Ok(()))
)]
async fn empty(mut a: Vec<u8>) -> Result<(), String> {
    a.push(1);
    Ok(())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "traced:unit_below", on_error = |e| crate::support::refused(e))
)]
#[instrument]
async fn unit_below(_a: Tracked) {}

#[instrument]
#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "traced:unit_above", on_error = |e| crate::support::refused(e))
)]
async fn unit_above(_a: Tracked) {}

#[instrument]
#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "traced:between")
)]
#[instrument(err)]
async fn between(a: Tracked) -> Result<usize, LockError> {
    Ok(a.length())
}

#[derive(Debug)]
struct Van {
    id: u8,
}

impl Van {
    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "traced:method_below")
    )]
    #[instrument(err)]
    async fn method_below(&self, a: Tracked) -> Result<usize, LockError> {
        Ok(usize::from(self.id) + a.length())
    }

    #[instrument(err, ret, level = "debug")]
    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "traced:method_above:{self.id}")
    )]
    async fn method_above(&mut self, a: Tracked) -> Result<usize, LockError> {
        self.id += 1;
        Ok(usize::from(self.id) + a.length())
    }
}

#[async_trait]
trait Load {
    async fn below(&self, a: Tracked, b: Tracked) -> Result<usize, LockError>;
    async fn above(&self, a: Tracked, b: Tracked) -> Result<usize, LockError>;
    async fn err_below(&self, a: Tracked) -> Result<usize, LockError>;
    async fn err_above(&self, a: Tracked) -> Result<usize, LockError>;
    async fn all_below(&mut self, a: Tracked) -> Result<u8, LockError>;
    async fn all_above(&mut self, a: Tracked) -> Result<u8, LockError>;
    #[instrument(err, skip(self))]
    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "traced:default_above")
    )]
    async fn default_above(&self, a: Tracked) -> Result<usize, LockError> {
        Ok(a.length())
    }
    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "traced:default_below")
    )]
    #[instrument(err, skip(self))]
    async fn default_below(&self, a: Tracked) -> Result<usize, LockError> {
        Ok(a.length())
    }
}

#[async_trait]
impl Load for Van {
    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "traced:load_below")
    )]
    #[instrument]
    async fn below(&self, a: Tracked, b: Tracked) -> Result<usize, LockError> {
        Ok(b.length() + a.length() + usize::from(self.id))
    }

    #[instrument]
    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "traced:load_above")
    )]
    async fn above(&self, a: Tracked, b: Tracked) -> Result<usize, LockError> {
        Ok(b.length() + a.length() + usize::from(self.id))
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "traced:load_err_below")
    )]
    #[instrument(err)]
    async fn err_below(&self, a: Tracked) -> Result<usize, LockError> {
        Ok(a.length())
    }

    #[instrument(err)]
    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "traced:load_err_above")
    )]
    async fn err_above(&self, a: Tracked) -> Result<usize, LockError> {
        Ok(a.length())
    }

    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "traced:load_all_below:{self.id}")
    )]
    #[instrument(err, ret, skip_all, level = "debug")]
    async fn all_below(&mut self, a: Tracked) -> Result<u8, LockError> {
        drop(a);
        self.id += 1;
        Ok(self.id)
    }

    #[instrument(err, ret, skip_all, level = "debug")]
    #[cfg_attr(
        feature = "attribute",
        lock_core::distributed_lock(name = "traced:load_all_above:{self.id}")
    )]
    async fn all_above(&mut self, a: Tracked) -> Result<u8, LockError> {
        drop(a);
        self.id += 1;
        Ok(self.id)
    }
}

pub(crate) async fn run() {
    let [a, b, c] = [|| Tracked("a"), || Tracked("b"), || Tracked("c")];
    show!(below(a(), b()));
    show!(above(a(), b()));
    show!(err_below(a(), false));
    show!(err_below(a(), true));
    show!(err_above(a(), false));
    show!(err_above(a(), true));
    show!(ret_below(a()));
    show!(ret_above(a()));
    show!(skip_below(a(), b()));
    show!(skip_above(a(), b()));
    show!(all_below(1, b()));
    show!(all_above(1, b()));
    show!(pattern_below((a(), b()), c()));
    show!(pattern_above((a(), b()), c()));
    show!(impl_below => async { impl_below(1).await.map(|add| add(1)) });
    show!(empty(vec![]));
    show!(unit_below(a()));
    show!(unit_above(a()));
    show!(between(a()));
    let mut van = Van { id: 1 };
    show!(method_below => van.method_below(a()));
    show!(method_above => van.method_above(a()));
    show!(load_below => Load::below(&van, a(), b()));
    show!(load_above => Load::above(&van, a(), b()));
    show!(load_err_below => Load::err_below(&van, a()));
    show!(load_err_above => Load::err_above(&van, a()));
    show!(load_all_below => Load::all_below(&mut van, a()));
    show!(load_all_above => Load::all_above(&mut van, a()));
    show!(load_default_below => van.default_below(a()));
    show!(load_default_above => van.default_above(a()));
}
