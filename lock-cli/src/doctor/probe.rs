//! The checks that use the server as a lock does.

use std::time::Duration;

use lock_core::{LockError, LockManager};
use redis::{Cmd, RedisError, Value};

use super::Check;
use super::connection::Server;
use crate::args::GlobalArgs;

/// The keys of the probe are gone after this, whatever happens.
const EXPIRY: &str = "5000";
/// The ttl of the lock of the probe.
const TTL: Duration = Duration::from_secs(2);

const MEANS: &str = "locks need each of these rights: see `lock_core::guide::redis`";

/// The names of the probe.
struct Names {
    name: String,
    key: String,
    queue: String,
    counter: String,
    channel: String,
}

impl Names {
    fn new(prefix: &str) -> Self {
        let name = format!("lockctl-doctor:{}", std::process::id());
        let key = format!("{prefix}{name}");
        Self {
            queue: format!("{{{key}}}:q"),
            counter: format!("{{{key}}}:f"),
            channel: format!("lk1:{}:lockctl-doctor", in_channel(prefix)),
            name,
            key,
        }
    }
}

/// Encodes a prefix as the channels of managers have it.
fn in_channel(prefix: &str) -> String {
    let mut encoded = String::new();
    for byte in prefix.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b':' | b'-') {
            encoded.push(char::from(byte));
        } else {
            use std::fmt::Write as _;
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// Runs each command that locks need, on keys of its own, and then acquires, renews and releases a
/// lock.
pub(super) async fn rights(server: &mut Server, global: &GlobalArgs) -> Check {
    let names = Names::new(&global.prefix);
    let mut missing = Vec::new();
    for (right, command) in commands(&names) {
        if let Err(error) = server.call::<Value>(&command).await
            && is_denied(&error)
        {
            missing.push(match denied(&error) {
                Denied::Command => format!("+{right}"),
                Denied::Key => format!("the keys of `{right}`"),
                Denied::Channel => format!("the channel of `{right}`"),
            });
        }
    }
    missing.dedup();
    let user = server.user();
    if !missing.is_empty() {
        let text = format!("the user `{user}` lacks {}", missing.join(", "));
        return Check::fail("rights", text)
            .means(MEANS)
            .advice("grant them with ACL SETUSER");
    }
    match lock_once(&names, global).await {
        Ok(()) => {
            let text = format!("the user `{user}` can acquire, renew and release");
            Check::ok("rights", text)
        }
        Err(error) => Check::fail("rights", error.to_string())
            .means("no service with this URL and this prefix gets a lock")
            .advice("repair the cause, and run `lockctl doctor` again"),
    }
}

/// Acquires, renews and releases a lock.
async fn lock_once(names: &Names, global: &GlobalArgs) -> Result<(), LockError> {
    let builder = LockManager::builder()
        .prefix(&global.prefix)
        .command_timeout(global.timeout);
    let url = global.url.as_deref().unwrap_or_default();
    let locks = builder.connect(url).await?;
    let request = locks.lock(names.name.as_str()).ttl(TTL);
    let guard = request.wait(Duration::ZERO).acquire().await?;
    guard.renew().await?;
    guard.release().await
}

/// The commands of the scripts and of the connection, in an order that leaves no key behind.
fn commands(names: &Names) -> Vec<(&'static str, Cmd)> {
    let command = |words: &[&str]| {
        let mut parts = words[0].split(' ');
        let mut command = redis::cmd(parts.next().unwrap_or_default());
        for part in parts.chain(words[1..].iter().copied()) {
            command.arg(part);
        }
        command
    };
    let Names {
        key,
        queue,
        counter,
        channel,
        ..
    } = names;
    // The digest of no script: the reply is NOSCRIPT, or NOPERM.
    let digest = "0000000000000000000000000000000000000000";
    [
        ("role", vec!["ROLE"]),
        ("info", vec!["INFO", "server"]),
        ("time", vec!["TIME"]),
        ("ping", vec!["PING"]),
        ("script|load", vec!["SCRIPT LOAD", "return 1"]),
        ("evalsha", vec!["EVALSHA", digest, "0"]),
        ("eval", vec!["EVAL", "return 1", "0"]),
        ("set", vec!["SET", key, "lockctl doctor", "PX", EXPIRY]),
        ("get", vec!["GET", key]),
        ("exists", vec!["EXISTS", key]),
        ("type", vec!["TYPE", key]),
        ("pttl", vec!["PTTL", key]),
        ("pexpire", vec!["PEXPIRE", key, EXPIRY]),
        ("set", vec!["SET", counter, "1", "PX", EXPIRY]),
        ("incr", vec!["INCR", counter]),
        ("zadd", vec!["ZADD", queue, "1", "lockctl-doctor"]),
        ("pexpire", vec!["PEXPIRE", queue, EXPIRY]),
        ("zrange", vec!["ZRANGE", queue, "0", "0"]),
        ("zrank", vec!["ZRANK", queue, "lockctl-doctor"]),
        ("zscore", vec!["ZSCORE", queue, "lockctl-doctor"]),
        ("zrem", vec!["ZREM", queue, "lockctl-doctor"]),
        ("publish", vec!["PUBLISH", channel, "lockctl doctor"]),
        ("pubsub|numsub", vec!["PUBSUB NUMSUB", channel]),
        ("del", vec!["DEL", key, queue, counter]),
    ]
    .map(|(right, words)| (right, command(&words)))
    .into()
}

/// What a user may not do.
enum Denied {
    Command,
    Key,
    Channel,
}

fn is_denied(error: &RedisError) -> bool {
    error.code() == Some("NOPERM")
}

fn denied(error: &RedisError) -> Denied {
    let text = error.detail().unwrap_or_default();
    if text.contains("channel") {
        Denied::Channel
    } else if text.contains("key") {
        Denied::Key
    } else {
        Denied::Command
    }
}

/// Publishes to a channel of the prefix, and waits for the message.
pub(super) async fn notifications(server: &mut Server, global: &GlobalArgs) -> Check {
    let channel = Names::new(&global.prefix).channel;
    match server.echo(&channel).await {
        Ok(took) => {
            let millis = took.as_secs_f64() * 1_000.0;
            Check::ok("notifications", format!("arrived after {millis:.2} ms"))
        }
        Err(error) => Check::warn("notifications", format!("none arrived ({error})"))
            .means("waiters poll: they get a lock later, and cost the server more")
            .advice(format!(
                "grant +subscribe, +publish and &{}",
                pattern(&global.prefix)
            )),
    }
}

/// The pattern of the channels in an access list.
fn pattern(prefix: &str) -> String {
    format!("lk1:{}:*", in_channel(prefix))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The guide has the command that creates the user.
    #[test]
    fn rights_are_those_of_the_guide() {
        let page = include_str!("../../../lock-core/docs/redis.md");
        let (_, block) = page.split_once("ACL SETUSER").unwrap();
        let (block, _) = block.split_once("```").unwrap();
        let guide: BTreeSet<_> = block
            .split_whitespace()
            .filter_map(|word| word.strip_prefix('+'))
            // The last check subscribes; a manager without a name needs no right to set one.
            .filter(|right| *right != "subscribe" && !right.starts_with("client|"))
            .collect();
        let names = Names::new("lock:");
        let ours: BTreeSet<_> = commands(&names).iter().map(|(right, _)| *right).collect();
        assert_eq!(ours, guide);
    }

    #[test]
    fn channel_patterns_are_encoded() {
        assert_eq!(pattern("lock:"), "lk1:lock::*");
        assert_eq!(pattern("a b/"), "lk1:a%20b%2F:*");
    }
}
