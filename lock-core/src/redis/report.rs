//! What telemetry learns from a connection.

use std::sync::Arc;

use crate::error::LockError;
use crate::store::WORKER_THREAD;
use crate::telemetry::{ConnectionKind, LockEvent, Reporter, ServerAddress};

/// Returns the kind of a connection for lock commands that opens on this thread.
pub(super) fn kind_of_this_thread() -> ConnectionKind {
    if std::thread::current().name() == Some(WORKER_THREAD) {
        ConnectionKind::Worker
    } else {
        ConnectionKind::Command
    }
}

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
