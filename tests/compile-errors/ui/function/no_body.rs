use lock_core::{LockError, distributed_lock};

trait Ship {
    #[distributed_lock(name = "x")]
    async fn ship(&self) -> Result<(), LockError>;
}

fn main() {}
