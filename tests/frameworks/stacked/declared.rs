//! Declared locks and lists of names below and above `#[tracing::instrument]`, also in `#[async_trait]`.

use std::sync::Arc;

use async_trait::async_trait;
use lock_core::typed::Read;
use lock_core::{Held, Lock, LockError, LockManager, LockSet, distributed_lock};
use tracing::instrument;

use crate::is_held;

/// Guards the stock of one article.
#[derive(Lock, Debug)]
#[lock(name = "stock:{sku}", mode = read_write)]
struct Stock<'a> {
    sku: &'a str,
}

/// One of three calls of a depot.
#[derive(Lock)]
#[lock(name = "depot:{0}", permits = 3)]
struct Depot(u8);

#[distributed_lock(lock = Stock { sku }, mode = read, manager = locks, bind = stock)]
#[instrument(skip(locks), err)]
async fn above(locks: &LockManager, sku: &str) -> Result<usize, LockError> {
    tokio::task::yield_now().await;
    let stock: &Held<Stock<'_>, Read> = stock;
    Ok(stock.sku.len())
}

#[instrument(skip(locks), err, ret)]
#[distributed_lock(lock = Stock { sku }, mode = write, manager = locks, bind = stock)]
async fn below(locks: &LockManager, sku: &str) -> Result<usize, LockError> {
    tokio::task::yield_now().await;
    Ok(stock.sku.len())
}

#[distributed_lock(name = ["account:{from}", "account:{to}"], manager = locks, bind = both)]
#[instrument(skip(locks), fields(to = %to), err)]
async fn list_above(locks: &LockManager, from: u8, to: u8) -> Result<usize, LockError> {
    let both: &LockSet = both;
    Ok(both.guards().len())
}

#[instrument(skip_all, err)]
#[distributed_lock(name = ["account:{from}", "account:{to}"], manager = locks, bind = both)]
async fn list_below(locks: &LockManager, from: u8, to: u8) -> Result<usize, LockError> {
    Ok(both.guards().len())
}

#[async_trait]
trait Shop: Send + Sync {
    async fn price(&self, sku: &str) -> Result<usize, LockError>;
    async fn sell<'a>(&mut self, sku: &'a str) -> Result<&'a str, LockError>;
    async fn ship(self: Arc<Self>, depot: u8) -> Result<u8, LockError>;
    async fn transfer(&self, from: u8, to: u8) -> Result<Vec<String>, LockError>;

    fn locks(&self) -> &LockManager;

    #[distributed_lock(lock = Depot(depot), manager = self.locks(), bind = held)]
    async fn provided(&self, depot: u8) -> Result<String, LockError> {
        tokio::task::yield_now().await;
        Ok(held.guard().kind().to_string())
    }
}

struct Corner {
    locks: LockManager,
    sold: u8,
}

#[async_trait]
impl Shop for Corner {
    #[instrument(skip_all, err)]
    #[distributed_lock(lock = Stock { sku }, mode = read, manager = self.locks, bind = stock)]
    async fn price(&self, sku: &str) -> Result<usize, LockError> {
        tokio::task::yield_now().await;
        assert!(is_held(&self.locks, "stock:a-1").await);
        Ok(stock.sku.len())
    }

    #[distributed_lock(lock = Stock { sku }, manager = self.locks, bind = stock)]
    #[instrument(skip(self))]
    async fn sell<'a>(&mut self, sku: &'a str) -> Result<&'a str, LockError> {
        self.sold += 1;
        Ok(stock.sku)
    }

    #[distributed_lock(lock = Depot(depot), manager = self.locks, bind = held)]
    async fn ship(self: Arc<Self>, depot: u8) -> Result<u8, LockError> {
        tokio::task::yield_now().await;
        Ok(held.0 + depot + self.sold)
    }

    #[distributed_lock(
        name = ["account:{from}", "account:{to}", format!("sold:{}", self.sold)],
        mode = read,
        manager = self.locks,
        bind = set,
    )]
    #[instrument(skip_all, err)]
    async fn transfer(&self, from: u8, to: u8) -> Result<Vec<String>, LockError> {
        let keys = set.guards().iter().map(|held| held.key().to_owned());
        Ok(keys.collect())
    }

    fn locks(&self) -> &LockManager {
        &self.locks
    }
}

#[tokio::test]
async fn instrumented_function_may_hold_a_declared_lock_or_a_set() {
    let locks = LockManager::in_memory();
    assert_eq!(above(&locks, "a-1").await.expect("free"), 3);
    assert_eq!(below(&locks, "a-1").await.expect("free"), 3);
    assert_eq!(list_above(&locks, 1, 2).await.expect("free"), 2);
    assert_eq!(list_below(&locks, 2, 2).await.expect("free"), 1);
    assert!(!is_held(&locks, "account:2").await);
}

#[tokio::test]
async fn async_trait_method_may_hold_a_declared_lock_or_a_set() {
    let locks = LockManager::in_memory();
    let mut corner = Corner {
        locks: locks.clone(),
        sold: 0,
    };
    assert_eq!(corner.price("a-1").await.expect("free"), 3);
    assert_eq!(corner.sell("a-1").await.expect("free"), "a-1");
    assert_eq!(corner.provided(7).await.expect("free"), "3 permits");
    let corner: Arc<dyn Shop> = Arc::new(corner);
    let keys = tokio::spawn(async move {
        let keys = corner.transfer(2, 1).await?;
        corner.ship(7).await.map(|shipped| (keys, shipped))
    });
    let (keys, shipped) = keys.await.expect("no panic").expect("free");
    assert_eq!(keys, ["lock:account:1", "lock:account:2", "lock:sold:1"]);
    assert_eq!(shipped, 15);
    assert!(!is_held(&locks, "depot:7").await);
}
