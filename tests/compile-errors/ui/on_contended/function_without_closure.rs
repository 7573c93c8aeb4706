use lock_core::{LockError, distributed_lock};

fn busy(_: LockError) -> u8 {
    1
}

#[distributed_lock(name = "x", on_contended = busy, on_error = |_| 2)]
async fn f() -> u8 {
    3
}

fn main() {}
