//! What telemetry learns from the connections and commands of a server.

use std::sync::Arc;

use super::client::RedisClient;
use crate::error::LockError;
use crate::telemetry::{ConnectionKind, LockCommand, LockEvent, Reporter, ServerAddress};
use lock_protocol::clock::{Clock, Moment};

/// Reports the begin and the end of one connection.
#[derive(Clone, Debug)]
pub(super) struct ConnectionReport {
    pub(super) reporter: Arc<Reporter>,
    pub(super) server: Arc<ServerAddress>,
    pub(super) kind: ConnectionKind,
}

impl ConnectionReport {
    pub(super) fn connected(&self, is_reconnect: bool) {
        self.reporter.emit(&LockEvent::Connected {
            server: &self.server,
            connection: self.kind,
            is_reconnect,
        });
    }

    pub(super) fn disconnected(&self, error: Option<&LockError>) {
        self.reporter.emit(&LockEvent::Disconnected {
            server: &self.server,
            connection: self.kind,
            error,
        });
    }
}

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
}
