use lock_core::distributed_lock;

#[distributed_lock(name = "x", on_contended = skip, on_error = |_| 0)]
async fn f() -> u8 {
    1
}

fn main() {}
