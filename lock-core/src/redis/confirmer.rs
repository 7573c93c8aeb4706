//! Renewals that replicas or the disk have to acknowledge.
//!
//! `WAIT` counts the replicas that have the last write of its own connection, and holds up what follows on that
//! connection. So a confirmation is a renewal and a `WAIT` on a connection that does nothing else. One batch is
//! under way at a time; the renewals that come meanwhile form the next one, and share its `WAIT`.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use super::client::RedisClient;
use super::connection::Connection;
use super::connector::Connector;
use super::errors::timed_out;
use super::pool::Pool;
use crate::config::confirm::Confirm;
use crate::error::{BackendErrorKind, LockError};
use crate::store::{Call, Renewal};
use crate::sync::{Mutex, Process};
use lock_protocol::acquisition::{Origin, RenewOutcome};
use lock_protocol::clock::{Clock, Deadline};
use lock_protocol::op::{Expiry, OpKind, Outcome, WaitFor};

type ConfirmedRenewals = Vec<Result<RenewOutcome, LockError>>;

pub(super) struct Confirmer {
    client: Arc<RedisClient>,
    pool: Pool,
    confirm: Confirm,
    /// The renewals that wait for the next batch, by connection.
    waiting: Mutex<HashMap<Origin, Vec<Arc<Ticket>>>>,
    process: Process,
}

/// The renewals of one caller.
struct Ticket {
    renewals: Vec<Renewal>,
    results: Mutex<Option<ConfirmedRenewals>>,
}

impl Confirmer {
    /// `connector` opens the connections for confirmations.
    pub(super) fn new(client: Arc<RedisClient>, connector: Connector, confirm: Confirm) -> Self {
        Self {
            client,
            pool: Pool::for_each_runtime(connector),
            confirm,
            waiting: Mutex::default(),
            process: Process::current(),
        }
    }

    /// As [`Pool::close_idle`].
    #[cfg(feature = "cluster")]
    pub(super) fn close_idle(&self) {
        self.pool.close_idle();
    }

    /// Stops using the connections to an earlier primary.
    pub(super) fn retire_older(&self) {
        self.pool.retire_older();
    }

    /// Checks that the server confirms at all.
    pub(super) async fn probe(&self, limit: Duration) -> Result<(), LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        let connection = self.pool.for_current_runtime(deadline).await?;
        let wait = self.wait_for(Duration::from_millis(1));
        let waited = self
            .client
            .run_over(&connection, OpKind::Wait(&wait), deadline);
        let acknowledged = waited.await.outcome;
        self.acknowledged(&connection, acknowledged).map(drop)
    }

    /// Renews leases, and waits for the acknowledgments. Too few of them are an error for each lease.
    ///
    /// # Cancel safety
    /// The renewals may run, and other callers' confirmations go on.
    pub(super) async fn renew(&self, renewals: &[Renewal], limit: Duration) -> ConfirmedRenewals {
        let all = |error: &LockError| renewals.iter().map(|_| Err(error.clone())).collect();
        let deadline = Deadline::after(Clock::System, limit);
        let connection = match self.pool.for_current_runtime(deadline).await {
            Ok(connection) => connection,
            Err(error) => return all(&error),
        };
        let ticket = Arc::new(Ticket {
            renewals: renewals.to_vec(),
            results: Mutex::default(),
        });
        self.enqueue(&connection, &ticket);
        let leaving = Leaving(self, &connection, &ticket);
        let turn = tokio::time::timeout(deadline.left(), connection.turn.lock()).await;
        let Ok(_turn) = turn else {
            return all(&timed_out("the lock server confirms other locks"));
        };
        if let Some(results) = ticket.take() {
            return results;
        }
        // Nobody else takes this queue now. The caller that had taken this ticket may have been dropped.
        let mut batch = if deadline.left() < self.confirm.within {
            // The others have more time than this caller.
            Vec::new()
        } else {
            self.take(&connection)
        };
        if !batch.iter().any(|other| Arc::ptr_eq(other, &ticket)) {
            batch.push(Arc::clone(&ticket));
        }
        self.run(&connection, &batch, deadline.left()).await;
        drop(leaving);
        ticket
            .take()
            .unwrap_or_else(|| all(&LockError::unreadable()))
    }

    async fn run(&self, connection: &Connection, batch: &[Arc<Ticket>], limit: Duration) {
        // Each renewal is a write, also right after its acquire: otherwise there would be nothing to acknowledge.
        let renewals = batch.iter().flat_map(|ticket| &ticket.renewals);
        let renewals = renewals.map(|renewal| OpKind::Renew(renewal, Expiry::Always));
        let mut calls: Vec<_> = renewals.map(Call::new).collect();
        let wait = self.wait_for(self.confirm.within);
        let deadline = Deadline::after(Clock::System, limit);
        let acknowledged = self
            .client
            .run_acknowledged(connection, &mut calls, &wait, deadline)
            .await;
        let confirmed = self
            .acknowledged(connection, acknowledged)
            .and_then(|acknowledged| self.check(connection, acknowledged));
        let mut results = calls
            .into_iter()
            .map(|call| match (call.renewed(), &confirmed) {
                (Ok(RenewOutcome::Held { .. }), Err(error)) => Err(error.clone()),
                (result, _) => result,
            });
        for ticket in batch {
            let of_ticket = results.by_ref().take(ticket.renewals.len()).collect();
            let before = ticket.results.lock().replace(of_ticket);
            drop(before);
        }
    }

    fn wait_for(&self, within: Duration) -> WaitFor {
        WaitFor {
            replicas: self.confirm.replicas,
            disk: self.confirm.fsync,
            within,
        }
    }

    /// Returns whether the disk of the primary, if it is asked, and how many replicas have acknowledged.
    fn acknowledged(
        &self,
        connection: &Connection,
        outcome: Option<Result<Outcome, LockError>>,
    ) -> Result<(bool, u32), LockError> {
        match outcome {
            Some(Ok(Outcome::Acknowledged { by_disk, replicas })) => Ok((by_disk, replicas)),
            Some(Err(error)) => Err(self.refused(connection, error)),
            Some(Ok(_)) | None => Err(LockError::unreadable()),
        }
    }

    fn check(
        &self,
        connection: &Connection,
        (has_local, replicas): (bool, u32),
    ) -> Result<(), LockError> {
        let needed = self.confirm.replicas;
        if has_local && replicas >= needed {
            return Ok(());
        }
        let what = if has_local {
            format!("{replicas} of {needed} replicas")
        } else {
            "not even its own disk".to_owned()
        };
        Err(LockError::backend(
            BackendErrorKind::NotReplicated,
            format!(
                "the lock server at {} has written the lock, but {what} acknowledged it within {:?}",
                connection.node().text(),
                self.confirm.within
            ),
        ))
    }

    fn refused(&self, connection: &Connection, error: LockError) -> LockError {
        let address = &connection.node().text();
        let Some(text) = error.source().map(ToString::to_string) else {
            return error;
        };
        if text.contains("appendonly is disabled") {
            return LockError::advised(
                BackendErrorKind::Misconfigured,
                format!("the lock server at {address} has no append-only file: {text}"),
                "set `appendonly yes` on the server, or use `Confirm::replicas`",
            );
        }
        if self.confirm.fsync && text.contains("unknown command") {
            return LockError::advised(
                BackendErrorKind::Unsupported,
                format!("the lock server at {address} does not know WAITAOF"),
                "use Redis 7.2 or later, or Valkey; or `Confirm::replicas`",
            );
        }
        error
    }

    fn enqueue(&self, connection: &Connection, ticket: &Arc<Ticket>) {
        let mut waiting = self.waiting.lock();
        let queue = waiting.entry(connection.origin).or_default();
        queue.push(Arc::clone(ticket));
    }

    fn take(&self, connection: &Connection) -> Vec<Arc<Ticket>> {
        self.waiting
            .lock()
            .remove(&connection.origin)
            .unwrap_or_default()
    }
}

impl Ticket {
    fn take(&self) -> Option<ConfirmedRenewals> {
        self.results.lock().take()
    }
}

/// Takes the ticket of a caller that stopped waiting out of the queue.
struct Leaving<'a>(&'a Confirmer, &'a Connection, &'a Arc<Ticket>);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let Self(confirmer, connection, ticket) = self;
        // No thread of a forked child unlocks a mutex that was locked at the fork.
        if !confirmer.process.is_current() {
            return;
        }
        let mut left = None;
        let mut waiting = confirmer.waiting.lock();
        if let Some(queue) = waiting.get_mut(&connection.origin) {
            let at = queue.iter().position(|other| Arc::ptr_eq(other, ticket));
            left = at.map(|at| queue.swap_remove(at));
            if queue.is_empty() {
                waiting.remove(&connection.origin);
            }
        }
        drop(waiting);
        drop(left);
    }
}
