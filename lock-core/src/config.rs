//! What a manager is configured with: servers and logins, TLS, times for the locks of a template, and a configuration
//! that is read from a file.
//!
//! [`LockManagerBuilder`](crate::LockManagerBuilder) takes all of these. The guide
//! [`configuration`](crate::guide::configuration) lists every setting with its default, and the environment variables.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{InvalidSetting, LockError};
use lock_protocol::dialect::Dialect;
use lock_protocol::key::MAX_PREFIX;
use lock_protocol::poll_schedule::RETRY_INTERVAL;
use lock_protocol::ttl::{DEFAULT_TTL, MIN_TTL, Ttl};
use lock_protocol::wire::{escaped, tidy, tidy_label};
use lock_protocol::{duration_text, revocation};

pub(crate) mod address_map;
#[cfg(feature = "redis")]
pub(crate) mod confirm;
#[cfg(feature = "redis")]
pub(crate) mod credentials;
#[cfg(feature = "serde")]
mod deserialize;
#[cfg(feature = "redis")]
pub(crate) mod endpoint;
pub(crate) mod environment;
pub(crate) mod holder_tag;
pub(crate) mod manager_config;
pub(crate) mod overrides;
#[cfg(feature = "__tls")]
pub(crate) mod tls;

use address_map::AddressMap;
#[doc(hidden)]
pub use address_map::parse_address_map;
#[cfg(feature = "redis")]
pub use confirm::Confirm;
#[cfg(feature = "redis")]
pub use credentials::{CredentialFuture, CredentialProvider, Credentials};
#[cfg(feature = "redis")]
pub use endpoint::Endpoint;
use holder_tag::HolderTag;
pub use manager_config::ManagerConfig;
pub use overrides::Override;
#[cfg(feature = "__tls")]
#[cfg_attr(docsrs, doc(cfg(any(feature = "tls", feature = "tls-aws-lc"))))]
pub use tls::{Certificates, Tls};

/// Says what a release does when clients of other libraries may wait for the same key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Handover {
    /// Gives the lock to the next waiter of this library in the same step as the release.
    #[default]
    Immediate,
    /// Leaves the key free for 20 ms first. So clients of other libraries, which poll for a free
    /// key, get the lock too. Each release delays the waiters of this library by these 20 ms.
    YieldToOthers,
}

/// The settings of a manager, from its builder, a configuration file or the environment.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) prefix: Arc<str>,
    pub(crate) default_ttl: Duration,
    pub(crate) default_wait: Duration,
    pub(crate) default_max_hold: Option<Duration>,
    pub(crate) command_timeout: Duration,
    pub(crate) shutdown_timeout: Duration,
    pub(crate) label: Arc<str>,
    pub(crate) holder_tag: Option<HolderTag>,
    pub(crate) handover: Handover,
    pub(crate) dialect: Dialect,
    pub(crate) retry_interval: Duration,
    /// How often the name of a server is resolved again; zero for never.
    pub(crate) resolve_interval: Duration,
    /// Where this client reaches the addresses that servers announce.
    pub(crate) address_map: Option<AddressMap>,
    pub(crate) redact_keys: bool,
    /// The manager is made without a connection.
    pub(crate) lazy: bool,
    /// Added to the floor of all fencing tokens.
    pub(crate) fencing_lead: Duration,
    /// How long a restarted server of a quorum does not count; zero for servers that forget nothing.
    pub(crate) quarantine: Duration,
    /// Who has to acknowledge each lock.
    #[cfg(feature = "redis")]
    pub(crate) confirm: Option<confirm::Confirm>,
    /// The source of user and password. It is foreign code.
    #[cfg(feature = "redis")]
    pub(crate) credentials: Option<Arc<dyn credentials::CredentialProvider>>,
    #[cfg(feature = "__tls")]
    pub(crate) tls: Option<tls::Tls>,
    /// The name of the connections on the server; the label, if it is `None`.
    pub(crate) client_name: Option<Arc<str>>,
    /// The first overrides. The manager keeps the current ones.
    pub(crate) overrides: BTreeMap<String, Override>,
}

/// Long enough for a queue of short sections, and short enough for a user who waits for a reply.
pub(crate) const DEFAULT_WAIT: Duration = Duration::from_secs(5);
/// The name of the setting.
pub(crate) const DEFAULT_MAX_HOLD: &str = "default_max_hold";
/// A round trip takes one or two milliseconds. A server that needs a second is as good as down.
pub(crate) const COMMAND_TIMEOUT: Duration = Duration::from_secs(1);
/// No reply can arrive faster.
const MIN_COMMAND_TIMEOUT: Duration = Duration::from_millis(1);
/// Process managers kill a process 10 to 30 s after they ask it to stop. This leaves time for the
/// rest of the shutdown.
pub(crate) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a key with waiters stays free under [`Handover::YieldToOthers`].
pub(crate) const GRACE: Duration = Duration::from_millis(20);
/// How long a restarted server of a quorum does not count. Twice the default ttl.
pub(crate) const QUARANTINE: Duration = Duration::from_secs(60);
/// A name that moves endangers the exclusion for this long, and a lookup costs little.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(30);
/// More frequent polls would load the server without a benefit.
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(1);
/// Two days of failovers, one a minute. A fencing counter lives for as long as the lead, and five minutes more.
const MAX_FENCING_LEAD: Duration = Duration::from_secs(48 * 60 * 60);
/// More frequent questions would load the name server without a benefit.
const MIN_RESOLVE_INTERVAL: Duration = Duration::from_millis(1);

impl Default for Settings {
    fn default() -> Self {
        Self {
            prefix: "lock:".into(),
            default_ttl: DEFAULT_TTL,
            default_wait: DEFAULT_WAIT,
            default_max_hold: None,
            command_timeout: COMMAND_TIMEOUT,
            shutdown_timeout: SHUTDOWN_TIMEOUT,
            label: default_label().into(),
            holder_tag: None,
            handover: Handover::Immediate,
            dialect: Dialect::Native,
            retry_interval: RETRY_INTERVAL,
            resolve_interval: RESOLVE_INTERVAL,
            address_map: None,
            redact_keys: false,
            lazy: false,
            fencing_lead: Duration::ZERO,
            quarantine: QUARANTINE,
            #[cfg(feature = "redis")]
            confirm: None,
            #[cfg(feature = "redis")]
            credentials: None,
            #[cfg(feature = "__tls")]
            tls: None,
            client_name: None,
            overrides: BTreeMap::new(),
        }
    }
}

impl Settings {
    /// Checks all settings. A manager is only made from valid settings.
    pub(crate) fn check(&self) -> Result<(), LockError> {
        self.check_prefix()?;
        if self.label.is_empty() {
            return Err(LockError::Invalid(InvalidSetting::Manager {
                setting: "label",
                value: "".into(),
                advice: "use the name of the service or of the machine".into(),
            }));
        }
        if self.label.starts_with(revocation::START) {
            return Err(LockError::Invalid(InvalidSetting::Manager {
                setting: "label",
                value: Arc::clone(&self.label),
                advice: "a label that begins with `revoked by ` marks a revoked lock; use the name of the \
                         service or of the machine"
                    .into(),
            }));
        }
        let (ttl, dialect) = (self.default_ttl, self.dialect);
        if Ttl::new(ttl).is_none() {
            let setting = Some("default_ttl");
            return Err(LockError::Invalid(InvalidSetting::Ttl { ttl, setting }));
        }
        dialect
            .check_ttl(ttl)
            .map_err(|reason| InvalidSetting::Dialect { dialect, reason })?;
        self.check_default_max_hold()?;
        at_least("command_timeout", self.command_timeout, MIN_COMMAND_TIMEOUT)?;
        at_least("retry_interval", self.retry_interval, MIN_RETRY_INTERVAL)?;
        if !self.resolve_interval.is_zero() {
            let interval = self.resolve_interval;
            at_least("resolve_interval", interval, MIN_RESOLVE_INTERVAL)?;
        }
        if self.fencing_lead > MAX_FENCING_LEAD {
            return Err(LockError::Invalid(InvalidSetting::Manager {
                setting: "fencing_lead",
                value: format!("{:?}", self.fencing_lead).into(),
                advice: "use at most 48 h".into(),
            }));
        }
        if let Some(map) = &self.address_map {
            map.check()?;
        }
        #[cfg(feature = "redis")]
        self.check_confirm()?;
        overrides::check(&self.overrides)
    }

    /// A lock without renewals ends with its ttl, so a bound that is no longer than that would bound nothing.
    fn check_default_max_hold(&self) -> Result<(), LockError> {
        match self.default_max_hold {
            Some(longest) if longest <= MIN_TTL => {
                let advice = "use more than 100 ms, the shortest ttl";
                Err(invalid_default_max_hold(longest, advice).into())
            }
            Some(longest) if longest <= self.default_ttl => {
                let ttl = self.default_ttl;
                let advice = format!("use more than the `default_ttl` of {ttl:?}");
                Err(invalid_default_max_hold(longest, &advice).into())
            }
            _ => Ok(()),
        }
    }

    #[cfg(feature = "redis")]
    fn check_confirm(&self) -> Result<(), LockError> {
        let Some(confirm) = self.confirm else {
            return Ok(());
        };
        confirm.check(self.command_timeout)?;
        match self.dialect {
            Dialect::Native => Ok(()),
            dialect => Err(LockError::Invalid(InvalidSetting::Dialect {
                dialect,
                reason: lock_protocol::dialect::InvalidDialectReason::Confirmed,
            })),
        }
    }

    /// Drops what only connecting needs: the source of user and password, and the bytes of certificates and keys.
    #[cfg(feature = "redis")]
    pub(crate) fn forget_secrets(&mut self) {
        self.credentials = None;
        #[cfg(feature = "__tls")]
        {
            self.tls = None;
        }
    }

    fn check_prefix(&self) -> Result<(), LockError> {
        let advice = if self.prefix.contains(['{', '}']) {
            "use no braces; put the hash tag into the name"
        } else if self.prefix.len() > MAX_PREFIX {
            "use at most 64 bytes; put the rest into the names"
        } else {
            return Ok(());
        };
        Err(LockError::Invalid(InvalidSetting::Manager {
            setting: "prefix",
            value: tidy(&self.prefix, 40).into(),
            advice: advice.into(),
        }))
    }

    /// How long a released key with waiters stays free for clients of other libraries.
    pub(crate) fn grace(&self) -> Duration {
        match self.handover {
            Handover::Immediate => Duration::ZERO,
            Handover::YieldToOthers => GRACE,
        }
    }
}

pub(crate) fn invalid_default_max_hold(longest: Duration, advice: &str) -> InvalidSetting {
    InvalidSetting::Manager {
        setting: DEFAULT_MAX_HOLD,
        value: format!("{longest:?}").into(),
        advice: advice.into(),
    }
}

fn at_least(setting: &'static str, value: Duration, min: Duration) -> Result<(), LockError> {
    if value >= min {
        return Ok(());
    }
    let advice = "use at least 1 ms";
    // `Debug` shows it as `0ns`, which no configuration takes.
    let zero = value.is_zero().then(|| "0s".to_owned());
    Err(LockError::Invalid(InvalidSetting::Manager {
        setting,
        value: zero.unwrap_or_else(|| format!("{value:?}")).into(),
        advice: advice.into(),
    }))
}

/// The longest text that is read as a duration. Error messages repeat it.
const LONGEST_DURATION: usize = 40;

/// Reads a duration as the attribute does: `1h30m`, `90s`, `500ms`. For configurations, and for the
/// options of command lines.
///
/// # Errors
/// The message says what to write.
#[doc(hidden)]
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    if text.len() > LONGEST_DURATION {
        let begins = tidy(text, LONGEST_DURATION);
        return Err(format!(
            "invalid duration that begins with \"{begins}\": write a number and a unit, such as \"30s\""
        ));
    }
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number {
        return Err(duration_text::not_text(text, text, ""));
    }
    duration_text::parse(text).map_err(|message| escaped(&message))
}

/// Host and process id, so that an operator can find a holder.
fn default_label() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())
        .or_else(|| std::env::var("COMPUTERNAME").ok());
    let host = host.as_deref().map_or("host", str::trim);
    // The process id comes last, and the cut at the label's limit must not remove it.
    let host: String = host.chars().take(40).collect();
    tidy_label(&format!("{host}:{}", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_config_is_valid_and_has_the_documented_values() {
        let config = Settings::default();
        assert!(config.check().is_ok());
        assert_eq!(config.default_ttl, Duration::from_secs(30));
        assert_eq!(config.default_wait, Duration::from_secs(5));
        assert_eq!(config.command_timeout, Duration::from_secs(1));
        assert_eq!(config.shutdown_timeout, Duration::from_secs(5));
        assert_eq!(config.retry_interval, Duration::from_millis(50));
        assert_eq!(config.resolve_interval, Duration::from_secs(30));
    }

    #[test]
    fn each_invalid_setting_is_refused() {
        type Change = fn(&mut Settings);
        let cases: [(Change, &str); 10] = [
            (|c| c.prefix = "a{b".into(), "`prefix`"),
            (|c| c.prefix = "p".repeat(65).into(), "64 bytes"),
            (|c| c.default_ttl = Duration::from_millis(99), "100 ms"),
            (|c| c.default_ttl = Duration::from_secs(86_401), "24 h"),
            (
                |c| {
                    c.dialect = Dialect::LuaSetnxExpire;
                    c.default_ttl = Duration::from_millis(1_500);
                },
                "whole seconds",
            ),
            (
                |c| c.default_max_hold = Some(c.default_ttl),
                "`default_max_hold` (`30s`): use more than the `default_ttl` of 30s",
            ),
            (|c| c.command_timeout = Duration::ZERO, "`command_timeout`"),
            (|c| c.retry_interval = Duration::ZERO, "`retry_interval`"),
            (
                |c| c.resolve_interval = Duration::from_nanos(1),
                "`resolve_interval`",
            ),
            (
                |c| c.fencing_lead = MAX_FENCING_LEAD + Duration::from_secs(1),
                "`fencing_lead` (`172801s`): use at most 48 h",
            ),
        ];
        for (change, text) in cases {
            let mut config = Settings::default();
            change(&mut config);
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn duration_has_the_grammar_of_the_attribute() {
        assert_eq!(parse_duration("1m30s"), Ok(Duration::from_secs(90)));
        for (text, message) in [
            ("30", "invalid duration `30`: write it as \"30s\""),
            (
                "1d",
                "unknown unit `d` in \"1d\"; expected `ms`, `s`, `m` or `h`",
            ),
        ] {
            assert_eq!(parse_duration(text).unwrap_err(), message);
        }
        assert!(parse_duration("").is_err());
    }

    #[test]
    fn message_about_a_duration_is_short_and_shows_no_control_characters() {
        let message = parse_duration("1s\u{1b}[31m\u{202e}").unwrap_err();
        assert!(message.contains("\\u{1b}[31m\\u{202e}"), "{message:?}");
        for long in ["7".repeat(5_000), "x".repeat(5_000)] {
            let message = parse_duration(&long).unwrap_err();
            assert!(message.len() < 150, "{message}");
        }
    }

    #[test]
    fn label_ends_with_the_process_id() {
        let label = Settings::default().label;
        let process_id = format!(":{}", std::process::id());
        assert!(label.ends_with(&process_id), "{label}");
    }
}
