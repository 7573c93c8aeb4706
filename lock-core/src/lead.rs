//! Leadership: a lock that the caller wants for as long as it runs.
//!
//! A [`Campaign`] owns the place in the queue between two calls of [`next`](Campaign::next), so that a dropped future of
//! `next` loses nothing. [`LockRequest::lead`] is a loop over a campaign, which runs a body in each term.
//!
//! | Stage | What ends it | Next |
//! |---|---|---|
//! | `Idle` | the next poll | `InQueue` |
//! | `InQueue` | a grant | `Led`, and the caller has the guard |
//! | | a wait of a whole step | `Idle`: back into the queue at once |
//! | | another error that may pass | `Pause`, longer each time |
//! | | an error that stays, or a shutdown | `Idle`, and the caller gets it |
//! | `Led` | the next call: the term was lost | `Pause`, the shortest |
//! | | the next call: the caller has resigned | `Idle` |
//! | `Pause` | its end | `Idle` |

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use crate::error::LockError;
use crate::guard::{LockGuard, LockWatch};
use crate::request::{Acquiring, LockRequest, One, OneLock, Target};
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

impl<T: OneLock> LockRequest<T> {
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
    /// a second comes a pause. With a [`max_queue`](Self::max_queue), a candidate that finds the queue full has no place in
    /// it: it pauses for 50 ms to 5 s, and tries again.
    ///
    /// # How long a term lasts
    /// A term ends with its body, or with its lock. The manager's
    /// [`default_max_hold`](crate::LockManagerBuilder::default_max_hold) does not apply, because a leader leads for as long
    /// as it lives; a [`max_hold`](Self::max_hold) of the request does.
    ///
    /// # Errors
    /// - [`LockError::Invalid`] with [`InvalidSetting::Wait`](crate::error::InvalidSetting::Wait) when the request has
    ///   a [`wait`](Self::wait): a leader waits indefinitely. With
    ///   [`InvalidSetting::OutageWait`](crate::error::InvalidSetting::OutageWait) when it has an
    ///   [`outage_wait`](Self::outage_wait), and with
    ///   [`InvalidSetting::OncePer`](crate::error::InvalidSetting::OncePer) when it has a [`once_per`](Self::once_per).
    /// - [`LockError::Invalid`] with [`InvalidSetting::Kind`](crate::error::InvalidSetting::Kind) for a
    ///   [read](Self::read) lock, which all callers would have at once.
    /// - [`LockError::ShuttingDown`] when the manager is closed or shuts down. A shutdown also ends the term. A body
    ///   that has ended before keeps its result. After a [close](crate::LockManager::close), the term goes on, and no
    ///   new one begins.
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
        let mut campaign = self.campaign();
        while let Some(held) = campaign.elected().await? {
            let manager = campaign.request.manager();
            let term = Term::new(T::guard(&held), manager);
            // A close lets the term go on.
            let ends = manager.activity.shut_down_begun();
            // The first poll calls the closure, so it runs inside the scope of the body, and never after a shutdown.
            let body = &mut body;
            match run::run_until(held, async move { body(term).await }, ends).await {
                Ok(Some(result)) => return Ok(result),
                Ok(None) => break,
                // The campaign sees the loss, too, and pauses.
                Err(error) if error.is_lost() => {}
                Err(error) => return Err(error),
            }
        }
        Err(LockError::ShuttingDown)
    }

    /// Makes the caller a candidate, for a loop instead of a closure. Sends nothing before the first
    /// [`next`](Campaign::next).
    ///
    /// [`lead`](Self::lead) drops its body when the term is lost. In a loop you do that yourself, usually with
    /// `tokio::select!` and [`ended`](Leadership::ended). In return, the loop may go on with other work between two
    /// terms, decide after each one whether to run again, and pass the proof of a declared lock on.
    ///
    /// ```
    /// # use lock_core::{FencingToken, LockError, LockManager};
    /// # use std::time::Duration;
    /// # async fn send_bills(_: Option<FencingToken>) { tokio::time::sleep(Duration::from_secs(9)).await }
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), LockError> {
    /// # let locks = LockManager::in_memory();
    /// # let other = locks.clone();
    /// # let stop = tokio::spawn(async move {
    /// #     tokio::time::sleep(Duration::from_secs(20)).await;
    /// #     other.shutdown().await
    /// # });
    /// let mut election = locks.lock("leader:billing").ttl(Duration::from_secs(10)).campaign();
    /// // Until the manager shuts down.
    /// while let Some(term) = election.next().await? {
    ///     let token = term.fencing_token();
    ///     tokio::select! {
    ///         () = term.ended() => println!("not the leader any more"),
    ///         () = send_bills(token) => term.resign().await?,
    ///     }
    /// }
    /// # stop.await.expect("no panic").expect("nothing is held");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// With a declared lock, the term derefs to [`Held`](crate::Held), so a function that asks for the proof gets it:
    ///
    #[cfg_attr(feature = "macros", doc = "```")]
    #[cfg_attr(not(feature = "macros"), doc = "```ignore")]
    /// # use lock_core::{Held, Lock, LockError, LockManager};
    /// #[derive(Clone, Lock)]
    /// #[lock(name = "leader:{region}", ttl = "10s")]
    /// struct Region {
    ///     region: String,
    /// }
    ///
    /// async fn bill(region: &Held<Region>) -> usize {
    ///     region.region.len()
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// # let locks = LockManager::in_memory();
    /// let mut election = locks.hold(Region { region: "eu".into() }).campaign();
    /// if let Some(term) = election.next().await? {
    ///     assert_eq!(bill(&term).await, 2);
    ///     term.resign().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The lock is not entered while the loop holds it, as it is in a body of `lead` or [`run`](Self::run): an acquire of
    /// the same lock inside of a term waits until its own [`wait`](Self::wait) has passed.
    pub fn campaign(self) -> Campaign<T> {
        Campaign {
            request: self,
            stage: Stage::Idle,
            pauses: Backoff::between(FIRST_PAUSE, LONGEST_PAUSE, Jitter::from_os()),
        }
    }
}

/// A candidate: waits for one term after the other. Made by [`LockRequest::campaign`].
///
/// It has at most one term at a time, because a [`Leadership`] borrows it. Dropping the campaign leaves the queue.
#[must_use = "a campaign waits for a term only in `next`"]
pub struct Campaign<T: Target = One> {
    request: LockRequest<T>,
    stage: Stage<T>,
    pauses: Backoff,
}

/// The header of this file has the transitions.
enum Stage<T: Target> {
    Idle,
    InQueue {
        acquiring: Acquiring<T>,
        begun: Instant,
    },
    /// The caller has, or had, the guard.
    Led(LockWatch),
    Pause(Pin<Box<Sleep>>),
}

impl<T: OneLock> Campaign<T> {
    /// Waits until the caller is the leader. Returns `None` when the manager is [closed](crate::LockManager::close) or
    /// shuts down, and after that forever.
    ///
    /// The campaign waits indefinitely, as [`lead`](LockRequest::lead) does, and goes on after an outage of the server.
    /// The next call after a lost term waits for the next one. After a term that the caller has resigned or dropped, it
    /// enters the queue again, behind the candidates that wait already.
    ///
    /// # Errors
    /// As [`lead`](LockRequest::lead), except for `ShuttingDown`: each error that another attempt wouldn't change, such
    /// as an invalid name or a login that the server refuses. A further call begins again.
    ///
    /// # Panics
    /// As [`acquire`](LockRequest::acquire).
    ///
    /// # Cancel safety
    /// Dropping the future keeps the place in the queue, which belongs to the campaign: call `next` in a branch of
    /// `tokio::select!` as often as you like. But a campaign that isn't polled doesn't take its turn: the other candidates
    /// wait two seconds for it, and then pass it.
    pub async fn next(&mut self) -> Result<Option<Leadership<'_, T>>, LockError> {
        let Some(held) = self.elected().await? else {
            return Ok(None);
        };
        let manager = self.request.manager();
        Ok(Some(Leadership { held, manager }))
    }

    /// Cancel safe: each await is on a part of the stage, or on nothing but the shutdown.
    async fn elected(&mut self) -> Result<Option<T::Guard>, LockError> {
        loop {
            match &mut self.stage {
                Stage::Idle => {
                    self.request.check_leader()?;
                    let request = self.request.clone().wait(STEP).of_candidate();
                    self.stage = Stage::InQueue {
                        acquiring: request.acquire(),
                        begun: Instant::now(),
                    };
                }
                Stage::InQueue { acquiring, begun } => {
                    let acquired = acquiring.await;
                    let waited = begun.elapsed();
                    self.stage = Stage::Idle;
                    match acquired {
                        // A leader that stops may have handed the lock over to this candidate of the same manager.
                        Ok(_) if self.request.manager().activity.is_closing() => return Ok(None),
                        Ok(held) => {
                            self.pauses.reset();
                            let guard = T::guard(&held);
                            guard.held().set_of_leader();
                            self.stage = Stage::Led(guard.watch());
                            return Ok(Some(held));
                        }
                        Err(LockError::ShuttingDown) => return Ok(None),
                        // The caller loses its place in the queue for as short as possible.
                        Err(error) if error.is_contended() && waited >= SHORTEST_STEP => {
                            self.pauses.reset();
                        }
                        Err(error)
                            if error.is_contended() || error.is_lost() || error.is_retryable() =>
                        {
                            self.pause();
                        }
                        Err(error) => return Err(error),
                    }
                }
                Stage::Led(term) if term.loss_reason().is_some() => self.pause(),
                Stage::Led(_) => self.stage = Stage::Idle,
                Stage::Pause(pause) => {
                    tokio::select! {
                        biased;
                        () = self.request.manager().activity.closed() => return Ok(None),
                        () = pause.as_mut() => self.stage = Stage::Idle,
                    }
                }
            }
        }
    }

    fn pause(&mut self) {
        self.stage = Stage::Pause(Box::pin(tokio::time::sleep(self.pauses.pause())));
    }
}

impl<T: Target + fmt::Debug> fmt::Debug for Campaign<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Campaign")
            .field("request", &self.request)
            .finish_non_exhaustive()
    }
}

/// A term that the caller owns: what [`Campaign::next`] returns. Dropping it resigns in the background.
///
/// It derefs to the guard of the lock, which is a [`LockGuard`], or [`Held`](crate::Held) for a declared lock. So
/// [`lost`](LockGuard::lost), [`is_lost`](LockGuard::is_lost), [`renew`](LockGuard::renew) and
/// [`fencing_token`](LockGuard::fencing_token) are at hand, and [`watch`](LockGuard::watch) returns what a spawned task
/// may have.
#[must_use = "the leader resigns as soon as the term is dropped"]
pub struct Leadership<'a, T: Target = One> {
    held: T::Guard,
    manager: &'a Arc<ManagerInner>,
}

impl<T: OneLock> Leadership<'_, T> {
    /// Completes when the leader has to stop: when the term is lost, or when the manager shuts down. A shutdown waits for
    /// the end of the term. A [close](crate::LockManager::close) lets the term go on.
    ///
    /// # Panics
    /// As [`LockGuard::lost`].
    ///
    /// # Cancel safety
    /// Dropping the future has no effect on the term. A later future reports the same end.
    pub async fn ended(&self) {
        tokio::select! {
            biased;
            () = T::guard(&self.held).lost() => {}
            () = self.manager.activity.shut_down_begun() => {}
        }
    }

    /// Gives the lead to the next candidate, and waits for the server's reply.
    ///
    /// # Errors
    /// As [`LockGuard::release`]: [`LockError::Lost`] when the term was lost before.
    ///
    /// # Cancel safety
    /// Dropping the future resigns in the background.
    pub async fn resign(self) -> Result<(), LockError> {
        T::into_guard(self.held).release().await
    }
}

impl<T: Target> Deref for Leadership<'_, T> {
    type Target = T::Guard;

    fn deref(&self) -> &T::Guard {
        &self.held
    }
}

impl<T: OneLock> fmt::Debug for Leadership<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let guard = T::guard(&self.held);
        f.debug_struct("Leadership")
            .field("key", &guard.key())
            .field("fencing_token", &guard.fencing_token())
            .field("is_lost", &guard.is_lost())
            .finish_non_exhaustive()
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
    async fn close_ends_the_campaign_and_lets_the_term_go_on() {
        let locks = LockManager::in_memory();
        let terms = Cell::new(0);
        let leads = || {
            locks.lock("k").lead(async |_| {
                terms.set(terms.get() + 1);
                tokio::time::sleep(3 * SECOND).await;
                7
            })
        };
        let close = async {
            tokio::time::sleep(SECOND).await;
            locks.close();
            locks.close();
        };
        let begun = Instant::now();
        let (leader, follower, ()) = tokio::join!(leads(), leads(), close);
        assert_eq!(leader.unwrap(), 7);
        assert_eq!(begun.elapsed(), 3 * SECOND);
        assert!(matches!(follower, Err(LockError::ShuttingDown)));
        assert!(matches!(leads().await, Err(LockError::ShuttingDown)));
        assert_eq!(terms.get(), 1);
        assert_eq!(locks.shutdown().await, Ok(()));
    }

    /// After a close, the shutdown still ends the term.
    #[tokio::test(start_paused = true)]
    async fn shutdown_after_a_close_ends_the_term() {
        let locks = LockManager::in_memory();
        let leads = locks
            .lock("k")
            .lead(async |_| std::future::pending::<()>().await);
        let shutdown = async {
            tokio::time::sleep(SECOND).await;
            locks.close();
            locks.shutdown().await
        };
        let (leader, shutdown) = tokio::join!(leads, shutdown);
        assert!(matches!(leader, Err(LockError::ShuttingDown)));
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

    /// The place in the queue belongs to the campaign rather than to a future of `next`.
    #[tokio::test(start_paused = true)]
    async fn dropped_next_keeps_the_place_in_the_queue() {
        let locks = LockManager::in_memory();
        let first = locks.lock("k").acquire().await.unwrap();
        let mut campaign = locks.lock("k").campaign();
        let moment = Duration::from_millis(1);
        assert!(tokio::time::timeout(moment, campaign.next()).await.is_err());
        let other = tokio::spawn(locks.lock("k").wait(60 * SECOND).acquire());
        for _ in 0..5 {
            assert!(tokio::time::timeout(moment, campaign.next()).await.is_err());
        }
        drop(first);
        let next = tokio::time::timeout(SECOND, campaign.next()).await;
        let term = next.expect("it is the first").unwrap().unwrap();
        assert!(!other.is_finished());
        let token = term.fencing_token();
        term.resign().await.unwrap();
        let other = other.await.unwrap().unwrap();
        assert!(other.fencing_token() > token);
    }

    /// Behind those that wait already.
    #[tokio::test(start_paused = true)]
    async fn candidate_that_resigns_lets_the_others_pass() {
        let locks = LockManager::in_memory();
        let order = &std::cell::RefCell::new(Vec::new());
        let candidate = async |number: u32| {
            let mut campaign = locks.lock("k").campaign();
            for _ in 0..3 {
                let term = campaign.next().await.unwrap().unwrap();
                order.borrow_mut().push((number, term.fencing_token()));
                tokio::time::sleep(SECOND).await;
                if number == 1 {
                    term.resign().await.unwrap();
                }
            }
        };
        tokio::join!(candidate(1), candidate(2));
        let (numbers, tokens): (Vec<_>, Vec<_>) = order.take().into_iter().unzip();
        assert_eq!(numbers, [1, 2, 1, 2, 1, 2]);
        assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
        assert!(locks.lock("k").try_acquire().await.unwrap().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn campaign_pauses_after_a_loss_and_goes_on() {
        let locks = LockManager::in_memory();
        let request = locks.lock("k").ttl(SECOND).renew(Renew::Never);
        let mut campaign = request.campaign();
        let mut tokens = Vec::new();
        for _ in 0..3 {
            let begun = Instant::now();
            let term = campaign.next().await.unwrap().unwrap();
            let waited = begun.elapsed();
            let is_first = tokens.is_empty();
            assert_eq!(is_first, waited.is_zero(), "{waited:?}");
            assert!(
                waited <= FIRST_PAUSE + Duration::from_millis(1),
                "{waited:?}"
            );
            tokens.push(term.fencing_token());
            term.ended().await;
            assert!(term.is_lost());
        }
        assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_ends_the_term_and_the_loop() {
        let locks = LockManager::in_memory();
        let leads = async || {
            let mut campaign = locks.lock("k").campaign();
            let mut terms = 0;
            while let Some(term) = campaign.next().await? {
                terms += 1;
                term.ended().await;
                assert!(!term.is_lost());
            }
            // Once more.
            assert!(campaign.next().await?.is_none());
            Ok::<_, LockError>(terms)
        };
        let shutdown = async {
            tokio::time::sleep(SECOND).await;
            locks.shutdown().await
        };
        let (leader, follower, shutdown) = tokio::join!(leads(), leads(), shutdown);
        assert_eq!((leader.unwrap(), follower.unwrap()), (1, 0));
        assert_eq!(shutdown, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn close_lets_the_term_of_a_loop_go_on() {
        let locks = LockManager::in_memory();
        let mut campaign = locks.lock("k").campaign();
        let term = campaign.next().await.unwrap().expect("nobody else leads");
        assert_eq!(
            locks.health().oldest_held,
            None,
            "a leader is no old holder"
        );
        locks.close();
        let ended = tokio::time::timeout(SECOND, term.ended()).await;
        assert!(ended.is_err(), "a close ends no term");
        assert!(!term.is_lost());
        let shutdown = async {
            assert_eq!(locks.shutdown().await, Ok(()));
        };
        let resigns = async {
            term.ended().await;
            term.resign().await.unwrap();
        };
        tokio::join!(shutdown, resigns);
        assert!(campaign.next().await.unwrap().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_campaign_leaves_the_queue() {
        let locks = LockManager::in_memory();
        let first = locks.lock("k").acquire().await.unwrap();
        let mut campaign = locks.lock("k").campaign();
        let next = tokio::time::timeout(SECOND, campaign.next()).await;
        assert!(next.is_err());
        let waiting = async || locks.admin().inspect("k").await.unwrap().waiters_total;
        assert_eq!(waiting().await, 1);
        drop(campaign);
        assert_eq!(waiting().await, 0);
        drop(first);
        assert!(locks.lock("k").try_acquire().await.unwrap().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn candidates_for_permits_lead_together() {
        let locks = LockManager::in_memory();
        let candidate = || locks.lock("k").permits(2).campaign();
        let (mut one, mut two, mut three) = (candidate(), candidate(), candidate());
        let first = one.next().await.unwrap().unwrap();
        let second = two.next().await.unwrap().unwrap();
        assert_eq!(first.fencing_token(), second.fencing_token());
        assert!(tokio::time::timeout(SECOND, three.next()).await.is_err());
        drop(first);
        assert!(three.next().await.unwrap().is_some());
        drop(second);
    }

    #[tokio::test(start_paused = true)]
    async fn campaign_refuses_what_lead_refuses() {
        let locks = LockManager::in_memory();
        let code = async |request: LockRequest| {
            let mut campaign = request.campaign();
            let first = campaign.next().await.unwrap_err();
            let again = campaign.next().await.unwrap_err();
            assert_eq!(first.code(), again.code());
            first.code()
        };
        assert_eq!(code(locks.lock("k").wait(SECOND)).await, "invalid_wait");
        assert_eq!(code(locks.lock("k").read()).await, "invalid_kind");
        assert_eq!(code(locks.lock("")).await, "invalid_name");
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
        let error = locks.lock("k").outage_wait(SECOND).lead(body).await;
        let error = error.unwrap_err();
        assert!(
            matches!(error, LockError::Invalid(InvalidSetting::OutageWait { .. })),
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
