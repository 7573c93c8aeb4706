use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x")]
#[derive(Clone)]
pub struct Shop {
    locked: Option<LockError>,
}

fn main() {}
