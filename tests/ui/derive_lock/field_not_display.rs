use lock_core::Lock;

struct Id;

#[derive(Lock)]
#[lock(name = "order:{id}")]
struct OrderLock {
    id: Id,
}

fn main() {}
