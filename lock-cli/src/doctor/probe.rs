//! The checks that use the server as a lock does.

use std::time::Duration;

use lock_core::doctor::{Connection, Part, Server};
use lock_core::{LockError, LockManager};
use tokio::sync::OnceCell;

use super::check::Check;
use super::connection::echo;
use super::info::Info;
use super::names::Names;
use super::rights::Rights;
use super::server::lacks_sharded_channels;
use crate::args::GlobalArgs;
use crate::connect;
use crate::page::Line;

/// The ttl of the lock of the probe.
const TTL: Duration = Duration::from_secs(2);

/// The manager of all probes, as a service would have it.
pub(super) struct Locks {
    url: String,
    global: GlobalArgs,
    manager: OnceCell<Result<LockManager, Line>>,
}

impl Locks {
    pub(super) fn new(url: &str, global: &GlobalArgs) -> Self {
        Self {
            url: url.to_owned(),
            global: global.clone(),
            manager: OnceCell::new(),
        }
    }

    /// Acquires, renews and releases a lock.
    pub(super) async fn check(&self, name: &str) -> Check {
        let connecting = || async {
            let connected = connect::to(&self.url, &self.global, None).await;
            connected.map_err(|failure| failure.text)
        };
        let locked = match self.manager.get_or_init(connecting).await {
            Ok(locks) => lock_once(locks, name)
                .await
                .map_err(|error| connect::failure(&self.global, &error).text),
            Err(text) => Err(text.clone()),
        };
        match locked {
            Ok(()) => Check::ok("probe", "acquired, renewed and released a lock"),
            Err(text) => Check::fail("probe", text.as_str())
                .means("no service with this URL and this prefix gets a lock")
                .advice("repair the cause, and run `lockctl doctor` again"),
        }
    }
}

/// Acquires, renews and releases a lock that lives on this server, and sends a notification.
pub(super) async fn checks(
    connection: &mut Connection,
    server: &Server,
    locks: &Locks,
    rights: &Rights,
    info: &Info,
) -> Vec<Check> {
    // The locks of a quorum are checked once, and their waiters poll.
    if server.part == Part::Member {
        return Vec::new();
    }
    if !rights.can_lock() {
        let reason = rights.unknown().unwrap_or("the user cannot acquire");
        let skipped = |id| Check::skipped(id, reason);
        return vec![skipped("probe"), skipped("notifications")];
    }
    let Some(names) = Names::at(server, &locks.global.prefix) else {
        let reason = "the node owns no slot, or very few";
        let skipped = |id| Check::skipped(id, reason).advice("nothing");
        return vec![skipped("probe"), skipped("notifications")];
    };
    let probe = locks.check(&names.name).await;
    let missing = rights.lacks_notifications();
    let advice = if server.is_in_cluster() && lacks_sharded_channels(info) {
        "nothing: Redis 6.2 has no sharded channels"
    } else {
        "grant them with ACL SETUSER"
    };
    let notifications = notifications(connection, &names.channel, &missing, advice).await;
    vec![probe, notifications]
}

/// Acquires, renews and releases a lock.
async fn lock_once(locks: &LockManager, name: &str) -> Result<(), LockError> {
    let request = locks.lock(name).ttl(TTL);
    let guard = request.wait(Duration::ZERO).acquire().await?;
    guard.renew().await?;
    guard.release().await
}

/// Publishes to a channel of the prefix, and waits for the message.
async fn notifications(
    connection: &mut Connection,
    channel: &str,
    missing: &[String],
    advice: &str,
) -> Check {
    let means = "waiters poll: they get a lock later, and cost the server more";
    if !missing.is_empty() {
        let missing = missing.join(", ");
        return Check::warn("notifications", format!("the user lacks {missing}"))
            .means(means)
            .advice(advice);
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
