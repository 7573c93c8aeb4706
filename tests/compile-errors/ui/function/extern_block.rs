use lock_core::distributed_lock;

unsafe extern "C" {
    #[distributed_lock(name = "x")]
    fn f();
}

fn main() {}
