//! The rights of the user: those of an application, and those of an operator.

use redis::{Cmd, RedisError, Value};

use super::connection::Server;
use super::keys::glob;
use super::probe::{Names, in_channel};
use super::{Check, Level};
use crate::args::Role;
use crate::view::tidy;

/// The keys of the probes are gone after this, whatever happens.
const EXPIRY: &str = "5000";

/// The rights without which a user acquires no lock.
const LOCK: &[&str] = &[
    "role",
    "time",
    "ping",
    "script|load",
    "evalsha",
    "eval",
    "get",
    "set",
    "del",
    "exists",
    "type",
    "incr",
    "pttl",
    "pexpire",
    "zadd",
    "zrem",
    "zrange",
    "zrank",
    "zscore",
];

/// The rights without which waiters poll.
const NOTIFY: &[&str] = &["info", "subscribe", "publish", "pubsub|numsub"];

const SHOW: &[&str] = &[
    "role",
    "time",
    "ping",
    "script|load",
    "evalsha",
    "eval",
    "get",
    "type",
    "pttl",
    "zrange",
    "zrank",
];

/// The rights of a list, beside those of `show`.
const LIST: &[&str] = &["scan", "zcard"];

/// The rights of a release, beside those of `show`.
const RELEASE: &[&str] = &[
    "set",
    "del",
    "exists",
    "incr",
    "zrem",
    "publish",
    "pubsub|numsub",
];

/// The right of `release --foreign`, beside those of a release.
const FOREIGN: &[&str] = &["dump"];

/// The checks of the user.
pub(super) const IDS: [&str; 2] = ["app_rights", "operator_rights"];

/// What a user lacks.
pub(super) struct Rights {
    user: String,
    /// The commands that the server refuses, each once.
    commands: Vec<&'static str>,
    /// The patterns of keys that the server refuses, each once.
    keys: Vec<String>,
    /// The pattern of channels, if the server refuses it.
    channel: Option<String>,
}

/// What the server refuses.
enum Refused {
    Command,
    Key,
    Channel,
}

impl Rights {
    /// Runs each command of locks and of operators, on keys of its own.
    pub(super) async fn read(server: &mut Server, prefix: &str) -> Self {
        let names = Names::new(prefix);
        let mut rights = Self {
            user: tidy(server.user()),
            commands: Vec::new(),
            keys: Vec::new(),
            channel: None,
        };
        let channel = channel_pattern(prefix);
        for probe in probes(&names) {
            let reply = server.call::<Value>(&probe.command).await;
            let keys = match probe.key {
                Key::Lock => format!("~{}*", glob(prefix)),
                Key::Companion => format!("~{{{}*}}:*", glob(prefix)),
            };
            rights.note(probe.right, &keys, &channel, reply.err().as_ref());
        }
        let subscribed = server.subscribe_once(&names.channel).await;
        rights.note("subscribe", "", &channel, subscribed.err().as_ref());
        rights
    }

    fn note(&mut self, right: &'static str, keys: &str, channel: &str, error: Option<&RedisError>) {
        match error.and_then(refused) {
            Some(Refused::Command) if !self.commands.contains(&right) => self.commands.push(right),
            Some(Refused::Key) if !self.keys.iter().any(|known| known == keys) => {
                self.keys.push(keys.to_owned());
            }
            Some(Refused::Channel) => self.channel = Some(channel.to_owned()),
            _ => {}
        }
    }

    /// Returns the missing rights among these, each once.
    fn lacks(&self, needed: &[&[&'static str]]) -> Vec<String> {
        let mut missing: Vec<String> = Vec::new();
        for right in needed.iter().copied().flatten() {
            let named = format!("+{right}");
            if self.commands.contains(right) && !missing.contains(&named) {
                missing.push(named);
            }
        }
        missing.extend(self.keys.iter().cloned());
        missing
    }

    pub(super) fn can_lock(&self) -> bool {
        self.lacks(&[LOCK]).is_empty()
    }

    fn can_operate(&self) -> bool {
        self.lacks(&[SHOW, LIST, RELEASE]).is_empty()
    }

    /// Returns the missing rights of notifications. Without one of them, waiters poll.
    pub(super) fn lacks_notifications(&self) -> Vec<String> {
        let mut missing = self.lacks(&[NOTIFY]);
        missing.extend(self.channel.clone());
        missing
    }

    /// Returns why a check that needs this right cannot run: `the user lacks +info`.
    pub(super) fn reason_without(&self, right: &'static str) -> Option<String> {
        let is_missing = self.commands.contains(&right);
        is_missing.then(|| format!("the user lacks +{right}"))
    }

    /// Returns a check for each role. The rights of one role suffice, unless the user of `doctor` asks
    /// for a role.
    pub(super) fn checks(&self, role: Option<Role>) -> Vec<Check> {
        match role {
            Some(Role::App) => vec![self.of_app(Level::Fail)],
            Some(Role::Operator) => vec![self.of_operator(Level::Fail)],
            None => {
                let has_role = self.can_lock() || self.can_operate();
                let level = if has_role { Level::Note } else { Level::Fail };
                vec![self.of_app(level), self.of_operator(level)]
            }
        }
    }

    fn of_app(&self, level: Level) -> Check {
        let user = &self.user;
        let missing = self.lacks(&[LOCK]);
        if missing.is_empty() {
            let text = format!("the user `{user}` may acquire, renew and release");
            return Check::ok("app_rights", text);
        }
        let text = format!(
            "the user `{user}` cannot acquire: it lacks {}",
            missing.join(", ")
        );
        Check::new("app_rights", level, text)
            .means("a service that connects as this user gets no lock")
            .advice(if level == Level::Fail {
                "grant them with ACL SETUSER: the page \"Redis\" of the guide has the command"
            } else {
                "nothing for an operator's user; for an application's user, grant them"
            })
    }

    fn of_operator(&self, level: Level) -> Check {
        let user = &self.user;
        let commands = [("show", &[SHOW][..]), ("list", &[SHOW, LIST])];
        let release = ("release", &[SHOW, RELEASE][..]);
        let (can, cannot): (Vec<_>, Vec<_>) = commands
            .into_iter()
            .chain([release])
            .partition(|(_, needed)| self.lacks(needed).is_empty());
        let words = |commands: &[(&'static str, _)]| {
            let words: Vec<_> = commands.iter().map(|(word, _)| *word).collect();
            match words.split_last() {
                Some((last, rest)) if !rest.is_empty() => {
                    format!("{} and {last}", rest.join(", "))
                }
                _ => words.concat(),
            }
        };
        let missing = self.lacks(&[SHOW, LIST, RELEASE, FOREIGN]);
        if missing.is_empty() {
            let text = format!("the user `{user}` may {}", words(&can));
            return Check::ok("operator_rights", text);
        }
        let missing = missing.join(", ");
        if cannot.is_empty() {
            let text = format!(
                "the user `{user}` may {}, and cannot release --foreign: it lacks {missing}",
                words(&can)
            );
            return Check::new("operator_rights", Level::Note, text)
                .means("`lockctl release --foreign` fails as this user")
                .advice("nothing, unless keys of other programs block names: then grant it");
        }
        let may = if can.is_empty() {
            String::new()
        } else {
            format!("may {}, and ", words(&can))
        };
        let cannot = words(&cannot);
        let text = format!("the user `{user}` {may}cannot {cannot}: it lacks {missing}");
        Check::new("operator_rights", level, text)
            .means("these commands of lockctl fail as this user")
            .advice(if level == Level::Fail {
                "grant them with ACL SETUSER: the page \"Redis\" of the guide has the command"
            } else {
                "nothing for an application's user, which should not have +scan; for an operator's \
                 user, grant them"
            })
    }

    /// Says what the user may do, for the last line.
    pub(super) fn summary(&self) -> String {
        let may = match (self.can_lock(), self.can_operate()) {
            (true, true) => "may lock and operate",
            (true, false) => "may lock",
            (false, true) => "may operate, and not lock",
            (false, false) => "may neither lock nor operate",
        };
        format!("the user `{}` {may}", self.user)
    }
}

/// The pattern of the channels in an access list.
fn channel_pattern(prefix: &str) -> String {
    format!("&lk1:{}:*", in_channel(prefix))
}

/// The key of a probe.
enum Key {
    Lock,
    Companion,
}

/// A command that a user may lack.
struct Probe {
    right: &'static str,
    command: Cmd,
    key: Key,
}

/// The commands of the scripts, of the connection and of operators, in an order that leaves no key
/// behind.
fn probes(names: &Names) -> Vec<Probe> {
    let Names {
        key,
        queue,
        counter,
        channel,
        ..
    } = names;
    // The digest of no script: the reply is NOSCRIPT, or NOPERM.
    let digest = "0000000000000000000000000000000000000000";
    let lock = |right, words: &[&str]| Probe {
        right,
        command: command(words),
        key: Key::Lock,
    };
    let companion = |right, words: &[&str]| Probe {
        key: Key::Companion,
        ..lock(right, words)
    };
    vec![
        lock("role", &["ROLE"]),
        lock("info", &["INFO", "server"]),
        lock("time", &["TIME"]),
        lock("ping", &["PING"]),
        lock("script|load", &["SCRIPT LOAD", "return 1"]),
        lock("evalsha", &["EVALSHA", digest, "0"]),
        lock("eval", &["EVAL", "return 1", "0"]),
        lock("set", &["SET", key, "lockctl doctor", "PX", EXPIRY]),
        lock("get", &["GET", key]),
        lock("exists", &["EXISTS", key]),
        lock("type", &["TYPE", key]),
        lock("pttl", &["PTTL", key]),
        lock("dump", &["DUMP", key]),
        lock("pexpire", &["PEXPIRE", key, EXPIRY]),
        lock("del", &["DEL", key]),
        companion("set", &["SET", counter, "1", "PX", EXPIRY]),
        companion("incr", &["INCR", counter]),
        companion("del", &["DEL", counter]),
        companion("zadd", &["ZADD", queue, "1", "lockctl-doctor"]),
        companion("pexpire", &["PEXPIRE", queue, EXPIRY]),
        companion("zrange", &["ZRANGE", queue, "0", "0"]),
        companion("zrank", &["ZRANK", queue, "lockctl-doctor"]),
        companion("zscore", &["ZSCORE", queue, "lockctl-doctor"]),
        companion("zcard", &["ZCARD", queue]),
        companion("zrem", &["ZREM", queue, "lockctl-doctor"]),
        companion("del", &["DEL", queue]),
        lock("publish", &["PUBLISH", channel, "lockctl doctor"]),
        lock("pubsub|numsub", &["PUBSUB NUMSUB", channel]),
        lock("scan", &["SCAN", "0", "COUNT", "1"]),
    ]
}

/// Makes a command. The first word may have a second part.
fn command(words: &[&str]) -> Cmd {
    let mut parts = words[0].split(' ');
    let mut command = redis::cmd(parts.next().unwrap_or_default());
    for part in parts.chain(words[1..].iter().copied()) {
        command.arg(part);
    }
    command
}

/// Whether the user lacks a right.
pub(super) fn is_refused(error: &RedisError) -> bool {
    error.code() == Some("NOPERM")
}

fn refused(error: &RedisError) -> Option<Refused> {
    if !is_refused(error) {
        return None;
    }
    let text = error.detail().unwrap_or_default();
    Some(if text.contains("channel") {
        Refused::Channel
    } else if text.contains("key") {
        Refused::Key
    } else {
        Refused::Command
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Returns the rights in the command of the guide that creates a user.
    fn guide(user: &str) -> BTreeSet<&'static str> {
        let page = include_str!("../../../lock-core/docs/redis.md");
        let (_, block) = page.split_once(&format!("ACL SETUSER {user} ")).unwrap();
        let (block, _) = block.split_once("```").unwrap();
        // The command is for a shell: some words have quotes.
        let words = block.split_whitespace();
        let rights = words.map(|word| word.trim_matches('\''));
        // A manager without a name needs no right to set one.
        rights
            .filter_map(|word| word.strip_prefix('+'))
            .filter(|right| !right.starts_with("client|"))
            .collect()
    }

    /// The guide has the commands that create the users.
    #[test]
    fn rights_are_those_of_the_guide() {
        let all = |lists: &[&[&'static str]]| -> BTreeSet<&str> {
            lists.iter().copied().flatten().copied().collect()
        };
        assert_eq!(all(&[LOCK, NOTIFY]), guide("locks"));
        // Operators read INFO too: `doctor` needs it.
        let operator = all(&[SHOW, LIST, RELEASE, FOREIGN, &["info"]]);
        assert_eq!(operator, guide("operator"));
    }

    /// Each right is probed, except the one that has a check of its own.
    #[test]
    fn each_right_has_a_probe() {
        let probes = probes(&Names::new("lock:"));
        for right in [LOCK, NOTIFY, SHOW, LIST, RELEASE, FOREIGN].concat() {
            let is_probed = probes.iter().any(|probe| probe.right == right);
            assert!(is_probed || right == "subscribe", "{right}");
        }
    }

    #[test]
    fn each_missing_right_is_named_once() {
        let rights = Rights {
            user: "x".to_owned(),
            commands: vec!["get", "pexpire", "scan"],
            keys: vec!["~lock:*".to_owned()],
            channel: None,
        };
        assert_eq!(
            rights.lacks(&[SHOW, LOCK, SHOW]),
            ["+get", "+pexpire", "~lock:*"]
        );
    }

    #[test]
    fn channel_patterns_are_encoded() {
        assert_eq!(channel_pattern("lock:"), "&lk1:lock::*");
        assert_eq!(channel_pattern("a b/"), "&lk1:a%20b%2F:*");
    }
}
