//! One server of a quorum, and the commands that an acquisition sends to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::super::connection::Connection;
use super::super::errors::timed_out;
use super::super::single::RedisStore;
use super::no_run_id;
use super::unreleased::Unreleased;
use super::vote::AcquireVote;
use crate::error::{BackendErrorKind, LockError};
use crate::store::Store;
use crate::sync::Mutex;
use crate::telemetry::{LockCommand, LockEvent};
use lock_protocol::acquisition::{AcquireOutcome, NO_ORIGIN, Origin, RenewOutcome, SentAcquires};
use lock_protocol::cleanup::ReleaseRequest;
use lock_protocol::clock::{Clock, Deadline, Moment};
use lock_protocol::clock_sync::UNKNOWN_RUN_ID;
use lock_protocol::fencing_token::FencingToken;
use lock_protocol::key::LockKey;
use lock_protocol::lease::LeaseConfig;
use lock_protocol::op::{OpKind, Raise, RaiseTo, Renewal};
use lock_protocol::owner_id::OwnerId;
use lock_protocol::quorum::{Members, MetProcess, SeenProcess, ServerLease, Standing};

/// How often a server may reply that a command came late, or that more dead waiters are to be removed.
const ACQUIRE_TRIES: u8 = 5;

/// One server of a quorum.
pub(super) struct QuorumServer {
    pub(super) store: RedisStore,
    number: usize,
    roster: Arc<Roster>,
    pub(super) unreleased: Unreleased,
}

/// What the servers of a quorum share.
pub(super) struct Roster {
    members: Mutex<Members>,
    /// For error texts.
    addresses: Box<[Arc<str>]>,
}

impl Roster {
    pub(super) fn new(stores: &[RedisStore], quarantine: Duration) -> Self {
        let address = |store: &RedisStore| store.client.pool.connector.node().text();
        Self {
            members: Mutex::new(Members::new(stores.len(), quarantine)),
            addresses: stores.iter().map(address).collect(),
        }
    }
}

/// What an acquisition sends to each server.
#[derive(Clone)]
pub(super) struct AcquireOrder {
    pub(super) key: LockKey,
    pub(super) owner_id: OwnerId,
    pub(super) lease_config: LeaseConfig,
    pub(super) label: Arc<str>,
    pub(super) origins: Arc<SentOrigins>,
}

/// The connections over which an acquisition was sent, by server. Once it is granted, only those without a reply.
#[derive(Debug)]
pub(super) struct SentOrigins {
    origins: Box<[AtomicU64]>,
    /// By then, nothing of the acquisition is left at any server.
    expires_at: Moment,
}

impl SentOrigins {
    pub(super) fn new(servers: usize, expires_at: Moment) -> Self {
        Self {
            origins: (0..servers).map(|_| AtomicU64::new(NO_ORIGIN)).collect(),
            expires_at,
        }
    }

    pub(super) fn has_expired(&self, now: Moment) -> bool {
        self.expires_at <= now
    }

    pub(super) fn of(&self, server: usize) -> Option<Origin> {
        let origin = self.origins.get(server)?.load(Ordering::Relaxed);
        (origin != NO_ORIGIN).then_some(origin)
    }

    fn set(&self, server: usize, origin: Origin) {
        if let Some(known) = self.origins.get(server) {
            known.store(origin, Ordering::Relaxed);
        }
    }

    /// The server has replied, so no command can overtake the acquire any more.
    pub(super) fn answered(&self, server: usize) {
        self.set(server, NO_ORIGIN);
    }
}

/// Which servers take a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// Those that count.
    Trusted,
    /// Also those in quarantine: a holder heals its lock there.
    Any,
}

/// Which token a key has after a raise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RaiseKind {
    /// The higher one.
    Higher,
    /// The token of the raise.
    Exact,
}

impl QuorumServer {
    pub(super) fn new(store: RedisStore, number: usize, roster: Arc<Roster>) -> Self {
        Self {
            store,
            number,
            roster,
            unreleased: Unreleased::default(),
        }
    }

    /// Returns the address, for error texts.
    pub(super) fn address(&self) -> &str {
        &self.roster.addresses[self.number]
    }

    pub(super) fn run_id(&self) -> Option<u64> {
        self.roster.members.lock().run_id(self.number)
    }

    /// Returns the process to which the last connection led. `None` if the server was never connected, or has no vote.
    pub(super) fn process(&self) -> Option<MetProcess> {
        let now = Clock::System.now();
        self.roster.members.lock().process(self.number, now)
    }

    /// Returns whether the server may be asked for a new acquisition: it is not in quarantine. One that was the same as
    /// another server may be asked, because its address may lead to a server of its own by now.
    pub(super) fn may_count(&self) -> bool {
        let now = Clock::System.now();
        let standing = self.roster.members.lock().standing(self.number, now);
        standing != Some(Standing::Quarantined)
    }

    /// Returns whether the server is known to be the same as another one of the quorum.
    pub(super) fn is_duplicate(&self) -> bool {
        let now = Clock::System.now();
        let standing = self.roster.members.lock().standing(self.number, now);
        matches!(standing, Some(Standing::Duplicate(_)))
    }

    /// Checks that a restart of the server can be noticed, where it has to be.
    pub(super) fn check_run_id(&self, met: MetProcess) -> Result<(), LockError> {
        let connector = &self.store.client.pool.connector;
        if met.run_id != UNKNOWN_RUN_ID || connector.config.settings.quarantine.is_zero() {
            return Ok(());
        }
        Err(no_run_id(self.address(), connector.handshake.polling()))
    }

    /// Records the process that serves a connection. Returns an error if it is another server of the quorum.
    pub(super) fn observe(&self, connection: &Connection) -> Result<MetProcess, LockError> {
        let seen = SeenProcess {
            run_id: connection.first.run_id,
            connected_at: connection.first.sent,
            uptime: connection.uptime,
        };
        let now = Clock::System.now();
        let known = self.run_id().filter(|known| *known != seen.run_id);
        let last_alive = known.and_then(|known| connection.node().last_alive(known));
        let (before, standing) = {
            let mut members = self.roster.members.lock();
            let before = members.standing(self.number, now);
            members.connected(self.number, seen, last_alive.unwrap_or(now));
            (before, members.standing(self.number, now))
        };
        if let Some(Standing::Duplicate(of)) = standing {
            let (one, other) = (&self.roster.addresses[of], self.address());
            let text = format!("the lock servers at {one} and {other} are one server");
            if before != standing {
                self.reports_duplicate(&text);
            }
            return Err(LockError::advised(
                BackendErrorKind::InvalidUrl,
                text,
                "name different servers: each of them counts once in the quorum",
            ));
        }
        Ok(MetProcess {
            run_id: seen.run_id,
            counts: standing == Some(Standing::Counts),
        })
    }

    fn reports_duplicate(&self, text: &str) {
        let client = &self.store.client;
        client.reporter.emit(&LockEvent::ServerRestricted {
            server: &client.pool.connector.node().server,
            command: "redis+quorum",
            effect: "this address has no vote, until it leads to a server of its own",
            error: text,
        });
    }

    async fn admit(
        &self,
        admission: Admission,
        limit: Duration,
    ) -> Result<Arc<Connection>, LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        let pool = &self.store.client.pool;
        let connection = pool.for_current_runtime(deadline).await?;
        let standing = self.observe(&connection)?;
        if admission == Admission::Trusted {
            self.check_run_id(standing)?;
        }
        if standing.counts || admission == Admission::Any {
            Ok(connection)
        } else {
            Err(LockError::advised(
                BackendErrorKind::Loading,
                format!(
                    "the lock server at {} restarted a moment ago",
                    self.address()
                ),
                "it counts again at the end of its `quarantine`",
            ))
        }
    }

    /// Acquires the key at this server, without an entry in the queue.
    pub(super) async fn acquire(
        &self,
        number: usize,
        order: &AcquireOrder,
        admission: Admission,
        deadline: Deadline,
    ) -> Result<AcquireVote, LockError> {
        let client = &self.store.client;
        let began = client.begin_command();
        let mut result = self.try_acquire(number, order, admission, deadline).await;
        let is_cut = result.as_ref().is_err_and(LockError::is_unreachable);
        if is_cut && !deadline.left().is_zero() {
            // The server had closed an idle connection. Under the same owner id, a second copy does no harm.
            result = self.try_acquire(number, order, admission, deadline).await;
        }
        client.end_command(LockCommand::Acquire, began, result.as_ref().err());
        result
    }

    async fn try_acquire(
        &self,
        number: usize,
        order: &AcquireOrder,
        admission: Admission,
        deadline: Deadline,
    ) -> Result<AcquireVote, LockError> {
        let connection = self.admit(admission, deadline.left()).await?;
        order.origins.set(number, connection.origin);
        self.acquire_over(order, &connection, deadline).await
    }

    async fn acquire_over(
        &self,
        order: &AcquireOrder,
        connection: &Connection,
        deadline: Deadline,
    ) -> Result<AcquireVote, LockError> {
        let label = Arc::clone(&order.label);
        let (owner_id, key) = (order.owner_id, order.key.clone());
        let mut sent = SentAcquires::new(owner_id, key, order.lease_config, label, None);
        for _ in 0..ACQUIRE_TRIES {
            let kind = OpKind::Acquire(&mut sent);
            let acquiring = self.store.client.run_over(connection, kind, deadline);
            match acquiring.await.acquired()? {
                AcquireOutcome::Held {
                    token,
                    sent,
                    remaining,
                } => {
                    return Ok(AcquireVote::Held(ServerLease {
                        token,
                        remaining,
                        sent_at: sent,
                        run_id: connection.first.run_id,
                    }));
                }
                AcquireOutcome::Queued {
                    holder,
                    holder_expiry,
                    ..
                }
                | AcquireOutcome::Busy {
                    holder,
                    holder_expiry,
                } => {
                    let ends = holder_expiry.ends();
                    return Ok(AcquireVote::Busy {
                        holder,
                        remaining: ends.map(|ends| ends.since(Clock::System.now())),
                    });
                }
                AcquireOutcome::Foreign { found } => return Ok(AcquireVote::Foreign { found }),
                AcquireOutcome::Late
                | AcquireOutcome::More
                // A quorum has no queue, so it asks for no limit.
                | AcquireOutcome::Full { .. }
                | AcquireOutcome::NotOwner
                | AcquireOutcome::StartOver => {}
            }
        }
        Err(self.rejects())
    }

    fn rejects(&self) -> LockError {
        timed_out(&format!(
            "the lock server at {} rejects commands as late, or has very many dead waiters",
            self.address()
        ))
    }

    /// Writes the token of the quorum to this server. Returns `None` if the key is not the caller's.
    pub(super) async fn raise(
        &self,
        order: &AcquireOrder,
        token: FencingToken,
        kind: RaiseKind,
        admission: Admission,
        deadline: Deadline,
    ) -> Result<Option<ServerLease>, LockError> {
        let connection = self.admit(admission, deadline.left()).await?;
        let renewal = Renewal {
            key: order.key.clone(),
            owner_id: order.owner_id,
            ttl: order.lease_config.ttl.as_duration(),
            lease_config: order.lease_config,
            label: Arc::clone(&order.label),
            confirmed_at: Clock::System.now(),
        };
        let to = match kind {
            RaiseKind::Higher => RaiseTo::AtLeast(token),
            RaiseKind::Exact => RaiseTo::Exactly(token),
        };
        let raise = Raise { renewal, to };
        let kind = OpKind::Raise(&raise);
        let raising = self.store.client.run_over(&connection, kind, deadline);
        Ok(match raising.await.renewed()? {
            RenewOutcome::Held {
                token,
                sent,
                remaining,
            } => Some(ServerLease {
                token,
                remaining,
                sent_at: sent,
                run_id: connection.first.run_id,
            }),
            RenewOutcome::NotOwner(_) => None,
        })
    }

    /// Takes an acquire back. Returns whether it can take effect no more.
    pub(super) async fn cancel(
        &self,
        request: &ReleaseRequest,
        was_answered: bool,
        limit: Duration,
    ) -> bool {
        // Only on the connection of the acquire, the cancel cannot overtake it.
        let pool = &self.store.client.pool;
        let follows = self.store.joins_batches(&request.key)
            && request
                .origin
                .is_some_and(|origin| pool.by_origin(origin).is_some());
        let result = self.as_store().release(request, limit).await;
        result.is_ok() && (was_answered || follows)
    }

    /// Returns the server as a store of its own.
    pub(super) fn as_store(&self) -> &dyn Store {
        &self.store
    }
}
