//! Requests for one lock, for a set of locks, and for a declared lock.
//!
//! All three are a [`LockRequest`]: settings, and a [`Target`] that says what to lock and makes the guard. Nothing is
//! sent before the first poll of a future that the request returns. That poll checks the settings, turns the target
//! into a boxed acquisition, and drops the settings: a task that waits holds the box, and what its guard needs beside the
//! grant.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::error::{InvalidOncePerReason, InvalidSetting, InvalidTicketReason, LockError};
use crate::guard::{Holding, LockGuard, LockSet};
use crate::run;
use crate::runtime::acquired::Acquired;
use crate::runtime::inner::ManagerInner;
use crate::runtime::waiter::{self, Waits};
use crate::telemetry::Caller;
#[cfg(feature = "macros")]
use crate::telemetry::LockEvent;
use lock_protocol::acquisition::QueueLimit;
use lock_protocol::dialect::Dialect;
use lock_protocol::key::LockName;
use lock_protocol::kind::{InvalidKindReason, Kind};
use lock_protocol::renew::Renew;
use lock_protocol::ticket::LockTicket;

use super::settings::{Checked, Keeps, Settings};

/// A request for a lock, a set of locks, or a declared lock, before it is sent.
///
/// | Made by | Type | The guard |
/// |---|---|---|
/// | [`lock`](crate::LockManager::lock) | `LockRequest`, which is `LockRequest<One>` | [`LockGuard`] |
/// | [`lock_all`](crate::LockManager::lock_all) | `LockRequest<Names>` | [`LockSet`] |
/// | [`hold`](crate::LockManager::hold), [`hold_read`](crate::LockManager::hold_read), [`hold_write`](crate::LockManager::hold_write), [`hold_permit`](crate::LockManager::hold_permit) | `LockRequest<Declared<L, M>>` | [`Held<L, M>`](crate::Held) |
///
/// [`acquire`](Self::acquire), [`try_acquire`](Self::try_acquire) and [`run`](Self::run) send the request. Awaiting
/// the request itself is the same as awaiting `acquire()`.
///
/// A set's settings apply to each of its locks. A declared lock brings its own name, kind and ttl, so the methods that
/// set these don't exist for it.
///
/// ```
/// # use lock_core::{LockError, LockManager};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let locks = LockManager::in_memory();
/// let order = locks.lock("order:42").wait(Duration::from_secs(2)).acquire().await?;
/// assert_eq!(order.key(), "lock:order:42");
/// order.release().await?;
///
/// let transfer = locks.lock_all(["account:7", "account:3"]).wait(Duration::from_secs(2));
/// let tokens = transfer
///     .run(async |accounts| accounts.guards().iter().filter_map(|it| it.fencing_token()).count())
///     .await?;
/// assert_eq!(tokens, 2);
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is sent before `acquire`, `try_acquire` or `run`"]
#[derive(Clone)]
pub struct LockRequest<T = One> {
    pub(super) settings: Settings,
    pub(super) target: T,
}

/// The target of a request for one lock, by its name. Made by [`LockManager::lock`](crate::LockManager::lock).
#[derive(Clone, Debug)]
pub struct One(LockName);

/// The target of a request for a set of locks, by their names. Made by
/// [`LockManager::lock_all`](crate::LockManager::lock_all).
#[derive(Clone, Debug)]
pub struct Names(pub(super) Vec<LockName>);

/// What a request is for: [`One`] lock, the locks of several [`Names`], or a `Declared` lock. No other type implements
/// it.
#[expect(private_bounds, reason = "the trait is sealed")]
pub trait Target: Acquirable<Held = <Self as Target>::Guard> {
    /// What the caller holds after the acquire.
    type Guard: Holding;
}

impl Target for One {
    type Guard = LockGuard;
}

impl Target for Names {
    type Guard = LockSet;
}

/// A target whose locks are named in the call rather than declared: [`One`] or [`Names`]. Its request can set what a
/// declaration would bring along, such as the ttl. No other type implements it.
#[expect(private_bounds, reason = "the trait is sealed")]
pub trait ByName: Target + NamesLocks {}

impl ByName for One {}
impl ByName for Names {}

/// A target that is one lock, by its name or declared: [`One`] or `Declared`. Its request can
/// [lead](LockRequest::lead). No other type implements it.
#[expect(private_bounds, reason = "the trait is sealed")]
pub trait OneLock: Target + Electable + Clone {}

impl OneLock for One {}

/// What a candidate needs of a target.
pub(crate) trait Electable: Acquirable {
    /// Returns the wait that the lock was declared with.
    fn declared_wait(&self) -> Option<Duration> {
        None
    }

    fn guard(held: &Self::Held) -> &LockGuard;

    fn into_guard(held: Self::Held) -> LockGuard;
}

impl Electable for One {
    fn guard(held: &LockGuard) -> &LockGuard {
        held
    }

    fn into_guard(held: LockGuard) -> LockGuard {
        held
    }
}

pub(crate) trait NamesLocks {
    #[cfg(feature = "macros")]
    fn names(&self) -> &[LockName];
}

impl NamesLocks for One {
    #[cfg(feature = "macros")]
    fn names(&self) -> &[LockName] {
        std::slice::from_ref(&self.0)
    }
}

impl NamesLocks for Names {
    #[cfg(feature = "macros")]
    fn names(&self) -> &[LockName] {
        &self.0
    }
}

/// An acquisition in a box, so that the caller's future doesn't contain its large state.
pub(crate) type Acquisition<G> = Pin<Box<dyn Future<Output = Result<G, LockError>> + Send>>;

/// How a target acquires its locks, and makes a guard of them.
pub(crate) trait Acquirable: Sized {
    /// What the server grants.
    type Granted;
    /// What the guard needs beside the grant.
    type Rest;
    type Held: Holding;

    /// Checks the request, and begins to acquire.
    fn start(
        self,
        settings: &Settings,
        attempts: Attempts,
    ) -> Result<(Acquisition<Self::Granted>, Self::Rest), LockError>;

    fn held(rest: Self::Rest, granted: Self::Granted) -> Self::Held;
}

impl Acquirable for One {
    type Granted = Acquired;
    type Rest = ();
    type Held = LockGuard;

    fn start(
        self,
        settings: &Settings,
        attempts: Attempts,
    ) -> Result<(Acquisition<Acquired>, ()), LockError> {
        Ok((start_one(&self.0, settings, attempts)?, ()))
    }

    fn held((): (), granted: Acquired) -> LockGuard {
        LockGuard::new(granted)
    }
}

pub(super) fn start_one(
    name: &LockName,
    settings: &Settings,
    attempts: Attempts,
) -> Result<Acquisition<Acquired>, LockError> {
    let Checked {
        key,
        lease_config,
        wait,
    } = settings.check(name)?;
    let (inner, spent, caller) = (&settings.inner, settings.spent(), settings.caller);
    let outage = settings.outage_wait();
    match attempts {
        Attempts::UntilWaitEnds if !wait.is_zero() => {
            let waits = Waits {
                wait,
                max_queue: settings.max_queue,
                outage,
            };
            waiter::acquire(inner, key, lease_config, waits, spent, caller)
        }
        _ => waiter::try_acquire(inner, key, lease_config, outage, spent, caller),
    }
}

/// Makes a guard of a ticket, with these settings.
pub(super) async fn resume_one(
    name: &LockName,
    settings: Settings,
    ticket: LockTicket,
) -> Result<LockGuard, LockError> {
    let acquisition = start_resume(name, &settings, &ticket)?;
    let (kept_for, keeps) = (settings.kept_for, settings.keeps);
    drop((settings, ticket));
    let mut guard = LockGuard::new(acquisition.await?);
    keeps.apply(kept_for, &mut guard);
    Ok(guard)
}

fn start_resume(
    name: &LockName,
    settings: &Settings,
    ticket: &LockTicket,
) -> Result<Acquisition<Acquired>, LockError> {
    let Checked {
        key,
        lease_config,
        wait,
    } = settings.check(name)?;
    let inner = &settings.inner;
    let fits = if lease_config.kind != ticket.kind() {
        Err(InvalidTicketReason::Kind)
    } else if ticket.lock_key().prefix() != &*inner.settings.prefix {
        Err(InvalidTicketReason::OtherPrefix)
    } else if ticket.name() != name.as_str() {
        Err(InvalidTicketReason::OtherLock)
    } else {
        inner.check_exchange(key.dialect())
    };
    fits.map_err(InvalidSetting::from)?;
    let outage_wait = settings.outage_wait().unwrap_or(wait);
    waiter::resume(inner, ticket, key, lease_config, outage_wait)
}

/// How often a request asks for the lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attempts {
    One,
    UntilWaitEnds,
}

impl LockRequest {
    pub(crate) fn new(inner: Arc<ManagerInner>, name: LockName) -> Self {
        Self {
            settings: Settings::new(inner),
            target: One(name),
        }
    }

    /// As [`LockManager::resume`](crate::LockManager::resume), with the settings of this request: ttl, renewals,
    /// `max_hold`, `min_hold` and `once_per` of the new guard, and the template of the name. [`outage_wait`](Self::outage_wait)
    /// or else [`wait`](Self::wait) is for how long an outage may last. The request has to be for the name of the ticket.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let import = locks.lock("import").acquire().await?;
    /// let ticket = import.into_ticket(Duration::from_secs(60)).await?;
    /// let hour = Duration::from_secs(3_600);
    /// let import = locks.lock("import").max_hold(hour).resume(ticket).await?;
    /// import.release().await
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`LockManager::resume`](crate::LockManager::resume).
    ///
    /// # Cancel safety
    /// As [`LockManager::resume`](crate::LockManager::resume).
    pub async fn resume(self, ticket: LockTicket) -> Result<LockGuard, LockError> {
        resume_one(&self.target.0, self.settings, ticket).await
    }

    /// Returns the manager, the name, the wait and the outage wait of the request.
    #[cfg(feature = "testing")]
    pub(crate) fn parts(&self) -> (&Arc<ManagerInner>, &LockName, Duration, Duration) {
        let settings = &self.settings;
        let outage_wait = settings.outage_wait().unwrap_or_default();
        (
            &settings.inner,
            &self.target.0,
            settings.wait(),
            outage_wait,
        )
    }
}

impl<T: OneLock> LockRequest<T> {
    /// Makes a request of a candidate, which telemetry shows apart from calls.
    pub(crate) fn of_candidate(mut self) -> Self {
        self.settings.caller = Caller::Candidate;
        self
    }

    /// Checks that a leader can use the request. The wait of a declaration is for its calls.
    pub(crate) fn check_leader(&self) -> Result<(), LockError> {
        let wait = self.settings.times.wait;
        if let Some(wait) = wait.filter(|wait| self.target.declared_wait() != Some(*wait)) {
            return Err(InvalidSetting::Wait { wait }.into());
        }
        if let Some(outage_wait) = self.settings.outage_wait() {
            return Err(InvalidSetting::OutageWait { outage_wait }.into());
        }
        if self.settings.once_per().is_some() {
            return Err(InvalidOncePerReason::Leader.into());
        }
        if self.settings.kind.kind == Kind::Read {
            return Err(self.settings.invalid_kind(InvalidKindReason::Leader));
        }
        Ok(())
    }

    pub(crate) fn manager(&self) -> &Arc<ManagerInner> {
        &self.settings.inner
    }
}

impl LockRequest<Names> {
    pub(crate) fn of_names(inner: Arc<ManagerInner>, names: Vec<LockName>) -> Self {
        Self {
            settings: Settings::new(inner),
            target: Names(names),
        }
    }
}

/// The settings that a declared lock brings along.
impl<T: ByName> LockRequest<T> {
    /// Sets how long the lock outlives a holder that dies, from 100 ms to 24 h. The ttl is rounded up to whole
    /// milliseconds. While the holder lives, the background worker renews the lock. Defaults to the manager's
    /// [`default_ttl`](crate::LockManagerBuilder::default_ttl), which is 30 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.times.ttl = ttl;
        self
    }

    /// Sets the format of the lock on the server. All services that share a key have to use the same dialect, with one
    /// exception: the native dialect and the dialects that write an owner and an expiry respect each other's locks.
    /// Defaults to the manager's [`dialect`](crate::LockManagerBuilder::dialect).
    pub fn dialect(mut self, dialect: Dialect) -> Self {
        self.settings.dialect = dialect;
        self
    }

    /// Sets the kind of the lock. The last call of this method, [`read`](Self::read),
    /// [`write`](Self::write) or [`permits`](Self::permits) counts. Defaults to [`Kind::Exclusive`].
    ///
    /// Kinds other than the exclusive one need the native dialect, and do not exist at a quorum of servers.
    ///
    /// ```
    /// # use lock_core::{Kind, LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let kind = Kind::Permits { of: 8, weight: 2 };
    /// let held = locks.lock("mailer").kind(kind).acquire().await?;
    /// assert_eq!(held.kind(), kind);
    /// held.release().await
    /// # }
    /// ```
    pub fn kind(mut self, kind: Kind) -> Self {
        self.settings.kind.set(kind);
        self
    }

    /// Requests the lock for reading: any number of readers hold it together, and no writer does.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let one = locks.lock("stock:7").read().acquire().await?;
    /// let other = locks.lock("stock:7").read().try_acquire().await?;
    /// assert!(other.is_some());
    /// assert!(locks.lock("stock:7").write().try_acquire().await?.is_none());
    /// # one.release().await
    /// # }
    /// ```
    pub fn read(self) -> Self {
        self.kind(Kind::Read)
    }

    /// Requests the lock for writing. That is the same as an exclusive lock, and says what is meant.
    ///
    /// ```
    /// # use lock_core::{Kind, LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let writer = locks.lock("stock:7").write().acquire().await?;
    /// assert_eq!(writer.kind(), Kind::Exclusive);
    /// assert!(locks.lock("stock:7").read().try_acquire().await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn write(self) -> Self {
        self.kind(Kind::Exclusive)
    }

    /// Requests one of `permits` permits: as many holders have the lock together. From 1 to 10,000.
    ///
    /// All callers of a name should give the same number. Those with another number wait until the holders
    /// with the first one are gone.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let one = locks.lock("mailer").permits(2).acquire().await?;
    /// let two = locks.lock("mailer").permits(2).acquire().await?;
    /// assert!(locks.lock("mailer").permits(2).try_acquire().await?.is_none());
    /// # drop((one, two));
    /// # Ok(())
    /// # }
    /// ```
    pub fn permits(mut self, permits: u32) -> Self {
        self.settings.kind.set_permits(permits);
        self
    }

    /// Sets how many of the [`permits`](Self::permits) the holder takes: from 1 to 256, and at most all of
    /// them. Call it after `permits`. Defaults to 1.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let large = locks.lock("mailer").permits(4).weight(3).acquire().await?;
    /// let small = locks.lock("mailer").permits(4).acquire().await?;
    /// assert!(locks.lock("mailer").permits(4).try_acquire().await?.is_none());
    /// # drop((large, small));
    /// # Ok(())
    /// # }
    /// ```
    pub fn weight(mut self, weight: u32) -> Self {
        self.settings.kind.set_weight(weight);
        self
    }

    /// As [`acquire`](Self::acquire), for a caller that skips its work when another holder has the lock.
    #[cfg(feature = "macros")]
    pub(crate) async fn acquire_or_skip(self) -> Result<T::Guard, LockError>
    where
        T: Clone,
    {
        let request = self.clone();
        let result = self.acquire().await;
        if let Err(error) = &result
            && error.is_contended()
        {
            request.report_skip(error);
        }
        result
    }

    /// Reports that a body was skipped, because of the lock that the error names.
    #[cfg(feature = "macros")]
    fn report_skip(&self, error: &LockError) {
        let settings = &self.settings;
        let mut keys = self
            .target
            .names()
            .iter()
            .flat_map(|name| settings.key(name));
        if let Some(key) = keys.find(|key| error.key() == Some(key.as_str())) {
            let reporter = &settings.inner.reporter;
            let lock = reporter.id(&key).of_kind(settings.kind.kind);
            let is_done = error.is_done();
            reporter.emit(&LockEvent::BodySkipped { lock, is_done });
        }
    }
}

impl<T: Target> LockRequest<T> {
    /// Sets how long [`acquire`](Self::acquire) and [`run`](Self::run) wait for the lock, or for all locks of a set
    /// together. Zero means one attempt. In the native dialect, waiters get the lock in the order of their arrival,
    /// except at a quorum. Defaults to the declared lock's `wait`, or else to the manager's
    /// [`default_wait`](crate::LockManagerBuilder::default_wait), which is 5 s.
    ///
    /// Where [overrides](crate::LockManager::set_overrides) change the wait of some names of a set, the shortest wait
    /// counts for the whole set.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.settings.times.wait = Some(wait);
        self
    }

    /// Sets how long the call waits for a server that it can't reach, or that refuses for a reason that may pass, such as
    /// a restart or a failover. By default, this is a part of the [`wait`](Self::wait).
    ///
    /// An outage stops the wait, which goes on when the server replies again: a busy lock never uses the time for outages,
    /// and an outage never uses the wait. All outages of a call share this time. With a wait of zero, and in
    /// [`try_acquire`](Self::try_acquire), the call makes its attempt again until the server replies; one attempt may take
    /// the command timeout, even if this time is shorter. Otherwise the call takes at most the wait and this time
    /// together, plus 250 ms. An error that doesn't pass by itself, such as a wrong password, ends the
    /// call at once. Zero fails at the first error of the server.
    ///
    /// So a nightly job skips when another machine has the lock, and waits when Redis restarts:
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// # let locks = LockManager::in_memory();
    /// let nightly = locks.lock("nightly").outage_wait(Duration::from_secs(600));
    /// match nightly.try_acquire().await? {
    ///     Some(_held) => println!("this machine does the work"),
    ///     None => println!("another machine does it"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn outage_wait(mut self, longest: Duration) -> Self {
        self.settings.set_outage_wait(longest);
        self
    }

    /// Sets whether and how often the lock is renewed while it is held. Defaults to [`Renew::Auto`].
    ///
    /// With [`Renew::Never`], the lease of a set's first lock also runs while the set waits for the others.
    pub fn renew(mut self, renew: Renew) -> Self {
        self.settings.renew = renew;
        self
    }

    /// Sets the longest time for which the lock is held. At the end of this time the lock is lost, even if it was
    /// renewed. Use it against bodies that hang and guards that are never dropped. The time has to be longer than the
    /// ttl, and can't be combined with [`Renew::Never`]. Defaults to the manager's
    /// [`default_max_hold`](crate::LockManagerBuilder::default_max_hold); there is no limit unless that is set.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.settings.times.max_hold = Some(max_hold);
        self
    }

    /// Sets the shortest time for which the key stays locked, even when the release comes earlier. The time starts when
    /// the lock, or the whole set, is acquired.
    ///
    /// Use it for jobs that many machines start at about the same time and that only one of them should run. The
    /// release doesn't wait for the end of this time. The holder can't acquire the lock again before the end; of several
    /// permits, its own stay taken. The time has to be shorter than the ttl. Defaults to zero.
    pub fn min_hold(mut self, min_hold: Duration) -> Self {
        self.settings.keep(min_hold, Keeps::MinHold);
        self
    }

    /// Sets that the work is done once in a period, from 100 ms to 366 days. After it has *succeeded*, the name stays taken
    /// until the period since its start is over, by the server's clock. After it failed, panicked, was dropped or lost
    /// the lock, nothing stays taken, so the next caller may try at once. Defaults to no period.
    ///
    /// [`run_once`](Self::run_once) and the guard's [`complete`](crate::LockGuard::complete) say that the work has
    /// succeeded. Within the period, every call for this name fails at once with [`LockError::Done`], whatever its
    /// [`wait`](Self::wait) and whether or not it has a period itself; [`try_acquire`](Self::try_acquire) returns `None`.
    /// Callers that were waiting get the same error.
    ///
    /// Use it for jobs that many machines start and that should run once a day, say, even when the first attempt
    /// fails. It needs an exclusive lock in the native dialect, and doesn't work at a quorum of servers. It can't be
    /// combined with [`min_hold`](Self::min_hold). [`guide::guarantees`](crate::guide::guarantees#once-in-a-period) says
    /// when work may be done twice.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let report = || locks.lock("report").once_per(Duration::from_secs(24 * 3600));
    /// // This attempt fails.
    /// let failed = report().run_once(async |_held| Err::<(), _>("no paper")).await?;
    /// assert_eq!(failed, Err("no paper"));
    /// // So the next one runs, and succeeds.
    /// let written = report().run_once(async |_held| Ok::<_, &str>(12)).await?;
    /// assert_eq!(written, Ok(12));
    /// // The third one has nothing to do.
    /// let error = report().run_once(async |_held| Ok::<_, &str>(12)).await.unwrap_err();
    /// assert!(error.is_done());
    /// # Ok(())
    /// # }
    /// ```
    pub fn once_per(mut self, period: Duration) -> Self {
        self.settings.keep(period, Keeps::OncePer);
        self
    }

    /// Sets how many callers may wait for the lock already. When the queue has that many waiters, the call is refused
    /// at once, with [`LockError::QueueFull`], and leaves nothing in the queue: a service under load tells its clients
    /// to come back, rather than let them wait in vain. Zero means that nobody may wait: the call gets the lock if it is
    /// free. 65,535 and more are no limit, which is the default.
    ///
    /// The server counts the waiters of all processes, in the same step in which it would add the caller. It doesn't
    /// count waiters that have died and whose entries have expired. Of the others, the limit lets in no more than `n` at
    /// one time, if all callers have the same one: nobody who waits already is refused later.
    ///
    /// It needs a queue, so the request fails with [`LockError::Invalid`] at a quorum of servers and in
    /// [dialects](crate::dialect::Dialect) other than the native one. A call that doesn't wait has no use for it. For a
    /// set it counts for each lock. The attribute and `lockctl` refuse zero: leave out the wait there.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let report = locks.lock("report").acquire().await?;
    /// let error = locks.lock("report").max_queue(0).acquire().await.unwrap_err();
    /// assert!(matches!(error, LockError::QueueFull { position: 0, .. }), "{error}");
    /// # report.release().await
    /// # }
    /// ```
    pub fn max_queue(mut self, waiters: u32) -> Self {
        self.settings.max_queue = QueueLimit::new(waiters);
        self
    }

    /// Sets how much of the call's wait has passed already.
    #[cfg(feature = "macros")]
    pub(crate) fn spent(mut self, spent: Duration) -> Self {
        self.settings.set_spent(spent);
        self
    }

    /// Acquires the lock, or all locks of a set. While another holder has the lock, the future waits, at most for the
    /// time of [`wait`](Self::wait).
    ///
    /// The locks of a set are acquired in the order of their keys, so two sets never wait for each other in a cycle.
    /// While the future waits for one of them, it holds and renews those before it. If one of those is lost in the
    /// meantime, it releases all of them and starts again within the same wait.
    ///
    /// # Errors
    /// - [`LockError::Timeout`] when another holder had the lock for the whole wait.
    /// - [`LockError::Contended`] when the wait is zero and another holder has the lock.
    /// - [`LockError::QueueFull`] when as many callers wait already as [`max_queue`](Self::max_queue) accepts.
    /// - [`LockError::Done`] at once, when the work was done [once in its period](Self::once_per).
    /// - [`LockError::Backend`] when the server fails. When a retry may help, the call retries until the end of the
    ///   wait, or of the [`outage_wait`](Self::outage_wait); otherwise it returns the error at once.
    /// - [`LockError::NoQuorum`] when too few servers of a quorum confirm the lock.
    /// - [`LockError::ShuttingDown`] when the manager is [closed](crate::LockManager::close) or shuts down before or
    ///   during the call.
    /// - [`LockError::WouldDeadlock`] inside a body of [`run`](Self::run) or of the attribute that holds the same lock.
    ///   Permits of one number may be acquired inside each other while enough of them are left, but it's better to take
    ///   the whole [`weight`](Self::weight) at once.
    /// - [`LockError::ForeignKey`] when the key holds a value that is not a lock, or a lock that this dialect can't
    ///   share.
    /// - [`LockError::Invalid`] when the name, a time or another setting of the request is invalid, and when a set has no
    ///   name or more than 64. Nothing is sent then.
    /// - [`LockError::NoRuntime`] outside of a tokio runtime.
    /// - [`LockError::Forked`] in a forked child.
    ///
    /// A set gets all of its locks or none: after an error, the locks that it had are released in the background, and the
    /// error is about the first lock that it didn't get.
    ///
    /// The future completes within the wait plus 250 ms. With a wait of zero it completes within the command timeout, or
    /// within 250 ms if the command timeout is shorter. With an [`outage_wait`](Self::outage_wait), it completes within
    /// the wait and the outage wait together, plus 250 ms; with a wait of zero, within the longest of the outage wait, the
    /// command timeout and 250 ms. The 250 ms are there because a call polls a key without an
    /// expiry for about 200 ms.
    ///
    /// # Panics
    /// Panics when tokio's timers panic: on a runtime without its time driver, and in
    /// [`Handle::block_on`](tokio::runtime::Handle::block_on) when the runtime shuts down during the call.
    ///
    /// # Cancel safety
    /// When the future is dropped, the background worker removes the caller from the queue. If the server has granted
    /// the lock in the meantime, the worker releases it, and it releases whatever a set holds already.
    pub fn acquire(self) -> Acquiring<T> {
        Acquiring(Stage::New(self))
    }

    /// Makes one attempt to acquire the lock, or all locks of a set. Never waits for another holder, and ignores
    /// [`wait`](Self::wait). With an [`outage_wait`](Self::outage_wait), it waits for a server that it can't reach.
    ///
    /// Returns `None` when another holder has the lock, or one of the set's locks, and also where
    /// [`acquire`](Self::acquire) fails with [`LockError::WouldDeadlock`] or [`LockError::Done`].
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let busy = locks.lock("account:7").acquire().await?;
    /// let both = locks.lock_all(["account:7", "account:3"]).try_acquire().await?;
    /// assert!(both.is_none());
    /// assert!(locks.lock("account:3").try_acquire().await?.is_some());
    /// # busy.release().await
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), without `Timeout`, `Contended`, `QueueFull`, `Done` and `WouldDeadlock`.
    ///
    /// # Panics
    /// As [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(self) -> Result<Option<T::Guard>, LockError> {
        // In this form the future keeps no request while it waits, so it is small.
        let waiting = match self.start(Attempts::One) {
            Ok(waiting) => waiting,
            Err(error) => return none_if_busy(Err(error)),
        };
        none_if_busy(waiting.await)
    }

    /// Acquires the lock as [`acquire`](Self::acquire) does, runs `body`, and releases the lock.
    ///
    /// Returns the body's result unchanged, even when the release fails. The library traces a failed release and counts
    /// it in [`LockStats`](crate::health::LockStats).
    ///
    /// Write the body as an async closure. It may borrow what is around it, even in a spawned task:
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let mut lines = vec![20, 22];
    /// let total: u32 = locks
    ///     .lock("invoice")
    ///     .run(async |held| {
    ///         assert!(!held.is_lost());
    ///         lines.push(8);
    ///         lines.iter().sum()
    ///     })
    ///     .await?;
    /// assert_eq!(total, 50);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A plain closure that returns a future, `|held| async { .. }`, does not compile: "implementation of `FnOnce` is
    /// not general enough". Its future can't borrow the guard. Write `async |held| { .. }` instead.
    ///
    /// A declared lock that *borrows* needs more in a spawned task, and in a boxed future that is `Send`. There the
    /// compiler says "implementation of `AsyncFnOnce` is not general enough". Give the body a variable, with the type of
    /// its parameter. An `async fn` works too, and so does a lock that owns its fields.
    ///
    /// ```
    /// # use lock_core::{Held, Lock, LockError, LockManager};
    /// #[derive(Lock)]
    /// #[lock(name = "customer:{id}")]
    /// struct CustomerLock<'a> {
    ///     id: &'a str,
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = LockManager::in_memory();
    /// let length = tokio::spawn(async move {
    ///     let id = String::from("c-7");
    ///     let body = async |customer: &Held<CustomerLock<'_>>| customer.id.len();
    ///     locks.hold(CustomerLock { id: &id }).run(body).await
    /// });
    /// assert_eq!(length.await??, 3);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`acquire`](Self::acquire), and [`LockError::Lost`] when the lock, or one of the set's locks, is
    /// lost before the body begins or while it runs. In that case the library drops the body at its next await.
    /// [`LockError::Invalid`] for a request with [`once_per`](Self::once_per), because only
    /// [`run_once`](Self::run_once) knows whether the body has succeeded.
    ///
    /// # Panics
    /// As [`acquire`](Self::acquire). When the body panics, the lock is released.
    ///
    /// # Cancel safety
    /// Dropping the future drops the body and releases the lock in the background.
    pub async fn run<R>(self, body: impl AsyncFnOnce(&T::Guard) -> R) -> Result<R, LockError> {
        if self.settings.once_per().is_some() {
            return Err(InvalidOncePerReason::Run.into());
        }
        let held = self.acquire().await?;
        run::run(held, body).await
    }

    /// As [`run`](Self::run), for work that is done [once in a period](Self::once_per): when the body returns `Ok`, the
    /// name stays taken for the rest of the period. When it returns `Err`, the lock is released, and the next caller
    /// may try at once.
    ///
    /// Returns the body's `Result` unchanged, inside of `Ok`. When the server doesn't confirm the success before the
    /// lease ends, the work may be done again within the period; [telemetry](crate::guide::telemetry) shows such a
    /// release as failed.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run), [`LockError::Done`] when the work was done already, and
    /// [`LockError::Invalid`] for a request without `once_per`.
    ///
    /// # Panics
    /// As [`run`](Self::run).
    ///
    /// # Cancel safety
    /// As [`run`](Self::run). Once the body has returned `Ok`, the success stays, even if the future is dropped before
    /// the reply.
    pub async fn run_once<R, E>(
        self,
        body: impl AsyncFnOnce(&T::Guard) -> Result<R, E>,
    ) -> Result<Result<R, E>, LockError> {
        if self.settings.once_per().is_none() {
            return Err(InvalidOncePerReason::Missing.into());
        }
        let held = self.acquire().await?;
        run::run_once(held, body).await
    }

    fn start(self, attempts: Attempts) -> Result<Waiting<T>, LockError> {
        let (acquisition, rest) = self.target.start(&self.settings, attempts)?;
        Ok(Waiting {
            acquisition,
            rest: Some(rest),
            kept_for: self.settings.kept_for,
            keeps: self.settings.keeps,
        })
    }
}

fn none_if_busy<G>(acquired: Result<G, LockError>) -> Result<Option<G>, LockError> {
    match acquired {
        Ok(guard) => Ok(Some(guard)),
        Err(
            LockError::Contended { .. } | LockError::Done { .. } | LockError::WouldDeadlock { .. },
        ) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The future of [`LockRequest::acquire`]. It sends nothing before its first poll.
///
/// # Cancel safety
/// See [`LockRequest::acquire`].
#[must_use = "nothing is sent before the future is polled"]
pub struct Acquiring<T: Target = One>(Stage<T>);

enum Stage<T: Target> {
    New(LockRequest<T>),
    Waiting(Waiting<T>),
    Done,
}

/// A request that was sent.
struct Waiting<T: Target> {
    acquisition: Acquisition<T::Granted>,
    rest: Option<T::Rest>,
    kept_for: Option<Duration>,
    keeps: Keeps,
}

// Neither the target nor its rest is ever pinned.
impl<T: Target> Unpin for Acquiring<T> {}
impl<T: Target> Unpin for Waiting<T> {}

impl<T: Target> Future for Waiting<T> {
    type Output = Result<T::Guard, LockError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let granted = ready!(self.acquisition.as_mut().poll(cx))?;
        let Some(rest) = self.rest.take() else {
            unreachable!("polled after it was done");
        };
        let mut held = T::held(rest, granted);
        self.keeps.apply(self.kept_for, &mut held);
        Poll::Ready(Ok(held))
    }
}

impl<T: Target> Future for Acquiring<T> {
    type Output = Result<T::Guard, LockError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Stage::New(_) = self.0
            && let Stage::New(request) = std::mem::replace(&mut self.0, Stage::Done)
        {
            self.0 = Stage::Waiting(request.start(Attempts::UntilWaitEnds)?);
        }
        let Stage::Waiting(waiting) = &mut self.0 else {
            unreachable!("polled after it was done");
        };
        let acquired = ready!(Pin::new(waiting).poll(cx));
        self.0 = Stage::Done;
        Poll::Ready(acquired)
    }
}

impl<T: Target> fmt::Debug for Acquiring<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquiring").finish_non_exhaustive()
    }
}

/// Acquires the lock, as [`LockRequest::acquire`] does.
impl<T: Target> IntoFuture for LockRequest<T> {
    type Output = Result<T::Guard, LockError>;
    type IntoFuture = Acquiring<T>;

    fn into_future(self) -> Acquiring<T> {
        self.acquire()
    }
}

impl<T: fmt::Debug> fmt::Debug for LockRequest<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = &self.settings;
        f.debug_struct("LockRequest")
            .field("target", &self.target)
            .field("dialect", &settings.dialect)
            .field("kind", &settings.kind.kind)
            .field("ttl", &settings.times.ttl)
            .field("wait", &settings.times.wait)
            .field("outage_wait", &settings.outage_wait())
            .field("renew", &settings.renew)
            .field("max_hold", &settings.times.max_hold)
            .field("min_hold", &settings.min_hold())
            .field("once_per", &settings.once_per())
            .field("max_queue", &settings.max_queue.get())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use crate::manager::LockManager;

    /// The task of each waiter contains this future.
    #[tokio::test]
    async fn futures_of_a_request_are_small() {
        let locks = LockManager::in_memory();
        let acquire = size_of_val(&locks.lock("k").acquire());
        assert!(acquire <= 168, "{acquire}");
        let try_acquire = size_of_val(&locks.lock("k").try_acquire());
        assert!(try_acquire <= 216, "{try_acquire}");
    }
}
