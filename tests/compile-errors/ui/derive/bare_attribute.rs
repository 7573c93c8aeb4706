use lock_core::Lock;

#[derive(Lock)]
#[lock]
struct OrderLock;

fn main() {}
