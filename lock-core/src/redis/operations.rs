//! Sends calls to one server, and reports them to telemetry.

use super::client::{RedisClient, needs_lanes, split};
use super::connection::Connection;
use crate::error::LockError;
use crate::store::{Call, Together, fail_all};
use crate::telemetry::{LockCommand, LockEvent};
use lock_protocol::cleanup::ReleaseSubject;
use lock_protocol::clock::{Clock, Deadline, Moment};
use lock_protocol::codec::Lane;
use lock_protocol::key::LockKey;
use lock_protocol::op::{OpKind, Outcome, WaitFor};

impl RedisClient {
    /// Returns the time before a command, if an event has a reader.
    pub(super) fn begin_command(&self) -> Option<Moment> {
        self.reporter.listens().then(|| Clock::System.now())
    }

    /// Reports the end of a command.
    pub(super) fn end_command(
        &self,
        command: LockCommand,
        began: Option<Moment>,
        error: Option<&LockError>,
    ) {
        if let Some(began) = began {
            self.reporter.emit(&LockEvent::CommandEnded {
                command,
                server: &self.pool.connector.node().server,
                duration: Clock::System.now().since(began),
                error,
            });
        }
    }

    /// Connects, and runs the calls, which telemetry sees as one command. The calls of a set acquire native locks in
    /// one slot.
    pub(super) async fn call(
        &self,
        calls: &mut [&mut Call<'_>],
        together: Together,
        deadline: Deadline,
    ) {
        let began = self.begin_command();
        if together != Together::Each && calls.len() > 1 {
            Box::pin(self.run_set(calls, together, deadline)).await;
        } else if self.find_lanes(calls) == Lane::Shared {
            self.call_together(calls, deadline).await;
        } else {
            Box::pin(self.call_in_lanes(calls, deadline)).await;
        }
        if began.is_some()
            && let Some(command) = calls.first().and_then(|call| command_of(&call.op.kind))
        {
            let error = calls.iter().find_map(|call| call.error());
            self.end_command(command, began, error);
        }
    }

    /// Sets the lane of each call. Returns the shared one only if it is that of all.
    fn find_lanes(&self, calls: &mut [&mut Call<'_>]) -> Lane {
        let mut lane = Lane::Shared;
        for call in calls {
            call.run.lane = self.codecs.lane_of(&call.op);
            if call.run.lane != Lane::Shared {
                lane = call.run.lane;
            }
        }
        lane
    }

    /// Runs transactions beside the others: they have a connection of their own.
    async fn call_in_lanes(&self, calls: &mut [&mut Call<'_>], deadline: Deadline) {
        let (mut transactions, mut others) =
            split(calls, |call| call.run.lane == Lane::Transactions);
        tokio::join!(
            self.run_transactions(&mut transactions, deadline),
            self.call_together(&mut others, deadline)
        );
    }

    /// Runs the calls together. The first one chooses the connection: a cancel uses that of its acquire, so that it
    /// cannot overtake it.
    async fn call_together(&self, calls: &mut [&mut Call<'_>], deadline: Deadline) {
        let Some(first) = calls.first() else {
            return;
        };
        let followed = first.op.follows();
        let followed = followed.and_then(|origin| self.pool.by_origin(origin));
        let connection = match followed {
            Some(connection) => connection,
            None => match self.pool.for_current_runtime(deadline).await {
                Ok(connection) => connection,
                Err(error) => return fail_all(calls, &error),
            },
        };
        // `run` in place: one future less.
        let _idle = self
            .rounds(&connection, calls, Lane::Shared, deadline)
            .await;
        if needs_lanes(calls) {
            Box::pin(self.run_lanes(&connection, calls, deadline)).await;
        }
    }

    /// Runs one operation over this connection, unseen by telemetry.
    pub(super) async fn run_over<'o>(
        &self,
        connection: &Connection,
        kind: OpKind<'o>,
        deadline: Deadline,
    ) -> Call<'o> {
        let mut call = Call::new(kind);
        self.run(connection, &mut [&mut call], deadline).await;
        call
    }

    /// Runs the calls over this connection, and waits for acknowledgments behind them in the same exchange.
    pub(super) async fn run_acknowledged<'o>(
        &self,
        connection: &Connection,
        calls: &mut [Call<'o>],
        wait: &'o WaitFor,
        deadline: Deadline,
    ) -> Option<Result<Outcome, LockError>> {
        let mut waiting = Call::new(OpKind::Wait(wait));
        let mut all: Vec<_> = calls.iter_mut().collect();
        all.push(&mut waiting);
        self.run(connection, &mut all, deadline).await;
        waiting.outcome
    }

    /// Returns whether releases of this lock may go out in one exchange with others.
    pub(super) fn joins_batches(&self, key: &LockKey) -> bool {
        let Some(scheme) = key.dialect().scheme() else {
            return true;
        };
        match scheme.method_of_server() {
            Some(_) => self.codecs.conditional.joins_batches(),
            None => scheme.releases_by_script(),
        }
    }
}

/// Returns what telemetry calls an operation; `None` if it doesn't show it.
fn command_of(kind: &OpKind<'_>) -> Option<LockCommand> {
    match kind {
        OpKind::Acquire(_) => Some(LockCommand::Acquire),
        OpKind::Renew(..) => Some(LockCommand::Renew),
        OpKind::Release(request) => Some(match request.subject {
            ReleaseSubject::Guard | ReleaseSubject::ReportedGuard => LockCommand::Release,
            ReleaseSubject::Acquire => LockCommand::Cancel,
        }),
        OpKind::Inspect(..) => Some(LockCommand::Inspect),
        OpKind::FreeKey(_)
        | OpKind::Raise(_)
        | OpKind::Wait(_)
        | OpKind::Scan(_)
        | OpKind::Force(_) => None,
    }
}
