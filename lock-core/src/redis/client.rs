//! State that all parts of a server's client share: connections, subscription and server time.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::channels::Channels;
use super::connection::Connection;
use super::connector::Connector;
use super::node_config::DeploymentKind;
use super::pool::Pool;
use crate::store::{NotificationSink, StoreStatus};
use crate::telemetry::Reporter;
use lock_protocol::clock::{Clock, Deadline, Moment};
use lock_protocol::clock_sync::{ClockSync, NotAfter, ServerClock};
use lock_protocol::codec::Codecs;
use lock_protocol::codec::conditional::Conditional;
use lock_protocol::codec::deadline::{DeadlineGetset, SharedDeadlines};
use lock_protocol::codec::native::Native;
use lock_protocol::codec::operators::Operators;
use lock_protocol::codec::owner::Owner;
use lock_protocol::codec::redisson::Redisson;
use lock_protocol::codec::watch_multi::WatchMulti;
use lock_protocol::key::LockKey;

use crate::config::Settings;
use crate::sync::Mutex;
use lock_protocol::ttl::whole_millis;

mod run;

pub(super) use run::{needs_lanes, split};

/// The client of one server, shared by all runtimes of a manager.
pub(super) struct RedisClient {
    pub(super) pool: Pool,
    pub(super) channels: Channels,
    pub(super) notifications: Arc<dyn NotificationSink>,
    pub(super) reporter: Arc<Reporter>,
    pub(super) command_timeout: Duration,
    pub(super) codecs: Codecs,
    /// The connections for transactions.
    pub(super) transactions: Pool,
    /// Held by the exchange of the calls that run in turn.
    in_turn: tokio::sync::Mutex<()>,
    /// It was reported that the server refuses messages.
    is_refusal_of_messages_known: AtomicBool,
    server_clock: Mutex<ServerClock>,
    server_process: Mutex<ServerProcess>,
}

/// The server process that the client knows.
#[derive(Clone, Copy, Debug, Default)]
struct ServerProcess {
    run_id: Option<u64>,
    /// When the client connected to this process, if it knew another one before.
    changed_at: Option<Moment>,
}

/// Returns the codecs of a manager's locks.
fn codecs(settings: &Settings, is_sharded: bool, written: SharedDeadlines) -> Codecs {
    let owner = Owner {
        label: Arc::clone(&settings.label),
    };
    let watch_multi = WatchMulti {
        owner: owner.clone(),
    };
    Codecs {
        native: Native {
            grace_ms: whole_millis(settings.grace()),
            is_sharded,
        },
        conditional: Conditional::new(watch_multi.clone()),
        deadline: DeadlineGetset { written },
        redisson: Redisson {
            owner: owner.clone(),
            is_sharded,
        },
        owner,
        watch_multi,
        operators: Operators { is_sharded },
    }
}

impl RedisClient {
    pub(super) fn new(connector: Connector, transactions: Connector) -> Self {
        let config = Arc::clone(&connector.config);
        let (settings, reporter) = (&config.settings, &config.reporter);
        let is_cluster = config.kind == DeploymentKind::Cluster;
        Self {
            channels: Channels::new(&settings.prefix, is_cluster, reporter),
            pool: Pool::new(connector),
            notifications: Arc::clone(&config.notifications),
            reporter: Arc::clone(reporter),
            command_timeout: config.timeout(),
            codecs: codecs(settings, is_cluster, config.deadlines.clone()),
            transactions: Pool::for_each_runtime(transactions),
            in_turn: tokio::sync::Mutex::default(),
            is_refusal_of_messages_known: AtomicBool::new(false),
            server_clock: Mutex::default(),
            server_process: Mutex::default(),
        }
    }

    /// Returns the clock sync of the youngest reply.
    pub(super) fn clock_sync(&self) -> Option<ClockSync> {
        self.server_clock.lock().youngest()
    }

    pub(super) fn status(&self) -> StoreStatus {
        let youngest = self.clock_sync();
        StoreStatus {
            connected: self.pool.is_any_connected(),
            was_connected: self.pool.connector.config.was_reached(),
            subscribed: self.channels.is_any_up(),
            polling: (self.pool.connector.polling()).or_else(|| self.channels.polling()),
            last_reply: youngest.map(|youngest| Clock::System.now().since(youngest.sent)),
            server_version: self.pool.connector.handshake.server_version(),
        }
    }

    /// Returns whether each slot has a channel of its own, as in a cluster.
    pub(super) fn is_sharded(&self) -> bool {
        cfg!(feature = "cluster") && self.pool.connector.config.kind == DeploymentKind::Cluster
    }

    pub(super) async fn notifies_waiters(&self, key: &LockKey, limit: Duration) -> bool {
        let deadline = Deadline::after(Clock::System, limit);
        match self.pool.for_current_runtime(deadline).await {
            Ok(connection) => {
                let run_id = connection.first.run_id;
                if key.dialect().notifies_all_waiters() {
                    if !self.pool.connector.can_subscribe() {
                        return false;
                    }
                    let limit = deadline.left();
                    return self.channels.key_up_for(key, run_id, limit).await;
                }
                let limit = || deadline.left();
                self.channels.native_up_for(key, run_id, limit).await.0
            }
            Err(_unreachable) => false,
        }
    }

    /// Records the server time of a reply.
    pub(super) fn record_server_time(&self, connection: &Connection, sent: Moment, server_us: u64) {
        self.server_clock.lock().record(ClockSync {
            sent,
            server_us,
            run_id: connection.first.run_id,
        });
    }

    /// Records the server process of a connection. Returns when the client connected to this process, if
    /// it knew another one before. Leases that were confirmed earlier come from that other one.
    pub(super) fn server_changed_at(&self, connection: &Connection) -> Option<Moment> {
        let ClockSync { run_id, sent, .. } = connection.first;
        let mut known = self.server_process.lock();
        if known.run_id.is_some_and(|known| known != run_id) {
            known.changed_at = Some(sent);
        }
        known.run_id = Some(run_id);
        known.changed_at
    }

    /// Returns the time limit of a command that is sent now.
    pub(super) fn not_after(&self, connection: &Connection, now: Moment) -> NotAfter {
        let clock_sync = self.server_clock.lock().for_connection(connection.first);
        clock_sync.not_after(now, self.command_timeout)
    }
}
