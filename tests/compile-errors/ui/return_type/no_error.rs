use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x")]
async fn number() -> u8 {
    1
}

#[distributed_lock(name = "x")]
async fn nothing() {}

#[distributed_lock(name = "x")]
async fn option() -> Option<LockError> {
    None
}

#[distributed_lock(name = "x")]
async fn never() -> ! {
    loop {}
}

#[distributed_lock(name = "x")]
async fn hidden() -> impl Sized {}

fn main() {}
