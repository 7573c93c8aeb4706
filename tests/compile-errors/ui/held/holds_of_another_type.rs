use lock_core::typed::Holds;
use lock_core::{Lock, LockGuard};

#[derive(Lock)]
#[lock(name = "order:{order_id}")]
struct OrderLock {
    order_id: u64,
}

struct Forged {
    lock: OrderLock,
    guard: LockGuard,
}

impl Holds<OrderLock> for Forged {
    fn lock(&self) -> &OrderLock {
        &self.lock
    }

    fn guard(&self) -> &LockGuard {
        &self.guard
    }
}

fn main() {}
