use lock_core::Lock;

#[derive(Lock)]
#[lock(name = "order:{id}")]
enum OrderLock {
    Of(u64),
}

fn main() {}
