use lock_core::Lock;

#[derive(Lock)]
#[lock(name = "a")]
#[lock(ttl = "30s")]
struct OrderLock;

fn main() {}
