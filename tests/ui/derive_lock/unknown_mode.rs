use lock_core::Lock;

#[derive(Lock)]
#[lock(name = "order:{order_id}", mode = read)]
struct OrderLock {
    order_id: u64,
}

fn main() {}
