//! A finding.

use serde::Serialize;

use crate::page::Line;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    Ok,
    /// Nothing is wrong, but something was not checked, or the user has not all rights.
    Note,
    Warn,
    Fail,
}

/// A finding.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Check {
    /// A word that does not change.
    pub(super) id: &'static str,
    pub(super) level: Level,
    /// What was found.
    pub(super) text: Line,
    /// What it means for locks.
    pub(super) means: Line,
    /// What to do. Empty if nothing has to be done.
    #[serde(rename = "do")]
    pub(super) advice: Line,
    /// Why it was not checked.
    #[serde(skip)]
    pub(super) skipped: Option<Line>,
}

impl Check {
    pub(super) fn new(id: &'static str, level: Level, text: impl AsRef<str>) -> Self {
        Self {
            id,
            level,
            text: Line::new(text.as_ref()),
            means: Line::new(usual_meaning(id)),
            advice: Line::default(),
            skipped: None,
        }
    }

    /// A check that could not run.
    pub(super) fn skipped(id: &'static str, reason: impl AsRef<str>) -> Self {
        let reason = reason.as_ref();
        Self {
            skipped: Some(Line::new(reason)),
            ..Self::new(id, Level::Note, format!("not checked: {reason}"))
        }
        .advice("to check it, run `lockctl doctor` as a user with these rights")
    }

    pub(super) fn ok(id: &'static str, text: impl AsRef<str>) -> Self {
        Self::new(id, Level::Ok, text)
    }

    pub(super) fn warn(id: &'static str, text: impl AsRef<str>) -> Self {
        Self::new(id, Level::Warn, text)
    }

    pub(super) fn fail(id: &'static str, text: impl AsRef<str>) -> Self {
        Self::new(id, Level::Fail, text)
    }

    pub(super) fn means(mut self, means: impl AsRef<str>) -> Self {
        self.means = Line::new(means.as_ref());
        self
    }

    pub(super) fn advice(mut self, advice: impl AsRef<str>) -> Self {
        self.advice = Line::new(advice.as_ref());
        self
    }
}

/// The most characters of one value of a server that a finding shows.
const SHOWN: usize = 200;

/// Returns the beginning of what a server says. A hostile server may say megabytes.
pub(super) fn beginning(value: &str) -> String {
    value.chars().take(SHOWN).collect()
}

/// What a full server means for locks.
pub(super) const FULL_MEMORY: &str =
    "a full server refuses to grant locks (OOM); it still renews and releases those that are held";

/// What a check means for locks while nothing is wrong.
fn usual_meaning(id: &str) -> &'static str {
    match id {
        "reachable" => "a lock costs two round trips",
        "version" => "the scripts of locks need Redis 6.2 or later",
        "role" => "only a primary grants locks",
        "topology" => "all managers have to reach the same server",
        "app_rights" => "without one of these rights, a user gets no lock",
        "operator_rights" => "without one of these rights, a command of lockctl fails",
        "probe" => "services get locks",
        "notifications" => "waiters learn of a grant at once",
        "eviction" => "no lock is deleted to make room for other data",
        "memory" => FULL_MEMORY,
        "persistence" => "a lock that a restart forgets goes to another holder",
        "replicas" => "a failover forgets the locks that the new primary has not received",
        "clock" => "the times in the output are those of the server",
        "clients" => "each manager needs two connections",
        "no_expiry" => "a lock without an expiry would stay forever",
        "foreign" => "no other data blocks the names",
        "queue_orphans" => "no free lock has waiters that do not take it",
        "tls" => "nobody else reads the password",
        "replication" => "a failover to it keeps the locks that it has received",
        "url" => "services connect with it",
        "nodes" => "what is not known is not checked",
        "time_limit" => "the server is too slow for locks, or has very many keys",
        "names_primary" => "clients find the primary through the Sentinels",
        "certificate" => "without a valid certificate, clients cannot connect",
        "client_certificate" => "the server accepts no connection with an expired certificate",
        _ => "",
    }
}
