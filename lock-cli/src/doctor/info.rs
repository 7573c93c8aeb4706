//! The fields of INFO.

use std::collections::BTreeMap;
use std::str::FromStr;

use lock_core::doctor::Reply;

use super::check::beginning;

/// The reply to INFO.
#[derive(Clone, Debug, Default)]
pub(super) struct Info(BTreeMap<String, String>);

impl Info {
    pub(super) fn parse(text: &str) -> Self {
        let fields = text
            .lines()
            .filter_map(|line| line.trim_end().split_once(':'));
        Self(
            fields
                .map(|(name, value)| (name.to_owned(), beginning(value)))
                .collect(),
        )
    }

    /// Takes what the reply to HELLO has, by the names of INFO.
    pub(super) fn of_greeting(greeting: &Reply) -> Self {
        let mut fields = BTreeMap::new();
        for pair in greeting.items().chunks(2) {
            let [Reply::Text(_), Reply::Text(_)] = pair else {
                continue;
            };
            let (Some(name), Some(value)) = (pair[0].text(), pair[1].text()) else {
                continue;
            };
            let value = beginning(value);
            let (name, value) = match (name, value.as_str()) {
                ("version", _) => ("redis_version", value),
                ("role", "replica") => ("role", "slave".to_owned()),
                ("role", _) => ("role", value),
                ("mode", "cluster") => ("cluster_enabled", "1".to_owned()),
                ("mode", _) => ("redis_mode", value),
                _ => continue,
            };
            fields.insert(name.to_owned(), value);
        }
        Self(fields)
    }

    /// Returns a field. Servers of other makers leave some of them out.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(super) fn number<T: FromStr>(&self, name: &str) -> Option<T> {
        self.text(name)?.parse().ok()
    }
}
