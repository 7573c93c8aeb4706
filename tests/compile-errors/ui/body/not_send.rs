use lock_core::{LockError, distributed_lock};

use std::cell::Cell;
use std::rc::Rc;

#[distributed_lock(name = "x")]
async fn body() -> Result<(), LockError> {
    let cell = Rc::new(Cell::new(1));
    std::future::ready(()).await;
    cell.set(2);
    Ok(())
}

#[distributed_lock(name = "x")]
async fn value() -> Result<Rc<u8>, LockError> {
    Ok(Rc::new(1))
}

fn assert_send<T: Send>(_: T) {}

fn check() {
    assert_send(body());
    assert_send(value());
}

fn main() {}
