use lock_core::{LockError, distributed_lock};

// `#[rstest]` expands to this from `#[case(1)] #[distributed_lock(..)] #[tokio::test] async fn f(a: u8)`.
#[distributed_lock(name = "x:{a}")]
#[tokio::test]
async fn case_1() -> Result<(), LockError> {
    let a = 1;
    f(a).await
}

async fn f(_: u8) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
