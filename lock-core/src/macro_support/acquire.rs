//! Acquires the lock of an annotated function.

use std::future::{self, Future};
use std::pin::Pin;
use std::time::Duration;

use super::options::{OnContended, Options};
use crate::error::LockError;
use crate::guard::LockGuard;
use crate::manager::LockManager;
use crate::protocol::key::LockName;
use crate::runtime::inner::check_runtime;

/// Takes the manager of `manager = ..`.
#[must_use]
pub fn manager(manager: &LockManager) -> Option<LockManager> {
    Some(manager.clone())
}

/// A boxed future of this crate. The box keeps the futures of annotated functions small.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The acquire of an annotated function. It sends nothing before the first poll.
#[must_use = "futures do nothing unless they are polled"]
pub struct AcquireFuture(pub(super) BoxFuture<Result<LockGuard, LockError>>);

/// Acquires the lock of an annotated function.
pub fn acquire(manager: Option<LockManager>, name: LockName, options: Options) -> AcquireFuture {
    AcquireFuture(Box::pin(async move {
        if let Some(reason) = name.invalid_reason() {
            return Err(LockError::invalid_name(&name, reason));
        }
        let (manager, spent) = match manager {
            Some(manager) => (manager, Duration::ZERO),
            None => current_manager(options.wait).await?,
        };
        let request = options.apply(manager.lock(name));
        match options.on_contended {
            OnContended::Return => request.spent(spent).acquire().await,
            OnContended::Skip => request.spent(spent).acquire_or_skip().await,
        }
    }))
}

/// Returns the manager of the caller. Also returns the time for its connection, which counts as
/// waiting.
async fn current_manager(wait: Option<Duration>) -> Result<(LockManager, Duration), LockError> {
    check_runtime()?;
    let started = tokio::time::Instant::now();
    // The command timeout bounds the connection in any case. One attempt needs a connection, too.
    let wait = wait.filter(|wait| !wait.is_zero());
    let wait = wait.unwrap_or(Duration::MAX);
    let connected = tokio::time::timeout(wait, LockManager::current()).await;
    let manager = connected.unwrap_or_else(|_elapsed| Err(LockManager::not_in_time()))?;
    Ok((manager, started.elapsed()))
}

/// Completes an acquire before the body exists, so that `on_contended` can use the parameters.
/// The result is boxed, so that it takes no space in the future of the function.
///
/// # Errors
///
/// Only when another holder has the lock. All other errors stay in the returned acquire.
#[must_use]
pub fn acquire_or_contended(
    acquire: AcquireFuture,
) -> BoxFuture<Result<AcquireFuture, Box<LockError>>> {
    Box::pin(async move {
        match acquire.0.await {
            Err(error) if error.is_contended() => Err(Box::new(error)),
            acquired => Ok(AcquireFuture(Box::pin(future::ready(acquired)))),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn contended_acquire_is_an_error_before_the_body_exists() {
        let locks = LockManager::in_memory();
        let once = Options {
            wait: Some(Duration::ZERO),
            ..Options::DEFAULT
        };
        let again = || acquire(Some(locks.clone()), "x".into(), once);
        let first = acquire_or_contended(again()).await.unwrap();
        let held = first.0.await.unwrap();
        let second = acquire_or_contended(again()).await;
        assert!(second.err().unwrap().is_contended());
        drop(held);
        let nameless = acquire(Some(locks.clone()), "".into(), Options::DEFAULT);
        let nameless = acquire_or_contended(nameless).await.unwrap();
        assert!(matches!(
            nameless.0.await,
            Err(LockError::InvalidName { .. })
        ));
    }
}
