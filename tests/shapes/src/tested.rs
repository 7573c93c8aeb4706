//! Attributes that generate tests. `compare` runs them and compares their names and results.
//!
//! All of them must be below `#[distributed_lock]`, in the order that they have without it.
//! `#[tokio::test]` removes the `async`. `#[rstest]` and `#[test_case]` move the attributes below
//! them to the test of each case, and not to the function with the arguments.
#![deny(warnings)]

use lock_core::LockError;
use rstest::{fixture, rstest};
use test_case::test_case;

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "tested:plain", manager = lock_core::LockManager::in_memory())
)]
#[tokio::test]
async fn plain() -> Result<(), LockError> {
    Ok(())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(
        name = "tested:panics",
        manager = lock_core::LockManager::in_memory(),
        on_error = |e| crate::support::refused(e),
    )
)]
#[tokio::test]
#[should_panic(expected = "as it should")]
async fn panics() {
    panic!("as it should")
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(
        name = "tested:ignored",
        manager = lock_core::LockManager::in_memory(),
        on_error = |e| crate::support::refused(e),
    )
)]
#[tokio::test]
#[ignore]
async fn ignored() {}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(
        name = "tested:unit",
        manager = lock_core::LockManager::in_memory(),
        on_error = |e| crate::support::refused(e),
    )
)]
#[tokio::test(flavor = "current_thread")]
async fn unit() {}

#[fixture]
fn three() -> u8 {
    3
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "tested:{a}", manager = lock_core::LockManager::in_memory())
)]
#[rstest]
#[case(1)]
#[case::second(2)]
#[tokio::test]
async fn rstest_cases(#[case] a: u8, three: u8) -> Result<(), LockError> {
    assert!(a < three);
    Ok(())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(
        name = "tested:{a}:{b}",
        manager = lock_core::LockManager::in_memory(),
    )
)]
#[rstest]
#[tokio::test]
async fn rstest_values(
    #[values(1, 2)] a: u8,
    #[values("x", "y")] b: &str,
) -> Result<(), LockError> {
    assert_eq!(usize::from(a).min(1), b.len());
    Ok(())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "tested:{a}", manager = lock_core::LockManager::in_memory())
)]
#[test_case(1, 2; "first")]
#[test_case(2, 3; "second")]
#[tokio::test]
async fn test_cases(a: u8, b: u8) -> Result<(), LockError> {
    assert_eq!(a + 1, b);
    Ok(())
}
