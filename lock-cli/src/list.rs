//! `lockctl list`: the locks of the prefix.

use std::time::Duration;

use lock_core::LockManager;
use lock_core::admin::{LockInfo, MissingNode};

use crate::args::{DEFAULT_PREFIX, GlobalArgs, ListArgs};
use crate::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::page::Line;
use crate::table;
use crate::text::human;
use crate::view::{self, LockRecord};

/// Locks that match a pattern.
pub(crate) struct Listed {
    pub(crate) locks: Vec<LockInfo>,
    /// How many keys of other programs were left out.
    foreign: usize,
    /// Whether more locks match.
    has_more: bool,
    /// The nodes of a cluster that could not be read.
    missing: Vec<MissingNode>,
}

impl Listed {
    /// Returns the failure of a list that lacks the locks of some nodes.
    pub(crate) fn incomplete(&self) -> Option<Failure> {
        let addresses: Vec<_> = self.missing.iter().map(|node| &*node.address).collect();
        let addresses = addresses.join(", ");
        let text = match self.missing.len() {
            0 => return None,
            1 => format!("the list lacks the locks of a node that cannot be read: {addresses}"),
            count => format!(
                "the list lacks the locks of {count} nodes that cannot be read: {addresses}"
            ),
        };
        let mut failure = Failure::new(Exit::No, "incomplete", text);
        failure.causes = self
            .missing
            .iter()
            .map(|node| Line::new(&node.reason))
            .collect();
        Some(failure)
    }
}

/// Lists the locks that match a pattern, in the order of their names.
pub(crate) async fn matching(
    locks: &LockManager,
    args: &ListArgs,
    global: &GlobalArgs,
) -> Result<Listed, Failure> {
    let mut found = Listed {
        locks: Vec::new(),
        foreign: 0,
        has_more: false,
        missing: Vec::new(),
    };
    let mut next = None;
    loop {
        let left = args
            .limit
            .saturating_sub(found.locks.len())
            .saturating_add(1);
        let request = locks
            .admin()
            .list(args.pattern.as_str())
            .limit(left)
            .after(next);
        let page = request
            .await
            .map_err(|error| connect::failure(global, &error))?;
        for lock in page.locks {
            if args.older_than.is_some_and(|age| !is_older(&lock, age)) {
                continue;
            }
            if !args.all && view::is_foreign(&lock) {
                found.foreign += 1;
            } else {
                found.locks.push(lock);
            }
        }
        found.missing.extend(page.missing);
        next = page.next;
        if next.is_none() || found.locks.len() > args.limit {
            break;
        }
    }
    found
        .locks
        .sort_by(|one, other| one.name.as_str().cmp(other.name.as_str()));
    // A lock may be on two pages.
    found.locks.dedup_by(|one, other| one.name == other.name);
    found.has_more = next.is_some() || found.locks.len() > args.limit;
    found.locks.truncate(args.limit);
    Ok(found)
}

/// Prints the locks.
pub(crate) async fn run(
    global: &GlobalArgs,
    args: &ListArgs,
    output: &Output,
) -> Result<Exit, Failure> {
    let locks = connect::manager(global, None, output).await?;
    let found = matching(&locks, args, global).await?;
    if output.is_json() {
        for lock in &found.locks {
            output.record(&LockRecord::in_list(lock))?;
        }
    } else {
        let rows: Vec<_> = found.locks.iter().map(view::row).collect();
        output.print(&table::write(view::COLUMNS, &rows))?;
    }
    let incomplete = found.incomplete();
    if found.locks.is_empty() && incomplete.is_none() {
        output.note(&nothing(&global.prefix, args));
    }
    if found.has_more {
        output.note("more locks match; raise --limit, or use a narrower pattern");
    }
    match found.foreign {
        0 => {}
        1 => output.note("1 key of another program is not shown; --all shows it"),
        count => output.note(&format!(
            "{count} keys of other programs are not shown; --all shows them"
        )),
    }
    incomplete.map_or(Ok(Exit::Success), Err)
}

/// Whether the holder has had the lock for this time.
fn is_older(lock: &LockInfo, age: Duration) -> bool {
    let held_for = lock.holder().and_then(|holder| holder.held_for);
    held_for.is_some_and(|held_for| held_for >= age)
}

/// Says where no lock was found: services may use another prefix.
fn nothing(prefix: &str, args: &ListArgs) -> String {
    let pattern = &args.pattern;
    let origin = if prefix == DEFAULT_PREFIX {
        "the default"
    } else {
        "from --prefix or DISTRIBUTED_LOCK_PREFIX"
    };
    let age = args.older_than.map_or_else(String::new, |age| {
        format!(" and has been held for {}", human(age))
    });
    format!(
        "no lock has a key that matches `{prefix}{pattern}`{age}; the prefix is `{prefix}` ({origin}), so check that it is the one \
         of the services"
    )
}
