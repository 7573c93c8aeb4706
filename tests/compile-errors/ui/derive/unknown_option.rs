use lock_core::Lock;

#[derive(Lock)]
#[lock(name = "order", expires = "30s", colour = "red")]
struct OrderLock;

fn main() {}
