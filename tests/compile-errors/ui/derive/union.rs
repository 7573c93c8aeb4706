use lock_core::Lock;

#[derive(Lock)]
#[lock(name = "order")]
union OrderLock {
    id: u64,
}

fn main() {}
