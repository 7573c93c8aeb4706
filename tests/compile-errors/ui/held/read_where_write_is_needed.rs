use lock_core::{Held, Lock, LockError, LockManager};

#[derive(Lock)]
#[lock(name = "stock:{sku}", mode = read_write)]
struct Stock<'a> {
    sku: &'a str,
}

async fn restock(stock: &Held<Stock<'_>>) -> usize {
    stock.sku.len()
}

async fn f(locks: &LockManager) -> Result<usize, LockError> {
    let stock = locks.hold_read(Stock { sku: "a" }).acquire().await?;
    Ok(restock(&stock).await)
}

fn main() {}
