//! Checks a new connection: role, version, run id, clock and eviction policy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::RedisConnectionInfo;

use super::dial::Stream;
use super::errors::{
    connect_error, is_database_out_of_range, is_select_in_cluster, login_error, no_database,
    no_resp3,
};
use super::login::LoginError;
#[cfg(feature = "cluster")]
use super::membership::{Shared, ids_of};
use super::node::Node;
use super::node_config::{DeploymentKind, LAST_EPOCH, NodeConfig};
use crate::error::texts::text_of;
use crate::error::{BackendErrorKind, LockError};
use crate::store::PollingReason;
use crate::sync::Mutex;
use crate::telemetry::{ConnectionKind, LockEvent};
use lock_protocol::clock::Clock;
use lock_protocol::clock_sync::{ClockSync, UNKNOWN_RUN_ID};
use lock_protocol::codec::abilities::Abilities;
use lock_protocol::codec::accepted;
use lock_protocol::dialect::ReleaseMethod;
use lock_protocol::identity::{Hello, Info, Role, time_of};
use lock_protocol::op::{Refusal, RefusalKind};
use lock_protocol::resp::{CommandBuf, Replies, Reply};
use lock_protocol::scripts::{Script, ScriptForm};
use lock_protocol::wire::{MAX_LABEL, tidy};

mod preparation;
mod version;

use preparation::{Preparation, ask};
use version::{check_options_of_set, check_version};

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

/// Checks the connections to one server, and remembers what was reported of it.
pub(super) struct Handshake {
    pub(super) config: Arc<NodeConfig>,
    /// Each connection loads them before its first command.
    pub(super) scripts: Vec<&'static Script>,
    /// `Conditional` or `Auto`, if it has to find out which commands check the owner.
    pub(super) release: Option<ReleaseMethod>,
    /// The eviction policy was reported.
    eviction_is_known: AtomicBool,
    /// A primary without `min-replicas-to-write` was reported.
    lone_writes_are_known: AtomicBool,
    /// A server whose role cannot be read was reported.
    unknown_role_is_known: AtomicBool,
    /// A node of a cluster that says in `INFO` that it is none was reported.
    odd_mode_is_known: AtomicBool,
    /// That no notifications come was reported.
    lack_of_notifications_is_known: AtomicBool,
    /// Why no notifications come, by the latest handshake.
    polling: Mutex<Option<PollingReason>>,
    /// An epoch beyond all that a lead counts was reported.
    high_epoch_is_known: AtomicBool,
    /// The version of the server at the latest handshake.
    server_version: Mutex<Option<Arc<str>>>,
}

impl Handshake {
    pub(super) fn new(config: Arc<NodeConfig>, scripts: Vec<&'static Script>) -> Self {
        Self {
            config,
            scripts,
            release: None,
            eviction_is_known: AtomicBool::new(false),
            lone_writes_are_known: AtomicBool::new(false),
            unknown_role_is_known: AtomicBool::new(false),
            odd_mode_is_known: AtomicBool::new(false),
            lack_of_notifications_is_known: AtomicBool::new(false),
            polling: Mutex::default(),
            high_epoch_is_known: AtomicBool::new(false),
            server_version: Mutex::default(),
        }
    }

    pub(super) fn server_version(&self) -> Option<Arc<str>> {
        self.server_version.lock().clone()
    }

    /// Returns why no notifications come from the server, as far as a handshake shows it.
    pub(super) fn polling(&self) -> Option<PollingReason> {
        *self.polling.lock()
    }

    /// Reads role, server information and time, beside what the server said of itself at the login, loads the scripts, and sets the name of the
    /// connection, all in one pipeline. Some servers and some dialects need a second one.
    pub(super) async fn run(
        &self,
        node: &Node,
        stream: &mut Stream,
        hello: Hello,
        kind: ConnectionKind,
    ) -> Result<Greeting, LockError> {
        let deployment = self.config.kind;
        let is_cluster = deployment == DeploymentKind::Cluster;
        let name = self.config.client_name(kind);
        let preparation = Preparation {
            node,
            reporter: &self.config.reporter,
            scripts: &self.scripts,
            release: self.release,
        };
        let questions = |out: &mut CommandBuf<'_>| {
            out.command("ROLE");
            let mut info = out.command("INFO");
            info.arg("server")
                .arg("memory")
                .arg("cluster")
                .arg("replication");
            drop(info);
            out.command("TIME");
            if is_cluster {
                out.command("CLUSTER").arg("INFO");
                out.command("CLUSTER").arg("MYID");
            }
            preparation.write(out);
            // Last, because its outcome does not matter: many users may not run it.
            out.command("CLIENT").arg("SETNAME").arg(&name);
        };
        let sent = Clock::System.now();
        let wall_before = since_epoch();
        let replies = ask(node, stream, questions).await?;
        let wall_after = since_epoch();
        let mut replies = Replies::new(&replies);
        let role = accepted(replies.next()).map(Role::of_reply);
        let info = accepted(replies.next());
        let time = accepted(replies.next());
        let cluster = is_cluster.then(|| ClusterReplies {
            info: accepted(replies.next()),
            id: accepted(replies.next()),
        });
        // A Sentinel replies to ROLE, but not to TIME.
        self.check_role(node, role.as_ref().ok().copied().flatten())?;
        // A server that rejects TIME cannot serve any command now; its reason becomes the error.
        let server_us = time
            .and_then(|time| time_of(time).ok_or_else(Refusal::unreadable))
            .map_err(|refusal| {
                let text = format!("the lock server at {} rejects commands", node.text());
                LockError::refused_as(text, &refusal)
            })?;
        let first = FirstReplies {
            hello,
            role,
            info,
            cluster,
        };
        let second = self.ask_again(node, stream, &first).await?;
        let second = second.as_deref().map(Info::new);
        let is_primary = self.is_primary(node, &first, second)?;
        let waited = Clock::System.now().since(sent);
        self.check_mode(node, stream, &first, second).await?;
        let (mut process, form) = self.process_of(node, &first, second)?;
        if form.is_none() {
            check_options_of_set(node, stream, &self.config.settings.prefix).await?;
        }
        #[cfg(feature = "cluster")]
        self.check_membership(node, stream, &first).await?;
        // The server read its uptime at some moment after the sending. At the sending it was shorter by this much.
        process.uptime = process.uptime.map(|uptime| uptime.saturating_sub(waited));
        let abilities = preparation
            .finish(stream, &mut replies, form.unwrap_or(ScriptForm::Flagged))
            .await?;
        let wall = Duration::from_micros(server_us);
        // The server read its clock at some moment between the two.
        let difference = wall_before
            .saturating_sub(wall)
            .max(wall.saturating_sub(wall_after));
        let epoch = match first.cluster {
            Some(cluster) => self.epoch_of(node, cluster.info)?,
            None => node.epoch,
        };
        if epoch > LAST_EPOCH && !self.high_epoch_is_known.swap(true, Ordering::Relaxed) {
            self.config.reporter.emit(&LockEvent::ServerRestricted {
                server: &node.server,
                command: "the configuration epoch",
                effect: "fencing tokens may go back after further failovers",
                error: &format!("the epoch is {epoch}, and a token counts at most {LAST_EPOCH}"),
            });
        }
        let first = ClockSync {
            sent,
            server_us,
            run_id: process.run_id,
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

    /// Asks for the information that the server didn't give with several sections. Returns it. Each fact has another
    /// source: see [`identity`](lock_protocol::identity).
    async fn ask_again(
        &self,
        node: &Node,
        stream: &mut Stream,
        first: &FirstReplies<'_>,
    ) -> Result<Option<String>, LockError> {
        if let Err(refusal) = &first.role
            && refusal.is_temporary()
        {
            let text = format!("cannot read the role of the lock server at {}", node.text());
            return Err(LockError::refused_as(text, refusal));
        }
        // Before Redis 7, and on other engines, INFO has one section at most.
        let section = match &first.info {
            Err(refusal) if refusal.kind != RefusalKind::Permission => None,
            Ok(_) if first.roles().next().is_none() => Some("replication"),
            _ => return Ok(None),
        };
        let question = |out: &mut CommandBuf<'_>| {
            let mut info = out.command("INFO");
            if let Some(section) = section {
                info.arg(section);
            }
        };
        let replies = ask(node, stream, question).await?;
        let info = accepted(Replies::new(&replies).next()).ok();
        let info = info.and_then(Info::read);
        Ok(info.map(|info| info.as_str().to_owned()))
    }

    /// Returns whether the server is a primary: it isn't if any source says that it is something else. Only a node of a
    /// cluster may be a replica.
    fn is_primary(
        &self,
        node: &Node,
        first: &FirstReplies<'_>,
        second: Option<Info<'_>>,
    ) -> Result<bool, LockError> {
        let mut is_known = false;
        for role in first.roles().chain(second.and_then(Info::role)) {
            self.check_role(node, Some(role))?;
            if role != Role::Primary {
                return Ok(false);
            }
            is_known = true;
        }
        if !is_known && !self.unknown_role_is_known.swap(true, Ordering::Relaxed) {
            let unreadable = Refusal::unreadable();
            let refusal = first.role.as_ref().err().unwrap_or(&unreadable);
            self.config.reporter.emit(&LockEvent::ServerRestricted {
                server: &node.server,
                command: "ROLE",
                effect: "a replica cannot be recognized",
                error: &text_of(refusal),
            });
        }
        Ok(true)
    }

    /// Fails for a server that isn't a primary, unless it belongs to a cluster, where a replica redirects each command.
    fn check_role(&self, node: &Node, role: Option<Role>) -> Result<(), LockError> {
        if self.config.kind == DeploymentKind::Cluster {
            return Ok(());
        }
        role.map_or(Ok(()), |role| check_role(node, role))
    }

    /// Returns the configuration epoch that a node of a cluster has. Without the right to read it, tokens are those of
    /// a single server. A node that refuses each command for a moment has an epoch, which must not be left out.
    fn epoch_of(&self, node: &Node, reply: Result<Reply<'_>, Refusal>) -> Result<u64, LockError> {
        let info = reply.and_then(|reply| Info::read(reply).ok_or_else(Refusal::unreadable));
        match info {
            Ok(info) => Ok(info.my_epoch().unwrap_or_default()),
            Err(refusal) if refusal.is_of_command() => {
                self.config.reporter.emit(&LockEvent::ServerRestricted {
                    server: &node.server,
                    command: "CLUSTER INFO",
                    effect: "fencing tokens may go back after a failover",
                    error: &text_of(&refusal),
                });
                Ok(0)
            }
            Err(refusal) => Err(unknown_epoch(node, &refusal)),
        }
    }

    /// Checks that the URL says whether the server is a node of a cluster. A server that serves the commands of a node is
    /// one, whatever `INFO` says.
    async fn check_mode(
        &self,
        node: &Node,
        stream: &mut Stream,
        first: &FirstReplies<'_>,
        second: Option<Info<'_>>,
    ) -> Result<(), LockError> {
        let enabled = (first.info().or(second)).and_then(|info| info.field("cluster_enabled"));
        let is_in_cluster = enabled.map(|enabled| enabled == "1");
        match (&first.cluster, is_in_cluster.or(first.hello.is_in_cluster)) {
            (_, None) | (Some(_), Some(true)) | (None, Some(false)) => Ok(()),
            (None, Some(true)) => Err(self.is_clustered(node)),
            (Some(cluster), Some(false)) => {
                // A user may lack the right, and a service the command.
                if cluster.info.is_err() && !has_slots(node, stream).await? {
                    return Err(self.is_no_node(node));
                }
                if !self.odd_mode_is_known.swap(true, Ordering::Relaxed) {
                    self.config.reporter.emit(&LockEvent::ServerRestricted {
                        server: &node.server,
                        command: "INFO",
                        effect: "it is used as a node of a cluster, because it serves the commands of one",
                        error: "it says that it is not part of a cluster",
                    });
                }
                Ok(())
            }
        }
    }

    /// Returns the error for a single server where a node of a cluster should be.
    fn is_no_node(&self, node: &Node) -> LockError {
        #[cfg(feature = "cluster")]
        if let Some(membership) = &node.membership
            && membership.is_known()
        {
            return node.is_foreign(&self.config.reporter);
        }
        LockError::advised(
            BackendErrorKind::Unsupported,
            format!(
                "the server at {} is not part of a Redis Cluster",
                node.text()
            ),
            if self.config.tls.is_some() {
                "use rediss:// for a single server"
            } else {
                "use redis:// for a single server"
            },
        )
    }

    /// Checks that a node belongs to the cluster in use. A node that doesn't tell its id cannot be recognized.
    #[cfg(feature = "cluster")]
    async fn check_membership(
        &self,
        node: &Node,
        stream: &mut Stream,
        first: &FirstReplies<'_>,
    ) -> Result<(), LockError> {
        let id = first
            .cluster
            .as_ref()
            .and_then(|told| told.id.as_ref().ok());
        let (Some(membership), Some(id)) = (&node.membership, id.and_then(|id| id.word())) else {
            return Ok(());
        };
        if membership.has(id) {
            return Ok(());
        }
        // It may have joined after the slot map was read. Then it knows nodes of the map.
        let question = |out: &mut CommandBuf<'_>| {
            out.command("CLUSTER").arg("SLOTS");
        };
        let replies = ask(node, stream, question).await?;
        let ids = Replies::new(&replies).next().map(ids_of);
        let ids = ids.filter(|ids| !ids.is_empty());
        match ids.map(|ids| membership.shared(&ids)) {
            Some(Shared::Few | Shared::Most) => return Ok(()),
            Some(Shared::None) => membership.found_foreign(&node.address),
            // It knows no cluster.
            None => {}
        }
        Err(node.is_foreign(&self.config.reporter))
    }

    fn is_clustered(&self, node: &Node) -> LockError {
        let advice = if self.config.tls.is_some() {
            "use rediss+cluster:// instead of rediss://"
        } else {
            "use redis+cluster:// instead of redis://"
        };
        let text = format!("the server at {} is a node of a Redis Cluster", node.text());
        LockError::advised(BackendErrorKind::Unsupported, text, advice)
    }

    /// Returns the error of the login, or of the choice of a database.
    pub(super) fn setup_error(
        &self,
        node: &Node,
        login: &RedisConnectionInfo,
        failed: &LoginError,
    ) -> LockError {
        let (db, error) = (login.db(), &failed.error);
        if db != 0 && is_select_in_cluster(error) {
            self.is_clustered(node)
        } else if db != 0 && is_database_out_of_range(error) {
            no_database(&node.text(), db)
        } else if failed.is_of_resp3(login) {
            no_resp3(&node.text(), &failed.text())
        } else if failed.refusal.is_some() {
            let text = format!("cannot connect to the lock server at {}", node.text());
            failed.to_lock_error(&text)
        } else if self.config.tls.is_none() {
            login_error(&node.text(), error)
        } else {
            connect_error(&node.text(), error)
        }
    }

    /// Returns what is known of the server's process, and the form of the scripts that its version runs, if it tells it.
    /// Without a run id, waiters accept no notifications: they may come from another server process.
    fn process_of(
        &self,
        node: &Node,
        first: &FirstReplies<'_>,
        second: Option<Info<'_>>,
    ) -> Result<(ServerProcessInfo, Option<ScriptForm>), LockError> {
        let info = first.info().or(second);
        let version = info.and_then(|info| info.field("redis_version"));
        let form = check_version(node, version.or(first.hello.version.as_deref()))?;
        let Some(info) = info else {
            let unreadable = Refusal::unreadable();
            let refusal = first.info.as_ref().err().unwrap_or(&unreadable);
            let (why, error) = if refusal.kind == RefusalKind::Permission {
                (PollingReason::InfoDenied, "the user may not run INFO")
            } else {
                (PollingReason::NoRunId, "the server does not answer to INFO")
            };
            let error = format!("{error}: {}", text_of(refusal));
            self.report_lack_of_notifications(node, why, &error);
            return Ok((ServerProcessInfo::UNKNOWN, form));
        };
        if let Some(version) = info.version() {
            let version = tidy(&version, MAX_LABEL);
            *self.server_version.lock() = Some(version.into());
        }
        if self.config.kind == DeploymentKind::Sentinel
            && info.role().is_some()
            && info.field("min_slaves_good_slaves").is_none()
        {
            self.warn_of_lone_writes(node);
        }
        self.check_eviction(
            node,
            info.field("maxmemory"),
            info.field("maxmemory_policy"),
        );
        let uptime = (self.config.kind == DeploymentKind::Quorum)
            .then(|| info.field("uptime_in_seconds")?.parse().ok())
            .flatten();
        let Some(run_id) = info.run_id() else {
            self.report_lack_of_notifications(node, PollingReason::NoRunId, "INFO shows no run_id");
            return Ok((ServerProcessInfo::UNKNOWN, form));
        };
        *self.polling.lock() = None;
        let process = ServerProcessInfo {
            run_id,
            uptime: uptime.map(Duration::from_secs),
        };
        Ok((process, form))
    }

    /// Warns, once, that waiters poll.
    fn report_lack_of_notifications(&self, node: &Node, why: PollingReason, error: &str) {
        *self.polling.lock() = Some(why);
        if self
            .lack_of_notifications_is_known
            .swap(true, Ordering::Relaxed)
        {
            return;
        }
        self.config.reporter.emit(&LockEvent::NotificationsOff {
            server: &node.server,
            error,
        });
    }

    /// Warns, once, about a primary that takes writes without a replica: after it was cut off, it would
    /// grant locks that the next primary does not know.
    fn warn_of_lone_writes(&self, node: &Node) {
        if self.lone_writes_are_known.swap(true, Ordering::Relaxed) {
            return;
        }
        self.config.reporter.emit(&LockEvent::ServerRestricted {
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
            self.config.reporter.emit(&LockEvent::EvictionPolicy {
                server: &node.server,
                policy: &tidy(policy, MAX_LABEL),
            });
        }
    }
}

/// Returns the time that this machine's clock shows.
fn since_epoch() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// Returns whether the server knows who owns the slots of a cluster.
async fn has_slots(node: &Node, stream: &mut Stream) -> Result<bool, LockError> {
    let question = |out: &mut CommandBuf<'_>| {
        out.command("CLUSTER").arg("SLOTS");
    };
    let replies = ask(node, stream, question).await?;
    let slots = accepted(Replies::new(&replies).next()).ok();
    let mut ranges = slots.and_then(Reply::items).into_iter().flatten();
    Ok(ranges.next().is_some())
}

/// Returns the error for a node that has an epoch and does not tell it now.
pub(super) fn unknown_epoch(node: &Node, refusal: &Refusal) -> LockError {
    let text = format!(
        "cannot read the epoch of the lock server at {}",
        node.text()
    );
    LockError::refused_as(text, refusal)
}

pub(super) fn check_role(node: &Node, role: Role) -> Result<(), LockError> {
    let address = &node.text();
    match role {
        Role::Primary => Ok(()),
        Role::ActiveReplica => Err(LockError::advised(
            BackendErrorKind::Unsupported,
            format!("the server at {address} is an active replica: two servers accept writes"),
            "connect to a primary without active replication; a replica would bring released locks back",
        )),
        Role::Sentinel => Err(LockError::advised(
            BackendErrorKind::Unsupported,
            format!("the server at {address} is a Redis Sentinel, and has no locks"),
            "use redis+sentinel://host/service, or rediss+sentinel:// with TLS, with the name of the service",
        )),
        Role::Replica => Err(LockError::backend(
            BackendErrorKind::NotPrimary,
            format!("the lock server at {address} is a replica"),
        )),
    }
}

/// What the server replied to the first questions.
struct FirstReplies<'a> {
    /// The reply to the login. Empty in RESP2.
    hello: Hello,
    /// `None` if the server does not know roles.
    role: Result<Option<Role>, Refusal>,
    info: Result<Reply<'a>, Refusal>,
    /// `None` if the server isn't used as a node of a cluster.
    cluster: Option<ClusterReplies<'a>>,
}

impl<'a> FirstReplies<'a> {
    fn info(&self) -> Option<Info<'a>> {
        self.info.as_ref().ok().copied().and_then(Info::read)
    }

    /// Returns what each source says.
    fn roles(&self) -> impl Iterator<Item = Role> {
        let of_role = self.role.as_ref().ok().copied().flatten();
        let of_info = self.info().and_then(Info::role);
        [of_role, self.hello.role, of_info].into_iter().flatten()
    }
}

/// What a node of a cluster replied.
struct ClusterReplies<'a> {
    info: Result<Reply<'a>, Refusal>,
    id: Result<Reply<'a>, Refusal>,
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
