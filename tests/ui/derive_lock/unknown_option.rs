use lock_core::Lock;

#[derive(Lock)]
#[lock(name = "order:{order_id}", tll = "30s", min_hold = "1s")]
struct OrderLock {
    order_id: u64,
}

fn main() {}
