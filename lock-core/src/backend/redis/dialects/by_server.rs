//! The methods `Native` and `Auto`: what the server can do decides how the owner is checked.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Dialects;
use super::conditional::Conditional;
use crate::backend::Renewal;
use crate::backend::redis::abilities::OwnerCheck;
use crate::backend::redis::connection::Connection;
use crate::error::LockError;
use lock_protocol::acquisition::RenewOutcome;
use lock_protocol::cleanup::{ReleaseOutcome, ReleaseRequest};
use lock_protocol::clock::{Clock, Deadline};
use lock_protocol::dialect::{Dialect, ReleaseMethod};
use lock_protocol::key::LockKey;

/// The outcomes of a batch; those that are still `None` need another method.
type Open<T> = Vec<Option<Result<T, LockError>>>;

impl Dialects {
    /// Returns how the connection checks the owner.
    pub(super) async fn owner_check(
        &self,
        connection: &Connection,
        release: ReleaseMethod,
        limit: Duration,
    ) -> Result<OwnerCheck, LockError> {
        let check = self
            .conditionals
            .owner_check(connection, release, limit)
            .await;
        if matches!(check, Ok(OwnerCheck::Transaction)) {
            self.auto_is_transaction.store(true, Ordering::Relaxed);
        }
        check
    }

    /// Renews leases of the methods `Native` and `Auto`.
    pub(super) async fn renew_by_server(
        &self,
        renewals: &[Renewal],
        limit: Duration,
    ) -> Vec<Result<RenewOutcome, LockError>> {
        if renewals.is_empty() {
            return Vec::new();
        }
        let deadline = Deadline::after(Clock::System, limit);
        let connection = match self.client.pool.for_current_runtime(limit).await {
            Ok(connection) => connection,
            Err(error) => return renewals.iter().map(|_| Err(error.clone())).collect(),
        };
        let keys: Vec<_> = renewals.iter().map(|renewal| &renewal.key).collect();
        let mut outcomes: Open<RenewOutcome> = vec![None; renewals.len()];
        let mut checks = self
            .checks(&connection, &keys, &mut outcomes, deadline)
            .await;
        let by_command = positions(&checks, |check| matches!(check, OwnerCheck::Command(_)));
        let mut refused = Vec::new();
        if !by_command.is_empty() {
            let batch: Vec<_> = by_command.iter().map(|at| &renewals[*at]).collect();
            let owners: Vec<_> = batch
                .iter()
                .map(|renewal| self.owners.owner(renewal.owner_id))
                .collect();
            let left = deadline.left();
            let renewed = self
                .conditionals
                .renew(&connection, &batch, &owners, left)
                .await;
            for (at, outcome) in by_command.into_iter().zip(renewed) {
                outcomes[at] = settle(&connection, &renewals[at].key, outcome, || refused.push(at));
            }
        }
        self.replace_refused(&connection, &refused, &mut checks, &mut outcomes, deadline)
            .await;
        for (check, by_script) in [(OwnerCheck::Script, true), (OwnerCheck::Transaction, false)] {
            let at = positions(&checks, |found| found == check);
            if at.is_empty() {
                continue;
            }
            let batch: Vec<_> = at.iter().map(|at| renewals[*at].clone()).collect();
            let left = deadline.left();
            let renewed = if by_script {
                self.owners.renew(&batch, left).await
            } else {
                self.renew_in_transactions(&batch, left).await
            };
            for (at, outcome) in at.into_iter().zip(renewed) {
                outcomes[at] = Some(outcome);
            }
        }
        let missing = || Ok(RenewOutcome::missing());
        outcomes
            .into_iter()
            .map(|outcome| outcome.unwrap_or_else(missing))
            .collect()
    }

    /// Releases locks of the methods `Native` and `Auto` over this connection.
    pub(super) async fn release_by_server(
        &self,
        connection: &Arc<Connection>,
        requests: &[&ReleaseRequest],
        limit: Duration,
    ) -> Vec<Result<ReleaseOutcome, LockError>> {
        let deadline = Deadline::after(Clock::System, limit);
        let keys: Vec<_> = requests.iter().map(|request| &request.key).collect();
        let mut outcomes: Open<ReleaseOutcome> = vec![None; requests.len()];
        let mut checks = self
            .checks(connection, &keys, &mut outcomes, deadline)
            .await;
        let by_command = positions(&checks, |check| matches!(check, OwnerCheck::Command(_)));
        let mut refused = Vec::new();
        if let Some(OwnerCheck::Command(delete)) = by_command.first().and_then(|at| checks[*at]) {
            let batch: Vec<_> = by_command.iter().map(|at| requests[*at]).collect();
            let owners: Vec<_> = batch
                .iter()
                .map(|request| self.owners.owner(request.owner_id))
                .collect();
            let no_owner = self.owners.no_owner();
            let left = deadline.left();
            let released = self
                .conditionals
                .release(connection, delete, &batch, &owners, &no_owner, left)
                .await;
            for (at, outcome) in by_command.into_iter().zip(released) {
                outcomes[at] = settle(connection, &requests[at].key, outcome, || refused.push(at));
            }
        }
        self.replace_refused(connection, &refused, &mut checks, &mut outcomes, deadline)
            .await;
        let by_script = positions(&checks, |check| check == OwnerCheck::Script);
        if let [at] = by_script[..] {
            // Over the connection of its acquire, which it must not overtake.
            let left = deadline.left();
            outcomes[at] = Some(self.owners.release(requests[at], left).await);
        } else {
            let batch: Vec<_> = by_script.iter().map(|at| requests[*at]).collect();
            let released = self.owners.release_all(&batch, deadline.left()).await;
            for (at, outcome) in by_script.into_iter().zip(released) {
                outcomes[at] = Some(outcome);
            }
        }
        for at in positions(&checks, |check| check == OwnerCheck::Transaction) {
            let left = deadline.left();
            outcomes[at] = Some(self.release_in_transaction(requests[at], left).await);
        }
        let unexpected = || Err(super::unexpected());
        outcomes
            .into_iter()
            .map(|outcome| outcome.unwrap_or_else(unexpected))
            .collect()
    }

    /// Returns how the owner of each key is checked; `None` for an error, which becomes the outcome.
    async fn checks<T>(
        &self,
        connection: &Connection,
        keys: &[&LockKey],
        outcomes: &mut Open<T>,
        deadline: Deadline,
    ) -> Vec<Option<OwnerCheck>> {
        let mut checks = Vec::with_capacity(outcomes.len());
        for (key, outcome) in keys.iter().zip(outcomes) {
            // After the first key of a method, this asks nothing.
            let check = self.owner_check(connection, method(key), deadline.left());
            checks.push(match check.await {
                Ok(check) => Some(check),
                Err(error) => {
                    *outcome = Some(Err(error));
                    None
                }
            });
        }
        checks
    }

    /// Chooses another method for commands that the server refused. One that is refused for a lack of
    /// memory may succeed as a script, and never as a transaction.
    async fn replace_refused<T>(
        &self,
        connection: &Connection,
        refused: &[usize],
        checks: &mut [Option<OwnerCheck>],
        outcomes: &mut Open<T>,
        deadline: Deadline,
    ) {
        for &at in refused {
            let left = deadline.left();
            match self.conditionals.without_commands(connection, left).await {
                Ok(check) => checks[at] = Some(check),
                Err(error) => outcomes[at] = Some(Err(error)),
            }
        }
    }
}

fn positions(checks: &[Option<OwnerCheck>], is: impl Fn(OwnerCheck) -> bool) -> Vec<usize> {
    let all = checks.iter().enumerate();
    all.filter(|(_, check)| check.is_some_and(&is))
        .map(|(at, _)| at)
        .collect()
}

/// Returns the outcome of a command. A refusal is one for the method `Native` only.
fn settle<T>(
    connection: &Connection,
    key: &LockKey,
    outcome: Result<Conditional<T>, LockError>,
    on_refusal: impl FnOnce(),
) -> Option<Result<T, LockError>> {
    match outcome {
        Ok(Conditional::Done(outcome)) => Some(Ok(outcome)),
        Ok(Conditional::Refused { is_lasting, .. }) if method(key) == ReleaseMethod::Auto => {
            if is_lasting {
                connection.abilities.refuse_commands();
            }
            on_refusal();
            None
        }
        Ok(Conditional::Refused { error, .. }) | Err(error) => Some(Err(error)),
    }
}

/// Returns the method of a key in the dialect `SetNxPx`.
fn method(key: &LockKey) -> ReleaseMethod {
    match key.dialect() {
        Dialect::SetNxPx { release } => release,
        _ => ReleaseMethod::Script,
    }
}
