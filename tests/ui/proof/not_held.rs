use lock_core::Lock;
use lock_core::typed::Held;

#[derive(Lock)]
#[lock(name = "order:{order_id}")]
struct OrderLock {
    order_id: u64,
}

async fn charge(order: &Held<OrderLock>) {
    let _id = order.order_id;
}

async fn pay(order_id: u64) {
    charge(&OrderLock { order_id }).await;
}

fn main() {}
