//! The example of the guide.

use lock_core::{LockError, LockManager, distributed_lock};

// The example of the attribute's documentation, which cannot depend on `lock_core`.
#[distributed_lock(name = "order:{order_id}", ttl = "30s", wait = "5s")]
async fn ship(order_id: u64) -> Result<String, LockError> {
    Ok(format!("shipped {order_id}"))
}

#[tokio::test]
async fn documented_example_works() {
    let locks = LockManager::in_memory();
    let shipped = locks.scope(ship(7)).await;
    assert_eq!(shipped.expect("free"), "shipped 7");
}
