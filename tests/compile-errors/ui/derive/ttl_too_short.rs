use lock_core::Lock;

#[derive(Lock)]
#[lock(name = "a", ttl = "5ms")]
struct OrderLock;

fn main() {}
