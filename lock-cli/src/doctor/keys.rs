//! The checks of the keys under the prefix.

use std::time::Duration;

use lock_core::doctor::{AskError, Connection, Reply};

use super::check::Check;
use super::names::glob;
use super::rights::{self, Rights};
use crate::args::GlobalArgs;
use crate::text::human;

/// How many keys one SCAN looks at: more do not make it faster, and block the server for longer.
const COUNT: u32 = 500;
/// The limit of one search. It sees some 100,000 keys of the server.
const SCANS: u32 = 200;
/// How long the search may take. A distant server, or one with many keys, isn't defective.
const LIMIT: Duration = Duration::from_secs(10);
/// A free lock has waiters for a moment only: the next poll of the first of them takes it.
const ORPHANED_AFTER: Duration = Duration::from_millis(1_500);

/// The right to read a part of a value.
const READ: &str = "getrange";
/// How the values of native locks begin.
const NATIVE: [&[u8]; 2] = [b"lk1:", b"lks:"];

/// What was found under the prefix.
#[derive(Default)]
struct Found {
    locks: usize,
    no_expiry: Vec<String>,
    foreign: Vec<String>,
    orphans: Vec<String>,
    /// Whether the search ended at its limit.
    is_partial: bool,
}

/// Looks at the keys, if the user may list them.
pub(super) async fn checks(
    connection: &mut Connection,
    global: &GlobalArgs,
    rights: &Rights,
) -> Vec<Check> {
    let unreadable = rights.reason_without(READ);
    if let Some(reason) = rights.reason_without("scan") {
        return skipped(|id| Check::skipped(id, reason.as_str()));
    }
    let finding = find(connection, &global.prefix, rights);
    let reason = match tokio::time::timeout(LIMIT, finding).await {
        Ok(Ok(found)) => return found.checks(unreadable.as_deref()),
        Ok(Err(error)) if rights::is_refused(&error) => "the user may not read the keys".to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(_elapsed) => {
            let reason = format!("the search took longer than {}", human(LIMIT));
            return skipped(|id| Check::skipped(id, reason.as_str()).advice("nothing"));
        }
    };
    skipped(|id| Check::skipped(id, reason.as_str()))
}

fn skipped(check: impl Fn(&'static str) -> Check) -> Vec<Check> {
    ["no_expiry", "foreign", "queue_orphans"].map(check).into()
}

async fn find(
    connection: &mut Connection,
    prefix: &str,
    rights: &Rights,
) -> Result<Found, AskError> {
    let mut found = Found::default();
    let keys = scan(
        connection,
        &format!("{}*", glob(prefix)),
        &mut found.is_partial,
    )
    .await?;
    let is_lock = |key: &&String| !is_companion(key);
    let keys: Vec<_> = keys.iter().filter(is_lock).cloned().collect();
    found.locks = keys.len();
    for keys in keys.chunks(usize::try_from(COUNT).unwrap_or(usize::MAX)) {
        for (key, state) in keys.iter().zip(states(connection, keys, rights).await?) {
            match state {
                State::Gone => found.locks = found.locks.saturating_sub(1),
                State::Native | State::Unread => {}
                State::Foreign => found.foreign.push(key.clone()),
                State::NoExpiry => found.no_expiry.push(key.clone()),
            }
        }
    }
    let queues = queues(connection, prefix, &mut found.is_partial).await?;
    if !queues.is_empty() {
        tokio::time::sleep(ORPHANED_AFTER).await;
        for key in queues {
            if is_orphan(connection, &key).await? {
                found.orphans.push(key);
            }
        }
    }
    Ok(found)
}

/// What a key under the prefix holds.
enum State {
    Gone,
    Native,
    Foreign,
    NoExpiry,
    /// A value that the user may not read.
    Unread,
}

async fn states(
    connection: &mut Connection,
    keys: &[String],
    rights: &Rights,
) -> Result<Vec<State>, AskError> {
    let mut commands = Vec::new();
    for key in keys {
        commands.push(["TYPE", key]);
        commands.push(["PTTL", key]);
    }
    let replies = connection.ask_all(&commands).await?;
    let mut replies = replies.into_iter();
    let can_read = rights.reason_without(READ).is_none();
    let (mut states, mut unread) = (Vec::new(), Vec::new());
    for key in keys {
        let (Some(kind), Some(left)) = (replies.next(), replies.next()) else {
            break;
        };
        let (kind, left) = (kind?, left?);
        let (Some(kind), Some(left)) = (kind.text(), left.number()) else {
            return Err(unreadable());
        };
        states.push(match (kind, left) {
            ("none", _) | (_, -2) => State::Gone,
            (_, -1) => State::NoExpiry,
            ("string", _) => {
                if can_read {
                    unread.push((states.len(), key.as_str()));
                }
                State::Unread
            }
            _ => State::Foreign,
        });
    }
    for (at, state) in values(connection, &unread).await? {
        states[at] = state;
    }
    Ok(states)
}

/// Reads the beginnings of values. The value of another program may have any size.
async fn values(
    connection: &mut Connection,
    keys: &[(usize, &str)],
) -> Result<Vec<(usize, State)>, AskError> {
    let end = (NATIVE[0].len() - 1).to_string();
    let commands: Vec<_> = keys
        .iter()
        .map(|(_, key)| ["GETRANGE", key, "0", &end])
        .collect();
    let replies = connection.ask_all(&commands).await?;
    let mut states = Vec::new();
    for ((at, key), value) in keys.iter().zip(replies) {
        let value = value?;
        let value = value.bytes().unwrap_or_default();
        let state = if NATIVE.contains(&value) {
            State::Native
        // The reply for a key that has expired is that for an empty value.
        } else if !value.is_empty() || exists(connection, key).await? {
            State::Foreign
        } else {
            State::Gone
        };
        states.push((*at, state));
    }
    Ok(states)
}

/// Returns the keys of locks that are free and have waiters.
async fn queues(
    connection: &mut Connection,
    prefix: &str,
    is_partial: &mut bool,
) -> Result<Vec<String>, AskError> {
    let prefix = glob(prefix);
    let mut keys = Vec::new();
    // `{lock:name}:q`, and `lock:{tag}:name:q`.
    for pattern in [format!("{{{prefix}*}}:q"), format!("{prefix}*{{*}}*:q")] {
        for queue in scan(connection, &pattern, is_partial).await? {
            let key = queue.strip_suffix(":q").unwrap_or(&queue);
            let plain = key.strip_prefix('{').and_then(|key| key.strip_suffix('}'));
            let key = plain.unwrap_or(key).to_owned();
            if is_orphan(connection, &key).await? {
                keys.push(key);
            }
        }
    }
    Ok(keys)
}

async fn is_orphan(connection: &mut Connection, key: &str) -> Result<bool, AskError> {
    let queue = if key.contains('{') {
        format!("{key}:q")
    } else {
        format!("{{{key}}}:q")
    };
    let replies = connection
        .ask_all(&[["EXISTS", key], ["EXISTS", &queue]])
        .await?;
    let mut is_there = Vec::new();
    for reply in replies {
        is_there.push(reply?.number() == Some(1));
    }
    Ok(is_there == [false, true])
}

async fn exists(connection: &mut Connection, key: &str) -> Result<bool, AskError> {
    Ok(connection.ask(&["EXISTS", key]).await?.number() == Some(1))
}

fn unreadable() -> AskError {
    std::io::Error::from(std::io::ErrorKind::InvalidData).into()
}

async fn scan(
    connection: &mut Connection,
    pattern: &str,
    is_partial: &mut bool,
) -> Result<Vec<String>, AskError> {
    let mut keys = Vec::new();
    let mut cursor = "0".to_owned();
    let count = COUNT.to_string();
    for _ in 0..SCANS {
        let scan = ["SCAN", &cursor, "MATCH", pattern, "COUNT", &count];
        let reply = connection.ask(&scan).await?;
        let [next, page] = reply.items() else {
            return Err(unreadable());
        };
        next.text().ok_or_else(unreadable)?.clone_into(&mut cursor);
        // Names of locks are text.
        keys.extend(
            page.items()
                .iter()
                .filter_map(Reply::text)
                .map(str::to_owned),
        );
        if cursor == "0" {
            keys.sort_unstable();
            keys.dedup();
            return Ok(keys);
        }
    }
    *is_partial = true;
    Ok(keys)
}

/// Whether a key with a hash tag belongs to another lock: its queue, its counter, its grace, its holders.
fn is_companion(key: &str) -> bool {
    key.contains('{')
        && [":q", ":f", ":g", ":h"]
            .iter()
            .any(|end| key.ends_with(end))
}

impl Found {
    fn checks(&self, unreadable: Option<&str>) -> Vec<Check> {
        let foreign = match unreadable {
            Some(reason) => Check::skipped("foreign", reason),
            None => self.foreign(),
        };
        vec![self.no_expiry(), foreign, self.orphans()]
    }

    fn no_expiry(&self) -> Check {
        if self.no_expiry.is_empty() {
            return Check::ok("no_expiry", format!("all keys expire{}", self.extent()));
        }
        let text = format!(
            "{} without an expiry{}",
            some(&self.no_expiry),
            self.extent()
        );
        Check::fail("no_expiry", text)
            .means("these locks stay busy until an operator deletes the keys")
            .advice("find out who wrote them; `lockctl release NAME --foreign` deletes one")
    }

    fn foreign(&self) -> Check {
        if self.foreign.is_empty() {
            let text = format!("none among {} locks{}", self.locks, self.extent());
            return Check::ok("foreign", text);
        }
        let text = format!(
            "{} written by other programs{}",
            some(&self.foreign),
            self.extent()
        );
        Check::warn("foreign", text)
            .means("a lock of another library is respected; other data blocks the name")
            .advice("choose a prefix that nothing else uses, or a dialect that all of them use")
    }

    fn orphans(&self) -> Check {
        if self.orphans.is_empty() {
            return Check::ok("queue_orphans", format!("none{}", self.extent()));
        }
        let text = format!(
            "{} free, with waiters that do not take it{}",
            some(&self.orphans),
            self.extent()
        );
        Check::warn("queue_orphans", text)
            .means("the waiters died; the next acquire removes them, and the queue expires")
            .advice("nothing, unless it goes on: then look for services that are killed")
    }

    fn extent(&self) -> &'static str {
        if self.is_partial {
            " (a part of the keys)"
        } else {
            ""
        }
    }
}

/// Counts keys and names one.
fn some(keys: &[String]) -> String {
    let first = keys.first().map_or("", String::as_str);
    // A name may have a megabyte.
    let first: String = first.chars().take(80).collect();
    match keys.len() {
        1 => format!("`{first}` is"),
        count => format!("{count} keys, such as `{first}`, are"),
    }
}
