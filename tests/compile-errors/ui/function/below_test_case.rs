use lock_core::distributed_lock;

// `#[test_case(1)]` expands to this from `#[distributed_lock(..)] #[tokio::test] async fn f(a: u8)`.
#[distributed_lock(name = "x")]
#[tokio::test]
fn case_1() {}

fn main() {}
