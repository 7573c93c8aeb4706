//! Columns of tables: diesel generates a unit struct with the name of each column.
#![deny(warnings)]

use diesel::prelude::*;
use lock_core::LockError;

use self::posts::dsl::*;
use crate::support::Tracked;

diesel::table! {
    posts (id) {
        id -> Integer,
        name -> Text,
        body -> Text,
        value -> Integer,
        error -> Nullable<Text>,
        context -> Text,
        manager -> Text,
        outcome -> Text,
        guard -> Text,
        failed -> Bool,
        lost -> Bool,
        slot -> Integer,
        options -> Text,
        witness -> Text,
    }
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "tables:plain")
)]
async fn plain(a: Tracked) -> Result<usize, LockError> {
    let _query = posts
        .filter(name.eq("a").and(value.gt(1)))
        .select((body, context));
    Ok(a.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(
        name = "tables:configured:{post}",
        ttl = "10s",
        wait = "1s",
        on_contended = |_| Ok(0),
        on_error = |_| Ok(0),
        bind = _held,
    )
)]
async fn configured(post: usize, a: Tracked) -> Result<usize, LockError> {
    let _query = posts.find(1).select((error, lost, guard, outcome));
    Ok(a.length() + post)
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(name = "tables:continued", on_lost = continue, release = background)
)]
async fn continued((a, b): (Tracked, Tracked)) -> Result<usize, LockError> {
    Ok(a.length() + b.length())
}

pub(crate) async fn run() {
    show!(plain(Tracked("a")));
    show!(configured(1, Tracked("a")));
    show!(continued((Tracked("a"), Tracked("b"))));
}
