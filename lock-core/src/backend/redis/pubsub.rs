//! The subscription to the manager's private channel, on a connection of its own.
//!
//! In RESP3, the confirmation of a subscription can be mistaken for the reply to any command on the
//! connection. So subscriptions and lock commands never share one.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::{Notify, watch};

use super::client::{RedisClient, SubscriptionState};
use super::connector::Connector;
use super::credentials::{self, Issued, SubscriptionLogin};
use super::errors::lock_error;
use super::node::Node;
use crate::error::{BackendErrorKind, LockError};
use crate::protocol::backoff::{Backoff, Jitter};
use crate::protocol::clock::{Clock, Moment};
use crate::protocol::mailbox::Notification;
use crate::protocol::wire::WireNotification;
use crate::telemetry::{ConnectionKind, LockEvent, NotificationKind, NotificationUse};

/// A connection that breaks silently is detected after at most this and the command timeout.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(3);
/// The pause after a missing permission. People grant permissions, and that takes longer.
pub(super) const AFTER_REFUSAL: Duration = Duration::from_secs(10);

/// Subscribes and receives notifications. Subscribes again whenever the connection breaks.
pub(super) async fn listen(client: Arc<RedisClient>) {
    if client.subscription.state() == SubscriptionState::Idle {
        client.subscription.wanted_by_waiter().await;
    } else {
        // An earlier call ended by a panic.
        set_state(&client, SubscriptionState::Down);
    }
    let mut backoff = Backoff::new(Jitter::from_os());
    let mut warned = false;
    let mut is_reconnect = false;
    loop {
        let pause = match subscribe(&client).await {
            Ok(subscribed) => {
                backoff.reset();
                warned = false;
                client.pool.saw_run_id(subscribed.run_id);
                set_state(&client, SubscriptionState::Up(subscribed.run_id));
                let connector = &client.pool.connector;
                let report = connector.report(&subscribed.node, ConnectionKind::Pubsub);
                report.connected(std::mem::replace(&mut is_reconnect, true));
                wait_until_broken(&client, subscribed).await;
                report.disconnected(None);
                Duration::ZERO
            }
            Err(error) => {
                if !std::mem::replace(&mut warned, true) {
                    client.reporter.emit(&LockEvent::NotificationsOff {
                        server: &client.pool.connector.node().server,
                        error: &error.to_string(),
                    });
                }
                let is_forbidden = matches!(
                    &error,
                    LockError::Backend(error) if error.kind() == BackendErrorKind::Permission
                );
                if is_forbidden {
                    AFTER_REFUSAL
                } else {
                    backoff.pause()
                }
            }
        };
        set_state(&client, SubscriptionState::Down);
        tokio::time::sleep(pause).await;
    }
}

/// Sets the state. After each change all waiters poll: a notification may have been lost, or may
/// now arrive in another way. After the first change no poll is needed: waiters that wait for it
/// have not sent an acquire yet, or they poll.
fn set_state(client: &RedisClient, state: SubscriptionState) {
    let mut before = state;
    client
        .reporter
        .waking(|| before = client.subscription.set(state));
    if before != state && before != SubscriptionState::Idle {
        client.notifications.poll_all();
    }
}

/// A subscribed connection.
struct Subscribed {
    connection: MultiplexedConnection,
    node: Arc<Node>,
    run_id: u64,
    /// Notified when the connection breaks.
    broken: Arc<Notify>,
    /// `None` without a provider of credentials.
    login: Option<SubscriptionLogin>,
}

async fn subscribe(client: &Arc<RedisClient>) -> Result<Subscribed, LockError> {
    let broken = Arc::new(Notify::new());
    let config = || {
        let (receiver, broken) = (Arc::downgrade(client), Arc::clone(&broken));
        Connector::config().set_push_sender(move |message: PushInfo| {
            if message.kind == PushKind::Disconnection {
                broken.notify_one();
            } else if let (Some(client), PushKind::Message) = (receiver.upgrade(), &message.kind) {
                receive(&client, &message);
            }
            Ok::<(), std::convert::Infallible>(())
        })
    };
    let timeout = client.command_timeout;
    let connecting = client.pool.connector.connect_with(config, timeout);
    let opened = connecting.await?;
    let mut connection = opened.handle;
    let confirmed = connection.subscribe(&*client.subscription.channel);
    match tokio::time::timeout(timeout, confirmed).await {
        Ok(Ok(())) => {
            let source = client.pool.connector.access.credentials.as_ref();
            let login = source.zip(opened.issued);
            Ok(Subscribed {
                connection,
                node: opened.node,
                run_id: opened.first.run_id,
                broken,
                login: login.map(|(source, issued)| source.register_subscription(&issued)),
            })
        }
        Ok(Err(error)) => Err(lock_error(
            "cannot subscribe to the manager's channel",
            &error,
        )),
        Err(_elapsed) => Err(super::errors::timed_out(
            "cannot subscribe to the manager's channel",
        )),
    }
}

/// Waits until the connection breaks or stops replying, or until the server refuses a new login. Renews its
/// login meanwhile.
async fn wait_until_broken(client: &RedisClient, mut subscribed: Subscribed) {
    let mut generations = client.pool.connector.whereabouts.generations();
    loop {
        // Another server is the primary now, and sends the notifications.
        if client.pool.connector.whereabouts.generation() != subscribed.node.generation {
            return;
        }
        let (command, is_login) = tokio::select! {
            () = subscribed.broken.notified() => return,
            () = changed(generations.as_mut()) => continue,
            issued = renewed_login(subscribed.login.as_mut()) => {
                if let Some(login) = &subscribed.login {
                    login.is_renewed(&issued);
                }
                (issued.auth(), true)
            }
            () = tokio::time::sleep(HEARTBEAT) => (redis::cmd("PING"), false),
        };
        let reply = subscribed.connection.send_packed_command(&command);
        let Ok(Ok(reply)) = tokio::time::timeout(client.command_timeout, reply).await else {
            return;
        };
        // The server's errors are replies too: a user may lack the right to run PING.
        if is_login && let Err(error) = reply.extract_error() {
            let error = &credentials::refused(&error);
            let reason = None;
            client
                .reporter
                .emit(&LockEvent::LoginFailed { error, reason });
            return;
        }
    }
}

async fn changed(generations: Option<&mut watch::Receiver<u64>>) {
    match generations {
        Some(generations) => {
            // The sender lives as long as the client.
            let _changed = generations.changed().await;
        }
        None => std::future::pending().await,
    }
}

/// Waits for new credentials of the subscription.
pub(super) async fn renewed_login(login: Option<&mut SubscriptionLogin>) -> Arc<Issued> {
    match login {
        Some(login) => login.renewed().await,
        None => std::future::pending().await,
    }
}

fn receive(client: &RedisClient, message: &PushInfo) {
    let SubscriptionState::Up(run_id) = client.subscription.state() else {
        return;
    };
    if let Some(Value::BulkString(text)) = message.data.get(1) {
        receive_text(client, text, run_id);
    }
}

/// Delivers the notifications of one message of the server process with this run id: one in each line.
pub(super) fn receive_text(client: &RedisClient, text: &[u8], run_id: u64) {
    let received = Clock::System.now();
    for line in text.split(|byte| *byte == b'\n') {
        receive_line(client, line, run_id, received);
    }
}

fn receive_line(client: &RedisClient, line: &[u8], run_id: u64, received: Moment) {
    let Some(notification) = std::str::from_utf8(line)
        .ok()
        .and_then(WireNotification::parse)
    else {
        // Any client with the permission to publish can send anything. One log line is enough.
        client.reporter.emit(&LockEvent::UnknownMessage {});
        return;
    };
    let read = Notification::from_wire(&notification, client.clock_sync(), run_id, received);
    let notifications = &client.notifications;
    let is_awaited = match notification {
        WireNotification::Grant { owner_id, .. } => notifications.notify(owner_id, read),
        WireNotification::Head { to, .. } => notifications.notify_by_short_id(to, read),
    };
    if !is_awaited {
        // The acquisition has ended, and its cancel releases whatever was granted.
        let kind = match notification {
            WireNotification::Grant { .. } => NotificationKind::Grant,
            WireNotification::Head { .. } => NotificationKind::Head,
        };
        let outcome = NotificationUse::Stale;
        let event = LockEvent::NotificationReceived { kind, outcome };
        client.reporter.emit(&event);
    }
}
