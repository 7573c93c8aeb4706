use lock_core::{Lock, LockManager};

#[derive(Lock)]
#[lock(name = "stock:{sku}", mode = read_write)]
struct Stock<'a> {
    sku: &'a str,
}

fn f(locks: &LockManager) {
    let _ = locks.hold(Stock { sku: "a" });
}

fn main() {}
