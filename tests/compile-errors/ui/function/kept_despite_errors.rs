use lock_core::{LockError, distributed_lock};

/// Only the attribute has an error. The compiler still checks the calls of the function.
#[distributed_lock(name = "x", ttl = "1x")]
async fn f(a: u8) -> Result<u16, LockError> {
    Ok(a.into())
}

struct Shop;

impl Shop {
    #[distributed_lock(naem = "x", ttl = "1x")]
    async fn sell(&self) -> Result<u16, LockError> {
        f(1).await
    }
}

async fn caller() -> Result<u8, LockError> {
    Shop.sell().await?;
    f(1).await
}

fn main() {}
