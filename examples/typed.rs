//! A shop in three layers, whose repository can only be called by a caller that holds the lock.
//!
//! `cargo run -p examples --example typed`
//!
//! The handler pays an order. The service takes the lock. The repository asks for the proof of it, so a new
//! caller that forgets the lock does not compile. No server is needed: the locks are in memory.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

// region: locks
use lock_core::typed::Holds;
use lock_core::{Held, Lock, LockError, LockManager, distributed_lock};

/// Guards the payment of one order.
#[derive(Lock)]
#[lock(name = "order:{order_id}", ttl = "30s")]
pub struct OrderLock {
    order_id: u64,
}

/// Guards the stock of one article: many read it, one changes it.
#[derive(Lock)]
#[lock(name = "stock:{article}", mode = read_write)]
pub struct StockLock {
    article: u32,
}
// endregion

// region: repository
/// The lowest layer. Its methods change the data of an order, so they ask for the proof.
#[derive(Default)]
pub struct Orders {
    payments: Mutex<BTreeMap<u64, u32>>,
}

impl Orders {
    /// Adds a payment. The id of the order comes from the proof: it cannot be the id of another order.
    pub async fn add_payment(&self, order: &Held<OrderLock>) -> u32 {
        let before = self.payments(order.order_id);
        // Without the lock, another call could read the same number here.
        tokio::task::yield_now().await;
        let mut all = self.payments.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(order.order_id, before + 1);
        before + 1
    }

    fn payments(&self, order_id: u64) -> u32 {
        let all = self.payments.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&order_id).copied().unwrap_or_default()
    }

    /// Returns the price of an article, whose stock is held for reading or for writing.
    pub fn price(&self, stock: &impl Holds<StockLock>) -> u32 {
        10 * stock.lock().article
    }
}
// endregion

// region: service
/// The middle layer. It takes the locks.
pub struct Shop {
    locks: LockManager,
    orders: Orders,
}

impl Shop {
    /// Pays an order.
    ///
    /// # Errors
    /// The errors of the lock.
    #[distributed_lock(lock = OrderLock { order_id }, wait = "5s", bind = order, manager = self.locks)]
    pub async fn pay(&self, order_id: u64) -> Result<u32, LockError> {
        Ok(self.orders.add_payment(order).await)
    }

    /// Returns the price of an article.
    ///
    /// # Errors
    /// The errors of the lock.
    pub async fn price(&self, article: u32) -> Result<u32, LockError> {
        let request = self.locks.hold_read(StockLock { article });
        request.run(async |stock| self.orders.price(stock)).await
    }
}
// endregion

/// The highest layer: it knows no lock.
async fn handle(shop: &Shop) -> Result<(), LockError> {
    let calls = tokio::join!(shop.pay(7), shop.pay(7), shop.pay(7));
    let mut payments = [calls.0?, calls.1?, calls.2?];
    payments.sort_unstable();
    println!("order 7 has the payments {payments:?}");
    println!("article 4 costs {}", shop.price(4).await?);
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    let shop = Shop {
        locks: LockManager::in_memory(),
        orders: Orders::default(),
    };
    examples::end(handle(&shop).await.map_err(Into::into))
}
