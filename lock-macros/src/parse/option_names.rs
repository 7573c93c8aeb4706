//! The names of the options, and the option that an unknown name probably means.

use crate::nearest::nearest;

/// Every option, with a value to show in messages.
pub(crate) const OPTIONS: [(&str, &str); 21] = [
    ("name", "\"...\""),
    ("lock", "OrderLock { id }"),
    ("ttl", "\"30s\""),
    ("wait", "\"5s\""),
    ("outage_wait", "\"10m\""),
    ("renew", "auto"),
    ("max_hold", "\"1h\""),
    ("min_hold", "\"5s\""),
    ("once_per", "\"24h\""),
    ("mode", "read"),
    ("permits", "4"),
    ("weight", "2"),
    ("max_queue", "20"),
    ("on_contended", "skip"),
    ("on_error", "|e| ..."),
    ("on_lost", "cancel"),
    ("release", "confirm"),
    ("bind", "held"),
    ("manager", "..."),
    ("hash_tag", "\"...\""),
    ("crate", "::lock_core"),
];

/// The options of a declared lock.
pub(crate) const DECLARED: [(&str, &str); 8] = [
    ("name", "\"...\""),
    ("ttl", "\"30s\""),
    ("wait", "\"5s\""),
    ("mode", "read_write"),
    ("permits", "4"),
    ("weight", "2"),
    ("hash_tag", "\"...\""),
    ("crate", "::lock_core"),
];

/// A table of options.
pub(crate) type Options = &'static [(&'static str, &'static str)];

/// The names that other libraries use for an option, without capitals and underscores.
const OTHER_LIBRARIES: [(&str, &[&str]); 13] = [
    (
        "name",
        &[
            "key", "keys", "keyname", "lockname", "id", "resource", "lockkey",
        ],
    ),
    (
        "ttl",
        &[
            "expire",
            "expires",
            "expiry",
            "expiration",
            "lease",
            "leasetime",
            "leaseduration",
            "lockatmostfor",
            "timetolive",
            "px",
            "ex",
            "duration",
            "keyvalidity",
            "locktimeout",
        ],
    ),
    (
        "wait",
        &[
            "timeout",
            "acquiretimeout",
            "waittime",
            "waittimeout",
            "blockingtimeout",
            "maxwait",
            "retry",
            "retries",
            "retrycount",
            "retrydelay",
            "tries",
            "block",
            "blocking",
        ],
    ),
    (
        "renew",
        &[
            "autorenew",
            "renewal",
            "watchdog",
            "extend",
            "autoextend",
            "keepalive",
            "refresh",
        ],
    ),
    ("min_hold", &["lockatleastfor", "autorelease"]),
    ("once_per", &["once", "period", "interval", "every", "per"]),
    (
        "mode",
        &[
            "kind",
            "locktype",
            "type",
            "read",
            "write",
            "readwrite",
            "shared",
        ],
    ),
    (
        "permits",
        &[
            "semaphore",
            "maxconcurrent",
            "maxconcurrency",
            "maxcount",
            "limit",
            "slots",
        ],
    ),
    (
        "max_queue",
        &[
            "queue",
            "queuesize",
            "maxwaiters",
            "maxwaiting",
            "queuelimit",
        ],
    ),
    (
        "on_contended",
        &[
            "onbusy",
            "onlocked",
            "locktimeoutstrategy",
            "skip",
            "failfast",
        ],
    ),
    (
        "on_error",
        &["onfail", "onfailure", "lockfailurestrategy", "onerr"],
    ),
    ("bind", &["guard", "held", "handle", "token"]),
    (
        "manager",
        &[
            "client",
            "redis",
            "pool",
            "locks",
            "lockmanager",
            "connection",
            "executor",
        ],
    ),
];

/// Returns the names of all options.
pub(crate) fn all(options: Options) -> impl Iterator<Item = &'static str> + Clone {
    options.iter().map(|(option, _)| *option)
}

/// Returns the option with the value `word`, such as `mode` for `exclusive`.
pub(crate) fn with_word(word: &str, options: Options) -> Option<&'static str> {
    let option = match word {
        "exclusive" | "read" | "write" | "read_write" => "mode",
        "auto" | "never" => "renew",
        "skip" => "on_contended",
        "cancel" | "continue" => "on_lost",
        "confirm" | "background" => "release",
        _ => return None,
    };
    all(options).find(|known| *known == option)
}

/// Returns the option that `key` probably means: one of another library, or a misspelt one.
pub(crate) fn meant(key: &str, options: Options) -> Option<&'static str> {
    let key = key.to_lowercase();
    let plain = key.replace('_', "");
    OTHER_LIBRARIES
        .iter()
        .find(|(_, names)| names.contains(&plain.as_str()))
        .map(|(option, _)| *option)
        .filter(|meant| all(options).any(|option| option == *meant))
        .or_else(|| nearest(&key, all(options)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_libraries_are_known() {
        for (key, option) in [
            ("key", "name"),
            ("leaseTime", "ttl"),
            ("lock_at_least_for", "min_hold"),
            ("onBusy", "on_contended"),
            ("max_waiters", "max_queue"),
            ("manger", "manager"),
        ] {
            assert_eq!(meant(key, &OPTIONS), Some(option));
        }
        assert_eq!(meant("colour", &OPTIONS), None);
        assert_eq!(meant("watchdog", &DECLARED), None);
    }
}
