use lock_core::distributed_lock;

#[distributed_lock(name = "x")]
trait Ship {
    async fn ship(&self);
}

fn main() {}
