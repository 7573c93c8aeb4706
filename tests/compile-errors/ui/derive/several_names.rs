use lock_core::Lock;

#[derive(Lock)]
#[lock(name = ["a", "b"])]
struct OrderLock;

fn main() {}
