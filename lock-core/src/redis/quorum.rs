//! Keeps locks that a majority of independent servers holds.
//!
//! Each server has its own connections and clock. The state machines of [`lock_protocol::quorum`] decide;
//! this store sends what they say to the servers, side by side, and passes the replies. Waiters poll:
//! there is no queue, because no server knows the order of all waiters.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::task::JoinSet;

use super::single::RedisStore;
use crate::config::Settings;
use crate::error::{BackendErrorKind, InvalidSetting, LockError};
use crate::store::{
    Boxed, Call, Dialects, PollingReason, Reach, Store, StoreStatus, StoreTraits, Together,
    check_runtime, ends_set, fail_all, supervised,
};
use crate::sync::{Mutex, assert_no_mutex_held};
use crate::telemetry::{LockEvent, Reporter, ServerAddress};
use lock_protocol::clock::{Clock, Deadline, Moment, ServerMs};
use lock_protocol::dialect::InvalidDialectReason;
use lock_protocol::key::LockKey;
use lock_protocol::lease;
use lock_protocol::op::{OpKind, Outcome};
use lock_protocol::owner_id::OwnerId;
use lock_protocol::quorum::majority;

mod admin;
mod attempt;
mod held;
mod release;
mod renewing;
mod server;
mod unreleased;
mod vote;

use held::HeldQuorum;
use server::{QuorumServer, Roster, SentOrigins};
use vote::lasting;

/// Keeps locks at a quorum.
pub(super) struct QuorumStore {
    servers: Arc<QuorumServers>,
    traits: StoreTraits,
}

/// The servers of a quorum, and what this manager has there.
struct QuorumServers {
    servers: Vec<Arc<QuorumServer>>,
    command_timeout: Duration,
    /// The turns of the attempts to acquire, by runtime.
    turns: Mutex<HashMap<Id, Weak<Semaphore>>>,
    reporter: Arc<Reporter>,
    held: Mutex<HashMap<OwnerId, HeldQuorum>>,
    /// The acquires that may have taken effect, and have no lease.
    sent: Mutex<HashMap<OwnerId, Arc<SentOrigins>>>,
    /// Notified after each reply to a renewal.
    renewal_counted: Notify,
    /// The number of releases that are running.
    releasing: AtomicUsize,
    /// Notified when it is zero.
    released: Notify,
}

/// Allows one attempt. A task owns the permit, because the caller's future may go unpolled for a long time.
struct Turn {
    _task: JoinSet<()>,
}

/// How many attempts of a manager run at once in one runtime. An attempt sends each server up to three commands in a row
/// and starts over if they take too long. If more of them ran at once than a busy machine can finish in that time, all
/// would start over and none would finish. With a round trip of 50 ms, 128 attempts acquire about 800 locks per second.
const MAX_ATTEMPTS: usize = 128;

/// Leases that ended are forgotten when there are this many leases, or twice as many as were left.
const FORGET_FROM: usize = 1024;

/// Returns a moment as the time in which unconfirmed acquires of a quorum are counted.
fn local_ms(moment: Moment) -> ServerMs {
    ServerMs::new(moment.as_nanos() / 1_000_000)
}

/// Returns the time of sending and the remaining time of a single command that confirms a lease until
/// `ends_at`.
fn as_confirmed(ends_at: Moment, ttl: Duration) -> (Moment, Duration) {
    let zero = Moment::from_nanos(0);
    let counted = lease::deadline(zero.plus(ttl), ttl).since(zero.plus(ttl));
    (ends_at.minus(counted), ttl)
}

impl QuorumServers {
    fn len(&self) -> usize {
        self.servers.len()
    }

    fn needed(&self) -> usize {
        majority(self.len())
    }

    fn get(&self, number: usize) -> Option<Arc<QuorumServer>> {
        self.servers.get(number).map(Arc::clone)
    }

    fn all(&self) -> impl Iterator<Item = Arc<QuorumServer>> {
        self.servers.iter().map(Arc::clone)
    }

    /// Returns the servers without those that are known to be the same as another one.
    fn voters(&self) -> impl Iterator<Item = &Arc<QuorumServer>> {
        self.servers.iter().filter(|server| !server.is_duplicate())
    }

    /// Returns the error for too few servers.
    fn no_quorum(&self, granted: usize) -> LockError {
        LockError::NoQuorum {
            granted,
            needed: self.needed(),
            servers: self.len(),
        }
    }

    /// Returns the turns of the calling runtime. Runtimes don't share them, so that a blocked one can't hold up the others.
    fn turns_here(&self) -> Result<Arc<Semaphore>, LockError> {
        let runtime = Handle::try_current().map_err(|_| LockError::NoRuntime)?;
        let made = Arc::new(Semaphore::new(MAX_ATTEMPTS));
        let mut all = self.turns.lock();
        if let Some(known) = all.get(&runtime.id()).and_then(Weak::upgrade) {
            return Ok(known);
        }
        all.retain(|_, turns| turns.strong_count() > 0);
        all.insert(runtime.id(), Arc::downgrade(&made));
        Ok(made)
    }

    /// Waits until an attempt may begin, which then lasts `limit` at most. If this returns an error, nothing was sent.
    ///
    /// # Cancel safety
    /// Dropping the future, or the turn, gives the turn to the next caller.
    async fn turn(&self, deadline: Deadline, limit: Duration) -> Result<Turn, LockError> {
        let turns = self.turns_here()?;
        let mut task = JoinSet::new();
        assert_no_mutex_held();
        if let Ok(turn) = Arc::clone(&turns).try_acquire_owned() {
            task.spawn(async move {
                tokio::time::sleep(limit).await;
                drop(turn);
            });
            return Ok(Turn { _task: task });
        }
        let (granted, has_turn) = oneshot::channel();
        task.spawn(async move {
            let turn = turns.acquire().await;
            if turn.is_ok() && granted.send(()).is_ok() {
                tokio::time::sleep(limit).await;
            }
        });
        let turn = Turn { _task: task };
        match tokio::time::timeout(deadline.left(), has_turn).await {
            Ok(Ok(())) => Ok(turn),
            // The runtime is shutting down.
            Ok(Err(_dropped)) => Err(LockError::NoRuntime),
            Err(_elapsed) => Err(LockError::advised(
                BackendErrorKind::TimedOut,
                format!("{MAX_ATTEMPTS} other attempts to acquire a lock are running"),
                "check the load of this machine and of the servers, or acquire fewer locks at once",
            )),
        }
    }

    fn hold(&self, owner_id: OwnerId, held: HeldQuorum) {
        let now = Clock::System.now();
        let mut ended = Vec::new();
        let mut all = self.held.lock();
        if all.len() >= FORGET_FROM && all.len() == all.capacity() {
            let is_over = |held: &HeldQuorum| !held.is_valid(now);
            ended.extend(all.extract_if(|_, held| is_over(held)));
        }
        all.insert(owner_id, held);
    }

    fn with_held<T>(
        &self,
        owner_id: OwnerId,
        change: impl FnOnce(&mut HeldQuorum) -> T,
    ) -> Option<T> {
        self.held.lock().get_mut(&owner_id).map(change)
    }

    fn forget_held(&self, owner_id: OwnerId) -> Option<HeldQuorum> {
        self.held.lock().remove(&owner_id)
    }

    fn sent(&self, owner_id: OwnerId, origins: Arc<SentOrigins>) {
        let now = Clock::System.now();
        let mut expired = Vec::new();
        let mut all = self.sent.lock();
        if all.len() >= FORGET_FROM && all.len() == all.capacity() {
            expired.extend(all.extract_if(|_, origins| origins.has_expired(now)));
        }
        all.insert(owner_id, origins);
        drop(all);
        drop(expired);
    }

    /// Returns the last moment at which an acquire without a reply may take effect, if none is sent any more.
    fn acquires_end_at(&self) -> Moment {
        let longest = self.command_timeout.saturating_mul(3);
        Clock::System.now().plus(longest)
    }

    fn is_sent(&self, owner_id: OwnerId) -> bool {
        self.sent.lock().contains_key(&owner_id)
    }

    fn forget_sent(&self, owner_id: OwnerId) -> Option<Arc<SentOrigins>> {
        self.sent.lock().remove(&owner_id)
    }
}

impl QuorumStore {
    /// Makes the store of these servers. It has no connection yet.
    pub(super) fn new(
        stores: Vec<RedisStore>,
        settings: &Settings,
        reporter: &Arc<Reporter>,
    ) -> Result<Self, LockError> {
        let (dialect, quarantine) = (settings.dialect, settings.quarantine);
        let traits = StoreTraits {
            one_server_per_lock: false,
            dialects: Dialects::Some {
                has: |dialect| dialect.capabilities().works_at_quorum(),
                others: InvalidDialectReason::InQuorum,
            },
            longest_ttl: Some(quarantine).filter(|it| !it.is_zero()),
            ..StoreTraits::SERVER
        };
        traits
            .check_dialect(dialect)
            .map_err(|reason| InvalidSetting::Dialect { dialect, reason })?;
        let roster = Arc::new(Roster::new(&stores, quarantine));
        let new = |(number, store)| {
            let roster = Arc::clone(&roster);
            Arc::new(QuorumServer::new(store, number, roster))
        };
        let servers = Arc::new(QuorumServers {
            servers: stores.into_iter().enumerate().map(new).collect(),
            command_timeout: settings.command_timeout,
            turns: Mutex::default(),
            reporter: Arc::clone(reporter),
            held: Mutex::default(),
            sent: Mutex::default(),
            renewal_counted: Notify::new(),
            releasing: AtomicUsize::new(0),
            released: Notify::new(),
        });
        servers.warn_of_even_number(reporter);
        Ok(Self { servers, traits })
    }

    /// Connects to all servers. A minority may be down.
    pub(super) async fn connect(self, deadline: Deadline) -> Result<Self, LockError> {
        let servers = &self.servers;
        let mut connecting = JoinSet::new();
        for server in servers.all() {
            let limit = deadline.left();
            connecting.spawn(async move {
                let client = &server.store.client;
                let connection = client.pool.first(limit).await?;
                client.server_changed_at(&connection);
                let met = server.observe(&connection)?;
                server.check_run_id(met)
            });
        }
        let mut connected = 0;
        while let Some(joined) = connecting.join_next().await {
            match joined.unwrap_or(Err(LockError::NoRuntime)) {
                Ok(()) => connected += 1,
                Err(error) if error.is_retryable() && !is_replica(&error) => {}
                Err(error) => return Err(error),
            }
        }
        if connected < servers.needed() {
            return Err(servers.no_quorum(connected));
        }
        Ok(self)
    }
}

/// Returns the error for a server whose restart can't be noticed.
fn no_run_id(address: &str, why: Option<PollingReason>) -> LockError {
    let (kind, text, advice) = if why == Some(PollingReason::InfoDenied) {
        (
            BackendErrorKind::Permission,
            "the user may not run INFO",
            "grant the right to run INFO",
        )
    } else {
        (
            BackendErrorKind::Unsupported,
            "INFO shows no run_id",
            "use a server that shows it, or a quarantine of zero with servers that keep their data",
        )
    };
    let text = format!("{text} at {address}, so a restart can't be noticed");
    LockError::advised(kind, text, advice)
}

fn is_replica(error: &LockError) -> bool {
    matches!(error, LockError::Backend(error) if error.kind() == BackendErrorKind::NotPrimary)
}

impl QuorumServers {
    /// Warns about a server that makes the quorum no safer: four tolerate as many failures as three.
    fn warn_of_even_number(&self, reporter: &Reporter) {
        let Some(server) = self
            .servers
            .first()
            .filter(|_| self.len().is_multiple_of(2))
        else {
            return;
        };
        reporter.emit(&LockEvent::ServerRestricted {
            server: &server.store.client.pool.connector.node().server,
            command: "redis+quorum",
            effect: "an even number of servers tolerates no more failures than one server less",
            error: &format!("the quorum has {} servers", self.len()),
        });
    }

    /// Waits for connections to a majority.
    async fn wait_for_majority(&self, until: Moment) -> Result<(), LockError> {
        let mut waiting = JoinSet::new();
        for server in self.voters().map(Arc::clone) {
            waiting.spawn(async move { server.store.wait_connected(until).await });
        }
        let (mut connected, mut errors) = (0, Vec::new());
        while let Some(joined) = waiting.join_next().await {
            match joined.unwrap_or(Err(LockError::NoRuntime)) {
                Ok(()) => connected += 1,
                Err(error) => errors.push(error),
            }
            if connected >= self.needed() {
                return Ok(());
            }
        }
        Err(lasting(errors.into_iter(), self.len()).unwrap_or_else(|| self.no_quorum(connected)))
    }
}

impl QuorumStore {
    async fn renew(&self, calls: &mut [&mut Call<'_>], deadline: Deadline) {
        let renewals = calls.iter().filter_map(|call| match &call.op.kind {
            OpKind::Renew(renewal, _) => Some((*renewal).clone()),
            _ => None,
        });
        let renewals = renewals.collect();
        let results = renewing::renew(&self.servers, renewals, deadline.left()).await;
        for (call, result) in calls.iter_mut().zip(results) {
            call.outcome = Some(result.map(Outcome::Renewed));
        }
    }

    async fn release(&self, calls: &mut [&mut Call<'_>], deadline: Deadline) {
        let requests = calls.iter().filter_map(|call| match &call.op.kind {
            OpKind::Release(request) => Some(*request),
            _ => None,
        });
        let requests: Vec<_> = requests.collect();
        let results = release::release(&self.servers, &requests, deadline.left()).await;
        for (call, result) in calls.iter_mut().zip(results) {
            call.outcome = Some(result.map(Outcome::Released));
        }
    }

    async fn run(&self, call: &mut Call<'_>, deadline: Deadline) {
        let (servers, limit) = (&self.servers, deadline.left());
        call.outcome = Some(match &mut call.op.kind {
            OpKind::Acquire(sent) => {
                let acquired = attempt::acquire(servers, sent, limit).await;
                acquired.map(Outcome::Acquired)
            }
            OpKind::Inspect(key, detail) => {
                let found = servers.inspect(key, *detail, limit).await;
                found.map(|found| Outcome::Inspected(Box::new(found)))
            }
            OpKind::Force(request) => {
                let forced = servers.force_release(request, limit).await;
                forced.map(|(time, reply)| Outcome::Forced(time, Box::new(reply)))
            }
            OpKind::Scan(request) => {
                let part = servers.scan(request, limit).await;
                part.map(|part| Outcome::Scanned(Box::new(part)))
            }
            OpKind::Renew(..)
            | OpKind::Release(_)
            | OpKind::FreeKey(_)
            | OpKind::Raise(_)
            | OpKind::Wait(_) => {
                let text = "a quorum does this at single servers";
                Err(LockError::backend(BackendErrorKind::Unsupported, text))
            }
        });
    }
}

impl Store for QuorumStore {
    fn traits(&self) -> &StoreTraits {
        &self.traits
    }

    fn call<'a, 'c: 'a, 'o: 'c>(
        &'a self,
        calls: &'a mut [&'c mut Call<'o>],
        together: Together,
        deadline: Deadline,
    ) -> Boxed<'a, ()> {
        Box::pin(async move {
            if let Err(error) = check_runtime() {
                return fail_all(calls, &error);
            }
            match calls.first().map(|call| &call.op.kind) {
                Some(OpKind::Renew(..)) => self.renew(calls, deadline).await,
                Some(OpKind::Release(_)) => self.release(calls, deadline).await,
                _ => {
                    for at in 0..calls.len() {
                        self.run(calls[at], deadline).await;
                        if ends_set(calls, at..at + 1, together) {
                            break;
                        }
                    }
                }
            }
        })
    }

    fn reach(&self) -> Reach {
        let needed = self.servers.needed();
        let (mut connected, mut down) = (0, 0);
        for server in self.servers.voters() {
            match server.store.reach() {
                Reach::Connected => connected += 1,
                Reach::Down => down += 1,
                Reach::NotYet => {}
            }
        }
        if connected >= needed {
            Reach::Connected
        } else if self.servers.len() - down >= needed {
            Reach::NotYet
        } else {
            Reach::Down
        }
    }

    fn status(&self) -> StoreStatus {
        let servers = self.servers.voters();
        let all: Vec<_> = servers.map(|server| server.store.status()).collect();
        let connected = all.iter().filter(|status| status.connected).count();
        let ever = all.iter().filter(|status| status.was_connected).count();
        StoreStatus {
            connected: connected >= self.servers.needed(),
            was_connected: ever >= self.servers.needed(),
            subscribed: false,
            polling: Some(PollingReason::Quorum),
            last_reply: all.iter().filter_map(|status| status.last_reply).min(),
            server_version: all.into_iter().find_map(|status| status.server_version),
        }
    }

    fn server(&self) -> Option<Arc<ServerAddress>> {
        self.servers.servers.first()?.store.server()
    }

    fn notifies(&self, _key: &LockKey, _limit: Duration) -> Boxed<'_, bool> {
        Box::pin(std::future::ready(false))
    }

    fn wait_connected(&self, until: Moment) -> Boxed<'_, Result<(), LockError>> {
        Box::pin(async move {
            check_runtime()?;
            self.servers.wait_for_majority(until).await
        })
    }

    fn driven_by(&self, worker: &Handle) {
        for server in self.servers.all() {
            server.store.driven_by(worker);
        }
    }

    fn listen(&self) -> Boxed<'_, ()> {
        let mut listening = JoinSet::new();
        for server in self.servers.all() {
            let servers = Arc::clone(&self.servers);
            listening.spawn(async move {
                let repeating = || -> Boxed<'_, ()> {
                    let timeout = servers.command_timeout;
                    Box::pin(unreleased::repeat(
                        &server.unreleased,
                        server.as_store(),
                        timeout,
                    ))
                };
                let repeating = supervised(&servers.reporter, repeating);
                tokio::join!(server.store.listen(), repeating);
            });
        }
        Box::pin(async move { while listening.join_next().await.is_some() {} })
    }

    fn drained(&self) -> Boxed<'_, ()> {
        Box::pin(async move {
            loop {
                let released = self.servers.released.notified();
                if self.servers.releasing.load(Ordering::Acquire) == 0 {
                    return;
                }
                released.await;
            }
        })
    }
}
