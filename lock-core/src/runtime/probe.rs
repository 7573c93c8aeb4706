//! Finds out whether a lock can be granted now.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{BackendErrorKind, InvalidSetting, LockError};
use crate::runtime::acquired::Acquired;
use crate::runtime::inner::ManagerInner;
use crate::runtime::waiter;
use crate::store::check_runtime;
use crate::telemetry::{Caller, LockCommand, LockEvent};
use lock_protocol::clock::Moment;
use lock_protocol::key::{LockKey, LockName};
use lock_protocol::kind::Kind;
use lock_protocol::lease::LeaseConfig;
use lock_protocol::owner_id::OwnerId;
use lock_protocol::renew::Renew;
use lock_protocol::ttl::Ttl;

/// Readiness checks of several load balancers come at about the same time.
const REUSED_FOR: Duration = Duration::from_secs(1);
/// A probe without a release blocks only the next probe, and for this long at most.
const PROBE_TTL: Duration = Duration::from_secs(1);
/// The pause before another attempt, while an earlier probe of this manager is being cancelled.
const AFTER_CONTENTION: Duration = Duration::from_millis(5);

/// The name in events and metrics.
const TEMPLATE: &str = "_PING";

/// The reply to a probe: a lock was acquired and released. Returned by
/// [`LockManager::ping`](crate::LockManager::ping).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pong {
    /// How long the acquire took. It includes connecting, if there was no connection.
    pub round_trip: Duration,
    /// The version of the server, such as `Redis 7.4.1`. `None` for a manager in memory, and for a
    /// server that does not tell it.
    pub server_version: Option<Arc<str>>,
    /// Whether waiters are notified when it is their turn. Otherwise they poll.
    pub notifies_waiters: bool,
}

/// The latest probe of a manager.
pub(crate) struct Probe {
    name: LockName,
    latest: tokio::sync::Mutex<Option<(Moment, Result<Pong, LockError>)>>,
}

impl Default for Probe {
    fn default() -> Self {
        Self {
            name: LockName::from(format!("ping:{}", OwnerId::random())).with_template(TEMPLATE),
            latest: tokio::sync::Mutex::default(),
        }
    }
}

/// Acquires and releases a lock of this manager, or returns the outcome of the latest probe if that was
/// less than a second ago. Takes at most the command timeout.
///
/// # Cancel safety
/// Dropping the future releases the lock in the background. A concurrent call sends a probe of its own.
pub(crate) async fn ping(inner: &Arc<ManagerInner>) -> Result<Pong, LockError> {
    inner.check_process()?;
    check_runtime()?;
    let limit = inner.settings.command_timeout;
    let called = inner.clock().now();
    let shared = async {
        // Concurrent calls wait here for the outcome of the first.
        let mut latest = inner.probe.latest.lock().await;
        if let Some((at, outcome)) = &*latest
            && inner.clock().now().since(*at) < REUSED_FOR
            && !inner.activity.is_closing()
        {
            return outcome.clone();
        }
        let outcome = probe(inner, called).await;
        *latest = Some((inner.clock().now(), outcome.clone()));
        outcome
    };
    let outcome = tokio::time::timeout(limit, shared).await;
    outcome.unwrap_or_else(|_elapsed| {
        Err(LockError::backend(
            BackendErrorKind::TimedOut,
            "the lock server did not grant a lock in time",
        ))
    })
}

async fn probe(inner: &Arc<ManagerInner>, called: Moment) -> Result<Pong, LockError> {
    let began = inner.clock().now();
    let result = measure(inner, called).await;
    if let Some(server) = inner.store.server() {
        inner.reporter.emit(&LockEvent::CommandEnded {
            command: LockCommand::Ping,
            server: &server,
            duration: inner.clock().now().since(began),
            error: result.as_ref().err(),
        });
    }
    result
}

async fn measure(inner: &Arc<ManagerInner>, called: Moment) -> Result<Pong, LockError> {
    let started = inner.clock().now();
    let mut acquired = loop {
        match attempt(inner, spent(inner, called)).await {
            Err(LockError::Contended { .. }) => tokio::time::sleep(AFTER_CONTENTION).await,
            outcome => break outcome?,
        }
    };
    let round_trip = inner.clock().now().since(started);
    let key = acquired.held.key.clone();
    let released = acquired.send_release().await?;
    acquired.finish_release(&released);
    // The lock was granted: a subscription that hangs must not make the call fail.
    let left = inner
        .settings
        .command_timeout
        .saturating_sub(spent(inner, called));
    let notifies = inner.settings.dialect.capabilities().notifies_waiters();
    Ok(Pong {
        round_trip,
        notifies_waiters: notifies && inner.store.notifies(&key, left).await,
        server_version: inner.store.status().server_version,
    })
}

/// Returns the part of the command timeout that the probe may not use any more. It ends a little before
/// the call, so that the call returns the reason of a failure.
fn spent(inner: &ManagerInner, called: Moment) -> Duration {
    let margin = inner.settings.command_timeout / 16;
    inner.clock().now().since(called).saturating_add(margin)
}

async fn attempt(inner: &Arc<ManagerInner>, spent: Duration) -> Result<Acquired, LockError> {
    let dialect = inner.settings.dialect.of_probe();
    let name = &inner.probe.name;
    let key = LockKey::new(&inner.settings.prefix, name)
        .map_err(|reason| LockError::invalid_name(name, reason))?;
    // Some dialects need a longer ttl. That of the manager is checked.
    let ttl = match dialect.check_ttl(PROBE_TTL) {
        Ok(()) => PROBE_TTL,
        Err(_reason) => inner.settings.default_ttl,
    };
    let lease_config = LeaseConfig {
        ttl: Ttl::new(ttl).ok_or(InvalidSetting::Ttl { ttl, setting: None })?,
        renew: Renew::Auto,
        max_hold: None,
        margin: dialect.margin(),
        kind: Kind::Exclusive,
    };
    let key = key.in_dialect(dialect);
    waiter::try_acquire(inner, key, lease_config, None, spent, Caller::Call)?.await
}
