//! Checks a new connection: role, version, run id, clock and eviction policy.

use super::abilities::{Abilities, ask_commands};
use super::connection::{Connector, since_epoch};
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{ConnectionInfo, Pipeline, RedisError, Value};

use super::errors::{
    connect_error, error_text, is_database_out_of_range, is_select_in_cluster, lock_error,
    no_database,
};
use super::reply::micros_of;
use super::scripts::ScriptForm;
use crate::error::{BackendErrorKind, LockError};
use crate::protocol::clock::Clock;
use crate::protocol::clock_sync::{ClockSync, UNKNOWN_RUN_ID};
use crate::protocol::wire::{MAX_LABEL, tidy};
use crate::telemetry::{ConnectionKind, LockEvent};

mod preparation;

/// What the handshake found out.
pub(super) struct Greeting {
    /// The time and the run id of the server.
    pub(super) first: ClockSync,
    /// The least difference between this machine's clock and the server's.
    pub(super) clock_difference: Duration,
    pub(super) abilities: Abilities,
}

impl Connector {
    /// Reads role, server information and time, loads the scripts, and sets the name of the
    /// connection, all in one pipeline. Some dialects need more.
    pub(super) async fn handshake(
        &self,
        handle: &mut MultiplexedConnection,
        kind: ConnectionKind,
    ) -> Result<Greeting, LockError> {
        let mut pipeline = Pipeline::new();
        pipeline
            .cmd("ROLE")
            .cmd("INFO")
            .arg("server")
            .arg("memory")
            .arg("cluster")
            .cmd("TIME");
        for script in &self.scripts {
            pipeline
                .cmd("SCRIPT")
                .arg("LOAD")
                .arg(script.source(ScriptForm::Flagged));
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
            .map_err(|error| connect_error(&self.address, &error))?;
        let wall_after = since_epoch();
        let mut replies = replies.into_iter().map(Value::extract_error);
        let mut next = || replies.next().unwrap_or(Ok(Value::Nil));
        let (role, info, time) = (next(), next(), next());
        // A Sentinel replies to ROLE, but not to TIME.
        let role = role.map_err(|error| self.role_error(&error));
        if let Ok(role) = &role {
            self.check_role(role)?;
        }
        // A server that rejects TIME cannot serve any command now; its reason becomes the error.
        let server_us = time
            .and_then(|time| Ok(redis::from_redis_value(time)?))
            .map(|(seconds, micros): (u64, u64)| micros_of(seconds, micros))
            .map_err(|error| {
                let text = format!("the lock server at {} rejects commands", self.address);
                lock_error(text, &error)
            })?;
        if let Err(Some(error)) = role {
            return Err(error);
        }
        if info.is_err() {
            // Every user may run HELLO, and its reply also contains the mode.
            let greeting = handle.send_packed_command(&redis::cmd("HELLO")).await;
            let mode = greeting.ok().and_then(|greeting| text_of(greeting, "mode"));
            if mode.as_deref() == Some("cluster") {
                return Err(self.is_clustered());
            }
        }
        let (run_id, too_old) = self.run_id(info)?;
        let loaded = replies.by_ref().take(self.scripts.len());
        // All of them, so that the next reply is that of the next command.
        let refused = loaded
            .filter_map(Result::err)
            .fold(None, |first, error| first.or(Some(error)));
        let abilities = Abilities::default();
        if let Some(error) = refused {
            self.load_plain(handle, &self.scripts, error, &abilities)
                .await;
        }
        if let Some(release) = self.release {
            let commands = replies.next().unwrap_or(Ok(Value::Nil));
            self.choose_owner_check(handle, release, commands, &abilities)
                .await?;
        }
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
            run_id,
        };
        Ok(Greeting {
            first,
            clock_difference: difference,
            abilities,
        })
    }

    /// Returns the error of the login, or of the choice of a database.
    pub(super) fn setup_error(&self, info: &ConnectionInfo, error: &RedisError) -> LockError {
        let db = info.redis_settings().db();
        if db != 0 && is_select_in_cluster(error) {
            self.is_clustered()
        } else if db != 0 && is_database_out_of_range(error) {
            no_database(&self.address, db)
        } else {
            connect_error(&self.address, error)
        }
    }

    fn check_role(&self, role: &Value) -> Result<(), LockError> {
        let role = match role {
            Value::Array(parts) => match parts.first() {
                Some(Value::BulkString(role)) => role.as_slice(),
                _ => b"",
            },
            // The server does not know roles.
            _ => return Ok(()),
        };
        let address = &self.address;
        match role {
            b"master" => Ok(()),
            b"active-replica" => Err(LockError::advised(
                BackendErrorKind::Unsupported,
                format!("the server at {address} is an active replica: two servers accept writes"),
                "connect to a primary without active replication; a replica would bring released locks \
                 back",
            )),
            b"sentinel" => Err(LockError::advised(
                BackendErrorKind::Unsupported,
                format!("the server at {address} is a Redis Sentinel, which is not supported yet"),
                "connect to the primary that it watches",
            )),
            _ => Err(LockError::backend(
                BackendErrorKind::NotPrimary,
                format!("the lock server at {address} is a replica"),
            )),
        }
    }

    /// Returns the error for an unknown role; `None` if the role is not needed.
    fn role_error(&self, error: &RedisError) -> Option<LockError> {
        if error.code() == Some("NOPERM") {
            self.reporter.emit(&LockEvent::ServerRestricted {
                server: &self.server,
                command: "ROLE",
                effect: "a replica cannot be recognized",
                error: &error_text(error),
            });
            return None;
        }
        let text = format!(
            "cannot read the role of the lock server at {}",
            self.address
        );
        Some(lock_error(text, error))
    }

    /// Returns a number for the run id, and the error for a server of an old version. Without a run id, waiters accept no notifications: they may
    /// come from another server process.
    fn run_id(
        &self,
        info: Result<Value, RedisError>,
    ) -> Result<(u64, Option<LockError>), LockError> {
        let info: Result<String, RedisError> =
            info.and_then(|info| Ok(redis::from_redis_value(info)?));
        let info = match info {
            Ok(info) => info,
            Err(error) => {
                let error = format!("the user may not run INFO: {}", error_text(&error));
                self.reporter.emit(&LockEvent::NotificationsOff {
                    server: &self.server,
                    error: &error,
                });
                return Ok((UNKNOWN_RUN_ID, None));
            }
        };
        let field = |name: &str| {
            info.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .map(str::trim)
        };
        let too_old = self.check_version(field("redis_version")).err();
        let version = match (field("valkey_version"), field("redis_version")) {
            (Some(version), _) => Some(format!("Valkey {version}")),
            (None, Some(version)) => Some(format!("Redis {version}")),
            (None, None) => None,
        };
        if let Some(version) = version {
            self.set_server_version(tidy(&version, MAX_LABEL));
        }
        if field("cluster_enabled") == Some("1") {
            return Err(self.is_clustered());
        }
        self.check_eviction(field("maxmemory"), field("maxmemory_policy"));
        let Some(run_id) = field("run_id") else {
            return Ok((UNKNOWN_RUN_ID, too_old));
        };
        let mut hasher = DefaultHasher::new();
        run_id.hash(&mut hasher);
        Ok((hasher.finish().max(UNKNOWN_RUN_ID + 1), too_old))
    }

    fn is_clustered(&self) -> LockError {
        let address = &self.address;
        LockError::advised(
            BackendErrorKind::Unsupported,
            format!(
                "the server at {address} is a node of a Redis Cluster, which is not supported yet"
            ),
            "connect to a primary that is not part of a cluster",
        )
    }

    /// Warns if the server may evict keys, and so locks, when its memory is full.
    fn check_eviction(&self, limit: Option<&str>, policy: Option<&str>) {
        let (Some(limit), Some(policy)) = (limit, policy) else {
            return;
        };
        if limit != "0" && policy != "noeviction" {
            if self.eviction_is_known.swap(true, Ordering::Relaxed) {
                return;
            }
            self.reporter.emit(&LockEvent::EvictionPolicy {
                server: &self.server,
                policy: &tidy(policy, MAX_LABEL),
            });
        }
    }

    fn check_version(&self, version: Option<&str>) -> Result<(), LockError> {
        let major = version.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
        match major {
            Some(major) if major < 7 => Err(LockError::backend(
                BackendErrorKind::Unsupported,
                format!(
                    "the lock server at {} is Redis {}",
                    self.address,
                    tidy(version.unwrap_or_default(), MAX_LABEL)
                ),
            )),
            _ => Ok(()),
        }
    }
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
