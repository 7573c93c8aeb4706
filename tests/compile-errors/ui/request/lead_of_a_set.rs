use lock_core::LockManager;

fn main() {
    let locks = LockManager::in_memory();
    let _ = locks.lock_all(["a", "b"]).lead(async |_term| ());
}
