use lock_core::distributed_lock;

// What `#[test_case(1)]` makes of `#[distributed_lock(..)] #[tokio::test] async fn f(a: u8)`.
#[distributed_lock(name = "x")]
#[tokio::test]
fn case_1() {}

fn main() {}
