use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", on_error = |e| e)]
async fn f() -> u8 {
    1
}

#[distributed_lock(name = "x", on_error = |e| u8::from(e.is_contended()))]
async fn uses_methods() -> u8 {
    1
}

const _: Option<LockError> = None;

fn main() {}
