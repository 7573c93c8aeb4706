//! Reads a configuration from the formats of serde.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde_core::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use super::manager_config::ManagerConfig;
use super::overrides::Override;
use super::{Handover, parse_duration};
use lock_protocol::dialect::Dialect;
use lock_protocol::duration_text;
use lock_protocol::words::{WordVisitor, not_one_of};

/// Implements `Deserialize` for a struct whose fields are options. A missing field and a null leave
/// the default. An unknown field is an error.
macro_rules! deserialize_fields {
    ($type:ident, $expecting:literal, { $($field:ident: $read:ty),+ $(,)? }) => {
        #[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                const FIELDS: &[&str] = &[$(stringify!($field)),+];
                struct Fields;
                impl<'de> Visitor<'de> for Fields {
                    type Value = $type;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expecting)
                    }

                    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<$type, A::Error> {
                        let mut read = $type::default();
                        let mut seen = Vec::new();
                        while let Some(name) = map.next_key::<String>()? {
                            match name.as_str() {
                                $(stringify!($field) => {
                                    if seen.contains(&stringify!($field)) {
                                        return Err(A::Error::duplicate_field(stringify!($field)));
                                    }
                                    seen.push(stringify!($field));
                                    if let Some(value) = map.next_value::<Option<$read>>()? {
                                        read.$field = value.into();
                                    }
                                })+
                                unknown => return Err(A::Error::custom(not_one_of(
                                    "setting", unknown, FIELDS,
                                ))),
                            }
                        }
                        Ok(read)
                    }
                }
                deserializer.deserialize_struct(stringify!($type), FIELDS, Fields)
            }
        }
    };
}

deserialize_fields!(ManagerConfig, "the configuration of a lock manager", {
    url: String,
    prefix: String,
    default_ttl: DurationText,
    default_wait: DurationText,
    default_max_hold: DurationText,
    command_timeout: DurationText,
    shutdown_timeout: DurationText,
    retry_interval: DurationText,
    resolve_interval: DurationText,
    address_map: BTreeMap<String, String>,
    label: String,
    client_name: String,
    dialect: Dialect,
    handover: Handover,
    redact_keys: bool,
    lazy: bool,
    overrides: BTreeMap<String, Override>,
});

deserialize_fields!(Override, "the times of an override", {
    ttl: DurationText,
    wait: DurationText,
    max_hold: DurationText,
});

/// A duration as the attribute writes it.
struct DurationText(Duration);

impl From<DurationText> for Option<Duration> {
    fn from(text: DurationText) -> Self {
        Some(text.0)
    }
}

impl<'de> Deserialize<'de> for DurationText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Any type, so that a number gets advice and not only an error.
        deserializer.deserialize_any(DurationVisitor)
    }
}

struct DurationVisitor;

impl DurationVisitor {
    fn number<E: Error>(digits: &str) -> Result<DurationText, E> {
        Err(E::custom(duration_text::not_text(digits, digits, "")))
    }
}

impl Visitor<'_> for DurationVisitor {
    type Value = DurationText;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration such as \"30s\"")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<DurationText, E> {
        parse_duration(text).map(DurationText).map_err(E::custom)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<DurationText, E> {
        Self::number(&number.to_string())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<DurationText, E> {
        // Only negative numbers get here, and no text is meant by one.
        Err(E::custom(duration_text::not_text(
            &number.to_string(),
            "",
            "",
        )))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<DurationText, E> {
        // With a fraction also for whole numbers: `1.0`.
        Self::number(&format!("{number:?}"))
    }
}

/// Deserializes the handover from its name: `immediate` or `yield_to_others`.
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
impl<'de> Deserialize<'de> for Handover {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(WordVisitor {
            what: "handover",
            words: &[
                ("immediate", Self::Immediate),
                ("yield_to_others", Self::YieldToOthers),
            ],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<ManagerConfig, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[track_caller]
    fn error(json: &str) -> String {
        read(json).unwrap_err()
    }

    #[test]
    fn duration_is_text() {
        let config = read(r#"{"default_ttl": "1m30s", "default_wait": null}"#).unwrap();
        assert_eq!(config.default_ttl, Some(Duration::from_secs(90)));
        assert_eq!(config.default_wait, None);
        for (value, message) in [
            ("30", "invalid duration `30`: write it as \"30s\""),
            ("\"30\"", "invalid duration `30`: write it as \"30s\""),
            ("1.5", "invalid duration `1.5`: write it as \"1500ms\""),
            ("-1", "invalid duration `-1`: write it as \"30s\""),
            ("true", "expected a duration such as \"30s\""),
        ] {
            let error = error(&format!(r#"{{"default_ttl": {value}}}"#));
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn unknown_field_is_named_with_the_nearest_known_one() {
        for (json, message) in [
            (
                r#"{"prefx": "a"}"#,
                "unknown setting `prefx`; did you mean `prefix`?",
            ),
            (
                r#"{"overrides": {"a": {"tll": "1s"}}}"#,
                "unknown setting `tll`; did you mean `ttl`?",
            ),
            (
                r#"{"overrides": {"a": {"colour": "1s"}}}"#,
                "unknown setting `colour`; expected one of `ttl`, `wait`, `max_hold`",
            ),
            (
                r#"{"dialect": "natve"}"#,
                "unknown dialect `natve`; did you mean `native`?",
            ),
            (
                r#"{"handover": "now"}"#,
                "unknown handover `now`; expected one of `immediate`, `yield_to_others`",
            ),
            (r#"{"label": "a", "label": "b"}"#, "duplicate field `label`"),
        ] {
            let error = error(json);
            assert!(error.contains(message), "{error}");
        }
    }
}
