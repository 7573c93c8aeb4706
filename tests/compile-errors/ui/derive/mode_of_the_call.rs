use lock_core::Lock;

#[derive(Lock)]
#[lock(name = "order", mode = read)]
struct OrderLock;

fn main() {}
