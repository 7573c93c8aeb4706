//! The configuration of a manager as users write it, in a file or in the environment.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::address_map::AddressMap;
use super::overrides::Override;
use super::{Handover, Settings};
use lock_protocol::dialect::Dialect;
use lock_protocol::wire::tidy_label;

/// The configuration of a [`LockManager`](crate::LockManager). `None` leaves a setting as it is.
///
/// With the feature `serde`, each self-describing format, such as TOML, YAML or JSON, gives a configuration. Durations
/// are text, in the grammar of the attribute: `"1m30s"`, `"500ms"`. An unknown field is an error, which names the
/// nearest known one.
///
/// [`LockManagerBuilder::config`](crate::LockManagerBuilder::config) takes a configuration. The
/// [guide](crate::guide::configuration) has a table of all settings.
///
/// ```
/// # use std::time::Duration;
/// # use lock_core::config::ManagerConfig;
/// # use lock_core::{LockError, LockManager};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let mut config = ManagerConfig::default();
/// config.url = Some("memory://".into());
/// config.default_wait = Some(Duration::from_secs(2));
/// let locks = LockManager::builder().config(config).build().await?;
/// # drop(locks);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ManagerConfig {
    /// The URL of the server: see [`connect`](crate::LockManagerBuilder::connect).
    pub url: Option<String>,
    /// See [`prefix`](crate::LockManagerBuilder::prefix).
    pub prefix: Option<String>,
    /// See [`default_ttl`](crate::LockManagerBuilder::default_ttl).
    pub default_ttl: Option<Duration>,
    /// See [`default_wait`](crate::LockManagerBuilder::default_wait).
    pub default_wait: Option<Duration>,
    /// See [`default_max_hold`](crate::LockManagerBuilder::default_max_hold).
    pub default_max_hold: Option<Duration>,
    /// See [`command_timeout`](crate::LockManagerBuilder::command_timeout).
    pub command_timeout: Option<Duration>,
    /// See [`shutdown_timeout`](crate::LockManagerBuilder::shutdown_timeout).
    pub shutdown_timeout: Option<Duration>,
    /// See [`retry_interval`](crate::LockManagerBuilder::retry_interval).
    pub retry_interval: Option<Duration>,
    /// See [`resolve_interval`](crate::LockManagerBuilder::resolve_interval).
    pub resolve_interval: Option<Duration>,
    /// See [`address_map`](crate::LockManagerBuilder::address_map). Here it is a table from announced addresses to
    /// reachable ones: `host:port` to `host:port`, or a host, with all its ports, to a host.
    pub address_map: BTreeMap<String, String>,
    /// See [`label`](crate::LockManagerBuilder::label).
    pub label: Option<String>,
    /// See [`client_name`](crate::LockManagerBuilder::client_name).
    pub client_name: Option<String>,
    /// See [`dialect`](crate::LockManagerBuilder::dialect).
    pub dialect: Option<Dialect>,
    /// See [`handover`](crate::LockManagerBuilder::handover).
    pub handover: Option<Handover>,
    /// See [`redact_keys`](crate::LockManagerBuilder::redact_keys).
    pub redact_keys: Option<bool>,
    /// Whether [`build`](crate::LockManagerBuilder::build) returns without a connection, as
    /// [`connect_lazy`](crate::LockManagerBuilder::connect_lazy) does. Defaults to false.
    pub lazy: Option<bool>,
    /// See [`overrides`](crate::LockManagerBuilder::overrides).
    pub overrides: BTreeMap<String, Override>,
}

impl ManagerConfig {
    /// Moves the fields that are set into the settings of a manager, and returns the URL.
    pub(crate) fn apply(self, settings: &mut Settings) -> Option<String> {
        // All fields by name, so that none is forgotten.
        let Self {
            url,
            prefix,
            default_ttl,
            default_wait,
            default_max_hold,
            command_timeout,
            shutdown_timeout,
            retry_interval,
            resolve_interval,
            address_map,
            label,
            client_name,
            dialect,
            handover,
            redact_keys,
            lazy,
            overrides,
        } = self;
        set(&mut settings.prefix, prefix.map(Into::into));
        set(&mut settings.default_ttl, default_ttl);
        set(&mut settings.default_wait, default_wait);
        if default_max_hold.is_some() {
            settings.default_max_hold = default_max_hold;
        }
        set(&mut settings.command_timeout, command_timeout);
        set(&mut settings.shutdown_timeout, shutdown_timeout);
        set(&mut settings.retry_interval, retry_interval);
        set(&mut settings.resolve_interval, resolve_interval);
        if !address_map.is_empty() {
            settings.address_map = Some(AddressMap::Pairs(address_map));
        }
        set(&mut settings.label, label.map(|it| tidy_label(&it).into()));
        if client_name.is_some() {
            settings.client_name = client_name.map(Into::into);
        }
        set(&mut settings.dialect, dialect);
        set(&mut settings.handover, handover);
        set(&mut settings.redact_keys, redact_keys);
        set(&mut settings.lazy, lazy);
        settings.overrides.extend(overrides);
        url
    }
}

fn set<T>(setting: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *setting = value;
    }
}

/// Does not show the user and the password of the URL.
impl fmt::Debug for ManagerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagerConfig")
            .field("url", &self.url.as_deref().map(without_password))
            .field("prefix", &self.prefix)
            .field("default_ttl", &self.default_ttl)
            .field("default_wait", &self.default_wait)
            .field("default_max_hold", &self.default_max_hold)
            .field("command_timeout", &self.command_timeout)
            .field("shutdown_timeout", &self.shutdown_timeout)
            .field("retry_interval", &self.retry_interval)
            .field("resolve_interval", &self.resolve_interval)
            .field("address_map", &self.address_map)
            .field("label", &self.label)
            .field("client_name", &self.client_name)
            .field("dialect", &self.dialect)
            .field("handover", &self.handover)
            .field("redact_keys", &self.redact_keys)
            .field("lazy", &self.lazy)
            .field("overrides", &self.overrides)
            .finish()
    }
}

/// Returns a URL for people. Hides all that may belong to a password, also in a malformed URL.
pub(crate) fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return "***".to_owned();
    };
    // The scheme may be a part of a password, too.
    if scheme.contains(['@', ':']) {
        return "***".to_owned();
    }
    let (hidden, shown) = match rest.rsplit_once('@') {
        Some((_, after)) => ("***@", after),
        None => ("", rest),
    };
    let hosts = shown.split(['/', '?', '#']).next().unwrap_or_default();
    if !hosts.split(',').all(is_host) {
        return format!("{scheme}://***");
    }
    let shown = match shown.split_once('?') {
        Some((before, query)) if !hidden.is_empty() || !query.split('&').all(is_public) => {
            format!("{before}?***")
        }
        _ => shown.to_owned(),
    };
    format!("{scheme}://{hidden}{shown}")
}

/// Returns whether this is a host with a port or without, or nothing, as in the URL of a socket. A password without a
/// user looks like a port.
fn is_host(text: &str) -> bool {
    let after_number = text.strip_prefix('[').and_then(|it| it.split_once(']'));
    let port = match (after_number, text.split_once(':')) {
        (Some((_, "")), _) => None,
        (Some((_, end)), _) => end.strip_prefix(':').or(Some(end)),
        (None, split) => split.map(|(_, port)| port),
    };
    let is_number = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    port.is_none_or(|port| is_number(port) && !text.starts_with(':'))
}

/// Returns whether this parameter of a URL isn't a secret.
fn is_public(parameter: &str) -> bool {
    const PUBLIC: [&str; 9] = [
        "client_name",
        "db",
        "protocol",
        "sentinelMasterId",
        "sentinel_tls",
        "ssl_ca_certs",
        "ssl_certfile",
        "ssl_keyfile",
        "ssl_server_name",
    ];
    let (name, _) = parameter.split_once('=').unwrap_or_default();
    PUBLIC.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_shown_without_its_password() {
        for (url, shown) in [
            ("redis://h:6379/1", "redis://h:6379/1"),
            ("redis://h/1?client_name=a", "redis://h/1?client_name=a"),
            (
                "rediss://a,[::1]:2?ssl_ca_certs=c",
                "rediss://a,[::1]:2?ssl_ca_certs=c",
            ),
            ("redis://:secret", "redis://***"),
            ("redis://u:secret/1", "redis://***"),
            ("redis://:se/cret", "redis://***"),
            ("redis://h,u:secret?protocol=3", "redis://***"),
            ("redis://[::1]secret", "redis://***"),
            ("redis://h?auth=secret", "redis://h?***"),
            ("redis://h?protocol=3&token=secret", "redis://h?***"),
            ("redis://h?secret", "redis://h?***"),
            ("rediss://h?ssl_password=secret", "rediss://h?***"),
            ("redis://:12/cret", "redis://***"),
            ("redis://:12#cret", "redis://***"),
            ("redis://u:secret@h/1", "redis://***@h/1"),
            ("redis://u:se@c/r?et@h/1", "redis://***@h/1"),
            ("unix:///s?db=1&pass=secret", "unix:///s?***"),
            ("secret", "***"),
            ("u:secret@h://x", "***"),
            ("memory://", "memory://"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }

    #[test]
    fn fields_that_are_not_set_leave_the_settings() {
        let mut settings = Settings::default();
        let before = format!("{settings:?}");
        assert_eq!(ManagerConfig::default().apply(&mut settings), None);
        assert_eq!(format!("{settings:?}"), before);
        let config = ManagerConfig {
            default_wait: Some(Duration::ZERO),
            label: Some("a\nb".into()),
            ..ManagerConfig::default()
        };
        config.apply(&mut settings);
        assert_eq!(settings.default_wait, Duration::ZERO);
        assert_eq!(&*settings.label, "ab");
        assert_eq!(&*settings.prefix, "lock:");
    }
}
