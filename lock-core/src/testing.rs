//! What the crate `lock-testing` needs of this library. Not an interface: use that crate.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;

use crate::error::{BackendErrorKind, Holder, InvalidSetting, LockError};
use crate::faulty::FaultyStore;
use crate::guard::LockWatch;
use crate::manager::{LockManager, LockManagerBuilder};
use crate::request::LockRequest;
use crate::runtime::held_lock::HeldLock;
use crate::runtime::inner::ManagerInner;
use crate::store::Store;
use lock_protocol::acquisition::{AcquireOutcome, RenewOutcome, SentAcquires};
use lock_protocol::cleanup::{Keep, ReleaseRequest, ReleaseSubject};
use lock_protocol::key::{LockKey, LockName};
use lock_protocol::kind::Kind;
use lock_protocol::lease::{LeaseAction, LeaseConfig};
use lock_protocol::loss::LossReason;
use lock_protocol::owner_id::OwnerId;
use lock_protocol::renew::Renew;
use lock_protocol::ttl::Ttl;

pub mod errors;

pub use crate::faulty::Command;
#[cfg(debug_assertions)]
pub use crate::sync::held_mutexes;

/// The label of the holder that [`Faults::hold`] adds.
const OTHER_HOLDER: &str = "another holder";

/// The ttl of a lock whose lease does not end by itself.
const ANY_TTL: Duration = Duration::from_secs(30);

/// Makes a manager in memory, and the handle that makes it fail.
///
/// # Errors
/// As [`LockManagerBuilder::in_memory`].
pub fn in_memory_with_faults(
    builder: LockManagerBuilder,
) -> Result<(LockManager, Faults), LockError> {
    let (manager, store) = builder.in_memory_on(FaultyStore::new)?;
    let inner = Arc::clone(manager.inner());
    let faults = Faults { store, inner };
    let weak = faults.downgrade();
    let on_tracked = move |held: &Arc<HeldLock>| {
        if let Some(faults) = weak.upgrade()
            && faults.fails_renewals()
        {
            faults.begin_renewals(held);
        }
    };
    let _set_once = faults.inner.on_tracked.set(Box::new(on_tracked));
    Ok((manager, faults))
}

/// Returns the current moment on the clock by which the manager counts its leases, in nanoseconds.
///
/// For a manager in memory this is tokio's clock. For others it is the boot-time clock of the
/// machine on Linux and Android, and a clock of this process elsewhere.
#[must_use]
pub fn now(manager: &LockManager) -> u64 {
    manager.inner().clock().now().as_nanos()
}

/// Returns when the first lease of the watched locks ends without another renewal, on the clock of [`now`]. Returns
/// `None` for a lock that is held as long as its guard exists.
#[must_use]
pub fn lease_end(watch: &LockWatch) -> Option<u64> {
    let ends = watch.locks().iter().filter_map(|lock| lock.deadline());
    ends.min().map(lock_protocol::clock::Moment::as_nanos)
}

/// Returns whether the locks are on a server. Then their clock is real.
#[must_use]
pub fn has_server(manager: &LockManager) -> bool {
    manager.inner().store.traits().needs_worker
}

/// What a recorder has to know about a request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RequestParts {
    /// The key, including the manager's prefix.
    pub key: Arc<str>,
    /// How long an acquire waits at most.
    pub wait: Duration,
    /// How long it waits for the server, in addition.
    pub outage_wait: Duration,
    /// How long one attempt takes at most.
    pub command_timeout: Duration,
}

/// Returns what a recorder has to know about a request.
#[must_use]
pub fn request_parts(request: &LockRequest) -> RequestParts {
    let (inner, name, wait, outage_wait) = request.parts();
    let settings = &inner.settings;
    let key = LockKey::new(&settings.prefix, name).map(|key| key.text());
    RequestParts {
        // The acquire reports an invalid name.
        key: key.unwrap_or_else(|_| format!("{}{}", settings.prefix, name.as_str()).into()),
        wait,
        outage_wait,
        command_timeout: settings.command_timeout,
    }
}

/// Makes the locks of a manager in memory fail on command. Clones control the same manager.
///
/// Times are on tokio's clock, so that tests can pause it. A fault affects the commands that the
/// manager sends after the call, and lasts until the opposite call.
#[derive(Clone)]
pub struct Faults {
    store: Arc<FaultyStore>,
    inner: Arc<ManagerInner>,
}

impl Faults {
    /// Disconnects the manager from its backend. Each command fails with
    /// [`BackendErrorKind::Unreachable`] until [`up`](Self::up).
    ///
    /// An acquire waits for a connection, at most for its wait. An acquire that does not wait fails
    /// after the command timeout. Renewals fail too, so a held lock is [at risk](crate::LockGuard::is_at_risk) when
    /// half of its ttl has passed, and expires when the outage is longer than its ttl.
    pub fn down(&self) {
        self.store.down();
        self.update_renewals();
    }

    /// Connects the manager again. The locks of guards that were dropped meanwhile are released.
    pub fn up(&self) {
        self.store.up();
        self.update_renewals();
    }

    /// Refuses all commands of this kind, until [`accept`](Self::accept).
    ///
    /// With a [temporary](LockError::is_retryable) kind, an acquire that waits tries again until
    /// the end of its wait. With another kind it fails at once.
    ///
    /// While [renewals](Command::Renew) are refused, the library tries to renew each held lock in the background, and
    /// the lock expires with its ttl, as with a server. A lock with [`Renew::Never`] expires with its ttl anyway.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lock_core::error::BackendErrorKind;
    /// # use lock_core::{LockError, LockManager, LossReason};
    /// # use lock_core::testing::{Command, in_memory_with_faults};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), LockError> {
    /// # let (locks, faults) = in_memory_with_faults(LockManager::builder())?;
    /// let report = locks.lock("report").ttl(Duration::from_secs(3)).acquire().await?;
    /// faults.refuse(Command::Renew, BackendErrorKind::OutOfMemory);
    /// report.lost().await;
    /// assert_eq!(report.loss_reason(), Some(LossReason::Expired));
    /// assert!(locks.stats().renewals_failed > 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn refuse(&self, command: Command, kind: BackendErrorKind) {
        self.store.refuse(command, kind);
        self.update_renewals();
    }

    /// Refuses the next command of this kind only. Several calls refuse as many commands, in order.
    ///
    /// The refusal of one command may have no visible effect, because the library itself sends
    /// another one. A refused renewal is one that [`LockGuard::renew`](crate::LockGuard::renew) sends, because the library
    /// renews locks in memory only while all renewals fail. It repeats a release after a temporary error, and an acquire that waits. It also
    /// repeats an acquire that does not wait once, after a broken connection. To make such a call
    /// fail, use [`refuse`](Self::refuse).
    pub fn refuse_next(&self, command: Command, kind: BackendErrorKind) {
        self.store.refuse_next(command, kind);
    }

    /// Executes all commands of this kind and loses their replies, until [`accept`](Self::accept).
    ///
    /// A command fails with [`BackendErrorKind::TimedOut`] at the end of its time. An acquire has
    /// then got the lock, or is in the queue. The library releases what the acquire got, when the
    /// call fails or its future is dropped.
    ///
    /// Without replies to [renewals](Command::Renew), held locks expire, as after [`refuse`](Self::refuse).
    pub fn lose_replies(&self, command: Command) {
        self.store.lose_replies(command);
        self.update_renewals();
    }

    /// Executes the next command of this kind and loses its reply. Several calls lose as many
    /// replies. The library may send another command: see [`refuse_next`](Self::refuse_next).
    pub fn lose_next_reply(&self, command: Command) {
        self.store.lose_next_reply(command);
    }

    /// Accepts commands of this kind again, and their replies arrive again. The locks of guards
    /// whose background release was refused are released. Locks that are still held no longer expire.
    pub fn accept(&self, command: Command) {
        self.store.accept(command);
        self.update_renewals();
    }

    /// Executes each command of this kind later by `delay`. Zero ends the fault.
    ///
    /// A delay that is longer than the command timeout makes the command fail with
    /// [`BackendErrorKind::TimedOut`], and the backend does not execute it. The releases of dropped
    /// guards are not delayed. With such a delay of [renewals](Command::Renew), held locks expire, as after
    /// [`refuse`](Self::refuse).
    pub fn delay(&self, command: Command, delay: Duration) {
        self.store.delay(command, delay);
        self.update_renewals();
    }

    fn fails_renewals(&self) -> bool {
        self.store
            .fails_renewals(self.inner.settings.command_timeout)
    }

    /// Begins or ends the renewals of all held locks, after a change of the faults.
    ///
    /// Locks in memory need no renewals. So they have them only while they fail: a test that advances a paused clock
    /// by hours does not lose its locks.
    fn update_renewals(&self) {
        let fail = self.fails_renewals();
        for held in self.inner.tracked.held() {
            if fail {
                self.begin_renewals(&held);
            } else if held.end_renewals() {
                self.store.memory().renew_now(&held.renewal());
            }
        }
    }

    /// Lets the lease of a lock end at its ttl, and renews it until then.
    fn begin_renewals(&self, held: &Arc<HeldLock>) {
        if !held.begin_renewals() {
            return;
        }
        let renewal = held.renewal();
        self.store.memory().renew_for(&renewal, renewal.ttl);
        // Outside of a runtime, the lock expires by the clock, and no caller is told.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        // A task from an earlier fault goes on with this one.
        if !held.set_has_task(true) {
            runtime.spawn(renew(self.downgrade(), Arc::downgrade(held)));
        }
    }

    fn downgrade(&self) -> WeakFaults {
        WeakFaults {
            store: Arc::downgrade(&self.store),
            inner: Arc::downgrade(&self.inner),
        }
    }

    /// Loses the lock with this name, as when another client deletes its key. Returns whether a
    /// guard held it.
    ///
    /// The holder learns of the loss at once: `lost()` completes, and a body of `run` or of the
    /// attribute is dropped. Then the next waiter gets the lock.
    pub fn lose(&self, name: impl Into<LockName>) -> bool {
        let key = LockKey::new(&self.inner.settings.prefix, &name.into());
        key.is_ok_and(|key| self.lose_where(|held| held.as_str() == key.as_str()) > 0)
    }

    /// Loses all locks that guards of this manager hold. Returns how many there were.
    #[expect(
        clippy::must_use_candidate,
        reason = "most tests know how many locks they hold"
    )]
    pub fn lose_all(&self) -> usize {
        self.lose_where(|_| true)
    }

    fn lose_where(&self, is_chosen: impl Fn(&LockKey) -> bool) -> usize {
        let mut held = self.inner.tracked.held();
        held.retain(|held| is_chosen(&held.key));
        for held in &held {
            // The holder learns of the loss before another caller can get the lock.
            let _lost = held.apply_renewal(Ok(RenewOutcome::NotOwner(LossReason::Removed)));
            self.release_lost(held);
        }
        held.len()
    }

    /// Lets the next caller have a lost lock.
    fn release_lost(&self, held: &HeldLock) {
        let renewal = held.renewal();
        let LeaseConfig { ttl, kind, .. } = renewal.lease_config;
        self.release(held.key.clone(), held.owner_id, ttl, (kind, renewal.label));
    }

    fn release(&self, key: LockKey, owner_id: OwnerId, ttl: Ttl, (kind, label): (Kind, Arc<str>)) {
        let request = ReleaseRequest {
            key,
            owner_id,
            ttl,
            entries: Vec::new(),
            origin: None,
            unconfirmed: None,
            keep: Keep::Nothing,
            subject: ReleaseSubject::Guard,
            kind,
            label,
        };
        self.store.memory().release(&request);
    }

    /// Lets another holder have the lock, until the returned value is dropped. Meanwhile the lock is
    /// contended for the manager.
    ///
    /// The errors of the manager show the label `another holder`. The other holder acquires also
    /// while the backend is [`down`](Self::down) for the manager.
    ///
    /// # Errors
    /// - [`LockError::Contended`] when a guard holds the lock now.
    /// - [`LockError::Invalid`] when the name is invalid.
    pub fn hold(&self, name: impl Into<LockName>) -> Result<OtherHolder, LockError> {
        self.hold_with(&name.into(), ANY_TTL, Renew::Auto)
    }

    /// As [`hold`](Self::hold), with a lease that ends after `ttl`, as that of a holder that died.
    ///
    /// # Errors
    /// As [`hold`](Self::hold), and [`LockError::Invalid`] when the ttl is out of range.
    pub fn hold_for(
        &self,
        name: impl Into<LockName>,
        ttl: Duration,
    ) -> Result<OtherHolder, LockError> {
        self.hold_with(&name.into(), ttl, Renew::Never)
    }

    fn hold_with(
        &self,
        name: &LockName,
        ttl: Duration,
        renew: Renew,
    ) -> Result<OtherHolder, LockError> {
        let key = LockKey::new(&self.inner.settings.prefix, name)
            .map_err(|reason| LockError::invalid_name(name, reason))?;
        let ttl = Ttl::new(ttl).ok_or(InvalidSetting::Ttl { ttl, setting: None })?;
        let lease_config = LeaseConfig {
            ttl,
            renew,
            max_hold: None,
            margin: Duration::ZERO,
            kind: Kind::Exclusive,
        };
        let owner_id = OwnerId::random();
        let label = OTHER_HOLDER.into();
        let mut sent = SentAcquires::new(owner_id, key.clone(), lease_config, label, None);
        let mut outcome = self.store.memory().acquire_now(&mut sent);
        self.inner.recognize_holder(&mut outcome);
        let holder = match outcome {
            AcquireOutcome::Held { .. } => {
                return Ok(OtherHolder {
                    faults: self.clone(),
                    key,
                    owner_id,
                    ttl,
                });
            }
            mut other => other.holder_mut().cloned(),
        };
        Err(LockError::Contended {
            key: key.text(),
            holder: holder.map(|seen| Box::new(Holder::new(seen))),
            requested: Kind::Exclusive,
        })
    }

    /// Returns how many commands of this kind the manager has sent, with those that failed.
    #[must_use]
    pub fn calls(&self, command: Command) -> u64 {
        self.store.calls(command)
    }

    /// Returns whether the backend is [`down`](Self::down).
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.store.is_down()
    }
}

/// As [`Faults`], and keeps neither the manager nor its locks.
struct WeakFaults {
    store: Weak<FaultyStore>,
    inner: Weak<ManagerInner>,
}

impl WeakFaults {
    fn upgrade(&self) -> Option<Faults> {
        Some(Faults {
            store: self.store.upgrade()?,
            inner: self.inner.upgrade()?,
        })
    }
}

/// Renews a lock while all renewals fail, until it expires, its guard ends or renewals succeed again. It does what
/// the background worker does with a server.
async fn renew(faults: WeakFaults, held: Weak<HeldLock>) {
    while let (Some(faults), Some(held)) = (faults.upgrade(), held.upgrade()) {
        let action = held.next_action();
        let now = held.clock.now();
        let timeout = faults.inner.settings.command_timeout;
        let pause = match action {
            LeaseAction::Renew { .. } => {
                let limit = action.renewal_limit(now, timeout).unwrap_or(timeout);
                let store: &dyn Store = &*faults.store;
                let result = store.renew(&held.renewal(), limit).await;
                let _counted = held.apply_renewal(result);
                Duration::ZERO
            }
            LeaseAction::WaitUntil(at) => at.since(now),
            LeaseAction::Done => {
                held.set_has_task(false);
                if held.is_lost() && !held.is_released() {
                    faults.release_lost(&held);
                }
                return;
            }
        };
        // No guard and no manager stay alive for the pause.
        drop((faults, held));
        tokio::time::sleep(pause).await;
    }
}

impl std::fmt::Debug for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Faults")
            .field("is_down", &self.is_down())
            .finish_non_exhaustive()
    }
}

/// Another holder of a lock. Made by [`Faults::hold`]. Dropping it releases the lock.
#[must_use = "the other holder releases the lock as soon as this value is dropped"]
pub struct OtherHolder {
    faults: Faults,
    key: LockKey,
    owner_id: OwnerId,
    ttl: Ttl,
}

impl Drop for OtherHolder {
    fn drop(&mut self) {
        self.faults.release(
            self.key.clone(),
            self.owner_id,
            self.ttl,
            (Kind::Exclusive, "".into()),
        );
    }
}

impl std::fmt::Debug for OtherHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OtherHolder")
            .field("key", &self.key.as_str())
            .finish_non_exhaustive()
    }
}
