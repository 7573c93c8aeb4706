use lock_core::distributed_lock;

#[distributed_lock(name = "x", on_error = "handle")]
async fn f() -> u8 {
    1
}

fn main() {}
