//! What may be asked for, and what is taken when it is not.

use std::sync::Arc;
use std::time::Duration;

use crate::dialect::Dialect;
use crate::error::LockError;
use crate::key::{MAX_PREFIX, NameFault};
use crate::ttl::{DEFAULT_TTL, Ttl};
use crate::wire::{tidy, tidy_label};

/// Whether and how often a held lock is renewed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Renew {
    /// After every third of the ttl, so that two renewals may fail before the lock is lost.
    #[default]
    Auto,
    /// Not at all: the lock is lost after its ttl.
    Never,
    /// So often. At least every 10 ms, at most half of the ttl.
    Every(Duration),
}

/// Renewing more often would keep a server busy and help nobody.
pub(crate) const MIN_RENEWAL: Duration = Duration::from_millis(10);

impl Renew {
    pub(crate) fn check(self, ttl: Ttl) -> Result<Self, LockError> {
        match self {
            Self::Every(every) if !(MIN_RENEWAL..=ttl.as_duration() / 2).contains(&every) => {
                Err(LockError::InvalidRenewal { every })
            }
            fits => Ok(fits),
        }
    }
}

/// What a manager was built with.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) prefix: Arc<str>,
    pub(crate) default_ttl: Duration,
    pub(crate) command_timeout: Duration,
    pub(crate) shutdown_timeout: Duration,
    pub(crate) label: Arc<str>,
    pub(crate) share_with_others: bool,
    pub(crate) dialect: Dialect,
    pub(crate) retry_interval: Duration,
}

/// A round trip takes a millisecond or two; a server that needs a second is as good as down.
pub(crate) const COMMAND_TIMEOUT: Duration = Duration::from_secs(1);

/// Servers that end a process kill it ten to thirty seconds later; this leaves time for the rest.
pub(crate) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a key with waiters stays free for clients that poll for it.
pub(crate) const GRACE: Duration = Duration::from_millis(20);

/// Shorter than what other libraries pause (redsync 50 to 250 ms, redis-py 100 ms), so that those
/// who wait here get their share, and long enough for a server to serve hundreds of them.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// Asking more often than this helps nobody.
pub(crate) const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(1);

impl Default for Settings {
    fn default() -> Self {
        Self {
            prefix: "lock:".into(),
            default_ttl: DEFAULT_TTL,
            command_timeout: COMMAND_TIMEOUT,
            shutdown_timeout: SHUTDOWN_TIMEOUT,
            label: default_label().into(),
            share_with_others: false,
            dialect: Dialect::Native,
            retry_interval: RETRY_INTERVAL,
        }
    }
}

impl Settings {
    /// The channel of waiters is made of it, before any lock is asked for.
    pub(crate) fn check_prefix(&self) -> Result<(), LockError> {
        if self.prefix.len() <= MAX_PREFIX {
            return Ok(());
        }
        Err(LockError::InvalidName {
            name: tidy(&self.prefix, 40).into(),
            fault: NameFault::PrefixTooLong,
        })
    }

    pub(crate) fn grace(&self) -> Duration {
        if self.share_with_others {
            GRACE
        } else {
            Duration::ZERO
        }
    }
}

/// Host and process id: what an operator needs to find a holder.
fn default_label() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())
        .or_else(|| std::env::var("COMPUTERNAME").ok());
    let host = host.as_deref().map_or("host", str::trim);
    // The process id stands last, and must not be what is cut off.
    let host: String = host.chars().take(40).collect();
    tidy_label(&format!("{host}:{}", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_interval_is_at_most_half_of_the_ttl() {
        let ttl = Ttl::new(Duration::from_secs(1)).unwrap();
        for fits in [
            Renew::Auto,
            Renew::Never,
            Renew::Every(Duration::from_millis(500)),
            Renew::Every(Duration::from_millis(10)),
        ] {
            assert!(fits.check(ttl).is_ok(), "{fits:?}");
        }
        for unfit in [501, 9, 0] {
            assert!(
                Renew::Every(Duration::from_millis(unfit))
                    .check(ttl)
                    .is_err()
            );
        }
    }

    #[test]
    fn a_shutdown_waits_for_five_seconds_unless_told_otherwise() {
        let timeout = Settings::default().shutdown_timeout;
        assert_eq!(timeout, Duration::from_secs(5));
    }

    #[test]
    fn the_label_ends_with_the_process_id() {
        let label = Settings::default().label;
        assert!(
            label.ends_with(&format!(":{}", std::process::id())),
            "{label}"
        );
    }
}
