//! Locks in the dialects of other libraries: one key and no queue, so that waiters poll.

use std::sync::Arc;
use std::time::Duration;

use super::client::RedisClient;
use super::connection::{Connection, Connector};
use super::{merge, split};
use crate::backend::{
    AcquireOutcome, Acquisition, ReleaseOutcome, ReleaseRequest, RenewOutcome, Renewal,
};
use crate::config::ManagerConfig;
use crate::error::{BackendErrorKind, LockError};
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

/// The scheme of a dialect that is not native.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    SetnxExpire,
    DeadlineGetset,
    LuaSetnxExpire,
    SetNxPx(ReleaseMethod),
}

impl Scheme {
    /// Returns the scheme; `None` for the native dialect.
    pub(super) fn of(dialect: Dialect) -> Option<Self> {
        match dialect {
            Dialect::Native => None,
            Dialect::SetnxExpire => Some(Self::SetnxExpire),
            Dialect::DeadlineGetset => Some(Self::DeadlineGetset),
            Dialect::LuaSetnxExpire => Some(Self::LuaSetnxExpire),
            Dialect::SetNxPx { release } => Some(Self::SetNxPx(release)),
        }
    }

    /// Returns whether a release is one script that may be sent twice.
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
    /// `connector` makes the connections for transactions, which one task uses at a time.
    pub(super) fn new(
        client: Arc<RedisClient>,
        connector: Connector,
        config: &ManagerConfig,
    ) -> Self {
        Self {
            owners: Owners::new(Arc::clone(&client), Arc::clone(&config.label)),
            watch_multi: WatchMulti::new(Arc::clone(&client), connector),
            deadlines: Deadlines::new(Arc::clone(&client)),
            client,
        }
    }

    /// Makes one attempt. Other dialects have no queue.
    pub(super) async fn acquire(
        &self,
        scheme: Scheme,
        acquisition: &mut Acquisition,
        limit: Duration,
    ) -> Result<AcquireOutcome, LockError> {
        let time_limit = Deadline::after(Clock::System, limit);
        let connection = self.client.pool.for_current_runtime(limit).await?;
        let left = time_limit.left();
        match scheme {
            Scheme::SetnxExpire => self.owners.setnx(acquisition, &connection, left).await,
            Scheme::LuaSetnxExpire => self.owners.script(acquisition, &connection, left).await,
            Scheme::SetNxPx(_) => self.owners.set_nx_px(acquisition, &connection, left).await,
            Scheme::DeadlineGetset => {
                check_clocks(&connection)?;
                self.deadlines.acquire(acquisition, &connection, left).await
            }
        }
    }

    /// Renews by the scheme of each lock, side by side. Returns one outcome for each, in order.
    pub(super) async fn renew(&self, renewals: &[Renewal], limit: Duration) -> Vec<RenewOutcome> {
        let scheme = |renewal: &Renewal| Scheme::of(renewal.key.dialect());
        let is_deadline = |renewal: &Renewal| scheme(renewal) == Some(Scheme::DeadlineGetset);
        let is_transaction =
            |renewal: &Renewal| scheme(renewal) == Some(Scheme::SetNxPx(ReleaseMethod::WatchMulti));
        let (deadlines, others) = split(renewals, is_deadline);
        let (transactions, scripts) = split(&others, is_transaction);
        let owner = |owner_id| self.owners.owner(owner_id);
        let (deadlines, transactions, scripts) = tokio::join!(
            self.deadlines.renew(&deadlines, limit),
            self.watch_multi.renew(&transactions, owner, limit),
            self.owners.renew(&scripts, limit)
        );
        let others = merge(&others, is_transaction, transactions, scripts);
        merge(renewals, is_deadline, deadlines, others)
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
                let nobody = self.owners.nobody();
                self.watch_multi
                    .release(release_request, &owner, &nobody, limit)
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
}

impl Dialects {
    /// Sends releases in one pipeline if all of them [can be batched](Scheme::batches_releases), or
    /// else one by one.
    pub(super) async fn release_all(
        &self,
        release_requests: &[ReleaseRequest],
        limit: Duration,
    ) -> Vec<Result<ReleaseOutcome, LockError>> {
        let scheme = |release_request: &ReleaseRequest| Scheme::of(release_request.key.dialect());
        let batches = |release_request: &ReleaseRequest| {
            scheme(release_request).is_some_and(Scheme::batches_releases)
        };
        if release_requests.iter().all(batches) {
            return self.owners.release_all(release_requests, limit).await;
        }
        let mut answers = Vec::with_capacity(release_requests.len());
        for release_request in release_requests {
            let scheme = scheme(release_request).unwrap_or(Scheme::SetNxPx(ReleaseMethod::Script));
            answers.push(self.release(scheme, release_request, limit).await);
        }
        answers
    }
}

/// Checks that this machine's clock agrees with the server's clock. In this dialect each client compares
/// the deadlines of other clients with its own clock, so a difference makes them wrong.
pub(super) fn check_clocks(connection: &Connection) -> Result<(), LockError> {
    let difference = connection.clock_difference;
    if difference <= CLOCK_TOLERANCE {
        return Ok(());
    }
    Err(LockError::backend(
        BackendErrorKind::ClocksDiffer,
        format!(
            "the clocks of this machine and of the lock server differ by {difference:?}, and \
             `Dialect::{}` tolerates {CLOCK_TOLERANCE:?}",
            Dialect::DeadlineGetset
        ),
    ))
}
