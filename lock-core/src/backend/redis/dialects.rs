//! Locks in the dialects of other libraries: one key, and those who wait look by themselves.

use std::sync::Arc;
use std::time::Duration;

use super::client::RedisClient;
use super::connection::{Connection, Connector};
use crate::backend::{
    AcquireOutcome, Acquisition, ReleaseOutcome, ReleaseRequest, RenewOutcome, Renewal,
};
use crate::config::ManagerConfig;
use crate::error::{BackendErrorKind, LockError};
use crate::protocol::clock::Clock;
use crate::protocol::dialect::{CLOCK_TOLERANCE, Dialect, ReleaseMethod};

mod acquire;
mod deadline;
mod found;
mod owner;
mod watch_multi;

use deadline::Deadlines;
use owner::Owners;
use watch_multi::WatchMulti;

/// The dialects that are not native.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    SetnxExpire,
    DeadlineGetset,
    LuaSetnxExpire,
    SetNxPx(ReleaseMethod),
}

impl Scheme {
    /// `None` for the native one.
    pub(super) fn of(dialect: Dialect) -> Option<Self> {
        match dialect {
            Dialect::Native => None,
            Dialect::SetnxExpire => Some(Self::SetnxExpire),
            Dialect::DeadlineGetset => Some(Self::DeadlineGetset),
            Dialect::LuaSetnxExpire => Some(Self::LuaSetnxExpire),
            Dialect::SetNxPx { release } => Some(Self::SetNxPx(release)),
        }
    }

    /// Whether a release is one script that may be sent twice.
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
    /// `connector` is for connections that are used by one at a time.
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

    /// Asks for the lock once. Nothing stands in a queue afterwards.
    pub(super) async fn ask(
        &self,
        scheme: Scheme,
        acquisition: &mut Acquisition,
        limit: Duration,
    ) -> Result<AcquireOutcome, LockError> {
        let until = Clock::System.now().plus(limit);
        let connection = self.client.pool.for_current_runtime(limit).await?;
        let left = until.since(Clock::System.now());
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

    pub(super) async fn renew(&self, renewals: &[Renewal], limit: Duration) -> Vec<RenewOutcome> {
        let way = |renewal: &Renewal| match Scheme::of(renewal.key.dialect()) {
            Some(Scheme::DeadlineGetset) => Way::Deadlines,
            Some(Scheme::SetNxPx(ReleaseMethod::WatchMulti)) => Way::WatchMulti,
            _ => Way::Owners,
        };
        let of = |wanted| -> Vec<Renewal> {
            let mine = renewals.iter().filter(|renewal| way(renewal) == wanted);
            mine.cloned().collect()
        };
        let (owned, watch_multi, deadlines) =
            (of(Way::Owners), of(Way::WatchMulti), of(Way::Deadlines));
        let (owned, watch_multi, deadlines) = tokio::join!(
            self.owners.renew(&owned, limit),
            self.watch_multi
                .renew(&watch_multi, |owner_id| self.owners.owner(owner_id), limit),
            self.deadlines.renew(&deadlines, limit)
        );
        let mut owned = owned.into_iter();
        let mut watch_multi = watch_multi.into_iter();
        let mut deadlines = deadlines.into_iter();
        let answer = |renewal| {
            let next = match way(renewal) {
                Way::Owners => owned.next(),
                Way::WatchMulti => watch_multi.next(),
                Way::Deadlines => deadlines.next(),
            };
            next.unwrap_or(RenewOutcome::NotOwner)
        };
        renewals.iter().map(answer).collect()
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
    /// Of those that [batch](Scheme::batches_releases) their releases; the others go one by one.
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

/// How a lease is extended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Owners,
    WatchMulti,
    Deadlines,
}

/// Those who take over by a deadline compare it with their own clocks. The server's is compared
/// with one of them here: where the two differ, the deadlines that are written by the one are
/// wrong for the other.
pub(super) fn check_clocks(connection: &Connection) -> Result<(), LockError> {
    let difference = connection.clock_difference;
    if difference <= CLOCK_TOLERANCE {
        return Ok(());
    }
    Err(LockError::backend(
        BackendErrorKind::ClocksDiffer,
        format!(
            "the clocks of this machine and of the lock server differ by {difference:?}, and \
             `Dialect::{}` bears {CLOCK_TOLERANCE:?}",
            Dialect::DeadlineGetset
        ),
    ))
}
