use lock_core::{Held, Lock};

#[derive(Lock)]
#[lock(name = "order:{order_id}")]
struct OrderLock {
    order_id: u64,
}

fn forge(order_id: u64) -> Held<OrderLock> {
    Held {
        lock: OrderLock { order_id },
    }
}

fn main() {}
