//! What telemetry learns from a connection.

use std::sync::Arc;

use crate::error::LockError;
use crate::telemetry::{ConnectionKind, LockEvent, Reporter, ServerAddress};

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
