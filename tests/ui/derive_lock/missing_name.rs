use lock_core::Lock;

#[derive(Lock)]
#[lock(ttl = "30s")]
struct OrderLock {
    order_id: u64,
}

fn main() {}
