use lock_core::distributed_lock;

#[distributed_lock(name = "x", on_error = skip)]
async fn f() {}

#[distributed_lock(name = "x", on_error = log)]
async fn g() {}

fn main() {}
