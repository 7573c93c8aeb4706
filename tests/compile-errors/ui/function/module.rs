use lock_core::distributed_lock;

#[distributed_lock(name = "x")]
mod jobs {}

fn main() {}
