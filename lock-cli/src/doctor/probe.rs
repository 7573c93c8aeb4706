//! The checks that use the server as a lock does.

use std::time::Duration;

use lock_core::doctor::Connection;
use lock_core::{LockError, LockManager};

use super::check::Check;
use super::connection::echo;
use super::names::Names;
use super::rights::Rights;
use crate::args::GlobalArgs;
use crate::connect;
use crate::failure::Failure;

/// The ttl of the lock of the probe.
const TTL: Duration = Duration::from_secs(2);

/// Acquires, renews and releases a lock, and sends a notification.
pub(super) async fn checks(
    connection: &mut Connection,
    url: &str,
    global: &GlobalArgs,
    rights: &Rights,
) -> Vec<Check> {
    if !rights.can_lock() {
        let reason = rights.unknown().unwrap_or("the user cannot acquire");
        let skipped = |id| Check::skipped(id, reason);
        return vec![skipped("probe"), skipped("notifications")];
    }
    let names = Names::new(&global.prefix);
    let locked = match connect::to(url, global, None).await {
        Ok(locks) => lock_once(&locks, &names)
            .await
            .map_err(|error| connect::failure(global, &error)),
        Err(failure) => Err(failure),
    };
    vec![
        probe(locked),
        notifications(connection, &names.channel, &rights.lacks_notifications()).await,
    ]
}

fn probe(locked: Result<(), Failure>) -> Check {
    match locked {
        Ok(()) => Check::ok("probe", "acquired, renewed and released a lock"),
        Err(failure) => Check::fail("probe", failure.text.as_str())
            .means("no service with this URL and this prefix gets a lock")
            .advice("repair the cause, and run `lockctl doctor` again"),
    }
}

/// Acquires, renews and releases a lock.
async fn lock_once(locks: &LockManager, names: &Names) -> Result<(), LockError> {
    let request = locks.lock(names.name.as_str()).ttl(TTL);
    let guard = request.wait(Duration::ZERO).acquire().await?;
    guard.renew().await?;
    guard.release().await
}

/// Publishes to a channel of the prefix, and waits for the message.
async fn notifications(connection: &mut Connection, channel: &str, missing: &[String]) -> Check {
    let means = "waiters poll: they get a lock later, and cost the server more";
    if !missing.is_empty() {
        let missing = missing.join(", ");
        return Check::warn("notifications", format!("the user lacks {missing}"))
            .means(means)
            .advice("grant them with ACL SETUSER");
    }
    if !connection.speaks_resp3 {
        let (text, advice) = match &connection.refusal_of_resp3 {
            Some(refusal) => (
                format!("none in RESP2, and the server refuses RESP3 ({refusal})"),
                "use a server or a proxy that accepts HELLO 3, for notifications",
            ),
            None => (
                "none in RESP2, which the URL asks for".to_owned(),
                "remove `protocol=2` from the URL",
            ),
        };
        return Check::warn("notifications", text)
            .means(means)
            .advice(advice);
    }
    match echo(connection, channel).await {
        Ok(took) => {
            let millis = took.as_secs_f64() * 1_000.0;
            Check::ok("notifications", format!("arrived after {millis:.2} ms"))
        }
        Err(error) => Check::warn("notifications", format!("none arrived ({error})"))
            .means(means)
            .advice("look for a proxy that does not pass notifications on"),
    }
}
