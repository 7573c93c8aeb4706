//! Locks on a Redis server.

use std::sync::Arc;
use std::time::Duration;

use super::{Asked, Attempt, Backend, Boxed, Ending, Released, Renewal, Renewed};
use crate::clock::{Clock, Moment};
use crate::counts::Counters;
use crate::error::LockError;
use crate::inbox::Inbox;
use crate::key::LockKey;
use crate::options::Settings;

mod connection;
mod connections;
mod dialects;
mod fault;
mod push;
mod reply;
mod scripts;
mod server;
mod standalone;

use connection::Connector;
use dialects::{Dialects, Scheme, check_clocks};
use server::Server;
use standalone::Standalone;

#[cfg(test)]
mod differential;

/// Locks on one server.
pub(crate) struct Redis {
    server: Arc<Server>,
    native: Standalone,
    dialects: Dialects,
}

/// Connects once, so that what is wrong is said now and not at the first lock.
pub(crate) async fn connect(
    url: &str,
    settings: &Settings,
    inbox: Arc<Inbox>,
    counters: Arc<Counters>,
) -> Result<Redis, LockError> {
    let timeout = settings.command_timeout;
    let connector = |scripts| Connector::new(url, timeout, scripts, Arc::clone(&counters));
    let scripts = scripts::of(settings.dialect);
    let server = Server::new(connector(scripts)?, settings, inbox, Arc::clone(&counters));
    let server = Arc::new(server);
    let connection = server.connections.first(timeout).await?;
    if settings.dialect.capabilities().needs_clocks {
        check_clocks(&connection)?;
    }
    Ok(Redis {
        native: Standalone::new(Arc::clone(&server), settings),
        dialects: Dialects::new(Arc::clone(&server), connector(Vec::new())?, settings),
        server,
    })
}

impl Redis {
    async fn extend(&self, renewals: &[Renewal], limit: Duration) -> Vec<Renewed> {
        let is_native = |renewal: &Renewal| scheme(&renewal.key).is_none();
        if renewals.iter().all(is_native) {
            return self.native.extend(renewals, limit).await;
        }
        let (ours, others) = split(renewals, is_native);
        // Side by side, so that none waits for the others.
        let (ours, others) = tokio::join!(
            self.native.extend(&ours, limit),
            self.dialects.extend(&others, limit)
        );
        merge(renewals, is_native, ours, others)
    }

    async fn take_back_all(
        &self,
        endings: &[Ending],
        limit: Duration,
    ) -> Vec<Result<Released, LockError>> {
        let is_native = |ending: &Ending| scheme(&ending.key).is_none();
        if endings.iter().all(is_native) {
            return self.native.take_back_all(endings, limit).await;
        }
        let (ours, others) = split(endings, is_native);
        let (ours, others) = tokio::join!(
            self.native.take_back_all(&ours, limit),
            self.dialects.take_back_all(&others, limit)
        );
        merge(endings, is_native, ours, others)
    }
}

fn split<T: Clone>(all: &[T], is_first: impl Fn(&T) -> bool) -> (Vec<T>, Vec<T>) {
    all.iter().cloned().partition(is_first)
}

/// Puts the answers to what was [`split`] into its order again. There is one for each.
fn merge<T, A>(all: &[T], is_first: impl Fn(&T) -> bool, first: Vec<A>, second: Vec<A>) -> Vec<A> {
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let answers = all.iter().filter_map(|one| {
        if is_first(one) {
            first.next()
        } else {
            second.next()
        }
    });
    answers.collect()
}

/// The scheme of a lock that is not native.
fn scheme(key: &LockKey) -> Option<Scheme> {
    Scheme::of(key.dialect())
}

impl Backend for Redis {
    fn clock(&self) -> Clock {
        Clock::System
    }

    fn acquire<'a>(
        &'a self,
        attempt: &'a mut Attempt,
        limit: Duration,
    ) -> Boxed<'a, Result<Asked, LockError>> {
        match scheme(&attempt.key) {
            None => Box::pin(self.native.ask(attempt, limit)),
            Some(scheme) => Box::pin(self.dialects.ask(scheme, attempt, limit)),
        }
    }

    fn renew<'a>(&'a self, renewals: &'a [Renewal], limit: Duration) -> Boxed<'a, Vec<Renewed>> {
        Box::pin(self.extend(renewals, limit))
    }

    fn release<'a>(
        &'a self,
        ending: &'a Ending,
        limit: Duration,
    ) -> Boxed<'a, Result<Released, LockError>> {
        match scheme(&ending.key) {
            None => Box::pin(self.native.take_back(ending, limit)),
            Some(scheme) => Box::pin(self.dialects.take_back(scheme, ending, limit)),
        }
    }

    fn batches(&self, key: &LockKey) -> bool {
        scheme(key).is_none_or(Scheme::batches_releases)
    }

    fn release_all<'a>(
        &'a self,
        endings: &'a [Ending],
        limit: Duration,
    ) -> Boxed<'a, Vec<Result<Released, LockError>>> {
        Box::pin(self.take_back_all(endings, limit))
    }

    fn seems_down(&self) -> bool {
        self.server.connections.seem_down()
    }

    fn is_connected(&self) -> bool {
        self.server.connections.is_here()
    }

    fn connected(&self, until: Moment) -> Boxed<'_, Result<(), LockError>> {
        Box::pin(async move {
            let limit = until.since(Clock::System.now());
            self.server.connections.here(limit).await.map(drop)
        })
    }

    fn listen(&self) -> Boxed<'_, ()> {
        Box::pin(push::listen(Arc::clone(&self.server)))
    }

    fn keeps_leases(&self) -> bool {
        false
    }
}
