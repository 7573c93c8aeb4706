//! Checks a new connection: role, version, run id, clock and eviction policy.

use super::access::DeploymentKind;
use super::connection::since_epoch;
use super::connector::Connector;
use lock_protocol::codec::abilities::Abilities;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisConnectionInfo, RedisError, Value};

use super::errors::{
    connect_error, error_text, is_database_out_of_range, is_no_permission, is_resp3_unknown,
    is_select_in_cluster, is_transient, lock_error, login_error, no_database, no_resp3,
};
use super::node::Node;
use super::reply::micros_of;
use super::scripts::ScriptForm;
use crate::error::{BackendErrorKind, LockError};
use crate::telemetry::{ConnectionKind, LockEvent};
use lock_protocol::clock::Clock;
use lock_protocol::clock_sync::{ClockSync, UNKNOWN_RUN_ID};
use lock_protocol::unconfirmed::ANY_PROCESS;
use lock_protocol::wire::{MAX_LABEL, tidy};

mod preparation;
mod version;

use preparation::ask_commands;
use version::check_version;

/// What the handshake found out.
pub(super) struct Greeting {
    /// The time and the run id of the server.
    pub(super) first: ClockSync,
    /// The least difference between this machine's clock and the server's.
    pub(super) clock_difference: Duration,
    /// The configuration epoch of the server. That of a replica is its primary's.
    pub(super) epoch: u64,
    /// False for a replica in a cluster.
    pub(super) is_primary: bool,
    /// How long the server ran, in whole seconds. Known in a quorum only.
    pub(super) uptime: Option<Duration>,
    pub(super) abilities: Abilities,
}

impl Connector {
    /// Reads role, server information and time, loads the scripts, and sets the name of the
    /// connection, all in one pipeline. Some dialects need more.
    pub(super) async fn handshake(
        &self,
        node: &Node,
        handle: &mut MultiplexedConnection,
        kind: ConnectionKind,
    ) -> Result<Greeting, LockError> {
        let mut pipeline = Pipeline::new();
        pipeline
            .cmd("ROLE")
            .cmd("INFO")
            .arg("server")
            .arg("memory")
            .arg("cluster");
        if self.access.kind == DeploymentKind::Sentinel {
            pipeline.arg("replication");
        }
        pipeline.cmd("TIME");
        let asks_epoch = self.access.kind == DeploymentKind::Cluster;
        if asks_epoch {
            pipeline.cmd("CLUSTER").arg("INFO");
        }
        for script in &self.scripts {
            pipeline
                .cmd("SCRIPT")
                .arg("LOAD")
                .arg(script.text(ScriptForm::Flagged));
        }
        if self.release.is_some() {
            pipeline.add_command(ask_commands());
        }
        // Last, because its outcome does not matter: many users may not run it.
        let name = self.access.client_name(kind);
        pipeline.cmd("CLIENT").arg("SETNAME").arg(name);
        pipeline.ignore_errors();
        let sent = Clock::System.now();
        let wall_before = since_epoch();
        let replies = handle
            .send_packed_commands(&pipeline, 0, pipeline.len())
            .await
            .map_err(|error| connect_error(&node.text, &error))?;
        let wall_after = since_epoch();
        let waited = Clock::System.now().since(sent);
        let mut replies = replies.into_iter().map(Value::extract_error);
        let mut next = || replies.next().unwrap_or(Ok(Value::Nil));
        let (role, info, time) = (next(), next(), next());
        let cluster = asks_epoch.then(&mut next);
        // A Sentinel replies to ROLE, but not to TIME.
        let role = role.map_err(|error| self.role_error(node, &error));
        // A replica in a cluster names the node to ask for each command.
        if let Ok(role) = &role
            && self.access.kind != DeploymentKind::Cluster
        {
            check_role(node, role)?;
        }
        // A server that rejects TIME cannot serve any command now; its reason becomes the error.
        let server_us = time
            .and_then(|time| Ok(redis::from_redis_value(time)?))
            .map(|(seconds, micros): (u64, u64)| micros_of(seconds, micros))
            .map_err(|error| {
                let text = format!("the lock server at {} rejects commands", node.text);
                lock_error(text, &error)
            })?;
        let is_primary = match role {
            Ok(role) => check_role(node, &role).is_ok(),
            Err(Some(error)) => return Err(error),
            Err(None) => true,
        };
        if info.is_err() {
            // Every user may run HELLO, and its reply also contains the mode.
            let greeting = handle.send_packed_command(&redis::cmd("HELLO")).await;
            let mode = greeting.ok().and_then(|greeting| text_of(greeting, "mode"));
            self.check_mode(node, mode.as_deref() == Some("cluster"))?;
        }
        let (mut process, too_old) = self.process_of(node, info)?;
        // The server read its uptime at some moment after the sending. At the sending it was shorter by this much.
        process.uptime = process.uptime.map(|uptime| uptime.saturating_sub(waited));
        let abilities = self.prepare(node, handle, &mut replies).await?;
        if let Some(error) = too_old
            && abilities.script_form() == ScriptForm::Flagged
        {
            return Err(error);
        }
        let wall = Duration::from_micros(server_us);
        // The server read its clock at some moment between the two.
        let difference = wall_before
            .saturating_sub(wall)
            .max(wall.saturating_sub(wall_after));
        let first = ClockSync {
            sent,
            server_us,
            run_id: process.run_id,
        };
        let epoch = match cluster {
            Some(reply) => self.epoch_of(node, reply)?,
            None => node.epoch,
        };
        Ok(Greeting {
            first,
            clock_difference: difference,
            epoch,
            is_primary,
            uptime: process.uptime,
            abilities,
        })
    }

    /// Returns the configuration epoch that a node of a cluster has. Without the right to read it, tokens are those of
    /// a single server. A node that refuses each command for a moment has an epoch, which must not be left out.
    fn epoch_of(&self, node: &Node, reply: Result<Value, RedisError>) -> Result<u64, LockError> {
        let info = reply.and_then(|info| Ok(redis::from_redis_value::<String>(info)?));
        match info {
            Ok(info) => Ok(my_epoch(&info).unwrap_or_default()),
            Err(error) if is_transient(&error) => {
                let text = format!("cannot read the epoch of the lock server at {}", node.text);
                Err(lock_error(text, &error))
            }
            Err(error) => {
                self.reporter.emit(&LockEvent::ServerRestricted {
                    server: &node.server,
                    command: "CLUSTER INFO",
                    effect: "fencing tokens may go back after a failover",
                    error: &error_text(&error),
                });
                Ok(0)
            }
        }
    }

    /// Checks that the URL says whether the server is a node of a cluster.
    fn check_mode(&self, node: &Node, is_node_of_cluster: bool) -> Result<(), LockError> {
        match (self.access.kind, is_node_of_cluster) {
            (DeploymentKind::Cluster, false) => Err(LockError::advised(
                BackendErrorKind::Unsupported,
                format!("the server at {} is not part of a Redis Cluster", node.text),
                if self.access.tls.is_some() {
                    "use rediss:// for a single server"
                } else {
                    "use redis:// for a single server"
                },
            )),
            (DeploymentKind::Cluster, true) | (_, false) => Ok(()),
            (_, true) => Err(self.is_clustered(node)),
        }
    }

    fn is_clustered(&self, node: &Node) -> LockError {
        let advice = if self.access.tls.is_some() {
            "use rediss+cluster:// instead of rediss://"
        } else {
            "use redis+cluster:// instead of redis://"
        };
        let text = format!("the server at {} is a node of a Redis Cluster", node.text);
        LockError::advised(BackendErrorKind::Unsupported, text, advice)
    }

    /// Returns the error of the login, or of the choice of a database.
    pub(super) fn setup_error(
        &self,
        node: &Node,
        login: &RedisConnectionInfo,
        error: &RedisError,
    ) -> LockError {
        let db = login.db();
        if db != 0 && is_select_in_cluster(error) {
            self.is_clustered(node)
        } else if db != 0 && is_database_out_of_range(error) {
            no_database(&node.text, db)
        } else if is_resp3_unknown(error, login) {
            no_resp3(&node.text, error)
        } else if self.access.tls.is_none() {
            login_error(&node.text, error)
        } else {
            connect_error(&node.text, error)
        }
    }

    /// Returns the error for an unknown role; `None` if the role is not needed.
    fn role_error(&self, node: &Node, error: &RedisError) -> Option<LockError> {
        if error.code() == Some("NOPERM") {
            self.reporter.emit(&LockEvent::ServerRestricted {
                server: &node.server,
                command: "ROLE",
                effect: "a replica cannot be recognized",
                error: &error_text(error),
            });
            return None;
        }
        let text = format!("cannot read the role of the lock server at {}", node.text);
        Some(lock_error(text, error))
    }

    /// Returns what is known of the server's process, and the error for a version that needs plain scripts.
    /// Without a run id, waiters accept no notifications: they may come from another server process.
    fn process_of(
        &self,
        node: &Node,
        info: Result<Value, RedisError>,
    ) -> Result<(ServerProcessInfo, Option<LockError>), LockError> {
        let info: Result<String, RedisError> =
            info.and_then(|info| Ok(redis::from_redis_value(info)?));
        let info = match info {
            Ok(info) => info,
            Err(error) => {
                let error = if is_no_permission(&error) {
                    format!("the user may not run INFO: {}", error_text(&error))
                } else {
                    format!("the server does not answer to INFO: {}", error_text(&error))
                };
                self.reporter.emit(&LockEvent::NotificationsOff {
                    server: &node.server,
                    error: &error,
                });
                return Ok((ServerProcessInfo::UNKNOWN, None));
            }
        };
        let field = |name: &str| {
            info.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .map(str::trim)
        };
        let too_old = check_version(node, field("redis_version"))?;
        let version = match (field("valkey_version"), field("redis_version")) {
            (Some(version), _) => Some(format!("Valkey {version}")),
            (None, Some(version)) => Some(format!("Redis {version}")),
            (None, None) => None,
        };
        if let Some(version) = version {
            self.set_server_version(tidy(&version, MAX_LABEL));
        }
        if let Some(enabled) = field("cluster_enabled") {
            self.check_mode(node, enabled == "1")?;
        }
        if self.access.kind == DeploymentKind::Sentinel
            && field("role").is_some()
            && field("min_slaves_good_slaves").is_none()
        {
            self.warn_of_lone_writes(node);
        }
        self.check_eviction(node, field("maxmemory"), field("maxmemory_policy"));
        let Some(run_id) = field("run_id") else {
            return Ok((ServerProcessInfo::UNKNOWN, too_old));
        };
        let mut hasher = DefaultHasher::new();
        run_id.hash(&mut hasher);
        let uptime = (self.access.kind == DeploymentKind::Quorum)
            .then(|| field("uptime_in_seconds")?.parse().ok())
            .flatten();
        let process = ServerProcessInfo {
            run_id: hasher.finish().clamp(UNKNOWN_RUN_ID + 1, ANY_PROCESS - 1),
            uptime: uptime.map(Duration::from_secs),
        };
        Ok((process, too_old))
    }

    /// Warns, once, about a primary that takes writes without a replica: after it was cut off, it would
    /// grant locks that the next primary does not know.
    fn warn_of_lone_writes(&self, node: &Node) {
        if self.lone_writes_are_known.swap(true, Ordering::Relaxed) {
            return;
        }
        self.reporter.emit(&LockEvent::ServerRestricted {
            server: &node.server,
            command: "min-replicas-to-write",
            effect: "a primary that is cut off from its replicas still grants locks: set it to 1",
            error: "the setting is 0",
        });
    }

    /// Warns if the server may evict keys, and so locks, when its memory is full.
    fn check_eviction(&self, node: &Node, limit: Option<&str>, policy: Option<&str>) {
        let (Some(limit), Some(policy)) = (limit, policy) else {
            return;
        };
        if limit != "0" && policy != "noeviction" {
            if self.eviction_is_known.swap(true, Ordering::Relaxed) {
                return;
            }
            self.reporter.emit(&LockEvent::EvictionPolicy {
                server: &node.server,
                policy: &tidy(policy, MAX_LABEL),
            });
        }
    }
}

pub(super) fn check_role(node: &Node, role: &Value) -> Result<(), LockError> {
    let role = match role {
        Value::Array(parts) => match parts.first() {
            Some(Value::BulkString(role)) => role.as_slice(),
            _ => b"",
        },
        // The server does not know roles.
        _ => return Ok(()),
    };
    let address = &node.text;
    match role {
        b"master" => Ok(()),
        b"active-replica" => Err(LockError::advised(
            BackendErrorKind::Unsupported,
            format!("the server at {address} is an active replica: two servers accept writes"),
            "connect to a primary without active replication; a replica would bring released locks back",
        )),
        b"sentinel" => Err(LockError::advised(
            BackendErrorKind::Unsupported,
            format!("the server at {address} is a Redis Sentinel, and has no locks"),
            "use redis+sentinel://host/service, or rediss+sentinel:// with TLS, with the name of the service",
        )),
        _ => Err(LockError::backend(
            BackendErrorKind::NotPrimary,
            format!("the lock server at {address} is a replica"),
        )),
    }
}

/// What `INFO` says about the process of the server.
struct ServerProcessInfo {
    run_id: u64,
    uptime: Option<Duration>,
}

impl ServerProcessInfo {
    const UNKNOWN: Self = Self {
        run_id: UNKNOWN_RUN_ID,
        uptime: None,
    };
}

/// Reads the epoch of the node itself from its `CLUSTER INFO`.
pub(super) fn my_epoch(info: &str) -> Option<u64> {
    let epoch = info
        .lines()
        .find_map(|line| line.strip_prefix("cluster_my_epoch:"))?;
    epoch.trim().parse().ok()
}

/// Returns the text of a field of a map.
fn text_of(map: Value, field: &str) -> Option<String> {
    let Value::Map(fields) = map else {
        return None;
    };
    let mut fields = fields.into_iter();
    let (_, value) = fields.find(|(name, _)| {
        let name = redis::from_redis_value_ref::<String>(name);
        name.is_ok_and(|name| name == field)
    })?;
    redis::from_redis_value(value).ok()
}
