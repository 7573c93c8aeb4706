use lock_core::{LockError, distributed_lock};

struct Orders {
    id: u64,
}

impl Orders {
    #[distributed_lock(name = "order:{id}")]
    async fn f(&self) -> Result<(), LockError> {
        let _ = self.id;
        Ok(())
    }
}

#[distributed_lock(name = "value:{value}")]
async fn generic<T: Copy>(value: T) -> Result<(), LockError> {
    let _ = value;
    Ok(())
}

fn main() {}
