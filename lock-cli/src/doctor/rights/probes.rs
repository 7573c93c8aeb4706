//! The commands that show which rights a user has, and what their replies mean.

use lock_core::doctor::AskError;

use super::super::names::Names;

/// After this, the counter of the probes is gone, also if the connection breaks. No other command of the
/// probes creates a key. In milliseconds: longer than a server pauses.
const EXPIRY: &str = "60000";

/// The key of a probe.
pub(super) enum Key {
    Lock,
    Companion,
}

/// A command that a user may lack.
pub(super) struct Probe {
    pub(super) right: &'static str,
    pub(super) command: Vec<String>,
    pub(super) key: Key,
    /// The right without which this command could leave a key behind.
    pub(super) after: Option<&'static str>,
}

/// The commands of the scripts, of the connection and of operators.
pub(super) fn probes(names: &Names) -> Vec<Probe> {
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
        after: None,
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
        // With XX, SET and ZADD create no key.
        lock("set", &["SET", key, "lockctl doctor", "PX", EXPIRY, "XX"]),
        lock("get", &["GET", key]),
        lock("getrange", &["GETRANGE", key, "0", "3"]),
        lock("exists", &["EXISTS", key]),
        lock("type", &["TYPE", key]),
        lock("pttl", &["PTTL", key]),
        lock("dump", &["DUMP", key]),
        lock("pexpire", &["PEXPIRE", key, EXPIRY]),
        lock("del", &["DEL", key]),
        companion("set", &["SET", counter, "1", "PX", EXPIRY]),
        Probe {
            // Without SET, INCR creates a counter that never expires.
            after: Some("set"),
            ..companion("incr", &["INCR", counter])
        },
        companion("del", &["DEL", counter]),
        companion("zadd", &["ZADD", queue, "XX", "1", "lockctl-doctor"]),
        companion("pexpire", &["PEXPIRE", queue, EXPIRY]),
        companion("zrange", &["ZRANGE", queue, "0", "0"]),
        companion("zrank", &["ZRANK", queue, "lockctl-doctor"]),
        companion("zscore", &["ZSCORE", queue, "lockctl-doctor"]),
        companion("zcard", &["ZCARD", queue]),
        companion(
            "zremrangebyscore",
            &["ZREMRANGEBYSCORE", queue, "-inf", "0"],
        ),
        companion("pexpireat", &["PEXPIREAT", queue, "1"]),
        companion("zrem", &["ZREM", queue, "lockctl-doctor"]),
        companion("del", &["DEL", queue]),
        lock("publish", &["PUBLISH", channel, "lockctl doctor"]),
        lock("pubsub|numsub", &["PUBSUB NUMSUB", channel]),
        lock("spublish", &["SPUBLISH", channel, "lockctl doctor"]),
        lock("pubsub|shardnumsub", &["PUBSUB SHARDNUMSUB", channel]),
        lock("cluster|slots", &["CLUSTER SLOTS"]),
        lock("cluster|info", &["CLUSTER INFO"]),
        lock("cluster|myid", &["CLUSTER MYID"]),
        lock("asking", &["ASKING"]),
        lock("scan", &["SCAN", "0", "COUNT", "1"]),
    ]
}

/// Makes a command. The first word may have a second part.
fn command(words: &[&str]) -> Vec<String> {
    let first = words[0].split(' ');
    let words = first.chain(words[1..].iter().copied());
    words.map(str::to_owned).collect()
}

/// What the reply to a probe says about a right.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Allowed,
    /// The user lacks the command.
    NoCommand,
    /// The user lacks the pattern of the key.
    NoKey,
    /// The user lacks the pattern of the channel.
    NoChannel,
    /// The server, or a proxy, does not run this command for any user.
    NotOnServer,
    /// There was no reply of the server.
    Unknown,
}

impl Verdict {
    pub(super) fn of<T>(reply: &Result<T, AskError>) -> Self {
        match reply {
            Ok(_) => Self::Allowed,
            Err(AskError::Refused { code, text }) => Self::of_error(code, text),
            Err(AskError::Broken(_)) => Self::Unknown,
        }
    }

    fn of_error(code: &str, text: &str) -> Self {
        match code {
            "NOPERM" => Self::of_refusal(text),
            // The user is gone: it was deleted or disabled meanwhile.
            "NOAUTH" | "WRONGPASS" => Self::Unknown,
            // The command ran, and did not accept the value of the key.
            "ERR" if text.starts_with("value is not") => Self::Allowed,
            // `unknown command`, or the words of a proxy.
            "ERR" => Self::NotOnServer,
            // NOSCRIPT and WRONGTYPE: the command ran. OOM, READONLY and others: the server checks
            // the rights before its own state.
            _ => Self::Allowed,
        }
    }

    /// Reads the text of NOPERM. Its first part may have the name of the user, which may be any word.
    fn of_refusal(text: &str) -> Self {
        let (_, what) = text.rsplit_once("ermissions to ").unwrap_or(("", text));
        if what.starts_with("run ") {
            Self::NoCommand
        } else if what.contains("channel") {
            Self::NoChannel
        } else if what.contains("key") {
            Self::NoKey
        } else {
            Self::NoCommand
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_read_whatever_the_name_of_the_user() {
        let mut cases = vec![
            ("No permissions to access a key".to_owned(), Verdict::NoKey),
            (
                "No permissions to access a channel".to_owned(),
                Verdict::NoChannel,
            ),
        ];
        // Redis 7.0 has no name there.
        for user in ["this user", "User omnichannel", "User keycloak", "User run"] {
            let text = |what: &str| format!("{user} has no permissions to {what}");
            cases.extend([
                (text("run the 'evalsha' command"), Verdict::NoCommand),
                (
                    text("run the 'pubsub|channels' command"),
                    Verdict::NoCommand,
                ),
                (
                    text("access one of the keys used as arguments"),
                    Verdict::NoKey,
                ),
                (
                    text("access one of the channels used as arguments"),
                    Verdict::NoChannel,
                ),
            ]);
        }
        for (text, expected) in cases {
            assert_eq!(Verdict::of_error("NOPERM", &text), expected, "{text}");
        }
    }

    #[test]
    fn only_a_command_that_ran_proves_a_right() {
        for (code, text, expected) in [
            ("NOSCRIPT", "No matching script.", Verdict::Allowed),
            ("WRONGTYPE", "Operation against a key", Verdict::Allowed),
            (
                "ERR",
                "value is not an integer or out of range",
                Verdict::Allowed,
            ),
            ("OOM", "command not allowed", Verdict::Allowed),
            ("ERR", "unknown command 'SCAN'", Verdict::NotOnServer),
            ("ERR", "unknown subcommand 'NUMSUB'", Verdict::NotOnServer),
            ("ERR", "command is not supported", Verdict::NotOnServer),
            ("NOAUTH", "Authentication required.", Verdict::Unknown),
        ] {
            assert_eq!(Verdict::of_error(code, text), expected, "{code} {text}");
        }
        let broken = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        let reply = Err::<(), _>(AskError::from(broken));
        assert_eq!(Verdict::of(&reply), Verdict::Unknown);
    }
}
