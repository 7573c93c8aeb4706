//! Locks in the dialects of other libraries: one key, no queue, and waiters that poll.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::client::RedisClient;
use super::connection::Connection;
use super::connector::Connector;
use super::reply::unexpected;
use crate::backend::Renewal;
use crate::config::ManagerSettings;
use crate::error::{BackendErrorKind, LockError};
use lock_protocol::acquisition::{AcquireOutcome, RenewOutcome, SentAcquires};
use lock_protocol::cleanup::{ReleaseOutcome, ReleaseRequest};
use lock_protocol::clock::{Clock, Deadline};
use lock_protocol::dialect::{CLOCK_TOLERANCE, Dialect, ReleaseMethod, Scheme};

mod acquire;
mod by_server;
mod conditional;
mod deadline;
mod found;
mod owner;
mod owner_texts;
mod redisson;
mod watch_multi;

use conditional::Conditionals;
use deadline::Deadlines;
pub(super) use deadline::SharedDeadlines;
use owner::Owners;
use redisson::RedissonLocks;
use watch_multi::WatchMulti;

pub(super) struct Dialects {
    client: Arc<RedisClient>,
    owners: Owners,
    redisson: RedissonLocks,
    conditionals: Conditionals,
    watch_multi: WatchMulti,
    /// `ReleaseMethod::Auto` has chosen transactions on a connection.
    auto_is_transaction: AtomicBool,
    deadlines: Deadlines,
}

impl Dialects {
    /// Creates the locks of all dialects. `connector` opens the connections for transactions.
    pub(super) fn new(
        client: Arc<RedisClient>,
        connector: Connector,
        config: &ManagerSettings,
        written: SharedDeadlines,
    ) -> Self {
        Self {
            owners: Owners::new(Arc::clone(&client), Arc::clone(&config.label)),
            redisson: RedissonLocks::new(Arc::clone(&client), Arc::clone(&config.label)),
            conditionals: Conditionals::new(Arc::clone(&client)),
            auto_is_transaction: AtomicBool::new(false),
            watch_multi: WatchMulti::new(Arc::clone(&client), connector),
            deadlines: Deadlines::new(Arc::clone(&client), written),
            client,
        }
    }

    /// Stops using the connections to an earlier primary.
    pub(super) fn retire_older(&self) {
        self.watch_multi.retire_older();
    }

    /// Makes one attempt to acquire the lock. These dialects have no queue.
    pub(super) async fn acquire(
        &self,
        scheme: Scheme,
        sent: &mut SentAcquires,
        limit: Duration,
    ) -> Result<AcquireOutcome, LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        let connection = self.client.pool.for_current_runtime(limit).await?;
        self.acquire_over(&connection, scheme, sent, deadline.left())
            .await
    }

    /// As [`acquire`](Self::acquire), over this connection.
    pub(super) async fn acquire_over(
        &self,
        connection: &Connection,
        scheme: Scheme,
        sent: &mut SentAcquires,
        limit: Duration,
    ) -> Result<AcquireOutcome, LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        match scheme {
            Scheme::SetnxExpire => self.owners.setnx(sent, connection, limit).await,
            Scheme::LuaSetnxExpire => self.owners.script(sent, connection, limit).await,
            Scheme::SetNxPx(ReleaseMethod::Native) => {
                // Such a lock could not be released, and must not be acquired.
                let release = ReleaseMethod::Native;
                self.owner_check(connection, release, limit).await?;
                let left = deadline.left();
                self.owners.set_nx_px(sent, connection, left).await
            }
            Scheme::SetNxPx(_) => self.owners.set_nx_px(sent, connection, limit).await,
            Scheme::Redisson(lock) => self.redisson.acquire(lock, sent, connection, limit).await,
            Scheme::DeadlineGetset => {
                check_clocks(connection)?;
                self.deadlines.acquire(sent, connection, limit).await
            }
        }
    }

    /// Returns whether releases of this scheme are cheaper together.
    pub(super) fn batches_releases(&self, scheme: Scheme) -> bool {
        match scheme.method_of_server() {
            Some(_) => !self.auto_is_transaction.load(Ordering::Relaxed),
            None => scheme.releases_by_script(),
        }
    }

    pub(super) async fn renew(
        &self,
        renewals: &[Renewal],
        limit: Duration,
    ) -> Vec<Result<RenewOutcome, LockError>> {
        let scheme = |renewal: &Renewal| renewal.key.dialect().scheme();
        let mut groups: [Vec<Renewal>; 5] = Default::default();
        let group = |renewal: &Renewal| match scheme(renewal) {
            Some(Scheme::DeadlineGetset) => 0,
            Some(Scheme::SetNxPx(ReleaseMethod::WatchMulti)) => 1,
            Some(Scheme::SetNxPx(ReleaseMethod::Native | ReleaseMethod::Auto)) => 2,
            Some(Scheme::Redisson(_)) => 3,
            _ => 4,
        };
        for renewal in renewals {
            groups[group(renewal)].push(renewal.clone());
        }
        let [deadlines, watched, by_server, redisson, owned] = groups;
        let (deadlines, watched, by_server, redisson, owned) = tokio::join!(
            self.deadlines.renew(&deadlines, limit),
            self.renew_in_transactions(&watched, limit),
            self.renew_by_server(&by_server, limit),
            self.redisson.renew(&redisson, limit),
            self.owners.renew(&owned, limit)
        );
        let mut outcomes = [deadlines, watched, by_server, redisson, owned].map(Vec::into_iter);
        let outcome = |renewal| {
            let next = outcomes[group(renewal)].next();
            next.unwrap_or_else(|| Ok(RenewOutcome::missing()))
        };
        renewals.iter().map(outcome).collect()
    }

    async fn renew_in_transactions(
        &self,
        renewals: &[Renewal],
        limit: Duration,
    ) -> Vec<Result<RenewOutcome, LockError>> {
        let owner = |owner_id| self.owners.owner(owner_id);
        self.watch_multi.renew(renewals, owner, limit).await
    }

    pub(super) async fn release(
        &self,
        scheme: Scheme,
        release_request: &ReleaseRequest,
        limit: Duration,
    ) -> Result<ReleaseOutcome, LockError> {
        match scheme {
            Scheme::SetNxPx(ReleaseMethod::WatchMulti) => {
                self.release_in_transaction(release_request, limit).await
            }
            Scheme::SetNxPx(release) if release.asks_server() => {
                let deadline = Deadline::after(Clock::System, limit);
                let connection = self.client.connection_for(release_request, limit).await?;
                let requests = [release_request];
                let released = self
                    .release_by_server(&connection, &requests, deadline.left())
                    .await;
                released
                    .into_iter()
                    .next()
                    .unwrap_or_else(|| Err(unexpected()))
            }
            Scheme::DeadlineGetset => self.deadlines.release(release_request, limit).await,
            Scheme::Redisson(_) => self.redisson.release(release_request, limit).await,
            Scheme::SetnxExpire | Scheme::LuaSetnxExpire | Scheme::SetNxPx(_) => {
                self.owners.release(release_request, limit).await
            }
        }
    }

    async fn release_in_transaction(
        &self,
        release_request: &ReleaseRequest,
        limit: Duration,
    ) -> Result<ReleaseOutcome, LockError> {
        let owner = self.owners.owner(release_request.owner_id);
        let no_owner = self.owners.no_owner();
        self.watch_multi
            .release(release_request, &owner, &no_owner, limit)
            .await
    }

    /// Releases in one pipeline where all schemes allow it, and otherwise one by one.
    pub(super) async fn release_all(
        &self,
        release_requests: &[&ReleaseRequest],
        limit: Duration,
    ) -> Vec<Result<ReleaseOutcome, LockError>> {
        let scheme = |release_request: &&ReleaseRequest| {
            let scheme = release_request.key.dialect().scheme();
            scheme.unwrap_or(Scheme::SetNxPx(ReleaseMethod::Script))
        };
        let mut schemes = release_requests.iter().map(scheme);
        let is_redisson = |scheme| matches!(scheme, Scheme::Redisson(_));
        if schemes.clone().all(is_redisson) {
            return self.redisson.release_all(release_requests, limit).await;
        }
        if schemes
            .clone()
            .all(|scheme| scheme.releases_by_script() && !is_redisson(scheme))
        {
            return self.owners.release_all(release_requests, limit).await;
        }
        if schemes.all(|scheme| scheme.method_of_server().is_some()) {
            let deadline = Deadline::after(Clock::System, limit);
            return match self.client.pool.for_current_runtime(limit).await {
                Ok(connection) => {
                    self.release_by_server(&connection, release_requests, deadline.left())
                        .await
                }
                Err(error) => release_requests
                    .iter()
                    .map(|_| Err(error.clone()))
                    .collect(),
            };
        }
        let mut outcomes = Vec::with_capacity(release_requests.len());
        for release_request in release_requests {
            let scheme = scheme(release_request);
            outcomes.push(self.release(scheme, release_request, limit).await);
        }
        outcomes
    }
}

/// Compares the server's clock with this machine's clock. In this dialect, clients compare
/// deadlines with their own clocks. If the clocks differ, the deadlines that one client writes are
/// wrong for another.
pub(super) fn check_clocks(connection: &Connection) -> Result<(), LockError> {
    let difference = connection.clock_difference;
    if difference <= CLOCK_TOLERANCE {
        return Ok(());
    }
    Err(LockError::backend(
        BackendErrorKind::ClocksDiffer,
        format!(
            "the clocks of this machine and of the lock server differ by {difference:?}; \
             `Dialect::{}` tolerates {CLOCK_TOLERANCE:?}",
            Dialect::DeadlineGetset
        ),
    ))
}
