use lock_core::Lock;

#[derive(Lock)]
#[lock(ttl = "30s")]
struct OrderLock {
    id: u64,
}

fn main() {}
