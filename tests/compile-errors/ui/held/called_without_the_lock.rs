use lock_core::{Held, Lock};

#[derive(Lock)]
#[lock(name = "order:{order_id}")]
struct OrderLock {
    order_id: u64,
}

async fn charge(order: &Held<OrderLock>) -> u64 {
    order.order_id
}

async fn pay(order_id: u64) -> u64 {
    charge(&OrderLock { order_id }).await
}

fn main() {}
