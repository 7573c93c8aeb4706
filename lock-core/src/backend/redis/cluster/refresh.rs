//! Reads the slot map and the epochs of the nodes.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::super::errors::lock_error;
use super::super::handshake::my_epoch;
use super::map;
use super::nodes::{ClusterNode, ClusterNodes};
use crate::error::{BackendErrorKind, LockError};
use crate::protocol::backoff::Jitter;
use crate::protocol::clock::{Clock, Deadline};

/// How long a node may take to reply.
const REPLY: Duration = Duration::from_millis(300);
/// The shortest pause between two readings of the map.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause. A counter of fencing tokens lives longer than twice this time, so that its seed is
/// never of an older epoch than the connection knows.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

impl ClusterNodes {
    /// Reads the first slot map.
    pub(super) async fn discover(&self, deadline: Deadline) -> Result<(), LockError> {
        let mut last = None;
        for address in self.candidates() {
            if deadline.left().is_zero() {
                break;
            }
            let node = self.node(&address);
            let limit = deadline.left().min(REPLY);
            // An error comes at once, and not when the time has run out.
            let connected = node.server.client.pool.first(limit).await;
            let read = match connected {
                Ok(_) => self.read_map(&node, limit).await,
                Err(error) => Err(error),
            };
            match read {
                Ok(()) => return Ok(()),
                // Another node cannot know more.
                Err(error) if !error.is_retryable() => return Err(error),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| {
            LockError::backend(
                BackendErrorKind::TimedOut,
                "no node of the cluster replied in time",
            )
        }))
    }

    /// Reads the map from one node, which must own slots or know who does.
    async fn read_map(&self, node: &ClusterNode, limit: Duration) -> Result<(), LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        let pool = &node.server.client.pool;
        let connection = pool.for_current_runtime(limit).await?;
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let reply = connection.call(&command, deadline.left()).await?;
        let reply = reply.map_err(|error| {
            let text = format!(
                "the node at {} does not tell the slots of the cluster",
                node.address
            );
            lock_error(text, &error)
        })?;
        let ranges = map::ranges(&reply, &node.address, self.has_tls());
        match ranges {
            Some(ranges) if !ranges.is_empty() => {
                self.replace_map(ranges);
                Ok(())
            }
            _ => Err(LockError::backend(
                BackendErrorKind::ClusterDown,
                format!("the node at {} knows no slot of the cluster", node.address),
            )),
        }
    }

    /// Keeps the map and the epochs up to date for as long as it is polled.
    pub(super) async fn keep_fresh(self: Arc<Self>) {
        let mut jitter = Jitter::from_os();
        loop {
            let wanted = tokio::time::timeout(LONGEST_PAUSE, self.wanted.notified());
            let _wanted_or_due = wanted.await;
            let mut candidates = self.candidates();
            candidates.sort_by_cached_key(|_| jitter.anywhere_in(LONGEST_PAUSE));
            for address in candidates {
                let node = self.node(&address);
                if self.read_map(&node, REPLY).await.is_ok() {
                    break;
                }
            }
            self.read_epochs().await;
            tokio::time::sleep(SHORTEST_PAUSE).await;
        }
    }

    /// Reads the epoch of each node from that node itself: a primary that was replaced must keep its own.
    async fn read_epochs(&self) {
        let mut asked = JoinSet::new();
        for node in self.owners() {
            asked.spawn(async move {
                // Without a reply, the next reading asks again.
                let _read = read_epoch(&node).await;
            });
        }
        while asked.join_next().await.is_some() {}
    }
}

async fn read_epoch(node: &ClusterNode) -> Result<(), LockError> {
    let pool = &node.server.client.pool;
    let connection = pool.for_current_runtime(REPLY).await?;
    let mut command = redis::cmd("CLUSTER");
    command.arg("INFO");
    let reply = connection.call(&command, REPLY).await?;
    let info = reply.and_then(|info| Ok(redis::from_redis_value::<String>(info)?));
    if let Some(epoch) = info.ok().as_deref().and_then(my_epoch) {
        let access = &pool.connector.access;
        for server in [&node.server, &node.asking] {
            let node = server.client.pool.connector.node();
            node.raise_lead(access.lead_us(epoch));
        }
    }
    Ok(())
}
