//! The fields of INFO.

use std::collections::BTreeMap;
use std::str::FromStr;

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
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        )
    }

    /// Returns a field. Servers of other makers leave some of them out.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(super) fn number<T: FromStr>(&self, name: &str) -> Option<T> {
        self.text(name)?.parse().ok()
    }
}
