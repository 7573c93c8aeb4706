use lock_core::{LockError, LockSet, distributed_lock};

/// Only the attribute has an error. The body knows that `both` is a set.
#[distributed_lock(name = ["a:{from}", "b:{to"], bind = both)]
async fn f(from: u8, to: u8) -> Result<usize, LockError> {
    let _ = (from, to);
    Ok(both.guards().len())
}

#[distributed_lock(name = ["a" "b"], bind = both)]
async fn g() -> Result<usize, LockError> {
    let both: &LockSet = both;
    Ok(both.guards().len())
}

fn main() {}
