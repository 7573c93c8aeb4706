//! The settings of a request, and their check before anything is sent.

use std::sync::Arc;
use std::time::Duration;

use crate::config::overrides::Override;
use crate::config::{self, DEFAULT_MAX_HOLD};
use crate::error::{InvalidOncePerReason, InvalidOverrideReason, InvalidSetting, LockError};
use crate::guard::Holding;
use crate::runtime::inner::ManagerInner;
use crate::telemetry::Caller;
use lock_protocol::acquisition::QueueLimit;
use lock_protocol::dialect::{Dialect, InvalidDialectReason};
use lock_protocol::key::{LockKey, LockName};
use lock_protocol::kind::{InvalidKindReason, Kind};
use lock_protocol::lease::LeaseConfig;
use lock_protocol::renew::Renew;
use lock_protocol::ttl::Ttl;

/// The range of `once_per`. A shorter period would be over before other callers come, and a longer one is most likely a
/// mistake in the unit.
pub(crate) const SHORTEST_PERIOD: Duration = Duration::from_millis(100);
pub(crate) const LONGEST_PERIOD: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// What a request says about each of its locks, except their names.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(super) inner: Arc<ManagerInner>,
    pub(super) dialect: Dialect,
    pub(super) kind: RequestedKind,
    pub(super) times: Times,
    pub(super) renew: Renew,
    /// The `min_hold` or the `once_per`, as `keeps` says.
    pub(super) kept_for: Option<Duration>,
    pub(super) keeps: Keeps,
    pub(super) max_queue: QueueLimit,
    /// In a box, because few requests have it, and each task that makes a request would keep its space.
    rare: Option<Box<Rare>>,
    pub(super) caller: Caller,
}

/// What few requests say.
#[derive(Clone, Copy, Default)]
struct Rare {
    /// `None` if the wait includes outages.
    outage_wait: Option<Duration>,
    /// How much of the call's wait had passed before the request was made.
    spent: Duration,
}

/// When a name stays taken after the release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeps {
    /// Always, for a `min_hold`.
    MinHold,
    /// After a success, for a `once_per`.
    OncePer,
    /// The request has both, which is an error.
    Both,
}

impl Keeps {
    /// Lets the names of these locks stay taken for this time.
    pub(super) fn apply(self, time: Option<Duration>, held: &mut impl Holding) {
        match time {
            Some(period) if self == Self::OncePer => held.set_once_per(period),
            Some(min_hold) => held.set_min_hold(min_hold),
            None => {}
        }
    }
}

/// The times that an override can replace.
#[derive(Clone, Copy)]
pub(super) struct Times {
    pub(super) ttl: Duration,
    /// `None` for the manager's wait.
    pub(super) wait: Option<Duration>,
    pub(super) max_hold: Option<Duration>,
}

impl Times {
    fn overridden_by(self, times: &Override) -> Self {
        Self {
            ttl: times.ttl.unwrap_or(self.ttl),
            wait: times.wait.or(self.wait),
            max_hold: times.max_hold.or(self.max_hold),
        }
    }
}

/// The valid settings of one lock.
pub(super) struct Checked {
    pub(super) key: LockKey,
    pub(super) lease_config: LeaseConfig,
    pub(super) wait: Duration,
}

impl Settings {
    pub(super) fn new(inner: Arc<ManagerInner>) -> Self {
        let times = Times {
            ttl: inner.settings.default_ttl,
            wait: None,
            max_hold: None,
        };
        Self {
            dialect: inner.settings.dialect,
            inner,
            kind: RequestedKind::default(),
            times,
            renew: Renew::default(),
            kept_for: None,
            keeps: Keeps::MinHold,
            max_queue: QueueLimit::NONE,
            rare: None,
            caller: Caller::Call,
        }
    }

    pub(super) fn outage_wait(&self) -> Option<Duration> {
        self.rare.as_ref()?.outage_wait
    }

    pub(super) fn set_outage_wait(&mut self, longest: Duration) {
        self.rare.get_or_insert_default().outage_wait = Some(longest);
    }

    /// Returns how much of the call's wait had passed before the request was made.
    pub(super) fn spent(&self) -> Duration {
        self.rare.as_ref().map_or(Duration::ZERO, |rare| rare.spent)
    }

    #[cfg(feature = "macros")]
    pub(super) fn set_spent(&mut self, spent: Duration) {
        if !spent.is_zero() {
            self.rare.get_or_insert_default().spent = spent;
        }
    }

    /// Sets for how long the name stays taken, and on which condition.
    pub(super) fn keep(&mut self, time: Duration, keeps: Keeps) {
        let has_other = self.kept_for.is_some() && self.keeps != keeps;
        self.keeps = if has_other { Keeps::Both } else { keeps };
        self.kept_for = Some(time);
    }

    pub(super) fn min_hold(&self) -> Option<Duration> {
        self.kept_for.filter(|_| self.keeps == Keeps::MinHold)
    }

    pub(super) fn once_per(&self) -> Option<Duration> {
        self.kept_for.filter(|_| self.keeps != Keeps::MinHold)
    }

    /// Returns the key of the lock with this name.
    pub(super) fn key(&self, name: &LockName) -> Result<LockKey, LockError> {
        let key = LockKey::new(&self.inner.settings.prefix, name)
            .map_err(|reason| LockError::invalid_name(name, reason))?;
        Ok(key.in_dialect(self.dialect))
    }

    /// Returns how long the request waits, unless an override says something else.
    #[cfg(feature = "testing")]
    pub(super) fn wait(&self) -> Duration {
        let default = self.inner.settings.default_wait;
        self.times.wait.unwrap_or(default)
    }

    /// Returns the error of a request whose kind is invalid for this reason.
    pub(super) fn invalid_kind(&self, reason: InvalidKindReason) -> LockError {
        LockError::Invalid(InvalidSetting::Kind {
            kind: self.kind.kind,
            reason,
        })
    }

    /// Checks the settings for the lock with this name. An override of its template replaces times.
    pub(super) fn check(&self, name: &LockName) -> Result<Checked, LockError> {
        let overrides = &self.inner.overrides;
        if !overrides.are_set() {
            return self.check_with(name, self.times);
        }
        // Before any mutex: in a forked child nothing unlocks it.
        self.inner.check_process()?;
        let (template, now) = (name.template(), self.inner.clock().now());
        let of_call = overrides.of_call(template, now, &self.inner.reporter);
        let (Some(template), Some(of_call)) = (template, of_call) else {
            return self.check_with(name, self.times);
        };
        let times = self.times.overridden_by(&of_call);
        self.check_with(name, times).or_else(|error| {
            // A call that is invalid by itself gets its own error.
            self.check_with(name, self.times)?;
            let default_max_hold = self.inner.settings.default_max_hold;
            Err(
                match override_reason(&error, &of_call, times.ttl, default_max_hold) {
                    None => error,
                    Some(reason) => LockError::Invalid(InvalidSetting::Override {
                        template: template.into(),
                        reason,
                    }),
                },
            )
        })
    }

    fn check_with(&self, name: &LockName, times: Times) -> Result<Checked, LockError> {
        let key = self.key(name)?;
        let ttl = Ttl::new(times.ttl).ok_or(InvalidSetting::Ttl {
            ttl: times.ttl,
            setting: None,
        })?;
        let dialect = self.dialect;
        let traits = self.inner.store.traits();
        traits
            .check_dialect(dialect)
            .and_then(|()| dialect.check_ttl(ttl.as_duration()))
            .map_err(|reason| InvalidSetting::Dialect { dialect, reason })?;
        traits.check_ttl(ttl.as_duration())?;
        if self.max_queue != QueueLimit::NONE {
            traits
                .check_queue(dialect)
                .map_err(|reason| InvalidSetting::Dialect { dialect, reason })?;
            self.inner.paces.begin();
        }
        self.check_kind()?;
        let renew = self.renew;
        if let Renew::Every(every) = renew
            && !renew.fits(ttl)
        {
            return Err(InvalidSetting::Renewal { every }.into());
        }
        let max_hold = times.max_hold;
        if let Some(longest) = max_hold
            && (longest <= ttl.as_duration() || renew == Renew::Never)
        {
            return Err(InvalidSetting::MaxHold { longest }.into());
        }
        let max_hold = match max_hold {
            Some(_) => max_hold,
            None => self.default_max_hold(ttl)?,
        };
        if let Some(shortest) = self.min_hold()
            && shortest >= ttl.as_duration()
        {
            return Err(InvalidSetting::MinHold { shortest }.into());
        }
        if let Some(period) = self.once_per() {
            self.check_once_per(period)?;
        }
        let lease_config = LeaseConfig {
            ttl,
            renew,
            max_hold,
            margin: dialect.margin(),
            kind: self.kind.kind,
        };
        Ok(Checked {
            key,
            lease_config,
            wait: times.wait.unwrap_or(self.inner.settings.default_wait),
        })
    }

    /// Returns the manager's `max_hold` for a request that has none. A lock that is not renewed ends with its ttl anyway,
    /// and a leader is meant to hold its lock for as long as it lives.
    fn default_max_hold(&self, ttl: Ttl) -> Result<Option<Duration>, InvalidSetting> {
        let default = self.inner.settings.default_max_hold;
        match default {
            Some(_) if self.renew == Renew::Never || self.caller == Caller::Candidate => Ok(None),
            Some(longest) if longest <= ttl.as_duration() => {
                let ttl = ttl.as_duration();
                let advice = format!(
                    "the ttl {ttl:?} of this request is not shorter; set a `max_hold` on the request, or raise the setting"
                );
                Err(config::invalid_default_max_hold(longest, &advice))
            }
            default => Ok(default),
        }
    }

    fn check_once_per(&self, period: Duration) -> Result<(), LockError> {
        let dialect = self.dialect;
        if !dialect.capabilities().supports_shared_kinds() {
            let reason = InvalidDialectReason::OncePer;
            return Err(InvalidSetting::Dialect { dialect, reason }.into());
        }
        if self.kind.kind.is_shared() {
            return Err(self.invalid_kind(InvalidKindReason::OncePer));
        }
        let reason = if self.keeps == Keeps::Both {
            InvalidOncePerReason::MinHold
        } else if !(SHORTEST_PERIOD..=LONGEST_PERIOD).contains(&period) {
            InvalidOncePerReason::OutOfRange { period }
        } else if !self.inner.store.traits().one_server_per_lock {
            InvalidOncePerReason::Quorum
        } else {
            return Ok(());
        };
        Err(reason.into())
    }

    fn check_kind(&self) -> Result<(), LockError> {
        let kind = self.kind.kind;
        let supports = self.dialect.capabilities().supports_shared_kinds()
            && self.inner.store.traits().one_server_per_lock;
        let reason = match self.kind.reason {
            Some(reason) => Some(reason),
            None if kind.is_shared() && !supports => Some(InvalidKindReason::Dialect),
            None if kind == Kind::Read && self.min_hold().is_some() => {
                Some(InvalidKindReason::MinHold)
            }
            None => kind.check().err(),
        };
        reason.map_or(Ok(()), |reason| Err(self.invalid_kind(reason)))
    }
}

/// The kind that a request asks for, and what is known to be wrong with it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RequestedKind {
    pub(super) kind: Kind,
    reason: Option<InvalidKindReason>,
}

impl RequestedKind {
    pub(super) fn set(&mut self, kind: Kind) {
        *self = Self { kind, reason: None };
    }

    pub(super) fn set_permits(&mut self, permits: u32) {
        // A weight that was set before stays an error: the holder would take fewer permits than it needs.
        self.kind = Kind::Permits {
            of: permits,
            weight: 1,
        };
    }

    pub(super) fn set_weight(&mut self, new: u32) {
        if let Kind::Permits { weight, .. } = &mut self.kind {
            *weight = new;
        } else {
            self.reason = Some(InvalidKindReason::WeightWithoutPermits);
        }
    }
}

/// Returns why the override makes a call invalid.
fn override_reason(
    error: &LockError,
    times: &Override,
    ttl: Duration,
    default_max_hold: Option<Duration>,
) -> Option<InvalidOverrideReason> {
    let LockError::Invalid(invalid) = error else {
        return None;
    };
    Some(match *invalid {
        InvalidSetting::Ttl { ttl, .. } => InvalidOverrideReason::Ttl { ttl },
        InvalidSetting::Dialect { reason, .. } => InvalidOverrideReason::Dialect(reason),
        InvalidSetting::Renewal { every } => InvalidOverrideReason::Renewal { every, ttl },
        InvalidSetting::MaxHold { longest } if longest <= ttl => InvalidOverrideReason::MaxHold {
            max_hold: longest,
            ttl,
        },
        InvalidSetting::MaxHold { .. } if times.max_hold.is_some() => {
            InvalidOverrideReason::NeverRenewed
        }
        InvalidSetting::Manager {
            setting: DEFAULT_MAX_HOLD,
            ..
        } => InvalidOverrideReason::MaxHold {
            max_hold: default_max_hold?,
            ttl,
        },
        InvalidSetting::MinHold { shortest } => InvalidOverrideReason::MinHold {
            min_hold: shortest,
            ttl,
        },
        _ => return None,
    })
}
#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use crate::config::Override;
    use crate::error::{InvalidOverrideReason, InvalidSetting, LockError};
    use crate::lead::Term;
    use crate::manager::LockManager;
    use lock_protocol::key::LockName;
    use lock_protocol::loss::LossReason;
    use lock_protocol::renew::Renew;

    const SECOND: Duration = Duration::from_secs(1);
    const TEMPLATE: &str = "order:{id}";

    fn locks(times: Override) -> LockManager {
        LockManager::builder()
            .overrides([(TEMPLATE, times)])
            .in_memory()
            .unwrap()
    }

    fn reason_of(error: LockError) -> InvalidOverrideReason {
        match error {
            LockError::Invalid(InvalidSetting::Override { template, reason }) => {
                assert_eq!(&*template, TEMPLATE);
                reason
            }
            other => panic!("{other}"),
        }
    }

    /// Each option of a call that limits the times, against an override that breaks the limit.
    #[tokio::test]
    async fn override_that_does_not_fit_the_call_is_named() {
        let short = locks(Override::new().ttl(SECOND));
        let request = || short.lock(LockName::from("order:1").with_template(TEMPLATE));
        let error = request().min_hold(SECOND).acquire().await.unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("`order:{id}`") && text.contains("raise `ttl`"),
            "{text}"
        );
        let (min_hold, ttl) = (SECOND, SECOND);
        assert_eq!(
            reason_of(error),
            InvalidOverrideReason::MinHold { min_hold, ttl }
        );
        let every = SECOND * 2 / 3;
        let renewed = request().renew(Renew::Every(every));
        assert_eq!(
            reason_of(renewed.try_acquire().await.unwrap_err()),
            InvalidOverrideReason::Renewal { every, ttl }
        );
        let long = locks(Override::new().ttl(SECOND * 60));
        let request = long.lock(LockName::from("order:1").with_template(TEMPLATE));
        let max_hold = SECOND * 40;
        assert_eq!(
            reason_of(request.max_hold(max_hold).acquire().await.unwrap_err()),
            InvalidOverrideReason::MaxHold {
                max_hold,
                ttl: SECOND * 60
            }
        );
        let bounded = locks(Override::new().max_hold(SECOND * 60));
        let request = bounded.lock(LockName::from("order:1").with_template(TEMPLATE));
        assert_eq!(
            reason_of(request.renew(Renew::Never).acquire().await.unwrap_err()),
            InvalidOverrideReason::NeverRenewed
        );
    }

    #[tokio::test]
    async fn call_that_is_invalid_by_itself_gets_its_own_error() {
        let locks = locks(Override::new().ttl(SECOND));
        let request = locks.lock(LockName::from("order:1").with_template(TEMPLATE));
        let error = request.min_hold(SECOND * 40).acquire().await.unwrap_err();
        assert!(
            matches!(error, LockError::Invalid(InvalidSetting::MinHold { .. })),
            "{error}"
        );
        let error = locks
            .lock(LockName::from("").with_template(TEMPLATE))
            .acquire()
            .await
            .unwrap_err();
        assert!(
            matches!(error, LockError::Invalid(InvalidSetting::Name { .. })),
            "{error}"
        );
    }

    const BOUND: Duration = Duration::from_secs(60);

    fn bounded() -> LockManager {
        let builder = LockManager::builder().default_max_hold(BOUND);
        builder.in_memory().unwrap()
    }

    /// In memory, a lock is held until the end of its longest hold.
    #[tokio::test(start_paused = true)]
    async fn default_max_hold_bounds_requests_that_set_none() {
        let locks = bounded();
        let held = locks.lock("order:1").acquire().await.unwrap();
        assert_eq!(held.remaining(), BOUND);
        let set = locks.lock_all(["a", "b"]).acquire().await.unwrap();
        assert!(set.guards().iter().all(|it| it.remaining() == BOUND));
        held.lost().await;
        assert_eq!(held.loss_reason(), Some(LossReason::MaxHold));
    }

    #[tokio::test(start_paused = true)]
    async fn own_max_hold_of_a_request_or_an_override_wins() {
        let locks = bounded();
        for own in [SECOND * 40, SECOND * 90] {
            let held = locks.lock("order:1").max_hold(own).acquire().await.unwrap();
            assert_eq!(held.remaining(), own);
            held.release().await.unwrap();
            let times = Override::new().max_hold(own);
            locks.set_overrides([(TEMPLATE, times)]).unwrap();
            let request = locks.lock(LockName::from("order:1").with_template(TEMPLATE));
            let held = request.acquire().await.unwrap();
            assert_eq!(held.remaining(), own);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn default_max_hold_does_not_concern_leaders_and_locks_without_renewal() {
        let locks = bounded();
        let request = locks.lock("order:1").renew(Renew::Never).ttl(BOUND * 2);
        let held = request.acquire().await.unwrap();
        held.lost().await;
        assert_eq!(held.loss_reason(), Some(LossReason::Expired));
        drop(held);
        let terms = Cell::new(0);
        let leads = async |term: Term| {
            terms.set(terms.get() + 1);
            // Only the first term has to last.
            if terms.get() == 1 {
                tokio::time::sleep(BOUND * 2).await;
            }
            term.is_held()
        };
        assert!(locks.lock("order:1").lead(leads).await.unwrap());
        assert_eq!(terms.get(), 1);
        let bounded = locks.lock("order:1").max_hold(SECOND * 40);
        let left = bounded.lead(async |term| term.remaining()).await;
        assert_eq!(left.unwrap(), SECOND * 40);
    }

    #[tokio::test]
    async fn ttl_that_is_not_shorter_than_the_default_max_hold_is_refused() {
        let locks = bounded();
        let error = locks
            .lock("order:1")
            .ttl(BOUND)
            .acquire()
            .await
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid setting `default_max_hold` (`60s`): the ttl 60s of this request is not shorter; set a `max_hold` on \
             the request, or raise the setting"
        );
        let own = locks.lock("order:1").ttl(BOUND).max_hold(BOUND * 2);
        assert!(own.acquire().await.is_ok());

        let times = Override::new().ttl(BOUND);
        locks.set_overrides([(TEMPLATE, times)]).unwrap();
        let request = locks.lock(LockName::from("order:1").with_template(TEMPLATE));
        let reason = reason_of(request.acquire().await.unwrap_err());
        let (max_hold, ttl) = (BOUND, BOUND);
        assert_eq!(reason, InvalidOverrideReason::MaxHold { max_hold, ttl });
    }
}
