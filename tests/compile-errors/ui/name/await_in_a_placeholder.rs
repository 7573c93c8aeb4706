use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "order:{id.await}")]
async fn f(id: std::future::Ready<u64>) -> Result<(), LockError> {
    id.await;
    Ok(())
}

fn main() {}
