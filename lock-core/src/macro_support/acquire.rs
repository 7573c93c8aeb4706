//! Acquires the lock, or the locks, of an annotated function.

use std::time::Duration;

use super::call::AcquireFuture;
use super::options::{OnContended, Options};
use crate::error::LockError;
use crate::guard::LockSet;
use crate::manager::LockManager;
use crate::request::{ByName, LockRequest};
use crate::store::check_runtime;
use crate::typed::declaration::Declaration;
use lock_protocol::backoff::{Backoff, Jitter};
use lock_protocol::key::LockName;

/// Takes the manager of `manager = ..`.
#[must_use]
pub fn manager(manager: &LockManager) -> Option<LockManager> {
    Some(manager.clone())
}

/// Acquires the lock of an annotated function.
pub fn acquire(manager: Option<LockManager>, name: LockName, options: Options) -> AcquireFuture {
    let options = options.with_default_wait();
    AcquireFuture::new(async move {
        check(&name)?;
        let (manager, spent) = manager_for(manager, options).await?;
        send(manager.lock(name).spent(spent), options).await
    })
}

/// Acquires the locks of an annotated function whose `name` is a list.
pub fn acquire_all<const N: usize>(
    manager: Option<LockManager>,
    names: [LockName; N],
    options: Options,
) -> AcquireFuture<LockSet> {
    acquire_list(manager, names.into(), options)
}

fn acquire_list(
    manager: Option<LockManager>,
    names: Vec<LockName>,
    options: Options,
) -> AcquireFuture<LockSet> {
    let options = options.with_default_wait();
    AcquireFuture::new(async move {
        names.iter().try_for_each(check)?;
        let (manager, spent) = manager_for(manager, options).await?;
        send(manager.lock_all(names).spent(spent), options).await
    })
}

async fn send<T: ByName + Clone>(
    request: LockRequest<T>,
    options: Options,
) -> Result<T::Guard, LockError> {
    let request = options.apply(request);
    match options.on_contended {
        OnContended::Return => request.acquire().await,
        OnContended::Skip => request.acquire_or_skip().await,
    }
}

/// Checks a name before anything connects.
fn check(name: &LockName) -> Result<(), LockError> {
    match name.invalid_reason() {
        Some(reason) => Err(LockError::invalid_name(name, reason)),
        None => Ok(()),
    }
}

/// Acquires the declared lock of an annotated function. `options` are those of the call, which precede those of
/// the declaration. A declared `wait` precedes the one attempt of a call that skips.
pub(super) fn acquire_declared(
    manager: Option<LockManager>,
    declaration: Declaration,
    options: Options,
) -> AcquireFuture {
    let options = Options {
        ttl: declaration.ttl,
        wait: options.wait.or(declaration.wait),
        kind: declaration.kind,
        ..options
    };
    acquire(manager, declaration.name, options)
}

/// Returns the given manager, or the caller's. Also returns the time for its connection, which counts as waiting, or as an
/// outage if those have a time of their own.
async fn manager_for(
    given: Option<LockManager>,
    options: Options,
) -> Result<(LockManager, Duration), LockError> {
    match given {
        Some(manager) => Ok((manager, Duration::ZERO)),
        // In a box: the future of a connection is larger than the rest of an acquire.
        None => Box::pin(find_manager(options)).await,
    }
}

async fn find_manager(options: Options) -> Result<(LockManager, Duration), LockError> {
    check_runtime()?;
    let started = tokio::time::Instant::now();
    // The command timeout bounds the connection in any case. One attempt needs a connection, too.
    let wait = options.wait.filter(|wait| !wait.is_zero());
    let outage_wait = options.outage_wait;
    let limit = outage_wait.filter(|longest| !longest.is_zero()).or(wait);
    let limit = limit.unwrap_or(Duration::MAX);
    let mut pauses = Backoff::new(Jitter::from_os());
    let found = async {
        loop {
            let error = match LockManager::current_or_connect().await {
                Ok(manager) => return Ok(manager),
                Err(error) => error,
            };
            let pause = pauses.pause();
            let ends = outage_wait.is_none_or(|longest| started.elapsed() + pause >= longest);
            if ends || !error.is_retryable() {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
        }
    };
    let found = tokio::time::timeout(limit, found).await;
    let manager = found.unwrap_or_else(|_elapsed| Err(LockManager::not_in_time()))?;
    Ok((manager, started.elapsed()))
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::super::call::acquire_or_contended;
    use super::*;
    use crate::error::InvalidSetting;
    use lock_protocol::key::InvalidNameReason;

    #[tokio::test(start_paused = true)]
    async fn contended_acquire_is_an_error_before_the_body_exists() {
        let locks = LockManager::in_memory();
        let once = Options {
            wait: Some(Duration::ZERO),
            ..Options::DEFAULT
        };
        let again = || acquire(Some(locks.clone()), "x".into(), once);
        let mut first = acquire_or_contended(again()).await.unwrap();
        let held = poll_fn(|cx| first.poll(cx)).await.unwrap();
        let second = acquire_or_contended(again()).await;
        assert!(second.err().unwrap().is_contended());
        drop(held);
        let nameless = acquire(Some(locks.clone()), "".into(), Options::DEFAULT);
        let mut nameless = acquire_or_contended(nameless).await.unwrap();
        assert!(matches!(
            poll_fn(|cx| nameless.poll(cx)).await,
            Err(LockError::Invalid(InvalidSetting::Name { .. }))
        ));
    }

    /// There is no manager, so a connection would fail.
    #[tokio::test]
    async fn invalid_names_are_found_before_a_connection() {
        let invalid = || LockName::invalid("x", InvalidNameReason::Empty);
        let one = acquire(None, invalid(), Options::DEFAULT);
        let mut one = acquire_or_contended(one).await.unwrap();
        let list = acquire_all(None, ["a".into(), invalid()], Options::DEFAULT);
        let mut list = acquire_or_contended(list).await.unwrap();
        let one = poll_fn(|cx| one.poll(cx)).await.err();
        let list = poll_fn(|cx| list.poll(cx)).await.err();
        for error in [one, list] {
            assert!(
                matches!(error, Some(LockError::Invalid(InvalidSetting::Name { .. }))),
                "{error:?}"
            );
        }
    }
}
