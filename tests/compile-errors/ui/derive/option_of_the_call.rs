use lock_core::Lock;

#[derive(Lock)]
#[lock(name = "order", renew = never)]
struct OrderLock;

fn main() {}
