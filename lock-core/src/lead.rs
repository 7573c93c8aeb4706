//! Leadership: a lock that the caller wants for as long as it runs.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::LockError;
use crate::guard::{LockGuard, LockWatch};
use crate::request::LockRequest;
use crate::run;
use crate::runtime::held_lock::HeldLock;
use crate::runtime::inner::ManagerInner;
use lock_protocol::backoff::{Backoff, Jitter};

/// A campaign waits in steps: after each one, the request is checked and reported again.
const STEP: Duration = Duration::from_secs(10 * 60);
/// An override of the wait may make the steps shorter. After a shorter one than this comes a pause.
const SHORTEST_STEP: Duration = Duration::from_secs(1);
/// The first pause after a lost term or a failed campaign: the next leader is not far.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Short compared to the ttl of a leader, and long enough for a server that is down.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// One term of a leader: what [`LockRequest::lead`] gives to the body.
///
/// The term shows the state of the lock, as a [`LockWatch`] does, and can renew it. It can neither keep nor release
/// the lock: the term ends with the body. Clones are cheap, and each task of the leader may have one. A clone that
/// outlives the body says that the lock is no longer [held](LockWatch::is_held).
///
/// ```
/// # use lock_core::request::Term;
/// # use lock_core::{FencingToken, LockError, LockManager};
/// # struct Bills;
/// # impl Bills { async fn send(&self, _: Option<FencingToken>) {} }
/// async fn work(term: Term, bills: &Bills) {
///     bills.send(term.fencing_token()).await;
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// # let bills = Bills;
/// let locks = LockManager::in_memory();
/// locks.lock("leader:billing").lead(|term| work(term, &bills)).await
/// # }
/// ```
#[derive(Clone)]
pub struct Term {
    watch: LockWatch,
    held: Arc<HeldLock>,
    inner: Arc<ManagerInner>,
}

impl Term {
    fn new(guard: &LockGuard, inner: &Arc<ManagerInner>) -> Self {
        Self {
            watch: guard.watch(),
            held: Arc::clone(guard.held()),
            inner: Arc::clone(inner),
        }
    }

    /// Renews the lease to the whole ttl now, in addition to the renewals in the background. A leader does so to
    /// hear from the server that it still leads.
    ///
    /// # Errors
    /// As [`LockGuard::renew`]. After the end of the body this is [`LockError::Lost`].
    ///
    /// # Cancel safety
    /// A renewal whose future is dropped may or may not extend the lease.
    #[doc(alias = "extend")]
    pub async fn renew(&self) -> Result<(), LockError> {
        self.inner.renew(&self.held).await
    }
}

impl Deref for Term {
    type Target = LockWatch;

    fn deref(&self) -> &LockWatch {
        &self.watch
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Term")
            .field("key", &self.key())
            .field("fencing_token", &self.fencing_token())
            .field("is_lost", &self.is_lost())
            .finish_non_exhaustive()
    }
}

impl LockRequest {
    /// Waits until the caller is the leader, and runs `body` while it is. Returns the result of the first
    /// `body` that ends, after the lock is released.
    ///
    /// The callers with the same name elect one of them. When the leader dies, its lease ends, and the next
    /// caller in the queue is the leader. When the lock is lost, the library drops the body at its next await,
    /// and only then waits for the next term. So one call of `lead` never has two bodies.
    ///
    /// The [fencing token](LockWatch::fencing_token) of the [`Term`] grows with each term of an exclusive lock. With
    /// [permits](Self::permits), several callers lead at one time, and they share a token. A leader that was paused
    /// does not know yet that its term has ended. Send the token with each write, and let the resource refuse a lower
    /// one.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let scheduler = locks.lock("scheduler").ttl(Duration::from_secs(10));
    /// let token = scheduler.lead(async |term| term.fencing_token()).await?;
    /// assert!(token.is_some());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # How to write the body
    /// The library calls `body` once for each term, and each call returns a future. The future may borrow what is
    /// outside of the closure, also in a spawned task:
    ///
    /// ```
    /// # use lock_core::request::Term;
    /// # use lock_core::{LockError, LockManager};
    /// # use std::sync::Arc;
    /// # struct Bills;
    /// # async fn work(_term: Term, _bills: &Bills) {}
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = LockManager::in_memory();
    /// # let bills = Arc::new(Bills);
    /// let (request, shared) = (locks.lock("leader:billing"), Arc::clone(&bills));
    /// let leading = tokio::spawn(async move {
    ///     request.lead(|term| work(term, &shared)).await
    /// });
    /// # leading.await??;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// It cannot borrow what the closure itself owns or changes: a later term needs that again. So a `move` closure
    /// clones for each term, and a counter changes before the future begins:
    ///
    /// ```
    /// # use lock_core::request::Term;
    /// # use lock_core::{LockError, LockManager};
    /// # use std::sync::Arc;
    /// # struct Bills;
    /// # async fn work(_term: Term, _bills: &Bills) {}
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// # let locks = LockManager::in_memory();
    /// # let bills = Arc::new(Bills);
    /// let mut terms = 0;
    /// let election = locks.lock("leader:billing").lead(move |term| {
    ///     terms += 1;
    ///     println!("term {terms} of this process");
    ///     let bills = Arc::clone(&bills);
    ///     async move { work(term, &bills).await }
    /// });
    /// # election.await
    /// # }
    /// ```
    ///
    /// # How long it waits
    /// A caller stays in the queue for ten minutes at a time, and then enters it again at once. An
    /// [override](crate::LockManager::set_overrides) of the `wait` replaces the ten minutes; after a wait of less than
    /// a second comes a pause.
    ///
    /// # Errors
    /// - [`LockError::Invalid`] with [`InvalidSetting::Wait`](crate::error::InvalidSetting::Wait) when the request has
    ///   a [`wait`](Self::wait): a leader waits indefinitely.
    /// - [`LockError::Invalid`] with [`InvalidSetting::Kind`](crate::error::InvalidSetting::Kind) for a
    ///   [read](Self::read) lock, which all callers would have at once.
    /// - [`LockError::ShuttingDown`] when the manager shuts down. The shutdown also ends the term. A body that has
    ///   ended before keeps its result.
    /// - Each error of [`acquire`](Self::acquire) that is neither [retryable](LockError::is_retryable) nor a busy or
    ///   lost lock, such as an invalid name. So the call also ends when the server refuses the login or a right, when
    ///   a provider of credentials fails, and when the key holds something else. If that may pass, call `lead` again.
    ///   After all other errors the call goes on, with pauses of 50 ms to 5 s.
    ///
    /// # Panics
    /// As [`acquire`](Self::acquire). When the body panics, the lock is released.
    ///
    /// # Cancel safety
    /// Dropping the future drops the body, and leaves the queue or releases the lock in the background.
    pub async fn lead<F: Future>(
        self,
        mut body: impl FnMut(Term) -> F,
    ) -> Result<F::Output, LockError> {
        self.check_leader()?;
        let campaign = self.wait(STEP).of_candidate();
        let mut pauses = Backoff::between(FIRST_PAUSE, LONGEST_PAUSE, Jitter::from_os());
        loop {
            let begun = Instant::now();
            let closed = campaign.manager().activity.closed();
            let ended = match campaign.clone().acquire().await {
                Ok(guard) => {
                    pauses.reset();
                    let term = Term::new(&guard, campaign.manager());
                    // The first poll calls the closure, so it runs inside the scope of the body, and never after a shutdown.
                    let body = &mut body;
                    run::run_until(guard, async move { body(term).await }, closed).await
                }
                Err(error) => Err(error),
            };
            let error = match ended {
                Ok(Some(result)) => return Ok(result),
                Ok(None) => return Err(LockError::ShuttingDown),
                Err(error) => error,
            };
            if error.is_contended() && begun.elapsed() >= SHORTEST_STEP {
                // The caller loses its place in the queue for as short as possible.
                pauses.reset();
                continue;
            }
            if !(error.is_contended() || error.is_lost() || error.is_retryable()) {
                return Err(error);
            }
            tokio::select! {
                biased;
                () = campaign.manager().activity.closed() => return Err(LockError::ShuttingDown),
                () = tokio::time::sleep(pauses.pause()) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::config::Override;
    use crate::error::InvalidSetting;
    use crate::manager::LockManager;
    use lock_protocol::key::LockName;
    use lock_protocol::kind::InvalidKindReason;
    use lock_protocol::renew::Renew;

    const SECOND: Duration = Duration::from_secs(1);

    struct Dropped<'a>(&'a Cell<u32>);

    impl Drop for Dropped<'_> {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn body_runs_when_the_leader_before_it_resigns() {
        let locks = LockManager::in_memory();
        let first = locks.lock("k").acquire().await.unwrap();
        let first_token = first.fencing_token();
        let second = locks.lock("k").lead(async |term| term.fencing_token());
        let resigns = async {
            tokio::time::sleep(STEP * 2).await;
            drop(first);
        };
        let (token, ()) = tokio::join!(second, resigns);
        assert!(token.unwrap() > first_token);
        assert!(locks.lock("k").try_acquire().await.unwrap().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn lost_term_drops_the_body_before_the_next_campaign() {
        let locks = LockManager::in_memory();
        let (begun, dropped) = (Cell::new(0), Cell::new(0));
        let request = locks.lock("k").ttl(SECOND).renew(Renew::Never);
        let third = request.lead(async |_term| {
            assert_eq!(begun.get(), dropped.get(), "two bodies at once");
            begun.set(begun.get() + 1);
            let _dropped = Dropped(&dropped);
            if begun.get() < 3 {
                tokio::time::sleep(SECOND * 60).await;
            }
            begun.get()
        });
        assert_eq!(third.await.unwrap(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_ends_the_term_and_the_campaign() {
        let locks = LockManager::in_memory();
        let leads = || {
            locks
                .lock("k")
                .lead(async |_| std::future::pending::<()>().await)
        };
        let shutdown = async {
            tokio::time::sleep(SECOND).await;
            locks.shutdown().await
        };
        let (leader, follower, shutdown) = tokio::join!(leads(), leads(), shutdown);
        assert!(matches!(leader, Err(LockError::ShuttingDown)));
        assert!(matches!(follower, Err(LockError::ShuttingDown)));
        assert_eq!(shutdown, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn body_that_ends_at_the_shutdown_keeps_its_result() {
        let locks = LockManager::in_memory();
        let leader = locks.lock("k").lead(async |_| {
            let closing = locks.shutdown();
            // The shutdown begins in the last poll of the body.
            let _begun = tokio::time::timeout(Duration::ZERO, closing).await;
            7
        });
        assert_eq!(leader.await.unwrap(), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn panic_of_the_body_releases_the_lock() {
        let locks = LockManager::in_memory();
        let leading = locks.lock("k").lead(async |_| -> () { panic!("the body") });
        let result = tokio::spawn(leading).await;
        assert!(result.unwrap_err().is_panic());
        assert!(locks.lock("k").try_acquire().await.unwrap().is_some());
    }

    /// The leader resigns just after a step of the standby, which is in the queue again.
    #[tokio::test(start_paused = true)]
    async fn standby_waits_without_pauses() {
        const MOMENT: Duration = Duration::from_millis(1);
        for steps in [1, 9] {
            let locks = LockManager::in_memory();
            let leader = locks.lock("k").acquire().await.unwrap();
            let begun = Instant::now();
            let resigns = async {
                tokio::time::sleep(STEP * steps + MOMENT).await;
                leader.release().await.unwrap();
            };
            let leading = locks.lock("k").lead(async |_| begun.elapsed());
            let (led_after, ()) = tokio::join!(leading, resigns);
            assert_eq!(led_after.unwrap(), STEP * steps + MOMENT);
        }
    }

    /// With a wait of their own, the steps are shorter.
    #[tokio::test(start_paused = true)]
    async fn standby_with_an_override_of_the_wait_waits_without_pauses() {
        let wait = Override::new().wait(2 * SECOND);
        let locks = LockManager::in_memory();
        locks.set_overrides([("k", wait)]).unwrap();
        let leader = locks.lock("k").acquire().await.unwrap();
        let begun = Instant::now();
        let resigns = async {
            tokio::time::sleep(SECOND * 2 + Duration::from_millis(1)).await;
            leader.release().await.unwrap();
        };
        let request = locks.lock(LockName::from("k").with_template("k"));
        let leading = request.lead(async |_| begun.elapsed());
        let (led_after, ()) = tokio::join!(leading, resigns);
        assert_eq!(led_after.unwrap(), SECOND * 2 + Duration::from_millis(1));
    }

    #[tokio::test(start_paused = true)]
    async fn wait_and_read_are_refused() {
        let locks = LockManager::in_memory();
        let body = async |_: Term| ();
        let error = locks.lock("k").wait(SECOND).lead(body).await.unwrap_err();
        assert!(
            matches!(error, LockError::Invalid(InvalidSetting::Wait { wait }) if wait == SECOND),
            "{error}"
        );
        let error = locks.lock("k").read().lead(body).await.unwrap_err();
        let reason = InvalidKindReason::Leader;
        assert!(
            matches!(error, LockError::Invalid(InvalidSetting::Kind { reason: found, .. }) if found == reason),
            "{error}"
        );
        let error = locks.lock("").lead(body).await.unwrap_err();
        assert!(
            matches!(error, LockError::Invalid(InvalidSetting::Name { .. })),
            "{error}"
        );
        let error = locks.lock("k").lead(async |_| {
            let again = locks.lock("k").lead(body);
            again.await.unwrap_err()
        });
        let error = error.await.unwrap();
        assert!(matches!(error, LockError::WouldDeadlock { .. }), "{error}");
    }
}
