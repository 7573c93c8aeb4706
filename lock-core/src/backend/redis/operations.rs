//! The operations of the backend as calls to one server.

use std::time::Duration;

use super::RedisBackend;
use super::client::{RedisClient, needs_lanes, split};
use super::connection::Connection;
use crate::backend::call::Call;
use crate::backend::set::SetOutcomes;
use crate::error::LockError;
use lock_protocol::acquisition::{AcquireOutcome, RenewOutcome, SentAcquires};
use lock_protocol::cleanup::{ReleaseOutcome, ReleaseRequest};
use lock_protocol::clock::{Clock, Deadline};
use lock_protocol::codec::Lane;
use lock_protocol::codec::native::SetMode;
use lock_protocol::key::LockKey;
use lock_protocol::op::{Expiry, OpKind, Outcome, RaiseTo, Renewal, WaitFor};

/// The outcomes of renewals, and what the wait behind them has got.
pub(super) type ConfirmedRenewals = (
    Vec<Result<RenewOutcome, LockError>>,
    Option<Result<Outcome, LockError>>,
);

impl RedisClient {
    /// Connects, and runs the calls. A cancel uses the connection of its acquire, so that it cannot overtake it.
    pub(super) async fn call(&self, calls: &mut [&mut Call<'_>], deadline: Deadline) {
        for call in calls.iter_mut() {
            call.lane = self.codecs.lane_of(&call.op);
        }
        if calls.iter().all(|call| call.lane == Lane::Shared) {
            self.call_together(calls, deadline).await;
            return;
        }
        // Transactions have a connection of their own, so neither part waits for the other.
        let (mut transactions, mut others) = split(calls, |call| call.lane == Lane::Transactions);
        let transactions = Box::pin(self.run_transactions(&mut transactions, deadline));
        if others.is_empty() {
            transactions.await;
        } else {
            let others = Box::pin(self.call_together(&mut others, deadline));
            tokio::join!(transactions, others);
        }
    }

    async fn call_together(&self, calls: &mut [&mut Call<'_>], deadline: Deadline) {
        let follows = calls.first().and_then(|call| call.op.follows());
        let followed = follows.and_then(|origin| self.pool.by_origin(origin));
        let connection = match followed {
            Some(connection) => connection,
            None => match self.pool.for_current_runtime(deadline).await {
                Ok(connection) => connection,
                Err(error) => return fail(calls, &error),
            },
        };
        // As `run`, without a future around these.
        let _idle = self
            .rounds(&connection, calls, Lane::Shared, deadline)
            .await;
        if needs_lanes(calls) {
            Box::pin(self.run_lanes(&connection, calls, deadline)).await;
        }
    }

    async fn call_all(&self, calls: &mut [Call<'_>], deadline: Deadline) {
        let mut calls: Vec<_> = calls.iter_mut().collect();
        self.call(&mut calls, deadline).await;
    }

    /// Renews leases over this connection, and waits for their acknowledgments behind them in the same exchange. Each
    /// renewal is a write, also right after its acquire.
    pub(super) async fn confirm(
        &self,
        connection: &Connection,
        renewals: &[Renewal],
        wait: &WaitFor,
        limit: Duration,
    ) -> ConfirmedRenewals {
        let deadline = Deadline::after(Clock::System, limit);
        let mut calls: Vec<_> = renewals
            .iter()
            .map(|renewal| Call::new(OpKind::Renew(renewal, Expiry::Always)))
            .collect();
        let mut waiting = Call::new(OpKind::Wait(wait));
        let mut all: Vec<_> = calls.iter_mut().collect();
        all.push(&mut waiting);
        self.run(connection, &mut all, deadline).await;
        let renewed = calls.into_iter().map(Call::renewed).collect();
        (renewed, waiting.outcome)
    }

    /// Waits for the acknowledgments of nothing, to see whether the server can wait at all.
    pub(super) async fn wait(
        &self,
        connection: &Connection,
        wait: &WaitFor,
        deadline: Deadline,
    ) -> Option<Result<Outcome, LockError>> {
        let mut call = Call::new(OpKind::Wait(wait));
        self.run(connection, &mut [&mut call], deadline).await;
        call.outcome
    }
}

fn fail(calls: &mut [&mut Call<'_>], error: &LockError) {
    for call in calls {
        call.outcome = Some(Err(error.clone()));
    }
}

impl RedisBackend {
    pub(super) async fn acquire_one(
        &self,
        sent: &mut SentAcquires,
        deadline: Deadline,
    ) -> Result<AcquireOutcome, LockError> {
        if sent.key.dialect().notifies_all_waiters() && !sent.was_sent() {
            Box::pin(self.client.wait_after_release(&sent.key)).await;
        }
        let mut call = Call::new(OpKind::Acquire(sent));
        self.client.call(&mut [&mut call], deadline).await;
        call.acquired()
    }

    /// As [`acquire_one`](Self::acquire_one), over this connection.
    pub(super) async fn acquire_over(
        &self,
        connection: &Connection,
        sent: &mut SentAcquires,
        deadline: Deadline,
    ) -> Result<AcquireOutcome, LockError> {
        let mut call = Call::new(OpKind::Acquire(sent));
        self.client
            .run(connection, &mut [&mut call], deadline)
            .await;
        call.acquired()
    }

    pub(super) async fn release_one(
        &self,
        request: &ReleaseRequest,
        limit: Duration,
    ) -> Result<ReleaseOutcome, LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        let mut call = Call::new(OpKind::Release(request));
        self.client.call(&mut [&mut call], deadline).await;
        call.released()
    }

    /// Frees the key alone, while its slot moves. The full release has to follow.
    pub(super) async fn free_key(
        &self,
        request: &ReleaseRequest,
        limit: Duration,
    ) -> Result<bool, LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        let mut call = Call::new(OpKind::FreeKey(request));
        self.client.call(&mut [&mut call], deadline).await;
        match call.outcome {
            Some(Ok(Outcome::KeyFreed { was_owner })) => Ok(was_owner),
            _ => call.released().map(|released| released.was_owner),
        }
    }

    /// Sends many releases in one exchange.
    pub(super) async fn release_many(
        &self,
        requests: &[&ReleaseRequest],
        limit: Duration,
    ) -> Vec<Result<ReleaseOutcome, LockError>> {
        let mut calls: Vec<_> = requests
            .iter()
            .map(|request| Call::new(OpKind::Release(request)))
            .collect();
        let deadline = Deadline::after(Clock::System, limit);
        self.client.call_all(&mut calls, deadline).await;
        calls.into_iter().map(Call::released).collect()
    }

    /// Returns whether releases of this lock may go out in one exchange with others.
    pub(super) fn joins_batches(&self, key: &LockKey) -> bool {
        let Some(scheme) = key.dialect().scheme() else {
            return true;
        };
        match scheme.method_of_server() {
            Some(_) => self.client.codecs.conditional.joins_batches(),
            None => scheme.releases_by_script(),
        }
    }

    /// Sends many renewals in one exchange.
    pub(super) async fn renew_many(
        &self,
        renewals: &[Renewal],
        limit: Duration,
    ) -> Vec<Result<RenewOutcome, LockError>> {
        if let Some(confirmer) = &self.confirmer {
            return confirmer.renew(renewals, limit).await;
        }
        let deadline = Deadline::after(Clock::System, limit);
        let renew = |renewal| Call::new(OpKind::Renew(renewal, Expiry::WhereNeeded));
        if let [renewal] = renewals {
            let mut call = renew(renewal);
            self.client.call(&mut [&mut call], deadline).await;
            return vec![call.renewed()];
        }
        let mut calls: Vec<_> = renewals.iter().map(renew).collect();
        self.client.call_all(&mut calls, deadline).await;
        calls.into_iter().map(Call::renewed).collect()
    }

    /// Writes the token of a quorum to the key. The outcome is that of a renewal.
    pub(super) async fn raise(
        &self,
        connection: &Connection,
        renewal: &Renewal,
        to: RaiseTo,
        deadline: Deadline,
    ) -> Result<RenewOutcome, LockError> {
        let mut call = Call::new(OpKind::Raise(renewal, to));
        self.client
            .run(connection, &mut [&mut call], deadline)
            .await;
        call.renewed()
    }

    /// Acquires native locks whose keys are in one slot, as [`Backend::acquire_set`](crate::backend::Backend) says.
    pub(super) async fn acquire_by_one_command(
        &self,
        sent: &mut [&mut SentAcquires],
        limit: Duration,
    ) -> SetOutcomes {
        let mode = match sent.first() {
            Some(first) if first.waits_until.is_none() => SetMode::AllOrNone,
            Some(_) => SetMode::InOrder,
            None => return Vec::new(),
        };
        let deadline = Deadline::after(Clock::System, limit);
        let mut calls: Vec<_> = sent
            .iter_mut()
            .map(|sent| Call::new(OpKind::Acquire(sent)))
            .collect();
        match self.client.pool.for_current_runtime(deadline).await {
            Ok(connection) => {
                let mut calls: Vec<_> = calls.iter_mut().collect();
                self.client
                    .run_set(&connection, &mut calls, mode, deadline)
                    .await;
            }
            Err(error) => calls[0].outcome = Some(Err(error)),
        }
        let outcomes = calls.into_iter();
        outcomes
            .map(|call| call.outcome.is_some().then(|| call.acquired()))
            .collect()
    }
}
