use lock_core::Lock;

#[derive(Lock)]
struct OrderLock {
    order_id: u64,
}

fn main() {}
