//! The backend for locks on a Redis server.

use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "sentinel")]
use tokio::sync::Notify;

use super::set::{self, SetOutcomes};
use super::{AdminBackend, Backend, BackendStatus, Boxed, Renewal};
use crate::error::LockError;
use crate::telemetry::{LockCommand, ServerAddress};
use lock_protocol::acquisition::{AcquireOutcome, RenewOutcome, SentAcquires};
use lock_protocol::cleanup::{ReleaseOutcome, ReleaseRequest, ReleaseSubject};
use lock_protocol::clock::{Clock, Deadline, Moment};
use lock_protocol::dialect::InvalidDialectReason;
use lock_protocol::fencing_token::FencingToken;
use lock_protocol::key::LockKey;

mod access;
pub(crate) mod admin;
mod channels;
mod client;
#[cfg(feature = "cluster")]
mod cluster;
mod confirmer;
mod connect;
mod connection;
mod connector;
mod credentials;
mod dial;
mod errors;
mod handshake;
mod listening;
mod login;
mod node;
mod operations;
pub(crate) mod place;
mod pool;
mod pushes;
#[cfg(feature = "quorum")]
mod quorum;
mod report;
mod security;
#[cfg(feature = "sentinel")]
mod sentinel;
#[cfg(feature = "__tls")]
mod tls;
mod transport;
pub(crate) mod url;

use client::RedisClient;
use confirmer::Confirmer;
pub(crate) use connect::connect;
#[cfg(feature = "sentinel")]
use sentinel::SentinelWatch;

/// The backend for locks on one server.
pub(crate) struct RedisBackend {
    client: Arc<RedisClient>,
    /// If replicas or the disk have to acknowledge each lock.
    confirmer: Option<Confirmer>,
    /// Notified when the connections to an earlier primary are retired.
    #[cfg(feature = "sentinel")]
    primary_changed: Notify,
}

impl RedisBackend {
    /// Retires the connections to an earlier primary whenever there is a new one.
    #[cfg(feature = "sentinel")]
    async fn follow_primary(&self, watch: &SentinelWatch) {
        let mut generations = watch.generations();
        // Without an end: the watch lives as long as this borrow.
        while generations.changed().await.is_ok() {
            self.client.pool.retire_older();
            self.client.transactions.retire_older();
            if let Some(confirmer) = &self.confirmer {
                confirmer.retire_older();
            }
            self.client
                .reporter
                .waking(|| self.primary_changed.notify_one());
            self.client.notifications.poll_all();
        }
    }

    /// Renews a lock that was just acquired, and waits for the acknowledgments.
    async fn confirm(
        &self,
        confirmer: &Confirmer,
        sent: &SentAcquires,
        token: Option<FencingToken>,
        limit: Duration,
    ) -> Result<AcquireOutcome, LockError> {
        let renewal = Renewal {
            key: sent.key.clone(),
            owner_id: sent.owner_id,
            ttl: sent.lease_config.ttl.as_duration(),
            lease_config: sent.lease_config,
            label: Arc::clone(&sent.label),
            confirmed_at: Clock::System.now(),
        };
        let began = self.client.begin_command();
        let result = confirmer.renew(&[renewal], limit).await.pop();
        let result = result.unwrap_or_else(|| Err(LockError::unreadable()));
        let error = result.as_ref().err();
        self.client.end_command(LockCommand::Renew, began, error);
        Ok(match result? {
            RenewOutcome::Held {
                sent, remaining, ..
            } => AcquireOutcome::Held {
                token,
                sent,
                remaining,
            },
            // It was lost in between, for example by a failover.
            RenewOutcome::NotOwner(_) => AcquireOutcome::StartOver,
        })
    }
}

fn command_of(release_request: &ReleaseRequest) -> LockCommand {
    match release_request.subject {
        ReleaseSubject::Guard | ReleaseSubject::ReportedGuard => LockCommand::Release,
        ReleaseSubject::Acquire => LockCommand::Cancel,
    }
}

fn first_error<T>(results: &[Result<T, LockError>]) -> Option<&LockError> {
    results.iter().find_map(|result| result.as_ref().err())
}

impl Backend for RedisBackend {
    fn clock(&self) -> Clock {
        Clock::System
    }

    fn acquire<'a>(
        &'a self,
        sent: &'a mut SentAcquires,
        limit: Duration,
    ) -> Boxed<'a, Result<AcquireOutcome, LockError>> {
        if self.confirmer.is_some() && sent.key.dialect().scheme().is_some() {
            let dialect = sent.key.dialect();
            return Box::pin(std::future::ready(Err(LockError::InvalidDialect {
                dialect,
                reason: InvalidDialectReason::Confirmed,
            })));
        }
        Box::pin(async move {
            let deadline = Deadline::after(Clock::System, limit);
            let began = self.client.begin_command();
            let result = self.acquire_one(sent, deadline).await;
            let error = result.as_ref().err();
            self.client.end_command(LockCommand::Acquire, began, error);
            match (&self.confirmer, result) {
                (Some(confirmer), Ok(AcquireOutcome::Held { token, .. })) => {
                    // In a box, so that a lock without confirmation has a small future.
                    let left = deadline.left();
                    Box::pin(self.confirm(confirmer, sent, token, left)).await
                }
                (_, result) => result,
            }
        })
    }

    fn acquire_set<'a>(
        &'a self,
        mut sent: Vec<&'a mut SentAcquires>,
        limit: Duration,
    ) -> Boxed<'a, SetOutcomes> {
        let is_native = |sent: &&mut SentAcquires| sent.key.dialect().scheme().is_none();
        if self.confirmer.is_some() || !sent.iter().all(is_native) {
            return Box::pin(set::acquire_each(self, sent, limit));
        }
        Box::pin(async move {
            let began = self.client.begin_command();
            let outcomes = self.acquire_by_one_command(&mut sent, limit).await;
            let error = outcomes.iter().flatten().find_map(|it| it.as_ref().err());
            self.client.end_command(LockCommand::Acquire, began, error);
            outcomes
        })
    }

    fn release_set<'a>(
        &'a self,
        release_requests: &'a [&'a ReleaseRequest],
        limit: Duration,
    ) -> Boxed<'a, Vec<Result<ReleaseOutcome, LockError>>> {
        let joins = |request: &&ReleaseRequest| self.joins_batches(&request.key);
        if !release_requests.iter().all(joins) {
            return Box::pin(set::release_each(self, release_requests, limit));
        }
        Box::pin(async move {
            let began = self.client.begin_command();
            let results = self.release_many(release_requests, limit).await;
            let error = first_error(&results);
            self.client.end_command(LockCommand::Release, began, error);
            results
        })
    }

    fn renew<'a>(
        &'a self,
        renewals: &'a [Renewal],
        limit: Duration,
    ) -> Boxed<'a, Vec<Result<RenewOutcome, LockError>>> {
        Box::pin(async move {
            let began = self.client.begin_command();
            let results = self.renew_many(renewals, limit).await;
            let error = first_error(&results);
            self.client.end_command(LockCommand::Renew, began, error);
            results
        })
    }

    fn release<'a>(
        &'a self,
        release_request: &'a ReleaseRequest,
        limit: Duration,
    ) -> Boxed<'a, Result<ReleaseOutcome, LockError>> {
        Box::pin(async move {
            let began = self.client.begin_command();
            let result = self.release_one(release_request, limit).await;
            let error = result.as_ref().err();
            let command = command_of(release_request);
            self.client.end_command(command, began, error);
            result
        })
    }

    fn can_batch_release(&self, key: &LockKey) -> bool {
        self.joins_batches(key)
    }

    fn release_all<'a>(
        &'a self,
        release_requests: &'a [&'a ReleaseRequest],
        limit: Duration,
    ) -> Boxed<'a, Vec<Result<ReleaseOutcome, LockError>>> {
        let command = release_requests.first().map(|first| command_of(first));
        Box::pin(async move {
            let began = self.client.begin_command();
            let results = self.release_many(release_requests, limit).await;
            let (command, error) = (
                command.unwrap_or(LockCommand::Release),
                first_error(&results),
            );
            self.client.end_command(command, began, error);
            results
        })
    }

    fn admin(&self) -> &dyn AdminBackend {
        &*self.client
    }

    fn seems_down(&self) -> bool {
        self.client.pool.seems_down()
    }

    fn is_connected(&self) -> bool {
        self.client.pool.is_connected()
    }

    fn status(&self) -> BackendStatus {
        self.client.status()
    }

    fn notifies_waiters<'a>(&'a self, key: &'a LockKey, limit: Duration) -> Boxed<'a, bool> {
        Box::pin(self.client.notifies_waiters(key, limit))
    }

    fn wait_connected(&self, until: Moment) -> Boxed<'_, Result<(), LockError>> {
        Box::pin(async move {
            let deadline = Deadline::at(Clock::System, until);
            let connected = self.client.pool.for_current_runtime(deadline).await;
            connected.map(drop)
        })
    }

    #[cfg(feature = "sentinel")]
    fn primary_changed(&self) -> Boxed<'_, ()> {
        Box::pin(self.primary_changed.notified())
    }

    fn listen(&self) -> Boxed<'_, ()> {
        let listening = listening::listen(Arc::clone(&self.client));
        let connector = &self.client.pool.connector;
        let mut listening: Boxed<'_, ()> = Box::pin(listening);
        if let Some(source) = connector.access.credentials.clone() {
            listening = Box::pin(async move {
                tokio::join!(listening, credentials::renew_logins(source));
            });
        }
        #[cfg(feature = "sentinel")]
        if let Some(watch) = connector.whereabouts.watch().cloned() {
            listening = Box::pin(async move {
                let following = self.follow_primary(&watch);
                tokio::join!(listening, following, Arc::clone(&watch).watch());
            });
        }
        listening
    }

    fn server(&self) -> Option<Arc<ServerAddress>> {
        Some(Arc::clone(&self.client.pool.connector.node().server))
    }

    fn holds_without_renewal(&self) -> bool {
        false
    }

    fn confirms_grants(&self) -> bool {
        self.confirmer.is_some()
    }
}
