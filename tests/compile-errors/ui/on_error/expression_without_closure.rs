use lock_core::distributed_lock;

#[distributed_lock(name = "x", on_error = { let code = 500; code })]
async fn f() -> u16 {
    200
}

fn main() {}
