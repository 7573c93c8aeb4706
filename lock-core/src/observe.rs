//! Observers, which follow who holds a lock or leads. [`LockManager::observe`] makes one.
//!
//! An observer needs no lock and no place in a queue: it reads. A standby uses one to say where the leader is, a readiness
//! check to say that there is one, and a dashboard to show both.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::admin::LockInfo;
use crate::error::{InvalidSetting, LockError};
use crate::manager::LockManager;
use crate::runtime::inner::ManagerInner;
use crate::runtime::observing::{Reading, SharedRead};
use lock_protocol::inspection::{InspectReply, SeenKey};
use lock_protocol::key::LockName;

const INTERVAL: Duration = Duration::from_secs(1);
const SHORTEST_INTERVAL: Duration = Duration::from_millis(10);
const LONGEST_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);

impl LockManager {
    /// Makes an observer of the lock with this name. Sends nothing before its first read.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let mut leaders = locks.observe("leader:billing");
    /// assert!(leaders.next().await?.holder().is_none());
    ///
    /// let term = locks.lock("leader:billing").acquire().await?;
    /// let seen = leaders.next().await?;
    /// let leader = seen.holder().expect("the lock is held");
    /// assert_eq!(leader.token, term.fencing_token());
    /// # term.release().await
    /// # }
    /// ```
    pub fn observe(&self, name: impl Into<LockName>) -> Observer {
        let name = name.into();
        Observer {
            shared: shared(self.inner(), &name),
            name,
            interval: INTERVAL,
            reported: None,
        }
    }
}

fn shared(inner: &Arc<ManagerInner>, name: &LockName) -> Result<Arc<SharedRead>, LockError> {
    inner.check_process()?;
    Ok(SharedRead::of(inner, inner.key(name)?))
}

/// Follows who holds a lock or leads. Made by [`LockManager::observe`].
///
/// An observer reads the lock at an [interval](Self::interval), as [`Admin::inspect`](crate::admin::Admin::inspect) does:
/// with one read-only command, in each topology and dialect. All observers of a name that were made from one manager or
/// its clones share their reads, so a hundred of them cost as many commands as one. There is no task in the background:
/// nothing is read while no observer waits.
///
/// A change that is undone within the interval is not seen. What an observer returns may be out of date already, so use it
/// for people, for monitoring and for routing. It is no proof that the holder still holds the lock.
pub struct Observer {
    /// An error if the observer was made with a name or an interval that is invalid.
    shared: Result<Arc<SharedRead>, LockError>,
    name: LockName,
    interval: Duration,
    /// What `next` has returned last.
    reported: Option<Seen>,
}

/// What has to differ for a change: neither times nor the queue.
#[derive(PartialEq, Eq)]
enum Seen {
    /// The lock could not be read.
    Nothing,
    Lock {
        key: SeenKey,
        members: Members,
    },
}

/// The owners of a shared lock, in their order. The count alone where the reply doesn't have all of them.
#[derive(PartialEq, Eq)]
enum Members {
    All(Vec<String>),
    Some(u64),
}

impl Seen {
    fn of(reading: &Reading) -> Self {
        let Ok(reply) = &reading.outcome else {
            return Self::Nothing;
        };
        Self::Lock {
            key: SeenKey::of(&reply.content),
            members: Members::of(reply),
        }
    }
}

impl Members {
    fn of(reply: &InspectReply) -> Self {
        let members = &reply.members;
        if usize::try_from(members.total) != Ok(members.first.len()) {
            return Self::Some(members.total);
        }
        // The members come in the order of their leases, which each renewal changes.
        let owners = members.first.iter().map(|member| {
            let owner = member.text.split(' ').next();
            owner.unwrap_or_default().to_owned()
        });
        let mut owners: Vec<_> = owners.collect();
        owners.sort_unstable();
        Self::All(owners)
    }
}

impl Observer {
    /// Sets how often the lock is read, from 10 ms to 24 h. Defaults to 1 s.
    ///
    /// Observers of one name may have different intervals. The lock is read as often as the shortest one says, and each of
    /// the others gets a reading that is at most its own interval old.
    #[must_use]
    pub fn interval(mut self, interval: Duration) -> Self {
        if (SHORTEST_INTERVAL..=LONGEST_INTERVAL).contains(&interval) {
            self.interval = interval;
        } else if self.shared.is_ok() {
            self.shared = Err(LockError::Invalid(InvalidSetting::Manager {
                setting: "interval",
                value: format!("{interval:?}").into(),
                advice: "use at least 10 ms and at most 24 h".into(),
            }));
        }
        self
    }

    /// Returns the present state at the first call, and waits for a change at each later one: the lock was acquired,
    /// released or [blocked](crate::admin::LockStatus::Blocked), or it has another holder, even one with the same label.
    /// For readers and permits, a holder that comes or goes is a change, too.
    ///
    /// Neither a renewal nor a waiter is a change. Two cases can't be told apart by what is on the server: in the dialect
    /// [`DeadlineGetset`](crate::dialect::Dialect::DeadlineGetset) each renewal looks like a new holder, and two holders of
    /// another library's lock look alike when it is a hash. Of more than 512 readers or permits, only the number counts.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// # let locks = LockManager::in_memory();
    /// let mut leaders = locks.observe("leader:billing").interval(Duration::from_secs(5));
    /// tokio::spawn(async move {
    ///     loop {
    ///         match leaders.next().await {
    ///             Ok(seen) => match seen.holder() {
    ///                 Some(leader) => println!("{} leads since {:?}", leader.label, leader.held_for),
    ///                 None => println!("nobody leads"),
    ///             },
    ///             // Comes once. The next item is the state after the outage.
    ///             Err(error) if error.is_retryable() => println!("the leader is unknown: {error}"),
    ///             Err(error) => return Err::<(), LockError>(error),
    ///         }
    ///     }
    /// });
    /// # tokio::time::sleep(Duration::from_secs(9)).await;
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Admin::inspect`](crate::admin::Admin::inspect): from the error on, the state is unknown. An outage is reported
    /// once, by its first error. The call after it waits until the lock can be read again, and then returns its state, even
    /// if nothing has changed. The reads go on at the same interval.
    ///
    /// Each call fails where nothing can be sent: with [`LockError::Invalid`] for a name or an interval that is invalid,
    /// with [`LockError::NoRuntime`] outside of a tokio runtime, and with [`LockError::Forked`] in a forked child.
    ///
    /// # Cancel safety
    /// Dropping the future loses no change: the next call returns it.
    pub async fn next(&mut self) -> Result<LockInfo, LockError> {
        loop {
            let (shared, reading) = self.read().await?;
            let seen = Seen::of(&reading);
            if self.reported.as_ref() != Some(&seen) {
                let seen_now = self.info(shared, reading);
                self.reported = Some(seen);
                return seen_now;
            }
            let age = shared.inner.clock().now().since(reading.begun);
            tokio::time::sleep(self.interval.saturating_sub(age)).await;
        }
    }

    /// Returns the state of the lock, at most one [interval](Self::interval) old. Reads it when no observer of the name has
    /// done so within the interval, so calls in a row, such as health checks, send one command together.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// # let locks = LockManager::in_memory();
    /// let leaders = locks.observe("leader:billing");
    /// // In the handler of `/health`.
    /// let leader = match leaders.current().await {
    ///     Ok(seen) => seen.holder().map_or("nobody".into(), |leader| leader.label.to_string()),
    ///     Err(error) => format!("unknown: {error}"),
    /// };
    /// assert_eq!(leader, "nobody");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Admin::inspect`](crate::admin::Admin::inspect). An error, too, may be one interval old.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect on any lock.
    pub async fn current(&self) -> Result<LockInfo, LockError> {
        let (shared, reading) = self.read().await?;
        self.info(shared, reading)
    }

    async fn read(&self) -> Result<(&SharedRead, Reading), LockError> {
        let shared = self.shared.as_ref().map_err(Clone::clone)?;
        Ok((shared, shared.read(self.interval).await?))
    }

    fn info(&self, shared: &SharedRead, reading: Reading) -> Result<LockInfo, LockError> {
        let reply = reading.outcome?;
        Ok(shared.inner.info(&shared.key, self.name.clone(), &reply))
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer")
            .field("name", &self.name)
            .field("interval", &self.interval)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::LockStatus;
    use tokio::time::Instant;

    const NAME: &str = "leader";
    const SECOND: Duration = Duration::from_secs(1);

    async fn next(observer: &mut Observer) -> LockInfo {
        let next = tokio::time::timeout(60 * SECOND, observer.next()).await;
        next.expect("there is a change").unwrap()
    }

    /// How many commands the observers send is counted on a server, in `tests/redis`.
    #[tokio::test(start_paused = true)]
    async fn next_returns_the_present_state_and_then_each_change() {
        let locks = LockManager::in_memory();
        let mut observer = locks.observe(NAME);
        assert_eq!(next(&mut observer).await.status, LockStatus::Free);
        let begun = Instant::now();
        let first = locks.lock(NAME).acquire().await.unwrap();
        let seen = next(&mut observer).await;
        assert_eq!(begun.elapsed(), INTERVAL);
        let holder = seen.holder().unwrap();
        assert_eq!(holder.token, first.fencing_token());
        assert!(holder.is_own());
        // The label is the same.
        let acquiring = locks.lock(NAME).acquire();
        let second = tokio::join!(first.release(), acquiring).1.unwrap();
        let seen = next(&mut observer).await;
        assert_eq!(seen.holder().unwrap().token, second.fencing_token());
        drop(second);
        assert_eq!(next(&mut observer).await.status, LockStatus::Free);
        assert!(begun.elapsed() <= INTERVAL * 3);
    }

    #[tokio::test(start_paused = true)]
    async fn renewals_and_waiters_are_no_change() {
        let locks = LockManager::in_memory();
        let held = locks.lock(NAME).ttl(SECOND).acquire().await.unwrap();
        let mut observer = locks.observe(NAME);
        observer.next().await.unwrap();
        let _waiter = tokio::spawn(locks.lock(NAME).wait(60 * SECOND).acquire());
        tokio::time::sleep(SECOND).await;
        held.renew().await.unwrap();
        let next = tokio::time::timeout(30 * SECOND, observer.next()).await;
        assert!(next.is_err(), "{next:?}");
        assert_eq!(observer.current().await.unwrap().waiters_total, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn reader_that_comes_or_goes_is_a_change() {
        let locks = LockManager::in_memory();
        let read = || locks.lock(NAME).read().acquire();
        let one = read().await.unwrap();
        let mut observer = locks.observe(NAME);
        let counts = |seen: &LockInfo| (seen.holders.len(), seen.holders_total);
        assert_eq!(counts(&next(&mut observer).await), (1, 1));
        let two = read().await.unwrap();
        assert_eq!(counts(&next(&mut observer).await), (2, 2));
        // As many as before, and other ones.
        drop(one);
        let _three = read().await.unwrap();
        assert_eq!(counts(&next(&mut observer).await), (2, 2));
        drop(two);
        assert_eq!(counts(&next(&mut observer).await), (1, 1));
    }

    /// A branch of `select!` that ends first, again and again.
    #[tokio::test(start_paused = true)]
    async fn dropped_next_loses_no_change() {
        let locks = LockManager::in_memory();
        let mut observer = locks.observe(NAME);
        observer.next().await.unwrap();
        let held = locks.lock(NAME).acquire().await.unwrap();
        let begun = Instant::now();
        let seen = loop {
            let tick = tokio::time::timeout(Duration::from_millis(30), observer.next());
            if let Ok(seen) = tick.await {
                break seen.unwrap();
            }
        };
        assert_eq!(seen.holder().unwrap().token, held.fencing_token());
        assert!(begun.elapsed() <= INTERVAL, "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn observers_have_intervals_of_their_own() {
        let locks = LockManager::in_memory();
        let [mut fast, slow] = [10, 2_000].map(Duration::from_millis).map(|interval| {
            let observer = locks.observe(NAME);
            observer.interval(interval)
        });
        assert!(fast.next().await.unwrap().holder().is_none());
        let held = locks.lock(NAME).acquire().await.unwrap();
        let begun = Instant::now();
        assert!(slow.current().await.unwrap().holder().is_none());
        assert!(fast.next().await.unwrap().holder().is_some());
        assert_eq!(begun.elapsed(), SHORTEST_INTERVAL);
        // What the other one has read is at most as old.
        assert!(slow.current().await.unwrap().holder().is_some());
        drop(held);
    }

    #[tokio::test]
    async fn invalid_name_or_interval_fails_each_call() {
        let locks = LockManager::in_memory();
        let mut observer = locks.observe("");
        for _ in 0..2 {
            let error = observer.next().await.unwrap_err();
            assert_eq!(error.code(), "invalid_name");
        }
        for interval in [Duration::ZERO, Duration::from_millis(9), SECOND * 86_401] {
            let observer = locks.observe(NAME).interval(interval);
            let error = observer.current().await.unwrap_err();
            assert_eq!(error.code(), "invalid_setting");
            let text = error.to_string();
            assert!(
                text.contains("`interval`") && text.contains("at least 10 ms"),
                "{text}"
            );
        }
        // The first fault is the one to repair first.
        let both = locks.observe("").interval(Duration::ZERO);
        assert_eq!(both.current().await.unwrap_err().code(), "invalid_name");
    }

    #[test]
    fn observer_needs_a_runtime() {
        let locks = LockManager::in_memory();
        let observer = locks.observe(NAME);
        let mut current = Box::pin(observer.current());
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let polled = current.as_mut().poll(&mut cx);
        let std::task::Poll::Ready(Err(error)) = polled else {
            panic!("{polled:?}");
        };
        assert!(matches!(error, LockError::NoRuntime), "{error}");
    }

    /// A runtime that shuts down drops the read, and the observer on another one begins its own.
    #[test]
    fn observer_outlives_the_runtime_of_a_read() {
        let locks = LockManager::in_memory();
        let observer = locks.observe(NAME);
        for _ in 0..2 {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build().unwrap();
            let _entered = runtime.enter();
            // The first poll begins the read, whose task never runs.
            let mut current = Box::pin(observer.current());
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(current.as_mut().poll(&mut cx).is_pending());
        }
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let seen = runtime.block_on(observer.current());
        assert_eq!(seen.unwrap().status, LockStatus::Free);
    }

    #[tokio::test]
    async fn last_observer_leaves_nothing() {
        let locks = LockManager::in_memory();
        let observers = [NAME, NAME, "other"].map(|name| locks.observe(name));
        for observer in &observers {
            observer.current().await.unwrap();
        }
        let observed = |locks: &LockManager| locks.inner().observing.count();
        assert_eq!(observed(&locks), 2);
        let [one, two, other] = observers;
        drop((one, other));
        assert_eq!(observed(&locks), 1);
        drop(two);
        assert_eq!(observed(&locks), 0);
    }
}
