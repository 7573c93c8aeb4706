use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x")]
const fn f() -> u8 {
    const _: Option<LockError> = None;
    1
}

fn main() {}
