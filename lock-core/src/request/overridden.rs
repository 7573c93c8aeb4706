//! Replaces the times of a request by those of an override.

use std::time::Duration;

use super::LockRequest;
use crate::config::overrides::Override;
use crate::error::{InvalidOverrideReason, LockError};
use lock_protocol::key::LockKey;
use lock_protocol::lease::LeaseConfig;

impl LockRequest {
    /// Replaces the times by those of the override for this call, and checks them against the other
    /// options of the call.
    pub(super) fn overridden(mut self) -> Result<(LockKey, LeaseConfig, Self), LockError> {
        // Before any mutex: in a forked child nothing unlocks it.
        self.inner.check_process()?;
        let template = self.name.template();
        let now = self.inner.clock().now();
        let current = &self.inner.overrides;
        let times = current.of_call(template, now, &self.inner.reporter);
        let (Some(template), Some(times)) = (template, times) else {
            let (key, lease_config) = self.checked()?;
            return Ok((key, lease_config, self));
        };
        let in_code = (self.ttl, self.max_hold);
        self.ttl = times.ttl.unwrap_or(self.ttl);
        self.wait = times.wait.or(self.wait);
        self.max_hold = times.max_hold.or(self.max_hold);
        match self.checked() {
            Ok((key, lease_config)) => Ok((key, lease_config, self)),
            Err(error) => {
                let reason = reason(&error, &times, self.ttl);
                (self.ttl, self.max_hold) = in_code;
                // A call that is invalid by itself gets its own error.
                self.checked()?;
                Err(match reason {
                    None => error,
                    Some(reason) => LockError::InvalidOverride {
                        template: template.into(),
                        reason,
                    },
                })
            }
        }
    }
}

/// Returns why the override makes a call invalid.
fn reason(error: &LockError, times: &Override, ttl: Duration) -> Option<InvalidOverrideReason> {
    Some(match *error {
        LockError::InvalidTtl { ttl, .. } => InvalidOverrideReason::Ttl { ttl },
        LockError::InvalidDialect { reason, .. } => InvalidOverrideReason::Dialect(reason),
        LockError::InvalidRenewal { every } => InvalidOverrideReason::Renewal { every, ttl },
        LockError::InvalidMaxHold { longest } if longest <= ttl => InvalidOverrideReason::MaxHold {
            max_hold: longest,
            ttl,
        },
        LockError::InvalidMaxHold { .. } if times.max_hold.is_some() => {
            InvalidOverrideReason::NeverRenewed
        }
        LockError::InvalidMinHold { shortest } => InvalidOverrideReason::MinHold {
            min_hold: shortest,
            ttl,
        },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use crate::{InvalidOverrideReason, LockError, LockManager, Override};
    use lock_protocol::renew::Renew;

    use std::time::Duration;

    const SECOND: Duration = Duration::from_secs(1);
    const TEMPLATE: &str = "order:{id}";

    fn locks(times: Override) -> LockManager {
        LockManager::builder()
            .overrides([(TEMPLATE, times)])
            .in_memory()
    }

    fn reason_of(error: LockError) -> InvalidOverrideReason {
        match error {
            LockError::InvalidOverride { template, reason } => {
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
        let request = || short.lock("order:1").template(TEMPLATE);
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
        let request = long.lock("order:1").template(TEMPLATE);
        let max_hold = SECOND * 40;
        assert_eq!(
            reason_of(request.max_hold(max_hold).acquire().await.unwrap_err()),
            InvalidOverrideReason::MaxHold {
                max_hold,
                ttl: SECOND * 60
            }
        );
        let bounded = locks(Override::new().max_hold(SECOND * 60));
        let request = bounded.lock("order:1").template(TEMPLATE);
        assert_eq!(
            reason_of(request.renew(Renew::Never).acquire().await.unwrap_err()),
            InvalidOverrideReason::NeverRenewed
        );
    }

    #[tokio::test]
    async fn call_that_is_invalid_by_itself_gets_its_own_error() {
        let locks = locks(Override::new().ttl(SECOND));
        let request = locks.lock("order:1").template(TEMPLATE);
        let error = request.min_hold(SECOND * 40).acquire().await.unwrap_err();
        assert!(matches!(error, LockError::InvalidMinHold { .. }), "{error}");
        let error = locks
            .lock("")
            .template(TEMPLATE)
            .acquire()
            .await
            .unwrap_err();
        assert!(matches!(error, LockError::InvalidName { .. }), "{error}");
    }
}
