use std::marker::PhantomData;

use lock_core::{Held, Lock, LockGuard};

#[derive(Lock)]
#[lock(name = "order:{order_id}")]
struct OrderLock {
    order_id: u64,
}

fn forge(order_id: u64, guard: LockGuard) -> Held<OrderLock> {
    Held {
        guard,
        lock: OrderLock { order_id },
        mode: PhantomData,
    }
}

fn main() {}
