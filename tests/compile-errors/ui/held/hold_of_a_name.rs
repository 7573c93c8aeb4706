use lock_core::LockManager;

fn f(locks: &LockManager) {
    let _ = locks.hold("order:1");
}

fn main() {}
