use lock_core::{Lock, LockError, distributed_lock, lock_name};

#[distributed_lock(name = "a:{a}%{b}")]
async fn f(a: u64, b: u64) -> Result<(), LockError> {
    let _ = (a, b);
    Ok(())
}

#[distributed_lock(name = ["a:{a}", "b:{a}a%25-{b}"], hash_tag = "{a}%2{b}")]
async fn g(a: u64, b: u64) -> Result<(), LockError> {
    let _ = (a, b);
    Ok(())
}

#[derive(Lock)]
#[lock(name = "{0}-%{1}", hash_tag = "{0}%{1}")]
struct Pair(u64, u64);

fn h(a: u64) {
    let _ = lock_name!("{a}%{}", a);
}

fn main() {}
