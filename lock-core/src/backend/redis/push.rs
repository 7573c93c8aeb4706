//! The push connection: one private channel for each manager, used for nothing else.
//!
//! In RESP3 the confirmation of a subscription can hit any command on its connection, so
//! subscriptions and lock commands never share one.

use std::sync::Arc;
use std::time::Duration;

use redis::{PushInfo, PushKind, Value};
use tokio::sync::Notify;
use tracing::{debug, warn};

use super::connection::Connection;
use super::fault::lock_error;
use super::server::{Line, Server};
use crate::clock::Clock;
use crate::error::{BackendErrorKind, LockError};
use crate::inbox::{Grant, Signal};
use crate::lease::granted_until;
use crate::retry::{Backoff, Jitter};
use crate::wire::Push;

/// A connection that is cut in silence is found out after at most this and the command timeout.
const HEARTBEAT: Duration = Duration::from_secs(3);
/// A missing right is granted by people, and they take longer.
const AFTER_REFUSAL: Duration = Duration::from_secs(10);

/// Subscribes, listens until the line breaks, and does so again, for ever.
pub(super) async fn listen(server: Arc<Server>) {
    if server.pushes.line() == Line::Idle {
        server.pushes.are_wanted().await;
    } else {
        // It was listened before, and that ended by a panic.
        tell(&server, Line::Down);
    }
    let mut backoff = Backoff::new(Jitter::from_os());
    let mut warned = false;
    loop {
        let pause = match subscribe(&server).await {
            Ok((connection, broken)) => {
                backoff.reset();
                warned = false;
                server.connections.seen(connection.first.incarnation);
                tell(&server, Line::Up(connection.first.incarnation));
                hear_out(&server, &connection, &broken).await;
                server.counters.trace(|| {
                    debug!("the push connection broke; waiters ask by themselves until it is back");
                });
                Duration::ZERO
            }
            Err(error) => {
                if !std::mem::replace(&mut warned, true) {
                    server
                        .counters
                        .trace(|| warn!(%error, "no pushes: waiters ask by themselves"));
                }
                let refused = matches!(
                    &error,
                    LockError::Backend(error) if error.kind() == BackendErrorKind::Permission
                );
                if refused {
                    AFTER_REFUSAL
                } else {
                    backoff.pause()
                }
            }
        };
        tell(&server, Line::Down);
        tokio::time::sleep(pause).await;
    }
}

/// After each change all waiters look: a push may have been lost, or has another way now. Not
/// after the first: who waits for it has not asked yet, or polls.
fn tell(server: &Server, line: Line) {
    let mut before = line;
    server.counters.waking(|| before = server.pushes.set(line));
    if before != line && before != Line::Idle {
        server.inbox.look_all();
    }
}

async fn subscribe(server: &Arc<Server>) -> Result<(Connection, Arc<Notify>), LockError> {
    let broken = Arc::new(Notify::new());
    let (hearer, line_broken) = (Arc::downgrade(server), Arc::clone(&broken));
    let config = super::connection::Connector::config().set_push_sender(move |push: PushInfo| {
        if push.kind == PushKind::Disconnection {
            line_broken.notify_one();
        } else if let (Some(server), PushKind::Message) = (hearer.upgrade(), &push.kind) {
            hear(&server, &push);
        }
        Ok::<(), std::convert::Infallible>(())
    });
    let timeout = server.command_timeout;
    let connection = server
        .connections
        .connector
        .connect_with(config, timeout)
        .await?;
    let mut handle = connection.handle();
    let confirmed = handle.subscribe(&server.pushes.channel);
    match tokio::time::timeout(timeout, confirmed).await {
        Ok(Ok(())) => Ok((connection, broken)),
        Ok(Err(error)) => Err(lock_error("cannot subscribe to our channel", &error)),
        Err(_elapsed) => Err(super::fault::timed_out("cannot subscribe to our channel")),
    }
}

/// Until the connection breaks, or does not answer any more.
async fn hear_out(server: &Server, connection: &Connection, broken: &Notify) {
    loop {
        let quiet = tokio::time::timeout(HEARTBEAT, broken.notified()).await;
        if quiet.is_ok() {
            return;
        }
        let ping = redis::cmd("PING");
        if connection
            .call(&ping, server.command_timeout)
            .await
            .is_err()
        {
            return;
        }
    }
}

fn hear(server: &Server, push: &PushInfo) {
    let received = Clock::System.now();
    let Some(Value::BulkString(text)) = push.data.get(1) else {
        return;
    };
    let Some(push) = std::str::from_utf8(text).ok().and_then(Push::parse) else {
        // Anybody who may publish there can send anything: worth a line, and no attention.
        server
            .counters
            .trace(|| debug!("an unknown message on our private channel"));
        return;
    };
    let Line::Up(incarnation) = server.pushes.line() else {
        return;
    };
    let is_awaited = match push {
        Push::Grant {
            nonce,
            token,
            server_us,
            lease_ms,
        } => {
            let lease = Duration::from_millis(lease_ms);
            let anchor = server.anchor();
            let grant = Grant {
                token,
                received,
                lease,
                until: granted_until(anchor, incarnation, server_us, lease, received),
            };
            server.inbox.tell(nonce, Signal::Grant(grant))
        }
        Push::Head { to, holder_ms, .. } => {
            let holder_ends = received.plus(Duration::from_millis(holder_ms));
            server.inbox.tell_all(to, Signal::Head { holder_ends })
        }
    };
    if !is_awaited {
        // Its attempt has ended, and with it went the command that takes everything back.
        server
            .counters
            .trace(|| debug!(%push, "a push for one who does not wait any more"));
    }
}
