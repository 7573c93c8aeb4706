use lock_core::{LockError, distributed_lock};

struct Shop;

#[distributed_lock(name = "x")]
impl Shop {
    async fn sell(&self) -> Result<(), LockError> {
        Ok(())
    }
}

async fn the_rest_of_the_file_is_checked(shop: &Shop) -> Result<(), LockError> {
    shop.sell().await
}

fn main() {}
