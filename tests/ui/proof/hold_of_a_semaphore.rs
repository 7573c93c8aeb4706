use lock_core::{Lock, LockManager};

#[derive(Lock)]
#[lock(name = "mailer", permits = 4)]
struct Mailer;

fn request(locks: &LockManager) {
    let _request = locks.hold(Mailer);
}

fn main() {}
