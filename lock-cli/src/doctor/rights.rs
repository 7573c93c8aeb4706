//! The rights of the user: those of an application, and those of an operator.

use lock_core::doctor::{AskError, Connection, Part, Server};

use super::check::{Check, Level};
use super::names::{Names, glob, in_channel};
use crate::args::Role;

mod probes;

use probes::{Key, Verdict, probes};

/// The rights without which a user acquires no lock.
const LOCK: &[&str] = &[
    "time", "evalsha", "eval", "get", "set", "del", "exists", "type", "incr", "pttl", "pexpire",
    "zadd", "zrem", "zrange", "zrank", "zscore",
];

/// The rights that the library does without: HELLO tells the role too, an error answers a heartbeat as well as a reply
/// does, and a script may be sent as a text.
const SPARED: &[&str] = &["role", "ping", "script|load"];

/// The rights without which a user has exclusive locks only.
const SHARED: &[&str] = &["zcard", "zremrangebyscore", "pexpireat"];

/// The rights without which waiters poll.
const NOTIFY: &[&str] = &["info", "subscribe", "publish", "pubsub|numsub"];

/// The same in a cluster.
const NOTIFY_IN_CLUSTER: &[&str] = &["info", "ssubscribe", "spublish", "pubsub|shardnumsub"];

/// What a lock needs in a cluster in addition. Without `cluster|info`, tokens may go back.
const CLUSTER: &[&str] = &["cluster|slots", "cluster|info", "asking"];

/// The rights that the library does without in a cluster, beside the others.
const SPARED_IN_CLUSTER: &[&str] = &["cluster|myid"];

/// What a lock needs at a quorum in addition, because the library has to know when a server restarted.
const QUORUM: &[&str] = &["info"];

const SHOW: &[&str] = &[
    "time", "evalsha", "eval", "get", "type", "pttl", "zrange", "zrank",
];

/// The rights of a list, beside those of `show`.
const LIST: &[&str] = &["scan", "zcard"];

/// The rights of a release, beside those of `show`.
const RELEASE: &[&str] = &["set", "del", "exists", "incr", "zrem"];

/// The rights without which `release --now` notifies no waiter. With them goes the pattern of channels.
const NOTIFY_NEXT: &[&str] = &["publish", "pubsub|numsub"];

/// The same in a cluster.
const NOTIFY_NEXT_IN_CLUSTER: &[&str] = &["spublish", "pubsub|shardnumsub"];

/// The rights without which `release --now` fails where readers or holders of permits wait.
const SHARED_NEXT: &[&str] = &["zadd", "zcard", "pexpireat"];

/// The right of `release --foreign`, beside those of a release.
const FOREIGN: &[&str] = &["dump"];

/// The rights of `doctor` itself, which goes on without them.
#[cfg(test)]
const DOCTOR: &[&str] = &["info", "getrange"];

/// The checks of the user.
pub(super) const IDS: [&str; 2] = ["app_rights", "operator_rights"];

/// Why the server has not run a command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lack {
    Right,
    /// No user can run it: the server has renamed it, or a proxy does not pass it on.
    Command,
    /// It was not sent, because the user lacks this other right.
    Without(&'static str),
}

/// What a user lacks.
pub(super) struct Rights {
    user: String,
    needs: Needs,
    /// The commands that did not run, each once.
    commands: Vec<(&'static str, Lack)>,
    /// The patterns of keys that the server refuses, each once.
    keys: Vec<String>,
    /// The pattern of channels, if the server refuses it.
    channel: Option<String>,
    /// Why the rights are not known.
    unknown: Option<String>,
}

/// Which rights the kind of the deployment needs.
#[derive(Clone, Copy, Debug)]
struct Needs {
    /// What a lock needs here in addition to [`LOCK`].
    lock: &'static [&'static str],
    spared: &'static [&'static str],
    notify: &'static [&'static str],
    notify_next: &'static [&'static str],
}

impl Needs {
    const OF_ONE: Self = Self {
        lock: &[],
        spared: &[],
        notify: NOTIFY,
        notify_next: NOTIFY_NEXT,
    };

    fn of(server: &Server) -> Self {
        match server.part {
            // Waiters at a quorum poll.
            Part::Member => Self {
                lock: QUORUM,
                spared: &[],
                notify: &[],
                notify_next: &[],
            },
            _ if server.is_in_cluster() => Self {
                lock: CLUSTER,
                spared: SPARED_IN_CLUSTER,
                notify: NOTIFY_IN_CLUSTER,
                notify_next: NOTIFY_NEXT_IN_CLUSTER,
            },
            _ => Self::OF_ONE,
        }
    }

    /// Returns whether the commands that a cluster has, or those that only a single server needs, belong to it.
    fn has(self, right: &str) -> bool {
        let of_one = [NOTIFY, NOTIFY_NEXT].concat().contains(&right);
        let of_cluster = [NOTIFY_IN_CLUSTER, CLUSTER, SPARED_IN_CLUSTER]
            .concat()
            .contains(&right);
        let own = [self.lock, self.spared, self.notify, self.notify_next].concat();
        !(of_one || of_cluster) || own.contains(&right)
    }
}

impl Rights {
    /// Runs each command of locks and of operators, on keys of its own.
    pub(super) async fn read(connection: &mut Connection, server: &Server, prefix: &str) -> Self {
        // A node checks the rights before it redirects, so any key will do where no slot is found.
        let names = Names::at(server, prefix).unwrap_or_else(|| Names::new(prefix));
        let mut rights = Self {
            user: server.user().to_owned(),
            needs: Needs::of(server),
            commands: Vec::new(),
            keys: Vec::new(),
            channel: None,
            unknown: None,
        };
        let channel = channel_pattern(prefix);
        let needs = rights.needs;
        for probe in probes(&names) {
            if !needs.has(probe.right) {
                continue;
            }
            let keys = match probe.key {
                Key::Lock => format!("~{}*", glob(prefix)),
                Key::Companion => format!("~{{{}*}}:*", glob(prefix)),
            };
            if let Some(other) = probe.after {
                if rights.lack_of(other).is_some() {
                    rights.note(probe.right, Lack::Without(other));
                    continue;
                }
                if rights.keys.contains(&keys) {
                    continue;
                }
            }
            let reply = connection.ask(&probe.command).await;
            match Verdict::of(&reply) {
                Verdict::Allowed => {}
                Verdict::NoCommand => rights.note(probe.right, Lack::Right),
                Verdict::NotOnServer => rights.note(probe.right, Lack::Command),
                Verdict::NoKey if rights.keys.contains(&keys) => {}
                Verdict::NoKey => rights.keys.push(keys),
                Verdict::NoChannel => rights.channel = Some(channel.clone()),
                Verdict::Unknown => return rights.broken(),
            }
        }
        // The library uses no channels in RESP2, nor at a quorum.
        if !connection.speaks_resp3 || server.part == Part::Member {
            return rights;
        }
        let subscribe = if server.is_in_cluster() {
            "ssubscribe"
        } else {
            "subscribe"
        };
        match Verdict::of(&connection.subscribe(&names.channel).await) {
            Verdict::Allowed => {}
            Verdict::NoChannel => rights.channel = Some(channel),
            Verdict::NotOnServer => rights.note(subscribe, Lack::Command),
            Verdict::NoCommand | Verdict::NoKey => rights.note(subscribe, Lack::Right),
            Verdict::Unknown => return rights.broken(),
        }
        rights
    }

    fn broken(mut self) -> Self {
        self.unknown = Some("the connection broke".to_owned());
        self
    }

    fn note(&mut self, right: &'static str, lack: Lack) {
        if self.lack_of(right).is_none() {
            self.commands.push((right, lack));
        }
    }

    fn lack_of(&self, right: &str) -> Option<Lack> {
        let mut commands = self.commands.iter();
        let found = commands.find(|(known, _)| *known == right);
        found.map(|(_, lack)| *lack)
    }

    /// Returns the missing rights among these, each once.
    fn lacks(&self, needed: &[&[&'static str]]) -> Vec<String> {
        let mut missing: Vec<String> = Vec::new();
        for right in needed.iter().copied().flatten() {
            let named = match self.lack_of(right) {
                None => continue,
                Some(Lack::Right) => format!("+{right}"),
                Some(Lack::Command) => format!("+{right} (the server does not have the command)"),
                Some(Lack::Without(other)) => format!("+{right} (not checked without +{other})"),
            };
            if !missing.contains(&named) {
                missing.push(named);
            }
        }
        missing.extend(self.keys.iter().cloned());
        missing
    }

    /// Names the missing rights that the library does without, for the end of a text. Empty if there are none.
    fn spared(&self) -> String {
        let missing: Vec<_> = SPARED
            .iter()
            .chain(self.needs.spared)
            .filter(|right| self.lack_of(right).is_some())
            .map(|right| format!("+{right}"))
            .collect();
        if missing.is_empty() {
            return String::new();
        }
        format!("; locks work without {}", missing.join(", "))
    }

    /// Returns what to do to get these rights.
    fn advice(&self, needed: &[&[&'static str]]) -> &'static str {
        let mut needed = needed.iter().copied().flatten();
        if needed.any(|right| self.lack_of(right) == Some(Lack::Command)) {
            "look for `rename-command` in the server's configuration, and for a proxy; grant other rights \
             with ACL SETUSER: the page \"Redis\" of the guide has the command"
        } else {
            "grant them with ACL SETUSER: the page \"Redis\" of the guide has the command"
        }
    }

    /// Returns why the rights are not known, if the server did not reply.
    pub(super) fn unknown(&self) -> Option<&str> {
        self.unknown.as_deref()
    }

    pub(super) fn can_lock(&self) -> bool {
        self.unknown.is_none() && self.lacks(&[LOCK, self.needs.lock]).is_empty()
    }

    fn can_operate(&self) -> bool {
        self.unknown.is_none() && self.lacks(&[SHOW, LIST, RELEASE]).is_empty()
    }

    /// Returns the missing rights of notifications. Without one of them, waiters poll.
    pub(super) fn lacks_notifications(&self) -> Vec<String> {
        let mut missing = self.lacks(&[self.needs.notify]);
        missing.extend(self.channel.clone());
        missing
    }

    /// Returns why a check that needs this right cannot run: `the user lacks +info`.
    pub(super) fn reason_without(&self, right: &'static str) -> Option<String> {
        if self.unknown.is_some() {
            return self.unknown.clone();
        }
        self.lack_of(right).map(|lack| match lack {
            Lack::Right | Lack::Without(_) => format!("the user lacks +{right}"),
            Lack::Command => format!("the server does not have the command {right}"),
        })
    }

    /// Returns a check for each role. The rights of one role suffice, unless the user of `doctor` asks
    /// for a role.
    pub(super) fn checks(&self, role: Option<Role>) -> Vec<Check> {
        if let Some(reason) = &self.unknown {
            let again = "run `lockctl doctor` again";
            let failed = |id| {
                // Nothing shows that the user has the role that it was asked for.
                let text = format!("not checked: {reason}");
                vec![Check::fail(id, text).advice(again)]
            };
            return match role {
                Some(Role::App) => failed(IDS[0]),
                Some(Role::Operator) => failed(IDS[1]),
                None => IDS
                    .map(|id| Check::skipped(id, reason).advice(again))
                    .into(),
            };
        }
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
        let missing = self.lacks(&[LOCK, self.needs.lock]);
        if missing.is_empty() {
            let text = format!("the user `{user}` may acquire, renew and release");
            let spared = self.spared();
            let missing = self.lacks(&[SHARED]);
            if missing.is_empty() {
                return with_spared("app_rights", text, &spared);
            }
            let missing = missing.join(", ");
            let text = format!(
                "{text} exclusive locks; for readers and permits it lacks {missing}{spared}"
            );
            return Check::new("app_rights", Level::Note, text)
                .means(
                    "a service that connects as this user gets no lock for reading, and no permit",
                )
                .advice("nothing, unless the service uses readers or permits: then grant them");
        }
        let text = format!(
            "the user `{user}` cannot acquire: it lacks {}",
            missing.join(", ")
        );
        Check::new("app_rights", level, text)
            .means("a service that connects as this user gets no lock")
            .advice(if level == Level::Fail {
                self.advice(&[LOCK, self.needs.lock])
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
        let mut missing = self.lacks(&[
            SHOW,
            LIST,
            RELEASE,
            self.needs.notify_next,
            SHARED_NEXT,
            FOREIGN,
        ]);
        missing.extend(self.channel.clone());
        if missing.is_empty() {
            let text = format!("the user `{user}` may {}", words(&can));
            return with_spared("operator_rights", text, &self.spared());
        }
        let missing = missing.join(", ");
        if cannot.is_empty() {
            let notifies =
                self.lacks(&[self.needs.notify_next]).is_empty() && self.channel.is_none();
            let hands_over = self.lacks(&[SHARED_NEXT]).is_empty();
            let deletes = self.lacks(&[FOREIGN]).is_empty();
            let exclusive = ", and its release --now hands over to exclusive waiters only";
            let silent = ", and its release --now notifies no waiter";
            let keeps = ", and cannot release --foreign";
            let text = format!(
                "the user `{user}` may {}{}{}{}: it lacks {missing}",
                words(&can),
                if notifies { "" } else { silent },
                if hands_over { "" } else { exclusive },
                if deletes { "" } else { keeps },
            );
            if notifies && !hands_over {
                return Check::new("operator_rights", Level::Note, text)
                    .means("`lockctl release --now` fails where readers or permits are next")
                    .advice("nothing, unless services use readers or permits: then grant them");
            }
            if notifies {
                return Check::new("operator_rights", Level::Note, text)
                    .means("`lockctl release --foreign` fails as this user")
                    .advice("nothing, unless keys of other programs block names: then grant it");
            }
            let is_asked = level == Level::Fail;
            let level = if is_asked { Level::Warn } else { Level::Note };
            return Check::new("operator_rights", level, text)
                .means(
                    "after `lockctl release --now`, the next waiter gets the lock at its next poll",
                )
                .advice(self.advice(&[self.needs.notify_next]));
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
                self.advice(&[SHOW, LIST, RELEASE, FOREIGN])
            } else {
                "nothing for an application's user, which should not have +scan; for an operator's \
                 user, grant them"
            })
    }

    /// Says what the user may do, for the last line.
    pub(super) fn summary(&self) -> String {
        if self.unknown.is_some() {
            return format!("the rights of the user `{}` are not known", self.user);
        }
        let may = match (self.can_lock(), self.can_operate()) {
            (true, true) => "may lock and operate",
            (true, false) => "may lock",
            (false, true) => "may operate, and not lock",
            (false, false) => "may neither lock nor operate",
        };
        format!("the user `{}` {may}", self.user)
    }
}

/// Makes the check of a user who lacks at most rights that the library does without.
fn with_spared(id: &'static str, text: String, spared: &str) -> Check {
    if spared.is_empty() {
        return Check::ok(id, text);
    }
    Check::new(id, Level::Note, format!("{text}{spared}"))
        .means("a new connection gets the same in other ways, and may log a warning")
        .advice("nothing, unless the warnings disturb: then grant these rights")
}

/// The pattern of the channels in an access list.
fn channel_pattern(prefix: &str) -> String {
    format!("&lk1:{}:*", in_channel(prefix))
}

/// Whether the user lacks a right.
pub(super) fn is_refused(error: &AskError) -> bool {
    matches!(error, AskError::Refused { code, .. } if code == "NOPERM")
}

#[cfg(test)]
mod tests;
