use lock_core::{Held, Lock, LockError, distributed_lock};

#[derive(Lock)]
#[lock(name = "order:{order_id}")]
struct OrderLock {
    order_id: String,
}

#[derive(Lock)]
#[lock(name = "stock:{sku}", mode = read_write)]
struct Stock<'a> {
    sku: &'a str,
}

/// Only the attribute has an error. The body knows what `order` is.
#[distributed_lock(lock = OrderLock { order_id }, ttl = "30s", bind = order)]
async fn f(order_id: String) -> Result<usize, LockError> {
    let length = order_id.len();
    Ok(length + order.order_id.len())
}

#[distributed_lock(lock = Stock { sku: &sku }, mode = read, wiat = "1s", bind = stock)]
async fn g(sku: String) -> Result<usize, LockError> {
    Ok(sku.len() + stock.sku.len())
}

/// The value of `lock` cannot be read.
#[distributed_lock(lock = OrderLock { order_id: }, bind = order)]
async fn h() -> Result<usize, LockError> {
    charge(order);
    Ok(order.guard().key().len())
}

#[distributed_lock(lock = , bind = order)]
async fn i() -> Result<bool, LockError> {
    Ok(order.is_lost())
}

fn charge(_: &Held<OrderLock>) {}

fn main() {}
