use std::rc::Rc;

use lock_core::{LockError, distributed_lock};

struct Failure {
    _shared: Rc<()>,
}

impl From<LockError> for Failure {
    fn from(_: LockError) -> Self {
        Self { _shared: Rc::new(()) }
    }
}

#[distributed_lock(name = "x", release = background)]
async fn background() -> Result<(), Failure> {
    Ok(())
}

#[distributed_lock(name = "x")]
async fn confirmed() -> Result<(), Failure> {
    Ok(())
}

fn send<T: Send>(_: T) {}

fn main() {
    send(background());
    send(confirmed());
}
