use lock_core::typed::Held;
use lock_core::{Lock, LockError, LockManager};

#[derive(Lock)]
#[lock(name = "stock:{sku}", mode = read_write)]
struct Stock<'a> {
    sku: &'a str,
}

async fn take(stock: &Held<Stock<'_>>) {
    let _sku = stock.sku;
}

async fn price(locks: &LockManager) -> Result<(), LockError> {
    let stock = locks.read(Stock { sku: "tea" }).acquire().await?;
    take(&stock).await;
    Ok(())
}

fn main() {}
