//! Keeps the subscriptions to one server: a single one, a node of a cluster, or a member of a quorum.
//!
//! The loop runs on the thread of the background worker, and uses the worker's connection, which also carries renewals
//! and releases. It subscribes when the first waiter needs a channel, delivers messages, and does so again whenever the
//! connection ends. What it does in one turn is bounded by the connection's driver, so that a flood of messages delays
//! no renewal.
//!
//! # One connection
//!
//! | Event | Action |
//! |---|---|
//! | a waiter needs a channel | subscribe |
//! | a channel made room for another one, or was idle | unsubscribe |
//! | a subscription is confirmed | the channel is up; a waiter that may have missed a message polls |
//! | a subscription is refused | the channel is refused for [`AFTER_REFUSAL`], or [`AFTER_ERROR`] if the error is temporary |
//! | it is refused with `MOVED`, or the server ends it | forget the channel: its slot has moved, and waiters subscribe at the new owner |
//! | a message | wake its waiter |
//! | another server is the primary, or the commands go to another process | end: notifications come from there |
//! | no channel is left | end, and keep the connection |
//!
//! A `PING` each [`HEARTBEAT`] shows that the server still answers while channels are subscribed. Only its own reply
//! counts: messages show that somebody publishes.
//!
//! # Between two connections
//!
//! All channels are set down *before* all waiters poll: a waiter that polls early must find that it can't rely on a
//! message. Then comes a pause, during which no waiter waits for a subscription:
//!
//! | The connection | Pause |
//! |---|---|
//! | lived for [`STEADY`] | none |
//! | had a confirmed subscription | the first pause of the back-off |
//! | ended before, or was not made | the next pause of the back-off |
//! | was refused for a reason that lasts: a missing right, or RESP2 | [`AFTER_REFUSAL`] |
//! | was flooded with messages | [`AFTER_REFUSAL`], in which renewals and releases have the next connection for themselves |
//!
//! A panic, for example of foreign code, ends the connection as any error does.
//!
//! # What is reported
//!
//! Why there are no notifications, once for each cause until a subscription succeeds. The connection, the
//! channels of native locks and the channels of keys are separate causes, because each needs its own rights.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::channels::{ChannelKind, Phase};
use super::client::RedisClient;
use super::connection::Connection;
use super::connector::no_notifications;
use super::transport::{Push, Receiver, Subscribing};
use crate::error::{BackendErrorKind, LockError};
use crate::store::PollingReason;
use crate::sync::caught;
use crate::telemetry::{LockEvent, NotificationKind, NotificationUse, PanicSource};
use lock_protocol::backoff::{Backoff, Jitter};
use lock_protocol::clock::{Clock, Deadline, Moment};
use lock_protocol::key::key_of_channel;
use lock_protocol::mailbox::Notification;
use lock_protocol::op::Refusal;
use lock_protocol::resp::ServerError;
use lock_protocol::wire::WireNotification;

/// A connection that breaks silently is detected after at most this and the command timeout.
const HEARTBEAT: Duration = Duration::from_secs(3);
/// The pause between two searches for idle channels.
const IDLE_SEARCH: Duration = Duration::from_secs(3);
/// The pause after a missing permission, or a flood. People grant permissions, and that takes longer.
const AFTER_REFUSAL: Duration = Duration::from_secs(10);
/// The pause after a temporary error. A server that loads its data, for example, is asked again soon.
const AFTER_ERROR: Duration = Duration::from_secs(1);
/// A connection that lived this long did not break because of what is sent on it.
const STEADY: Duration = Duration::from_secs(1);
/// How many lines of a message may be unreadable before the rest is not read. A later version may have lines of other
/// kinds; a flood of nonsense must not delay the replies behind it.
const UNKNOWN_LINES: usize = 100;
/// The pause after a panic.
const AFTER_PANIC: Duration = Duration::from_secs(1);

/// Receives the notifications of one server for as long as it is polled, even after a panic.
pub(super) async fn listen(client: Arc<RedisClient>) {
    // An earlier call was dropped. At the first call, a waiter may be faster than this task.
    if client.channels.begin_listening() {
        all_down(&client);
    }
    while let Err(payload) = caught(receive_all(&client)).await {
        client.reporter.panicked(PanicSource::Worker, payload);
        all_down(&client);
        client.channels.pause(AFTER_PANIC).await;
    }
}

/// Subscribes when the first waiter needs it, and again whenever the connection ends.
async fn receive_all(client: &Arc<RedisClient>) {
    let mut backoff = Backoff::new(Jitter::from_os());
    let warnings = Arc::new(Warnings::default());
    loop {
        while !client.channels.has_any() {
            client.channels.wanted().await;
        }
        let pause = match connection(client).await {
            Ok(connection) => {
                let subscriber = Arc::new(Subscriber {
                    client: Arc::downgrade(client),
                    warnings: Arc::clone(&warnings),
                    run_id: connection.first.run_id,
                    was_confirmed: AtomicBool::new(false),
                    was_missed: AtomicBool::new(false),
                    was_flooded: AtomicBool::new(false),
                    has_ended: Notify::new(),
                });
                let began = Clock::System.now();
                let ended = run(client, &connection, &subscriber).await;
                let is_steady = Clock::System.now().since(began) >= STEADY;
                let was_flooded = subscriber.was_flooded.load(Ordering::Acquire);
                if let (Err(error), true) = (&ended, was_flooded) {
                    warnings.connection.warn(client, error);
                }
                // The server may accept connections and close each of them.
                if is_steady || subscriber.was_confirmed.load(Ordering::Relaxed) {
                    backoff.reset();
                } else if let Err(error) = &ended {
                    warnings.connection.warn(client, error);
                }
                if was_flooded {
                    AFTER_REFUSAL
                } else if is_steady {
                    Duration::ZERO
                } else {
                    backoff.pause()
                }
            }
            Err(error) => {
                warnings.connection.warn(client, &error);
                if lasts(&error) {
                    AFTER_REFUSAL
                } else {
                    backoff.pause()
                }
            }
        };
        all_down(client);
        client.channels.pause(pause).await;
    }
}

/// Returns the worker's connection, if notifications can arrive over it.
async fn connection(client: &RedisClient) -> Result<Arc<Connection>, LockError> {
    if !client.pool.connector.can_subscribe() {
        return Err(no_notifications());
    }
    let pool = &client.pool;
    let deadline = Deadline::after(Clock::System, client.command_timeout);
    let mut connection = pool.for_current_runtime(deadline).await?;
    if !connection.has_pushes && pool.connector.can_subscribe() {
        // It was opened while the server refused RESP3, and would stay as it is for as long as it works.
        connection = pool.upgrade(connection, deadline).await;
    }
    // The server may have refused RESP3 just now.
    if !connection.has_pushes {
        return Err(no_notifications());
    }
    Ok(connection)
}

/// Subscribes and receives until the connection ends, until another server is the primary, or until no channel is left.
async fn run(
    client: &RedisClient,
    connection: &Connection,
    subscriber: &Arc<Subscriber>,
) -> Result<(), LockError> {
    let location = &client.pool.connector.location;
    let mut generations = location.generations();
    let mut idle_search = tokio::time::interval(IDLE_SEARCH);
    connection.receive_with(Arc::clone(subscriber) as Arc<dyn Receiver>);
    subscribe(client, connection);
    let mut beating = std::pin::pin!(beat(connection, client.command_timeout));
    while client.channels.has_any() {
        let node = connection.node();
        let is_process = node.is_process(subscriber.run_id);
        if location.generation() != node.generation || !is_process {
            return Ok(());
        }
        tokio::select! {
            () = subscriber.has_ended.notified() => {
                return connection.link.error().map_or(Ok(()), Err);
            }
            error = &mut beating => match error? {},
            () = client.channels.wanted() => subscribe(client, connection),
            () = changed(generations.as_mut()) => {}
            _ = idle_search.tick() => {
                connection.subscribe(client.channels.take_idle(), Vec::new());
            }
        }
    }
    Ok(())
}

fn subscribe(client: &RedisClient, connection: &Connection) {
    // First those that made room, because such a channel may be wanted again.
    let leaving = client.channels.take_leaving();
    connection.subscribe(leaving, client.channels.take_wanted());
}

/// Asks the server again and again for a sign of life. Returns only when the connection has ended.
async fn beat(connection: &Connection, limit: Duration) -> Result<Infallible, LockError> {
    loop {
        tokio::time::sleep(HEARTBEAT).await;
        connection.uses();
        let asked = connection
            .ask(|out| drop(out.command("PING")), 1, limit)
            .await;
        if let Err(error) = asked
            && !connection.link.is_open()
        {
            return Err(error);
        }
    }
}

/// Records that no notification arrives now. All waiters poll: one may have been lost.
fn all_down(client: &RedisClient) {
    client.channels.all_down();
    client.notifications.poll_all();
}

/// Returns whether only a change of the server or of its users helps.
fn lasts(error: &LockError) -> bool {
    matches!(
        error,
        LockError::Backend(error) if matches!(
            error.kind(),
            BackendErrorKind::Permission | BackendErrorKind::Unsupported
        )
    )
}

fn lacks_right(error: &LockError) -> bool {
    matches!(error, LockError::Backend(error) if error.kind() == BackendErrorKind::Permission)
}

/// What was reported.
#[derive(Default)]
struct Warnings {
    connection: Warning,
    native: Warning,
    keys: Warning,
}

/// Whether a failure was reported. One log line is enough until a subscription succeeds.
#[derive(Default)]
struct Warning {
    is_known: AtomicBool,
}

impl Warnings {
    fn of(&self, kind: ChannelKind) -> &Warning {
        if kind == ChannelKind::Key {
            &self.keys
        } else {
            &self.native
        }
    }
}

impl Warning {
    fn ends(&self) {
        self.is_known.store(false, Ordering::Relaxed);
    }

    fn warn(&self, client: &RedisClient, error: &LockError) {
        if !self.is_known.swap(true, Ordering::Relaxed) {
            client.reporter.emit(&LockEvent::NotificationsOff {
                server: &client.pool.connector.node().server,
                error: &error.to_string(),
            });
        }
    }
}

/// Receives what the server sends over one connection.
struct Subscriber {
    /// The connection belongs to the client.
    client: Weak<RedisClient>,
    warnings: Arc<Warnings>,
    run_id: u64,
    /// The server has confirmed a subscription.
    was_confirmed: AtomicBool,
    /// Waiters of native locks may have missed a message on a channel that is up now.
    was_missed: AtomicBool,
    /// The server has sent more messages than could be read.
    was_flooded: AtomicBool,
    has_ended: Notify,
}

impl Receiver for Subscriber {
    fn receive(&self, push: Push<'_>) {
        let Some(client) = self.client.upgrade() else {
            return;
        };
        match push {
            Push::Message { channel, text } => match key_of(channel) {
                Some(key) => receive_release(&client, key),
                None => receive_text(&client, text, self.run_id),
            },
            Push::Subscribed(how, channel) => self.subscribed(&client, how, &channel),
            Push::Refused(how, channel, error) => self.refused(&client, how, &channel, error),
            Push::Ended(how, channel) => {
                let channel = String::from_utf8_lossy(channel);
                if client.channels.forget(how, &channel) {
                    // They subscribe at the new owner.
                    client.notifications.poll_all();
                }
            }
        }
    }

    fn caught_up(&self) {
        if self.was_missed.swap(false, Ordering::Relaxed)
            && let Some(client) = self.client.upgrade()
        {
            client.notifications.poll_all();
        }
    }

    fn ended(&self, is_flooded: bool) {
        self.was_flooded.store(is_flooded, Ordering::Release);
        if let Some(client) = self.client.upgrade() {
            client.reporter.waking(|| self.has_ended.notify_one());
        }
    }
}

impl Subscriber {
    fn subscribed(&self, client: &RedisClient, how: Subscribing, channel: &str) {
        let channels = &client.channels;
        self.was_confirmed.store(true, Ordering::Relaxed);
        self.warnings.connection.ends();
        let Some(kind) = channels.kind(how, channel) else {
            return;
        };
        self.warnings.of(kind).ends();
        if channels.set(how, channel, Phase::Up(self.run_id)) {
            match key_of_channel(channel) {
                Some(key) => drop(client.notifications.notify_released(key)),
                None => self.was_missed.store(true, Ordering::Relaxed),
            }
        }
    }

    fn refused(
        &self,
        client: &RedisClient,
        how: Subscribing,
        channel: &str,
        error: ServerError<'_>,
    ) {
        let channels = &client.channels;
        if error.code() == "MOVED" {
            // The next acquire goes to the new owner.
            channels.forget(how, channel);
            return;
        }
        let error = LockError::refused_as("cannot subscribe to the channel", &Refusal::of(error));
        let pause = if error.is_retryable() {
            AFTER_ERROR
        } else {
            AFTER_REFUSAL
        };
        let until = Clock::System.now().plus(pause);
        let why = if lacks_right(&error) {
            PollingReason::SubscriptionDenied
        } else {
            PollingReason::SubscriptionRefused
        };
        channels.set(how, channel, Phase::Refused { until, why });
        // The other channels of this kind will be refused too.
        if let Some(kind) = channels.kind(how, channel) {
            self.warnings.of(kind).warn(client, &error);
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

/// Returns the key whose release a message on this channel announces.
fn key_of(channel: &[u8]) -> Option<&str> {
    key_of_channel(str::from_utf8(channel).ok()?)
}

/// Delivers a message on the channel of a key: its lock was released, or is kept for a shorter time.
fn receive_release(client: &RedisClient, key: &str) {
    if !client.notifications.notify_released(key) {
        let (kind, outcome) = (NotificationKind::Released, NotificationUse::Stale);
        let event = LockEvent::NotificationReceived { kind, outcome };
        client.reporter.emit(&event);
    }
}

/// Delivers the notifications of one message of the server process with this run id: one in each line.
fn receive_text(client: &RedisClient, text: &[u8], run_id: u64) {
    let received = Clock::System.now();
    let mut unknown = 0;
    for line in text.split(|byte| *byte == b'\n') {
        let line = str::from_utf8(line).ok().and_then(WireNotification::parse);
        match line {
            Some(notification) => receive_line(client, &notification, run_id, received),
            None => unknown += 1,
        }
        if unknown > UNKNOWN_LINES {
            break;
        }
    }
    if unknown > 0 {
        // Any client with the permission to publish can send anything. One log line is enough.
        client.reporter.emit(&LockEvent::UnknownMessage {});
    }
}

fn receive_line(
    client: &RedisClient,
    notification: &WireNotification,
    run_id: u64,
    received: Moment,
) {
    let read = Notification::from_wire(notification, client.clock_sync(), run_id, received);
    let notifications = &client.notifications;
    let is_awaited = match notification {
        WireNotification::Grant { owner_id, .. } => notifications.notify(*owner_id, read),
        WireNotification::Head { to, .. } => notifications.notify_by_short_id(*to, read),
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
