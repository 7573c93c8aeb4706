use lock_core::Lock;

#[derive(Lock)]
#[lock(name = "order", ttl = "30")]
struct OrderLock;

fn main() {}
