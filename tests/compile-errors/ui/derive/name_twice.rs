use lock_core::Lock;

#[derive(Lock)]
#[lock(name = "order:{order_id}", name = "customer:{customer_id}")]
struct OrderLock {
    order_id: u64,
    #[lock(not_in_name)]
    customer_id: u64,
}

fn main() {}
