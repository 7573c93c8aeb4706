//! Locks in the dialects of other libraries: one key, no queue, and waiters that poll.

use std::sync::Arc;
use std::time::Duration;

use super::client::RedisClient;
use super::connection::Connection;
use super::connector::Connector;
use crate::backend::Renewal;
use crate::config::ManagerSettings;
use crate::error::{BackendErrorKind, LockError};
use crate::protocol::acquisition::{AcquireOutcome, RenewOutcome, SentAcquires};
use crate::protocol::cleanup::{ReleaseOutcome, ReleaseRequest};
use crate::protocol::clock::{Clock, Deadline};
use crate::protocol::dialect::{CLOCK_TOLERANCE, Dialect, ReleaseMethod};

mod acquire;
mod deadline;
mod found;
mod owner;
mod watch_multi;

use deadline::Deadlines;
use owner::Owners;
use watch_multi::WatchMulti;

/// The dialects that are not native. Decides how a lock is acquired, renewed and released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    SetnxExpire,
    DeadlineGetset,
    LuaSetnxExpire,
    SetNxPx(ReleaseMethod),
}

impl Scheme {
    /// Returns the scheme of a dialect; `None` for the native one.
    pub(super) fn of(dialect: Dialect) -> Option<Self> {
        match dialect {
            Dialect::Native => None,
            Dialect::SetnxExpire => Some(Self::SetnxExpire),
            Dialect::DeadlineGetset => Some(Self::DeadlineGetset),
            Dialect::LuaSetnxExpire => Some(Self::LuaSetnxExpire),
            Dialect::SetNxPx { release } => Some(Self::SetNxPx(release)),
        }
    }

    /// Returns whether a release is a single script that may be sent twice.
    pub(super) fn batches_releases(self) -> bool {
        match self {
            Self::SetnxExpire | Self::LuaSetnxExpire | Self::SetNxPx(ReleaseMethod::Script) => true,
            Self::DeadlineGetset | Self::SetNxPx(ReleaseMethod::WatchMulti) => false,
        }
    }
}

pub(super) struct Dialects {
    client: Arc<RedisClient>,
    owners: Owners,
    watch_multi: WatchMulti,
    deadlines: Deadlines,
}

impl Dialects {
    /// Creates the locks of all dialects. `connector` opens the connections for transactions.
    pub(super) fn new(
        client: Arc<RedisClient>,
        connector: Connector,
        config: &ManagerSettings,
    ) -> Self {
        Self {
            owners: Owners::new(Arc::clone(&client), Arc::clone(&config.label)),
            watch_multi: WatchMulti::new(Arc::clone(&client), connector),
            deadlines: Deadlines::new(Arc::clone(&client)),
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
        let left = deadline.left();
        match scheme {
            Scheme::SetnxExpire => self.owners.setnx(sent, &connection, left).await,
            Scheme::LuaSetnxExpire => self.owners.script(sent, &connection, left).await,
            Scheme::SetNxPx(_) => self.owners.set_nx_px(sent, &connection, left).await,
            Scheme::DeadlineGetset => {
                check_clocks(&connection)?;
                self.deadlines.acquire(sent, &connection, left).await
            }
        }
    }

    pub(super) async fn renew(
        &self,
        renewals: &[Renewal],
        limit: Duration,
    ) -> Vec<Result<RenewOutcome, LockError>> {
        let scheme = |renewal: &Renewal| Scheme::of(renewal.key.dialect());
        let (mut owned, mut watched, mut deadlines) = (Vec::new(), Vec::new(), Vec::new());
        for renewal in renewals {
            let group = match scheme(renewal) {
                Some(Scheme::DeadlineGetset) => &mut deadlines,
                Some(Scheme::SetNxPx(ReleaseMethod::WatchMulti)) => &mut watched,
                _ => &mut owned,
            };
            group.push(renewal.clone());
        }
        let (owned, watched, deadlines) = tokio::join!(
            self.owners.renew(&owned, limit),
            self.watch_multi
                .renew(&watched, |owner_id| self.owners.owner(owner_id), limit),
            self.deadlines.renew(&deadlines, limit)
        );
        let mut owned = owned.into_iter();
        let mut watched = watched.into_iter();
        let mut deadlines = deadlines.into_iter();
        let outcome = |renewal| {
            let next = match scheme(renewal) {
                Some(Scheme::DeadlineGetset) => deadlines.next(),
                Some(Scheme::SetNxPx(ReleaseMethod::WatchMulti)) => watched.next(),
                _ => owned.next(),
            };
            next.unwrap_or_else(|| Ok(RenewOutcome::missing()))
        };
        renewals.iter().map(outcome).collect()
    }

    pub(super) async fn release(
        &self,
        scheme: Scheme,
        release_request: &ReleaseRequest,
        limit: Duration,
    ) -> Result<ReleaseOutcome, LockError> {
        match scheme {
            Scheme::SetNxPx(ReleaseMethod::WatchMulti) => {
                let owner = self.owners.owner(release_request.owner_id);
                let no_owner = self.owners.no_owner();
                self.watch_multi
                    .release(release_request, &owner, &no_owner, limit)
                    .await
            }
            Scheme::DeadlineGetset => self.deadlines.release(release_request, limit).await,
            Scheme::SetnxExpire
            | Scheme::LuaSetnxExpire
            | Scheme::SetNxPx(ReleaseMethod::Script) => {
                self.owners.release(release_request, limit).await
            }
        }
    }
    /// Releases in one pipeline where all schemes [allow it](Scheme::batches_releases), and
    /// otherwise one by one.
    pub(super) async fn release_all(
        &self,
        release_requests: &[&ReleaseRequest],
        limit: Duration,
    ) -> Vec<Result<ReleaseOutcome, LockError>> {
        let scheme = |release_request: &ReleaseRequest| Scheme::of(release_request.key.dialect());
        let batches = |release_request: &&ReleaseRequest| {
            scheme(release_request).is_some_and(Scheme::batches_releases)
        };
        if release_requests.iter().all(batches) {
            return self.owners.release_all(release_requests, limit).await;
        }
        let mut outcomes = Vec::with_capacity(release_requests.len());
        for release_request in release_requests {
            let scheme = scheme(release_request).unwrap_or(Scheme::SetNxPx(ReleaseMethod::Script));
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
