//! The checks that use the server as a lock does.

use std::time::Duration;

use lock_core::{LockError, LockManager};

use super::Check;
use super::connection::Server;
use super::names::Names;
use super::rights::Rights;
use crate::args::GlobalArgs;
use crate::connect;

/// The ttl of the lock of the probe.
const TTL: Duration = Duration::from_secs(2);

/// Acquires, renews and releases a lock, and sends a notification.
pub(super) async fn checks(
    server: &mut Server,
    global: &GlobalArgs,
    rights: &Rights,
) -> Vec<Check> {
    if !rights.can_lock() {
        let reason = rights.unknown().unwrap_or("the user cannot acquire");
        let skipped = |id| Check::skipped(id, reason);
        return vec![skipped("probe"), skipped("notifications")];
    }
    let names = Names::new(&global.prefix);
    let probe = match lock_once(&names, global).await {
        Ok(()) => Check::ok("probe", "acquired, renewed and released a lock"),
        Err(error) => Check::fail("probe", connect::failure(global, &error).text.as_str())
            .means("no service with this URL and this prefix gets a lock")
            .advice("repair the cause, and run `lockctl doctor` again"),
    };
    vec![
        probe,
        notifications(server, &names.channel, &rights.lacks_notifications()).await,
    ]
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

/// Publishes to a channel of the prefix, and waits for the message.
async fn notifications(server: &mut Server, channel: &str, missing: &[String]) -> Check {
    let means = "waiters poll: they get a lock later, and cost the server more";
    if !missing.is_empty() {
        let missing = missing.join(", ");
        return Check::warn("notifications", format!("the user lacks {missing}"))
            .means(means)
            .advice("grant them with ACL SETUSER");
    }
    match server.echo(channel).await {
        Ok(took) => {
            let millis = took.as_secs_f64() * 1_000.0;
            Check::ok("notifications", format!("arrived after {millis:.2} ms"))
        }
        Err(error) => Check::warn("notifications", format!("none arrived ({error})"))
            .means(means)
            .advice("look for a proxy that does not pass notifications on"),
    }
}
