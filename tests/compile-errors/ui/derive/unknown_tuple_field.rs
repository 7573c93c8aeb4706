use lock_core::Lock;

#[derive(Lock)]
#[lock(name = "order:{1}")]
struct OrderLock(u64);

fn main() {}
