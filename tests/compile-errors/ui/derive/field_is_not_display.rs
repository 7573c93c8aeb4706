use lock_core::Lock;

#[derive(Lock)]
#[lock(name = "order:{id}")]
struct OrderLock {
    id: Option<u64>,
}

fn main() {}
