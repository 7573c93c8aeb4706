use lock_core::Lock;
use lock_core::typed::Held;

#[derive(Lock)]
#[lock(name = "order:{order_id}")]
struct OrderLock {
    order_id: u64,
}

fn forge(lock: OrderLock) -> Held<OrderLock> {
    Held { lock, ..todo!() }
}

fn main() {}
