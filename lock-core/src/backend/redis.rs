//! Locks on a Redis server.

use std::sync::Arc;
use std::time::Duration;

use super::{Asked, Attempt, Backend, Boxed, Ending, Released, Renewal, Renewed};
use crate::clock::Clock;
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
) -> Result<Redis, LockError> {
    let timeout = settings.command_timeout;
    let connector = |scripts| Connector::new(url, timeout, scripts);
    let scripts = scripts::of(settings.dialect);
    let server = Arc::new(Server::new(connector(scripts)?, timeout, inbox));
    let connection = server.connections.here(timeout).await?;
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
        let native = |renewal: &&Renewal| scheme(&renewal.key).is_none();
        if renewals.iter().all(|renewal| native(&renewal)) {
            return self.native.extend(renewals, limit).await;
        }
        // Side by side, so that none waits for the others.
        let (ours, others): (Vec<_>, Vec<_>) = renewals.iter().cloned().partition(|r| native(&r));
        let (ours, others) = tokio::join!(
            self.native.extend(&ours, limit),
            self.dialects.extend(&others, limit)
        );
        let (mut ours, mut others) = (ours.into_iter(), others.into_iter());
        let answer = |renewal| {
            let answers = if native(&renewal) {
                &mut ours
            } else {
                &mut others
            };
            answers.next().unwrap_or(Renewed::NotOurs)
        };
        renewals.iter().map(answer).collect()
    }
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

    fn listen(&self) -> Boxed<'_, ()> {
        Box::pin(push::listen(Arc::clone(&self.server)))
    }

    fn keeps_leases(&self) -> bool {
        false
    }
}
