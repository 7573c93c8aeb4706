//! The subscriptions to the manager's private channel and to the channels of keys, on a connection of their own.
//!
//! In RESP3, the confirmation of a subscription can be mistaken for the reply to any command on the
//! connection. So subscriptions and lock commands never share one, and each command on this connection waits for
//! the reply to the one before.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::{Notify, watch};

use super::channels::{ChannelPhase, Channels};
use super::client::{RedisClient, SubscriptionState};
use super::connector::Connector;
use super::credentials::{self, Issued, SubscriptionLogin};
use super::errors::lock_error;
use super::key_channels;
use super::node::Node;
use crate::error::{BackendErrorKind, LockError};
use crate::telemetry::{ConnectionKind, LockEvent, NotificationKind, NotificationUse};
use lock_protocol::backoff::{Backoff, Jitter};
use lock_protocol::clock::{Clock, Moment};
use lock_protocol::mailbox::Notification;
use lock_protocol::wire::WireNotification;

/// A connection that breaks silently is detected after at most this and the command timeout.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(3);
/// The pause after a missing permission. People grant permissions, and that takes longer.
pub(super) const AFTER_REFUSAL: Duration = Duration::from_secs(10);
/// The most channels in one command.
const SUBSCRIBED_AT_ONCE: usize = 256;

/// Subscribes and receives notifications when the first waiter needs it. Connects again whenever the connection
/// breaks.
pub(super) async fn listen(client: Arc<RedisClient>) {
    // An earlier call ended by a panic. At the first call, a waiter may be faster than this task.
    if client.was_listening.swap(true, Ordering::Relaxed) {
        all_down(&client);
    }
    let mut backoff = Backoff::new(Jitter::from_os());
    let mut refusals = Refusals::default();
    let mut is_reconnect = false;
    loop {
        while !client.subscription.is_wanted() && !client.key_channels.has_any() {
            client.listener.wanted().await;
        }
        let pause = match Link::connect(&client).await {
            Ok(mut link) => {
                client.pool.saw_run_id(link.run_id);
                let connector = &client.pool.connector;
                let connection = connector.report(&link.node, ConnectionKind::Pubsub);
                connection.connected(std::mem::replace(&mut is_reconnect, true));
                let ended = link.run(&client, &mut refusals).await;
                connection.disconnected(None);
                if link.was_confirmed {
                    backoff.reset();
                }
                match ended {
                    // The server may accept connections and close each of them.
                    Ok(()) if link.was_confirmed => Duration::ZERO,
                    Ok(()) => backoff.pause(),
                    Err(error) => {
                        refusals.connection.warn(&client, &error);
                        backoff.pause()
                    }
                }
            }
            Err(error) => {
                refusals.connection.warn(&client, &error);
                if is_forbidden(&error) {
                    AFTER_REFUSAL
                } else {
                    backoff.pause()
                }
            }
        };
        all_down(&client);
        client.listener.pause(pause).await;
    }
}

/// What was reported. The channel of the manager and those of keys need different rights.
#[derive(Default)]
struct Refusals {
    connection: Refusal,
    manager: Refusal,
    keys: Refusal,
}

/// Whether a failure was reported. One log line is enough until a subscription succeeds.
#[derive(Default)]
struct Refusal {
    is_known: bool,
}

impl Refusal {
    fn warn(&mut self, client: &RedisClient, error: &LockError) {
        if !std::mem::replace(&mut self.is_known, true) {
            client.reporter.emit(&LockEvent::NotificationsOff {
                server: &client.pool.connector.node().server,
                error: &error.to_string(),
            });
        }
    }
}

fn is_forbidden(error: &LockError) -> bool {
    matches!(error, LockError::Backend(error) if error.kind() == BackendErrorKind::Permission)
}

/// Records that no notification arrives now. All waiters poll: one may have been lost.
fn all_down(client: &RedisClient) {
    client.key_channels.all_down();
    let had_keys = client.key_channels.has_any();
    let state = match client.subscription.state() {
        // No waiter has needed the channel of the manager, or the first one waits for the result.
        SubscriptionState::Idle if !client.subscription.is_wanted() => SubscriptionState::Idle,
        _ => SubscriptionState::Down,
    };
    let has_polled = set_state(client, state);
    if had_keys && !has_polled {
        client.notifications.poll_all();
    }
}

/// Sets the state. After each change all waiters poll: a notification may have been lost, or may
/// now arrive in another way. After the first change no poll is needed: waiters that wait for it
/// have not sent an acquire yet, or they poll. Returns whether all waiters poll now.
fn set_state(client: &RedisClient, state: SubscriptionState) -> bool {
    let mut before = state;
    client
        .reporter
        .waking(|| before = client.subscription.set(state));
    let polls = before != state && before != SubscriptionState::Idle;
    if polls {
        client.notifications.poll_all();
    }
    polls
}

/// A connection for subscriptions.
struct Link {
    connection: MultiplexedConnection,
    node: Arc<Node>,
    run_id: u64,
    /// Notified when the connection breaks.
    broken: Arc<Notify>,
    /// `None` without a provider of credentials.
    login: Option<SubscriptionLogin>,
    /// When to subscribe to the manager's channel again after a refusal.
    refused_until: Option<Moment>,
    /// The server has confirmed a subscription.
    was_confirmed: bool,
}

impl Link {
    async fn connect(client: &Arc<RedisClient>) -> Result<Self, LockError> {
        let broken = Arc::new(Notify::new());
        let config = || {
            let (receiver, broken) = (Arc::downgrade(client), Arc::clone(&broken));
            Connector::config().set_push_sender(move |message: PushInfo| {
                if message.kind == PushKind::Disconnection {
                    broken.notify_one();
                } else if let (Some(client), PushKind::Message) =
                    (receiver.upgrade(), &message.kind)
                {
                    receive(&client, &message);
                }
                Ok::<(), std::convert::Infallible>(())
            })
        };
        let connector = &client.pool.connector;
        let opened = connector
            .connect_with(config, client.command_timeout)
            .await?;
        let source = connector.access.credentials.as_ref();
        let login = source.zip(opened.issued);
        Ok(Self {
            connection: opened.handle,
            node: opened.node,
            run_id: opened.first.run_id,
            broken,
            login: login.map(|(source, issued)| source.register_subscription(&issued)),
            refused_until: None,
            was_confirmed: false,
        })
    }

    /// Subscribes to what waiters need, one command after the other, until the connection breaks, stops replying
    /// or refuses a new login, or until another server is the primary. Returns the error of a subscription that
    /// failed for another reason than a missing right.
    async fn run(
        &mut self,
        client: &RedisClient,
        refusals: &mut Refusals,
    ) -> Result<(), LockError> {
        let mut generations = client.pool.connector.whereabouts.generations();
        loop {
            // Another server is the primary now, and sends the notifications.
            if client.pool.connector.whereabouts.generation() != self.node.generation {
                return Ok(());
            }
            self.subscribe_manager(client, refusals).await?;
            self.subscribe_keys(client, refusals).await?;
            let until_retry = self.refused_until.map_or(HEARTBEAT, |until| {
                until.since(Clock::System.now()).min(HEARTBEAT)
            });
            let (command, is_login) = tokio::select! {
                () = self.broken.notified() => return Ok(()),
                () = changed(generations.as_mut()) => continue,
                () = client.listener.wanted() => continue,
                issued = renewed_login(self.login.as_mut()) => {
                    if let Some(login) = &self.login {
                        login.is_renewed(&issued);
                    }
                    (issued.auth(), true)
                }
                () = tokio::time::sleep(until_retry) => (redis::cmd("PING"), false),
            };
            let reply = self.connection.send_packed_command(&command);
            let Ok(Ok(reply)) = tokio::time::timeout(client.command_timeout, reply).await else {
                return Ok(());
            };
            // The server's errors are replies too: a user may lack the right to run PING.
            if is_login && let Err(error) = reply.extract_error() {
                let error = &credentials::refused(&error);
                let reason = None;
                client
                    .reporter
                    .emit(&LockEvent::LoginFailed { error, reason });
                return Ok(());
            }
        }
    }

    /// Subscribes to the channel of the manager, if a waiter has needed it.
    async fn subscribe_manager(
        &mut self,
        client: &RedisClient,
        refusals: &mut Refusals,
    ) -> Result<(), LockError> {
        let subscription = &client.subscription;
        let is_up = matches!(subscription.state(), SubscriptionState::Up(_));
        let now = Clock::System.now();
        if !subscription.is_wanted() || is_up || self.refused_until.is_some_and(|it| it > now) {
            return Ok(());
        }
        let channels = [Arc::clone(&subscription.channel)];
        match self.subscribe(client, &channels).await {
            Ok(()) => {
                refusals.connection = Refusal::default();
                refusals.manager = Refusal::default();
                self.refused_until = None;
                set_state(client, SubscriptionState::Up(self.run_id));
                Ok(())
            }
            Err(error) if is_forbidden(&error) => {
                refusals.manager.warn(client, &error);
                self.refused_until = Some(Clock::System.now().plus(AFTER_REFUSAL));
                set_state(client, SubscriptionState::Down);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Subscribes to the channels of keys that have waiters, and leaves the others.
    async fn subscribe_keys(
        &mut self,
        client: &RedisClient,
        refusals: &mut Refusals,
    ) -> Result<(), LockError> {
        for (_, channels) in client.key_channels.all() {
            let mut unused = channels.take_leaving();
            unused.extend(channels.take_idle());
            for some in unused.chunks(SUBSCRIBED_AT_ONCE) {
                let left = self.connection.unsubscribe(names_of(some));
                // A channel that stays subscribed only costs the server a message.
                let _left = tokio::time::timeout(client.command_timeout, left).await;
            }
            let wanted = channels.take_wanted();
            for some in wanted.chunks(SUBSCRIBED_AT_ONCE) {
                let phase = self.phase_of(client, some, refusals).await?;
                if let [_, _, ..] = some
                    && matches!(phase, ChannelPhase::Refused { .. })
                {
                    // The user may have the right to some of them.
                    for one in some.chunks(1) {
                        let phase = self.phase_of(client, one, refusals).await?;
                        set_phases(client, channels, one, phase);
                    }
                } else {
                    set_phases(client, channels, some, phase);
                }
            }
        }
        Ok(())
    }

    /// Subscribes to these channels by one command. Returns the phase that they are in then, or the error of a
    /// subscription that failed for another reason than a missing right.
    async fn phase_of(
        &mut self,
        client: &RedisClient,
        channels: &[Arc<str>],
        refusals: &mut Refusals,
    ) -> Result<ChannelPhase, LockError> {
        match self.subscribe(client, channels).await {
            Ok(()) => {
                refusals.connection = Refusal::default();
                refusals.keys = Refusal::default();
                Ok(ChannelPhase::Up(self.run_id))
            }
            Err(error) if is_forbidden(&error) => {
                refusals.keys.warn(client, &error);
                let until = Clock::System.now().plus(AFTER_REFUSAL);
                Ok(ChannelPhase::Refused { until })
            }
            Err(error) => Err(error),
        }
    }

    async fn subscribe(
        &mut self,
        client: &RedisClient,
        channels: &[Arc<str>],
    ) -> Result<(), LockError> {
        const FAILED: &str = "cannot subscribe to the channel";
        let confirmed = self.connection.subscribe(names_of(channels));
        match tokio::time::timeout(client.command_timeout, confirmed).await {
            Ok(Ok(())) => {
                self.was_confirmed = true;
                Ok(())
            }
            Ok(Err(error)) => Err(lock_error(FAILED, &error)),
            Err(_elapsed) => Err(super::errors::timed_out(FAILED)),
        }
    }
}

/// Records what became of the subscriptions to these channels. Waiters that may have missed a message poll.
fn set_phases(
    client: &RedisClient,
    channels: &Channels<Arc<str>>,
    names: &[Arc<str>],
    phase: ChannelPhase,
) {
    for key in channels.set_phases(&names_of(names), phase) {
        client.notifications.notify_released(&key);
    }
}

fn names_of(channels: &[Arc<str>]) -> Vec<&str> {
    channels.iter().map(|name| &**name).collect()
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
    let [Value::BulkString(channel), Value::BulkString(text), ..] = &message.data[..] else {
        return;
    };
    if receive_release(client, channel) {
        return;
    }
    if let SubscriptionState::Up(run_id) = client.subscription.state() {
        receive_text(client, text, run_id);
    }
}

/// Delivers a message on the channel of a key: its lock was released, or is kept for a shorter time. Returns whether
/// the channel is one of a key.
pub(super) fn receive_release(client: &RedisClient, channel: &[u8]) -> bool {
    let Some(key) = key_channels::key_of(channel) else {
        return false;
    };
    if !client.notifications.notify_released(key) {
        let (kind, outcome) = (NotificationKind::Released, NotificationUse::Stale);
        let event = LockEvent::NotificationReceived { kind, outcome };
        client.reporter.emit(&event);
    }
    true
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
