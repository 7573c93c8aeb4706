use lock_core::{Lock, LockManager};

#[derive(Lock)]
#[lock(name = "stock", mode = read_write)]
struct Stock;

fn request(locks: &LockManager) {
    let _request = locks.permit(Stock);
}

fn main() {}
