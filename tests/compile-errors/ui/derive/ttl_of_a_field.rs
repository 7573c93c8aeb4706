use std::time::Duration;

use lock_core::Lock;

#[derive(Lock)]
#[lock(name = "order:{id}", ttl = ttl, wait = times.1 * 2)]
struct OrderLock {
    id: u64,
    ttl: Duration,
    times: (Duration, Duration),
}

fn main() {}
