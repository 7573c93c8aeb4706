//! The store of one server, behind a fixed address, a name or Sentinels.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;

use super::client::RedisClient;
use super::confirmer::Confirmer;
use super::connector::{Connector, Slots};
use super::deployment::NodeAddress;
use super::location::Location;
use super::node_config::{DeploymentKind, NodeConfig};
use super::{credentials, listening};
use crate::error::LockError;
use crate::store::{
    Boxed, Call, Reach, Store, StoreStatus, StoreTraits, Together, ends_set, supervised,
};
use crate::telemetry::{LockCommand, ServerAddress};
use lock_protocol::acquisition::{AcquireOutcome, RenewOutcome, SentAcquires};
use lock_protocol::clock::{Clock, Deadline, Moment};
use lock_protocol::key::LockKey;
use lock_protocol::op::{OpKind, Outcome};
use lock_protocol::scripts;

/// Keeps locks on one server.
pub(super) struct RedisStore {
    pub(super) client: Arc<RedisClient>,
    /// Set if replicas or the disk have to acknowledge each lock.
    pub(super) confirmer: Option<Confirmer>,
    pub(super) traits: StoreTraits,
}

impl RedisStore {
    /// Makes the store of the server at an address, whose name may come to lead to another server. It has no connection
    /// yet.
    pub(super) fn at_address(config: &Arc<NodeConfig>, address: &NodeAddress) -> Self {
        let interval = config.settings.resolve_interval;
        let location = Location::of(address, interval, &config.reporter);
        Self::new(config, &location, Slots::Settled)
    }

    /// Makes the store of a server. It has no connection yet.
    pub(super) fn new(config: &Arc<NodeConfig>, location: &Location, slots: Slots) -> Self {
        let settings = &config.settings;
        let connector =
            |scripts| Connector::new(Arc::clone(config), location.clone(), slots, scripts);
        let mut scripts = scripts::of(settings.dialect, config.kind == DeploymentKind::Cluster);
        if config.kind == DeploymentKind::Quorum {
            scripts.push(&scripts::RAISE);
        }
        let client = Arc::new(RedisClient::new(
            connector(scripts).for_dialect(settings.dialect),
            connector(Vec::new()),
        ));
        let confirmer = settings.confirm.map(|confirm| {
            let connector = connector(vec![&scripts::RENEW]);
            Confirmer::new(Arc::clone(&client), connector, confirm)
        });
        Self {
            client,
            confirmer,
            traits: config.traits(),
        }
    }

    /// Returns whether the calls acquire locks one after the other: because each has to be acknowledged, or because their
    /// dialects have no command for several locks.
    fn acquires_one_by_one(&self, calls: &[&mut Call<'_>], together: Together) -> bool {
        let is_acquire = |call: &Call<'_>| matches!(call.op.kind, OpKind::Acquire(_));
        if !calls.first().is_some_and(|call| is_acquire(call)) {
            return false;
        }
        let is_native = |call: &&mut Call<'_>| {
            let key = call.op.key();
            key.is_some_and(|key| key.dialect().scheme().is_none())
        };
        let is_set = together != Together::Each && calls.len() > 1;
        self.confirmer.is_some() || (is_set && !calls.iter().all(is_native))
    }

    /// Acquires one lock, and waits for the acknowledgments if the manager wants them.
    async fn acquire_one(&self, call: &mut Call<'_>, deadline: Deadline) {
        self.client
            .call(&mut [&mut *call], Together::Each, deadline)
            .await;
        let (Some(confirmer), true, OpKind::Acquire(sent)) =
            (&self.confirmer, call.is_held(), &call.op.kind)
        else {
            return;
        };
        // Taken away: without the acknowledgments, the caller doesn't have the lock.
        let Some(Ok(Outcome::Acquired(AcquireOutcome::Held { token, .. }))) = call.outcome.take()
        else {
            return;
        };
        let renewed = self.confirm(confirmer, sent, deadline.left()).await;
        let acquired = renewed.map(|renewed| match renewed {
            RenewOutcome::Held {
                sent, remaining, ..
            } => AcquireOutcome::Held {
                token,
                sent,
                remaining,
            },
            // It was lost in between, for example by a failover.
            RenewOutcome::NotOwner(_) => AcquireOutcome::StartOver,
        });
        call.outcome = Some(acquired.map(Outcome::Acquired));
    }

    /// Renews a lock that was just acquired, and waits for the acknowledgments.
    async fn confirm(
        &self,
        confirmer: &Confirmer,
        sent: &SentAcquires,
        limit: Duration,
    ) -> Result<RenewOutcome, LockError> {
        let renewal = sent.renewal(Clock::System.now());
        let began = self.client.begin_command();
        let result = confirmer.renew(&[renewal], limit).await.pop();
        let result = result.unwrap_or_else(|| Err(LockError::unreadable()));
        let error = result.as_ref().err();
        self.client.end_command(LockCommand::Renew, began, error);
        result
    }

    /// Renews leases, and waits for the acknowledgments.
    async fn renew_confirmed(
        &self,
        confirmer: &Confirmer,
        calls: &mut [&mut Call<'_>],
        deadline: Deadline,
    ) {
        let began = self.client.begin_command();
        let renewals = calls.iter().filter_map(|call| match &call.op.kind {
            OpKind::Renew(renewal, _) => Some((*renewal).clone()),
            _ => None,
        });
        let renewals: Vec<_> = renewals.collect();
        let results = confirmer.renew(&renewals, deadline.left()).await;
        for (call, result) in calls.iter_mut().zip(results) {
            call.outcome = Some(result.map(Outcome::Renewed));
        }
        let error = calls.iter().find_map(|call| call.error());
        self.client.end_command(LockCommand::Renew, began, error);
    }

    /// Closes the connections that were idle at the last searches, too.
    #[cfg(feature = "cluster")]
    pub(super) fn close_idle(&self) {
        self.client.pool.close_idle();
        self.client.transactions.close_idle();
        if let Some(confirmer) = &self.confirmer {
            confirmer.close_idle();
        }
    }

    /// Looks for another primary for as long as it is polled, and uses it.
    async fn follow(&self) {
        let connector = &self.client.pool.connector;
        let Some(generations) = connector.location.generations() else {
            return;
        };
        let process_at = |addresses, deadline| {
            let connector = Arc::clone(connector);
            async move { connector.process_at(addresses, deadline).await }
        };
        let looking = connector
            .location
            .follow(connector.config.timeout(), process_at);
        tokio::join!(self.use_generations(generations), looking);
    }

    /// Retires the connections to an earlier primary whenever there is a new one.
    async fn use_generations(&self, mut generations: watch::Receiver<u64>) {
        // Never ends: the location lives as long as this borrow.
        while generations.changed().await.is_ok() {
            self.client.pool.retire_older();
            self.client.transactions.retire_older();
            if let Some(confirmer) = &self.confirmer {
                confirmer.retire_older();
            }
            self.client.notifications.renew_all();
            self.client.notifications.poll_all();
        }
    }
}

impl Store for RedisStore {
    fn traits(&self) -> &StoreTraits {
        &self.traits
    }

    fn call<'a, 'c: 'a, 'o: 'c>(
        &'a self,
        calls: &'a mut [&'c mut Call<'o>],
        together: Together,
        deadline: Deadline,
    ) -> Boxed<'a, ()> {
        if self.acquires_one_by_one(calls, together) {
            return Box::pin(async move {
                for at in 0..calls.len() {
                    self.acquire_one(calls[at], deadline).await;
                    if ends_set(calls, at..at + 1, together) {
                        break;
                    }
                }
            });
        }
        let joins = |call: &&mut Call<'_>| match &call.op.kind {
            OpKind::Release(request) => self.joins_batches(&request.key),
            _ => true,
        };
        if calls.len() > 1 && !calls.iter().all(joins) {
            return Box::pin(async move {
                for at in 0..calls.len() {
                    let one = &mut calls[at..=at];
                    self.client.call(one, together, deadline).await;
                }
            });
        }
        let first = calls.first().map(|call| &call.op.kind);
        if let (Some(confirmer), Some(OpKind::Renew(..))) = (&self.confirmer, first) {
            return Box::pin(self.renew_confirmed(confirmer, calls, deadline));
        }
        Box::pin(self.client.call(calls, together, deadline))
    }

    fn joins_batches(&self, key: &LockKey) -> bool {
        self.client.joins_batches(key)
    }

    fn reach(&self) -> Reach {
        self.client.pool.reach()
    }

    fn status(&self) -> StoreStatus {
        self.client.status()
    }

    fn server(&self) -> Option<Arc<ServerAddress>> {
        Some(Arc::clone(&self.client.pool.connector.node().server))
    }

    fn notifies<'a>(&'a self, key: &'a LockKey, limit: Duration) -> Boxed<'a, bool> {
        Box::pin(self.client.notifies_waiters(key, limit))
    }

    fn wait_connected(&self, until: Moment) -> Boxed<'_, Result<(), LockError>> {
        Box::pin(async move {
            let deadline = Deadline::at(Clock::System, until);
            let connected = self.client.pool.for_current_runtime(deadline).await;
            connected.map(drop)
        })
    }

    fn driven_by(&self, worker: &Handle) {
        self.client.pool.connector.config.driven_by(worker);
    }

    fn listen(&self) -> Boxed<'_, ()> {
        Box::pin(async move {
            let reporter = &self.client.reporter;
            let config = &self.client.pool.connector.config;
            let logins = &config.credentials;
            let renewing_logins = || -> Boxed<'_, ()> {
                match logins {
                    Some(source) => Box::pin(credentials::renew_logins(Arc::clone(source))),
                    None => Box::pin(std::future::ready(())),
                }
            };
            let following = || -> Boxed<'_, ()> { Box::pin(self.follow()) };
            tokio::join!(
                // After a panic it also makes all waiters poll, so it supervises itself.
                listening::listen(Arc::clone(&self.client)),
                supervised(reporter, renewing_logins),
                supervised(reporter, || config.watch_client_certificate()),
                supervised(reporter, following)
            );
        })
    }
}
