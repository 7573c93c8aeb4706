//! Times that replace those of the code, for all locks of a template.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::{InvalidOverrideReason, InvalidSetting, LockError};
use lock_protocol::ttl::{MIN_TTL, Ttl};

/// Times for all locks of one template, such as `order:{order_id}`. They replace the times in the
/// code, so that operators change them without a build.
///
/// A time of an override comes first, then the time of the attribute or of the request, and then the
/// default of the manager. A set of locks waits for the shortest wait of its names, after overrides.
/// [`LockManagerBuilder::overrides`](crate::LockManagerBuilder::overrides),
/// [`LockManager::set_overrides`](crate::LockManager::set_overrides) and a
/// [`ManagerConfig`](crate::config::ManagerConfig) take overrides. A template is written as in the code:
/// [`LockName::template`](crate::LockName::template) returns it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "an override has no effect before a manager has it"]
#[non_exhaustive]
pub struct Override {
    /// The ttl; `None` leaves that of the code.
    pub ttl: Option<Duration>,
    /// The wait; `None` leaves that of the code.
    pub wait: Option<Duration>,
    /// The longest hold; `None` leaves that of the code.
    pub max_hold: Option<Duration>,
}

impl Override {
    /// Makes an override that sets no time yet.
    pub const fn new() -> Self {
        Self {
            ttl: None,
            wait: None,
            max_hold: None,
        }
    }

    /// Sets the ttl: see [`LockRequest::ttl`](crate::LockRequest::ttl). Defaults to that of the code.
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Sets the wait: see [`LockRequest::wait`](crate::LockRequest::wait). It has no effect on
    /// [`try_acquire`](crate::LockRequest::try_acquire), which never waits. Defaults to that of the
    /// code.
    pub const fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Sets the longest hold: see [`LockRequest::max_hold`](crate::LockRequest::max_hold). Defaults to
    /// that of the code.
    pub const fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// Checks the times by the rules of the attribute.
    fn check(&self) -> Result<(), InvalidOverrideReason> {
        if *self == Self::new() {
            return Err(InvalidOverrideReason::Empty);
        }
        if let Some(ttl) = self.ttl
            && Ttl::new(ttl).is_none()
        {
            return Err(InvalidOverrideReason::Ttl { ttl });
        }
        // Without a ttl of its own, the shortest one: the ttl of each call is compared at the call.
        let ttl = self.ttl.unwrap_or(MIN_TTL);
        match self.max_hold {
            Some(max_hold) if max_hold <= ttl => {
                Err(InvalidOverrideReason::MaxHold { max_hold, ttl })
            }
            _ => Ok(()),
        }
    }
}

/// Checks the templates and the times of all overrides.
pub(crate) fn check(overrides: &BTreeMap<String, Override>) -> Result<(), LockError> {
    for (template, times) in overrides {
        let checked = if has_balanced_braces(template) {
            times.check()
        } else {
            Err(InvalidOverrideReason::Template)
        };
        checked.map_err(|reason| {
            LockError::Invalid(InvalidSetting::Override {
                template: template.as_str().into(),
                reason,
            })
        })?;
    }
    Ok(())
}

/// Returns whether each brace of a template has its partner, as in each template of the code.
fn has_balanced_braces(template: &str) -> bool {
    let depth = template
        .bytes()
        .try_fold(0_usize, |depth, byte| match byte {
            b'{' => Some(depth + 1),
            b'}' => depth.checked_sub(1),
            _ => Some(depth),
        });
    depth == Some(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_with_unbalanced_braces_is_refused() {
        let checked = |template: &str| {
            let times = Override::new().wait(Duration::ZERO);
            check(&BTreeMap::from([(template.to_owned(), times)]))
        };
        for template in ["order:{id", "order:id}", "a}b{c", "{a}{", "{{a}", "{", "}"] {
            let error = checked(template).unwrap_err().to_string();
            assert!(error.contains(&format!("`{template}`")), "{error}");
            assert!(error.contains("not balanced"), "{error}");
        }
        for template in ["coupon", "order:{id}", "{a}:{b.c}", "order:{}", "a{{b}}"] {
            assert!(checked(template).is_ok(), "{template}");
        }
    }

    #[test]
    fn overrides_have_the_rules_of_the_attribute() {
        let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
        let cases = [
            (Override::new(), "sets no time"),
            (Override::new().ttl(second / 11), "at least 100 ms"),
            (Override::new().ttl(hour * 25), "at most 24 h"),
            (
                Override::new().ttl(second).max_hold(second),
                "`max_hold` 1s must be longer than `ttl` 1s",
            ),
            (Override::new().max_hold(MIN_TTL), "longer than `ttl` 100ms"),
        ];
        for (times, text) in cases {
            let overrides = BTreeMap::from([("order:{id}".to_owned(), times)]);
            let error = check(&overrides).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
            assert!(error.contains("`order:{id}`"), "{error}");
        }
        for times in [
            Override::new().wait(Duration::ZERO),
            Override::new().ttl(second).max_hold(second * 2),
            Override::new().max_hold(hour * 48),
        ] {
            assert_eq!(times.check(), Ok(()));
        }
    }
}
