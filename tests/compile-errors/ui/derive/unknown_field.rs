use lock_core::Lock;

#[derive(Lock)]
#[lock(name = "order:{ordr_id}")]
struct OrderLock {
    order_id: u64,
}

fn main() {}
