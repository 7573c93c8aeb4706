use lock_core::typed::Holds;
use lock_core::{Lock, LockError, LockManager};

#[derive(Lock)]
#[lock(name = "order:{order_id}")]
struct OrderLock {
    order_id: u64,
}

#[derive(Lock)]
#[lock(name = "stock:{sku}", mode = read_write)]
struct Stock<'a> {
    sku: &'a str,
}

async fn price(stock: &impl Holds<Stock<'_>>) -> usize {
    stock.lock().sku.len()
}

async fn pay(locks: &LockManager) -> Result<(), LockError> {
    let order = locks.hold(OrderLock { order_id: 7 }).acquire().await?;
    price(&order).await;
    Ok(())
}

fn main() {}
