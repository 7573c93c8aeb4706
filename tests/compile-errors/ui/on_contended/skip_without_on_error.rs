use lock_core::distributed_lock;

#[distributed_lock(name = "x", on_contended = skip)]
async fn f() -> Option<u8> {
    Some(1)
}

fn main() {}
