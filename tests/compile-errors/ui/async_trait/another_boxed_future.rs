use std::future::Future;
use std::pin::Pin;

use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x")]
fn f() -> Pin<Box<dyn Future<Output = Result<(), LockError>> + Send>> {
    let made = async move { Ok(()) };
    Box::pin(made)
}

fn main() {}
