//! What the parts of a server's backend share: connections, pushes, and the server's time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{Cmd, RedisError, Value};
use tokio::sync::{Notify, watch};

use super::connection::{Connection, Connector};
use super::connections::Connections;
use super::fault::is_unknown_script;
use super::scripts::Script;
use crate::clock::{Clock, Moment};
use crate::error::LockError;
use crate::inbox::{Inbox, locked};
use crate::lease::{Anchor, UNKNOWN_LIFE};

/// What is known of the push connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Nobody has waited yet.
    Idle,
    /// Subscribed, at that life of the server.
    Up(u64),
    Down,
}

/// The state of the push connection, for those who wait.
pub(super) struct Pushes {
    pub(super) channel: String,
    line: watch::Sender<Line>,
    wanted: Notify,
}

impl Pushes {
    pub(super) fn new() -> Self {
        Self {
            channel: format!("lk1:{}", uuid::Uuid::new_v4()),
            line: watch::Sender::new(Line::Idle),
            wanted: Notify::new(),
        }
    }

    /// Sets the state, and tells the last one.
    pub(super) fn set(&self, line: Line) -> Line {
        self.line.send_replace(line)
    }

    pub(super) fn line(&self) -> Line {
        *self.line.borrow()
    }

    /// Until the first waiter asks for pushes.
    pub(super) async fn are_wanted(&self) {
        self.wanted.notified().await;
    }

    /// Whether pushes of that life of the server arrive; waits for the first subscription.
    pub(super) async fn arrive_from(&self, incarnation: u64, patience: Duration) -> bool {
        if incarnation == UNKNOWN_LIFE {
            return false;
        }
        let mut line = self.line.subscribe();
        if *line.borrow() == Line::Idle {
            self.wanted.notify_one();
            let first = line.wait_for(|line| *line != Line::Idle);
            let _known_or_given_up = tokio::time::timeout(patience, first).await;
        }
        *self.line.borrow() == Line::Up(incarnation)
    }
}

/// One server, as all runtimes of a manager see it.
pub(super) struct Server {
    pub(super) connections: Connections,
    pub(super) pushes: Pushes,
    pub(super) inbox: Arc<Inbox>,
    pub(super) command_timeout: Duration,
    anchor: Mutex<Option<Anchor>>,
}

impl Server {
    pub(super) fn new(connector: Connector, command_timeout: Duration, inbox: Arc<Inbox>) -> Self {
        Self {
            connections: Connections::new(connector),
            pushes: Pushes::new(),
            inbox,
            command_timeout,
            anchor: Mutex::default(),
        }
    }

    pub(super) fn anchor(&self) -> Option<Anchor> {
        *locked(&self.anchor)
    }

    /// A reply told the server's time.
    pub(super) fn told_time(&self, connection: &Connection, sent: Moment, server_us: u64) {
        let mut anchor = locked(&self.anchor);
        let incarnation = connection.first.incarnation;
        let older =
            anchor.is_none_or(|known| known.incarnation != incarnation || known.sent < sent);
        if older {
            *anchor = Some(Anchor {
                sent,
                server_us,
                incarnation,
            });
        }
    }

    /// The youngest time of that life of the server.
    pub(super) fn anchor_for(&self, connection: &Connection) -> Anchor {
        self.anchor()
            .filter(|anchor| anchor.incarnation == connection.first.incarnation)
            .unwrap_or(connection.first)
    }

    /// Runs a script, with its text where the server forgot it. The server's own errors are
    /// the inner result.
    pub(super) async fn run(
        &self,
        connection: &Connection,
        script: &Script,
        keys: &[&str],
        write_args: impl Fn(&mut Cmd),
        limit: Duration,
    ) -> Result<Result<Value, RedisError>, LockError> {
        let until = Clock::System.now().plus(limit);
        let reply = connection
            .call(&script.by_hash(keys, &write_args), limit)
            .await?;
        match reply {
            Err(error) if is_unknown_script(&error) => {
                let left = until.since(Clock::System.now());
                connection
                    .call(&script.by_text(keys, &write_args), left)
                    .await
            }
            reply => Ok(reply),
        }
    }
}
