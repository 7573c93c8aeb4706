//! The configuration in environment variables.

use std::env::{VarError, var, vars_os};
use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};

use super::manager_config::ManagerConfig;
use super::{Settings, address_map, parse_duration};
use crate::error::{BackendErrorKind, InvalidSetting, LockError};
use crate::telemetry::{LockEvent, Reporter};
use lock_protocol::nearest::nearest;
use lock_protocol::ttl::MIN_TTL;
use lock_protocol::wire::tidy;

/// All variables of the library begin with this text.
const VARIABLES: &str = "DISTRIBUTED_LOCK_";

/// The detail of connection errors whose URL comes from the environment.
pub(crate) const URL_FROM_VARIABLE: &str =
    "the URL is that of the environment variable DISTRIBUTED_LOCK_URL";

/// Reads the text of a variable into the configuration.
type ReadVariable = fn(&mut ManagerConfig, String) -> Result<(), String>;

/// The variables, and the field of each.
pub(crate) const SETTINGS: [(&str, ReadVariable); 11] = [
    ("DISTRIBUTED_LOCK_URL", |config, text| {
        config.url = Some(text);
        Ok(())
    }),
    ("DISTRIBUTED_LOCK_PREFIX", |config, text| {
        config.prefix = Some(text);
        Ok(())
    }),
    ("DISTRIBUTED_LOCK_DEFAULT_TTL", |config, text| {
        config.default_ttl = Some(parse_duration(&text)?);
        Ok(())
    }),
    ("DISTRIBUTED_LOCK_DEFAULT_WAIT", |config, text| {
        config.default_wait = Some(parse_duration(&text)?);
        Ok(())
    }),
    ("DISTRIBUTED_LOCK_DEFAULT_MAX_HOLD", |config, text| {
        config.default_max_hold = Some(parse_duration(&text)?);
        Ok(())
    }),
    ("DISTRIBUTED_LOCK_COMMAND_TIMEOUT", |config, text| {
        config.command_timeout = Some(parse_duration(&text)?);
        Ok(())
    }),
    ("DISTRIBUTED_LOCK_SHUTDOWN_TIMEOUT", |config, text| {
        config.shutdown_timeout = Some(parse_duration(&text)?);
        Ok(())
    }),
    ("DISTRIBUTED_LOCK_ADDRESS_MAP", |config, text| {
        config.address_map = address_map::parse_address_map(&text)?;
        Ok(())
    }),
    ("DISTRIBUTED_LOCK_LABEL", |config, text| {
        config.label = Some(text);
        Ok(())
    }),
    ("DISTRIBUTED_LOCK_CLIENT_NAME", |config, text| {
        config.client_name = Some(text);
        Ok(())
    }),
    ("DISTRIBUTED_LOCK_LAZY", |config, text| {
        let lazy = text.parse();
        config.lazy = Some(lazy.map_err(|_| "write `true` or `false`".to_owned())?);
        Ok(())
    }),
];

impl ManagerConfig {
    /// Reads the configuration from environment variables. Variables that are not set leave their
    /// fields `None`.
    ///
    /// The variables are `DISTRIBUTED_LOCK_URL`, `DISTRIBUTED_LOCK_PREFIX`, `DISTRIBUTED_LOCK_DEFAULT_TTL`,
    /// `DISTRIBUTED_LOCK_DEFAULT_WAIT`, `DISTRIBUTED_LOCK_DEFAULT_MAX_HOLD`, `DISTRIBUTED_LOCK_COMMAND_TIMEOUT`,
    /// `DISTRIBUTED_LOCK_SHUTDOWN_TIMEOUT`, `DISTRIBUTED_LOCK_ADDRESS_MAP`, `DISTRIBUTED_LOCK_LABEL`,
    /// `DISTRIBUTED_LOCK_CLIENT_NAME` and
    /// `DISTRIBUTED_LOCK_LAZY`, which is `true` or `false`. Durations are written as in the attribute: `30s`. The address map is written `10.0.0.2:6379=localhost:7001`, with a comma
    /// between two pairs. Each other variable that begins with `DISTRIBUTED_LOCK_` is traced as a warning, once, with
    /// the name that it probably means.
    ///
    /// # Errors
    /// - [`LockError::Invalid`] with [`InvalidSetting::Manager`] when a variable is not a duration, not in its range,
    ///   or not UTF-8. The setting is the name of the variable.
    /// - [`LockError::Backend`] when the URL is not UTF-8.
    pub fn from_env() -> Result<Self, LockError> {
        static WARNED: AtomicBool = AtomicBool::new(false);
        if !WARNED.swap(true, Ordering::Relaxed) {
            warn_of_unknown(vars_os().map(|(name, _)| name));
        }
        let config = Self::read(|name| var(name))?;
        config.check().map_err(name_variable)?;
        Ok(config)
    }

    /// Checks the settings by themselves, while it is known that they come from variables.
    fn check(&self) -> Result<(), LockError> {
        let mut settings = Settings::default();
        // The program may set a shorter ttl in its code.
        if self.default_ttl.is_none() {
            settings.default_ttl = MIN_TTL;
        }
        // The URL is checked when it is used.
        let _url = self.clone().apply(&mut settings);
        settings.check()
    }

    fn read(value: impl Fn(&str) -> Result<String, VarError>) -> Result<Self, LockError> {
        let mut config = Self::default();
        for (name, read) in SETTINGS {
            let text = match value(name) {
                Ok(text) => text,
                Err(VarError::NotPresent) => continue,
                Err(VarError::NotUnicode(_)) => return Err(not_unicode(name)),
            };
            let shown: String = tidy(&text, 40);
            read(&mut config, text).map_err(|advice| {
                LockError::Invalid(InvalidSetting::Manager {
                    setting: name,
                    value: shown.into(),
                    advice: advice.into(),
                })
            })?;
        }
        Ok(config)
    }
}

/// Names the variable, and not the builder's method, in an error about a setting.
fn name_variable(error: LockError) -> LockError {
    let (setting, value, advice) = match error {
        LockError::Invalid(InvalidSetting::Ttl { ttl, .. }) => (
            "default_ttl",
            format!("{ttl:?}").into(),
            "use at least 100 ms and at most 24 h".into(),
        ),
        LockError::Invalid(InvalidSetting::Manager {
            setting,
            value,
            advice,
        }) => (setting, value, advice),
        error => return error,
    };
    let end = setting.to_ascii_uppercase();
    let mut known = SETTINGS.into_iter().map(|(name, _)| name);
    let variable = known.find(|name| name[VARIABLES.len()..] == end);
    LockError::Invalid(InvalidSetting::Manager {
        setting: variable.unwrap_or(setting),
        value,
        advice,
    })
}

fn not_unicode(name: &'static str) -> LockError {
    if name.ends_with("_URL") {
        let text = "the lock URL is not UTF-8";
        return LockError::backend(BackendErrorKind::InvalidUrl, text)
            .with_detail(URL_FROM_VARIABLE);
    }
    LockError::Invalid(InvalidSetting::Manager {
        setting: name,
        value: "not UTF-8".into(),
        advice: "write the value in UTF-8".into(),
    })
}

/// Warns about variables that this library does not know. Their values are not read.
fn warn_of_unknown(names: impl Iterator<Item = OsString>) {
    let known = SETTINGS.map(|(name, _)| name);
    for (variable, meant) in unknown(names) {
        // A subscriber that panics must not prevent the connection.
        Reporter::default().emit(&LockEvent::UnknownVariable {
            variable: &variable,
            meant,
            known: &known,
        });
    }
}

/// Returns the variables that have the beginning of this library's names and are not known, and what each
/// of them probably means.
fn unknown(names: impl Iterator<Item = OsString>) -> Vec<(String, Option<&'static str>)> {
    let known = SETTINGS.map(|(name, _)| name);
    let mut found = Vec::new();
    for name in names {
        let Ok(name) = name.into_string() else {
            continue;
        };
        let Some(end) = name.strip_prefix(VARIABLES) else {
            continue;
        };
        if !known.contains(&name.as_str()) {
            found.push((tidy(&name, 80), meant(end)));
        }
    }
    found.sort();
    found
}

/// Returns the known variable that an unknown one probably means. Only the ends are compared: all names
/// have the same beginning.
fn meant(end: &str) -> Option<&'static str> {
    let known = SETTINGS.map(|(name, _)| name);
    let end_of = |name: &'static str| &name[VARIABLES.len()..];
    if let Some(near) = nearest(end, known.map(end_of)) {
        return known.into_iter().find(|name| end_of(name) == near);
    }
    // `TTL` for `DEFAULT_TTL`, unless several names end so.
    let is_last_word = |name: &&'static str| end_of(name).rsplit('_').next() == Some(end);
    let mut longer = known.into_iter().filter(is_last_word);
    let only = longer.next();
    only.filter(|_| longer.next().is_none())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<ManagerConfig, LockError> {
        ManagerConfig::read(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found
                .map(|(_, value)| (*value).to_owned())
                .ok_or(VarError::NotPresent)
        })
    }

    #[test]
    fn each_variable_sets_its_field() {
        let config = read(&[
            ("DISTRIBUTED_LOCK_URL", "redis://h"),
            ("DISTRIBUTED_LOCK_PREFIX", "shop:"),
            ("DISTRIBUTED_LOCK_DEFAULT_TTL", "10s"),
            ("DISTRIBUTED_LOCK_DEFAULT_WAIT", "0s"),
            ("DISTRIBUTED_LOCK_DEFAULT_MAX_HOLD", "15m"),
            ("DISTRIBUTED_LOCK_COMMAND_TIMEOUT", "500ms"),
            ("DISTRIBUTED_LOCK_SHUTDOWN_TIMEOUT", "1m"),
            ("DISTRIBUTED_LOCK_ADDRESS_MAP", "10.0.0.2:6379=h:1,i=j"),
            ("DISTRIBUTED_LOCK_LABEL", "a"),
            ("DISTRIBUTED_LOCK_CLIENT_NAME", "b"),
        ]);
        let expected = ManagerConfig {
            url: Some("redis://h".into()),
            prefix: Some("shop:".into()),
            default_ttl: Some(Duration::from_secs(10)),
            default_wait: Some(Duration::ZERO),
            default_max_hold: Some(Duration::from_secs(15 * 60)),
            command_timeout: Some(Duration::from_millis(500)),
            shutdown_timeout: Some(Duration::from_secs(60)),
            address_map: [("10.0.0.2:6379", "h:1"), ("i", "j")]
                .map(|(from, to)| (from.to_owned(), to.to_owned()))
                .into(),
            label: Some("a".into()),
            client_name: Some("b".into()),
            ..ManagerConfig::default()
        };
        assert_eq!(config.unwrap(), expected);
        assert_eq!(read(&[]).unwrap(), ManagerConfig::default());
    }

    #[test]
    fn variable_that_is_no_duration_is_named() {
        let error = read(&[("DISTRIBUTED_LOCK_DEFAULT_TTL", "30")]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid setting `DISTRIBUTED_LOCK_DEFAULT_TTL` (`30`): \
             invalid duration `30`: write it as \"30s\""
        );
    }

    #[test]
    fn variable_out_of_range_is_named() {
        for (end, value, advice) in [
            ("DEFAULT_TTL", "50ms", "at least 100 ms and at most 24 h"),
            ("DEFAULT_TTL", "90000s", "at least 100 ms and at most 24 h"),
            (
                "DEFAULT_MAX_HOLD",
                "100ms",
                "more than 100 ms, the shortest ttl",
            ),
            ("COMMAND_TIMEOUT", "0s", "at least 1 ms"),
            ("PREFIX", "{a}:", "use no braces"),
            ("ADDRESS_MAP", "h=i:1", "write two addresses"),
            ("LABEL", "", "use the name of the service"),
            ("LABEL", "revoked by ops", "use the name of the service"),
        ] {
            let name = [VARIABLES, end].concat();
            let config = read(&[(&name, value)]).unwrap();
            let error = config
                .check()
                .map_err(name_variable)
                .unwrap_err()
                .to_string();
            let start = format!("invalid setting `{name}` (`{value}`): ");
            assert!(error.starts_with(&start), "{error}");
            assert!(error.contains(advice), "{error}");
        }
    }

    #[test]
    fn default_max_hold_is_compared_with_the_ttl_of_the_same_variables_only() {
        let read = |variables: &[_]| read(variables).unwrap().check().map_err(name_variable);
        let max_hold = ("DISTRIBUTED_LOCK_DEFAULT_MAX_HOLD", "20s");
        assert!(
            read(&[max_hold]).is_ok(),
            "the program may set a shorter ttl"
        );
        let error = read(&[max_hold, ("DISTRIBUTED_LOCK_DEFAULT_TTL", "20s")]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid setting `DISTRIBUTED_LOCK_DEFAULT_MAX_HOLD` (`20s`): use more than the `default_ttl` of 20s"
        );
    }

    #[test]
    fn unknown_variables_are_found() {
        let expected = [
            ("DEFAULT_TLL", Some("DEFAULT_TTL")),
            ("DIALECT", None),
            ("LABLE", Some("LABEL")),
            ("REDACT_KEYS", None),
            ("REDIS", None),
            // One of two.
            ("TIMEOUT", None),
            ("TTL", Some("DEFAULT_TTL")),
            ("WAIT", Some("DEFAULT_WAIT")),
        ];
        let name = |end: &str| format!("{VARIABLES}{end}");
        let unlike = ["DEFAULT_TLL", "PATH", "DISTRIBUTED_LOCKS_URL"].map(str::to_owned);
        let known = SETTINGS.map(|(name, _)| name.to_owned());
        let all = expected.iter().map(|(end, _)| name(end));
        let found = unknown(all.chain(unlike).chain(known).map(OsString::from));
        let found: Vec<_> = found
            .into_iter()
            .map(|(name, meant)| (name, meant.map(str::to_owned)))
            .collect();
        assert_eq!(
            found,
            expected.map(|(end, meant)| (name(end), meant.map(name)))
        );
    }

    #[test]
    fn errors_about_settings_name_the_variable() {
        let ttl = Duration::from_millis(1);
        let prefix = LockError::Invalid(InvalidSetting::Manager {
            setting: "prefix",
            value: "{a}".into(),
            advice: "use no braces".into(),
        });
        for (error, variable) in [
            (
                LockError::Invalid(InvalidSetting::Ttl {
                    ttl,
                    setting: Some("default_ttl"),
                }),
                "`DISTRIBUTED_LOCK_DEFAULT_TTL` (`1ms`): use at least",
            ),
            (prefix, "`DISTRIBUTED_LOCK_PREFIX` (`{a}`): use no braces"),
            (LockError::Forked, "forked"),
        ] {
            let text = name_variable(error).to_string();
            assert!(text.contains(variable), "{text}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn text_that_is_not_utf_8_is_refused() {
        let not_text = |_: &str| Err(VarError::NotUnicode(OsString::from("x")));
        let error = ManagerConfig::read(not_text).unwrap_err().to_string();
        assert!(error.contains("not UTF-8") && error.contains("DISTRIBUTED_LOCK_URL"));
    }

    mod fuzz {
        use super::*;

        /// The first byte of an input chooses the variable.
        #[test]
        fn setting_of_any_form_is_read_or_a_harmless_error() {
            let examples = [
                "\0redis://h",
                "\u{1}shop:",
                "\u{2}10s",
                "\u{5}1h30m",
                "\u{6}10.0.0.2:6379=h:1,[::1]:2=j",
            ];
            let words = ["ms", "=", "10.0.0.2", "\u{202e}"];
            test_support::fuzz("settings", &examples, &words, |input| {
                let (choice, text) = input.split_first().unwrap_or((&0, &[]));
                let name = SETTINGS[usize::from(*choice) % SETTINGS.len()].0;
                let text = String::from_utf8_lossy(text);
                let config = read(&[(name, &text)]);
                let checked = config.and_then(|config| config.check());
                let Err(error) = checked else {
                    return (name, None);
                };
                let shown = error.to_string();
                let is_harmless = !shown.chars().any(|it| it.is_control() || it == '\u{202e}');
                assert!(is_harmless && shown.len() < 1_000, "{name}: {shown:?}");
                (name, Some(shown.len() / 8))
            });
        }
    }
}
