use lock_core::Lock;

#[derive(Lock)]
struct OrderLock {
    id: u64,
}

fn main() {}
