use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", on_error = |_| owned.len())]
async fn f(owned: String) -> usize {
    drop(owned);
    1
}

const _: Option<LockError> = None;

fn main() {}
