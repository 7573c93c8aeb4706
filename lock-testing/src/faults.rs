//! Locks in memory that fail on command.

use lock_core::{LockError, LockManager, LockManagerBuilder, testing};

pub use lock_core::testing::{Command, Faults, OtherHolder};

/// Makes a manager in memory, and the handle that makes its locks fail. The builder has the
/// manager's settings: `LockManager::builder()`.
///
/// ```
/// use std::time::Duration;
///
/// use lock_core::{LockError, LockManager};
/// use lock_testing::in_memory_with_faults;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), LockError> {
/// let (locks, faults) = in_memory_with_faults(LockManager::builder())?;
/// let body = locks.lock("report").run(async |_| {
///     // The key is deleted while the body runs.
///     assert!(faults.lose("report"));
///     tokio::time::sleep(Duration::from_secs(60)).await;
///     unreachable!("the library drops the body at its next await");
/// });
/// assert!(matches!(body.await, Err(LockError::Lost { .. })));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The errors of [`LockManagerBuilder::in_memory`].
pub fn in_memory_with_faults(
    builder: LockManagerBuilder,
) -> Result<(LockManager, Faults), LockError> {
    testing::in_memory_with_faults(builder)
}
