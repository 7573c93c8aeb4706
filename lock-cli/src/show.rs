//! `lockctl show`: one lock with its queue.

use std::fmt::Write as _;

use lock_core::admin::{LockInfo, LockStatus};
use lock_core::{Holder, Kind, LockManager};

use crate::args::{GlobalArgs, ListArgs, NameArgs};
use crate::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::page::{BOLD, Page};
use crate::table;
use crate::text::{human, rfc3339};
use crate::view::{self, LockRecord};
use crate::wording;

/// The longest list in which similar names are looked for.
const SEARCHED: usize = 1_000;
/// The most similar names that are shown.
const SUGGESTED: usize = 3;

/// Prints a lock. The exit code says whether it is locked.
pub(crate) async fn run(
    global: &GlobalArgs,
    args: &NameArgs,
    output: &Output,
) -> Result<Exit, Failure> {
    let locks = connect::manager(global, None, output).await?;
    let lock = inspect(&locks, &args.name, global).await?;
    let is_free = matches!(lock.status, LockStatus::Free);
    if output.is_quiet() {
        return Ok(if is_free { Exit::No } else { Exit::Success });
    }
    if output.is_json() {
        output.record(&LockRecord::whole(&lock))?;
        return Ok(if is_free { Exit::No } else { Exit::Success });
    }
    if is_free && lock.waiters_total == 0 {
        return Err(not_held(&locks, &args.name, global).await);
    }
    output.print(&describe(&lock))?;
    Ok(if is_free { Exit::No } else { Exit::Success })
}

/// Reads a lock.
pub(crate) async fn inspect(
    locks: &LockManager,
    name: &str,
    global: &GlobalArgs,
) -> Result<LockInfo, Failure> {
    let reply = locks.admin().inspect(name).await;
    reply.map_err(|error| connect::failure(global, &error))
}

/// The failure of a name that no lock has, with similar names.
pub(crate) async fn not_held(locks: &LockManager, name: &str, global: &GlobalArgs) -> Failure {
    let all = ListArgs {
        pattern: "*".to_owned(),
        limit: SEARCHED,
        all: false,
        older_than: None,
    };
    // A user may inspect a lock without being allowed to list all of them.
    let held = crate::list::matching(locks, &all, global).await;
    let held = held.map_or_else(|_| Vec::new(), |found| found.locks);
    let names = held.iter().map(|lock| lock.name.as_str());
    let similar = similar(name, names);
    let mut text = format!("no lock `{name}` is held");
    if !similar.is_empty() {
        // Writing to a string cannot fail.
        let _ = write!(text, "; similar: {}", similar.join(", "));
    }
    Failure::new(Exit::No, "not-held", text)
}

/// Returns the names that a user may have meant, the nearest first.
fn similar<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    // One mistake in four characters, and at least one.
    let limit = (name.chars().count() / 4).max(1);
    let mut near: Vec<_> = names
        .map(|other| (strsim::osa_distance(name, other), other))
        .filter(|(distance, _)| (1..=limit).contains(distance))
        .collect();
    near.sort_unstable();
    near.truncate(SUGGESTED);
    near.into_iter().map(|(_, other)| other).collect()
}

/// Describes a lock for people.
pub(crate) fn describe(lock: &LockInfo) -> Page {
    let mut page = Page::default();
    let mut line = |name: &str, value: &str| {
        let name = format!("{name:<8}");
        page.painted(BOLD, &name).text("  ").line(value);
    };
    line("name", lock.name.as_str());
    line("key", &lock.key);
    match &lock.status {
        LockStatus::Held(holder) => {
            line("state", "held");
            if let Some(holding) = view::holding(lock) {
                line("holders", &holding);
            } else {
                line("holder", &holder.label);
                if let Some(tag) = &holder.tag {
                    line("tag", tag);
                }
            }
            if let Some(token) = holder.token {
                line("token", &token.to_string());
            }
            if let Some(held) = holder.held_for {
                let since = lock.read_at.checked_sub(held).map(rfc3339);
                let since = since.unwrap_or_default();
                line("since", &format!("{since} ({} ago)", human(held)));
            }
            line("left", &left(holder));
            if holder.is_foreign() {
                line("kind", "a lock of another library");
            } else {
                line("kind", &holder.kind.to_string());
            }
        }
        LockStatus::Kept { .. } | LockStatus::Done { .. } | LockStatus::Blocked { .. } => {
            line("state", &view::without_holder(lock).unwrap_or_default());
        }
        LockStatus::Foreign { found, advice, .. } => {
            line("state", "foreign: the key holds no lock");
            line("found", &wording::plain(found));
            line("do", &wording::plain(advice));
        }
        _ => line("state", "free"),
    }
    line("waiting", &lock.waiters_total.to_string());
    if view::shared(lock).is_some() && !lock.holders.is_empty() {
        page.end_line().append(&holders(lock));
    }
    if !lock.waiters.is_empty() {
        page.end_line().append(&queue(lock));
    }
    page
}

fn left(holder: &Holder) -> String {
    match holder.remaining {
        Some(left) => format!("{}, unless renewed", human(left)),
        None => "for ever: the key has no expiry".to_owned(),
    }
}

/// The holders of a shared lock. Those whose leases end first come first.
fn holders(lock: &LockInfo) -> Page {
    let rows: Vec<_> = lock
        .holders
        .iter()
        .map(|holder| {
            let holds = match holder.kind {
                Kind::Permits { weight, .. } => weight.to_string(),
                _ => "1".to_owned(),
            };
            let left = holder
                .remaining
                .map_or_else(|| "for ever".to_owned(), human);
            [view::label(holder), holds, left]
        })
        .collect();
    table::write(["HOLDER", "HOLDS", "LEFT"], &rows)
}

fn queue(lock: &LockInfo) -> Page {
    let rows: Vec<_> = lock
        .waiters
        .iter()
        .map(|waiter| {
            let tag = waiter.tag.as_deref().map(|tag| format!(" #{tag}"));
            let state = if waiter.expires_in.is_zero() {
                "gone"
            } else {
                "waiting"
            };
            [
                waiter.position.to_string(),
                format!("{}{}", waiter.label, tag.unwrap_or_default()),
                waiter
                    .kind
                    .map_or_else(|| "-".to_owned(), |kind| kind.to_string()),
                state.to_owned(),
            ]
        })
        .collect();
    table::write(["POSITION", "WAITER", "WANTS", "STATE"], &rows)
}

#[cfg(test)]
mod tests {
    use super::similar;

    #[test]
    fn similar_names_are_few_and_near() {
        let names = ["order:1", "order:2", "invoice:1", "ordr:1"];
        assert_eq!(similar("ordr:1", names.into_iter()), ["order:1"]);
        assert_eq!(similar("order:1", names.into_iter()), ["order:2", "ordr:1"]);
        assert_eq!(similar("nothing", names.into_iter()), [""; 0]);
    }
}
