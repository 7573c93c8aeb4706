//! Locks in the dialects of other libraries: one key, and those who wait look by themselves.

use std::sync::Arc;
use std::time::Duration;

use super::connection::{Connection, Connector};
use super::server::Server;
use crate::backend::{Asked, Attempt, Ending, Released, Renewal, Renewed};
use crate::clock::Clock;
use crate::dialect::{CLOCK_TOLERANCE, Dialect, ReleaseBy};
use crate::error::{BackendErrorKind, LockError};
use crate::options::Settings;

mod deadline;
mod found;
mod owner;
mod take;
mod watched;

use deadline::Deadlines;
use owner::Owners;
use watched::Watched;

/// The dialects that are not native.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    SetnxExpire,
    DeadlineGetset,
    LuaSetnxExpire,
    SetNxPx(ReleaseBy),
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
            Self::SetnxExpire | Self::LuaSetnxExpire | Self::SetNxPx(ReleaseBy::Script) => true,
            Self::DeadlineGetset | Self::SetNxPx(ReleaseBy::WatchMulti) => false,
        }
    }
}

pub(super) struct Dialects {
    server: Arc<Server>,
    owners: Owners,
    watched: Watched,
    deadlines: Deadlines,
}

impl Dialects {
    /// `connector` is for connections that are used by one at a time.
    pub(super) fn new(server: Arc<Server>, connector: Connector, settings: &Settings) -> Self {
        Self {
            owners: Owners::new(Arc::clone(&server), Arc::clone(&settings.label)),
            watched: Watched::new(Arc::clone(&server), connector),
            deadlines: Deadlines::new(Arc::clone(&server)),
            server,
        }
    }

    /// Asks for the lock once. Nothing stands in a queue afterwards.
    pub(super) async fn ask(
        &self,
        scheme: Scheme,
        attempt: &mut Attempt,
        limit: Duration,
    ) -> Result<Asked, LockError> {
        let until = Clock::System.now().plus(limit);
        let connection = self.server.connections.here(limit).await?;
        let left = until.since(Clock::System.now());
        match scheme {
            Scheme::SetnxExpire => self.owners.setnx(attempt, &connection, left).await,
            Scheme::LuaSetnxExpire => self.owners.script(attempt, &connection, left).await,
            Scheme::SetNxPx(_) => self.owners.set_nx_px(attempt, &connection, left).await,
            Scheme::DeadlineGetset => {
                check_clocks(&connection)?;
                self.deadlines.take(attempt, &connection, left).await
            }
        }
    }

    pub(super) async fn extend(&self, renewals: &[Renewal], limit: Duration) -> Vec<Renewed> {
        let way = |renewal: &Renewal| match Scheme::of(renewal.key.dialect()) {
            Some(Scheme::DeadlineGetset) => Way::Deadlines,
            Some(Scheme::SetNxPx(ReleaseBy::WatchMulti)) => Way::Watched,
            _ => Way::Owners,
        };
        let of = |wanted| -> Vec<Renewal> {
            let mine = renewals.iter().filter(|renewal| way(renewal) == wanted);
            mine.cloned().collect()
        };
        let (owned, watched, deadlines) = (of(Way::Owners), of(Way::Watched), of(Way::Deadlines));
        let (owned, watched, deadlines) = tokio::join!(
            self.owners.extend(&owned, limit),
            self.watched
                .extend(&watched, |nonce| self.owners.owner(nonce), limit),
            self.deadlines.extend(&deadlines, limit)
        );
        let mut owned = owned.into_iter();
        let mut watched = watched.into_iter();
        let mut deadlines = deadlines.into_iter();
        let answer = |renewal| {
            let next = match way(renewal) {
                Way::Owners => owned.next(),
                Way::Watched => watched.next(),
                Way::Deadlines => deadlines.next(),
            };
            next.unwrap_or(Renewed::NotOurs)
        };
        renewals.iter().map(answer).collect()
    }

    pub(super) async fn take_back(
        &self,
        scheme: Scheme,
        ending: &Ending,
        limit: Duration,
    ) -> Result<Released, LockError> {
        match scheme {
            Scheme::SetNxPx(ReleaseBy::WatchMulti) => {
                let owner = self.owners.owner(ending.nonce);
                let nobody = self.owners.nobody();
                self.watched.take_back(ending, &owner, &nobody, limit).await
            }
            Scheme::DeadlineGetset => self.deadlines.take_back(ending, limit).await,
            Scheme::SetnxExpire | Scheme::LuaSetnxExpire | Scheme::SetNxPx(ReleaseBy::Script) => {
                self.owners.take_back(ending, limit).await
            }
        }
    }
}

impl Dialects {
    /// Of those that [batch](Scheme::batches_releases) their releases; the others go one by one.
    pub(super) async fn take_back_all(
        &self,
        endings: &[Ending],
        limit: Duration,
    ) -> Vec<Result<Released, LockError>> {
        let scheme = |ending: &Ending| Scheme::of(ending.key.dialect());
        let batches = |ending: &Ending| scheme(ending).is_some_and(Scheme::batches_releases);
        if endings.iter().all(batches) {
            return self.owners.take_back_all(endings, limit).await;
        }
        let mut answers = Vec::with_capacity(endings.len());
        for ending in endings {
            let scheme = scheme(ending).unwrap_or(Scheme::SetNxPx(ReleaseBy::Script));
            answers.push(self.take_back(scheme, ending, limit).await);
        }
        answers
    }
}

/// How a lease is extended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Owners,
    Watched,
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
