//! Keeps the subscriptions to one server: a single one, a node of a cluster, or a member of a quorum.
//!
//! One loop connects when the first waiter needs a channel, subscribes to what is wanted, delivers messages, and
//! connects again whenever the connection ends. Lock commands never share this connection. It runs on the thread that
//! renews leases, so what it does in one turn is bounded: by [`Pushes`], and for the lines of a message here.
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
//! | the provider has new credentials | `AUTH`; the connection ends if they are refused |
//! | another server is the primary, or the commands go to another process | end: notifications come from there |
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
//!
//! A panic, for example of foreign code, ends the connection as any error does.
//!
//! # What is reported
//!
//! Why there are no notifications, once for each cause until a subscription succeeds. The connection, the
//! channels of native locks and the channels of keys are separate causes, because each needs its own rights.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::channels::{ChannelKind, Phase};
use super::client::RedisClient;
use super::credentials::{Issued, SubscriptionLogin};
use super::errors::io_error;
use super::node::Node;
use super::pushes::{Heartbeat, Push, Pushes, Subscribing};
use crate::error::{BackendErrorKind, LockError};
use crate::sync::caught;
use crate::telemetry::{ConnectionKind, LockEvent, NotificationKind, NotificationUse, PanicSource};
use lock_protocol::backoff::{Backoff, Jitter};
use lock_protocol::clock::{Clock, Moment};
use lock_protocol::key::key_of_channel;
use lock_protocol::mailbox::Notification;
use lock_protocol::op::Refusal;
use lock_protocol::resp::{LOCK_REPLY, Reply, ServerError};
use lock_protocol::wire::WireNotification;

/// A connection that breaks silently is detected after at most this and the command timeout.
const HEARTBEAT: Duration = Duration::from_secs(3);
/// The pause between two searches for idle channels.
const IDLE_SEARCH: Duration = Duration::from_secs(3);
/// The pause after a missing permission. People grant permissions, and that takes longer.
const AFTER_REFUSAL: Duration = Duration::from_secs(10);
/// The pause after a temporary error. A server that loads its data, for example, is asked again soon.
const AFTER_ERROR: Duration = Duration::from_secs(1);
/// A connection that lived this long did not break because of what is sent on it.
const STEADY: Duration = Duration::from_secs(1);
/// How many lines of a message are delivered before the other tasks of the thread have their turn.
const LINES_OF_A_TURN: usize = 100;
/// The pause after a panic.
const AFTER_PANIC: Duration = Duration::from_secs(1);

/// Receives the notifications of one server for as long as it is polled, even after a panic.
pub(super) async fn listen(client: Arc<RedisClient>) {
    // An earlier call was dropped with its connection. At the first call, a waiter may be faster than this task.
    if client.channels.begin_listening() {
        all_down(&client);
    }
    while let Err(payload) = caught(receive_all(&client)).await {
        client.reporter.panicked(PanicSource::Worker, payload);
        all_down(&client);
        client.channels.pause(AFTER_PANIC).await;
    }
}

/// Connects when the first waiter needs it, and again whenever the connection breaks.
async fn receive_all(client: &Arc<RedisClient>) {
    let mut backoff = Backoff::new(Jitter::from_os());
    let mut warnings = Warnings::default();
    let mut is_reconnect = false;
    loop {
        while !client.channels.has_any() {
            client.channels.wanted().await;
        }
        let pause = match Subscriber::connect(client).await {
            Ok(mut subscriber) => {
                let connector = &client.pool.connector;
                let report = connector.report(&subscriber.node, ConnectionKind::Pubsub);
                report.connected(std::mem::replace(&mut is_reconnect, true));
                let began = Clock::System.now();
                let ended = subscriber.run(client, &mut warnings).await;
                report.disconnected(ended.as_ref().err());
                let is_steady = Clock::System.now().since(began) >= STEADY;
                // The server may accept connections and close each of them.
                if is_steady || subscriber.was_confirmed {
                    backoff.reset();
                } else if let Err(error) = &ended {
                    warnings.connection.warn(client, error);
                }
                if is_steady {
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
    is_known: bool,
}

impl Warnings {
    fn of(&mut self, kind: ChannelKind) -> &mut Warning {
        if kind == ChannelKind::Key {
            &mut self.keys
        } else {
            &mut self.native
        }
    }
}

impl Warning {
    fn warn(&mut self, client: &RedisClient, error: &LockError) {
        if !std::mem::replace(&mut self.is_known, true) {
            client.reporter.emit(&LockEvent::NotificationsOff {
                server: &client.pool.connector.node().server,
                error: &error.to_string(),
            });
        }
    }
}

/// A command that is not about a channel.
struct Login(Arc<Issued>);

/// A connection for subscriptions.
struct Subscriber {
    pushes: Pushes<Login>,
    node: Arc<Node>,
    run_id: u64,
    /// `None` without a provider of credentials.
    login: Option<SubscriptionLogin>,
    /// The server has confirmed a subscription.
    was_confirmed: bool,
    /// Waiters of native locks may have missed a message on a channel that is up now.
    was_missed: bool,
}

impl Subscriber {
    async fn connect(client: &RedisClient) -> Result<Self, LockError> {
        let connector = &client.pool.connector;
        let (stream, opened) = connector.connect_raw(client.command_timeout).await?;
        let source = connector.config.credentials.as_ref();
        let login = source.zip(opened.issued);
        let heartbeat = Heartbeat {
            interval: HEARTBEAT,
            limit: client.command_timeout,
        };
        Ok(Self {
            pushes: Pushes::new(stream, Some(heartbeat)),
            node: opened.node,
            run_id: opened.first.run_id,
            login: login.map(|(source, issued)| source.register_subscription(&issued)),
            was_confirmed: false,
            was_missed: false,
        })
    }

    /// Subscribes and receives until the connection breaks, or until another server is the primary.
    async fn run(
        &mut self,
        client: &RedisClient,
        warnings: &mut Warnings,
    ) -> Result<(), LockError> {
        let location = &client.pool.connector.location;
        let mut generations = location.generations();
        let mut idle_search = tokio::time::interval(IDLE_SEARCH);
        self.subscribe(client);
        loop {
            let is_process = self.node.is_process(self.run_id);
            if location.generation() != self.node.generation || !is_process {
                return Ok(());
            }
            if self.was_missed && !self.pushes.has_unread() {
                self.was_missed = false;
                client.notifications.poll_all();
            }
            tokio::select! {
                push = self.pushes.next() => {
                    let push = push.map_err(|error| broken(&self.node, error))?;
                    let mut seen = Seen {
                        client,
                        warnings,
                        run_id: self.run_id,
                        was_confirmed: &mut self.was_confirmed,
                        was_missed: &mut self.was_missed,
                    };
                    seen.handle(push).await?;
                }
                () = client.channels.wanted() => self.subscribe(client),
                () = changed(generations.as_mut()) => {}
                issued = renewed_login(self.login.as_mut()) => self.log_in(&issued),
                _ = idle_search.tick() => {
                    for (how, name) in client.channels.take_idle() {
                        self.pushes.unsubscribe(how, name);
                    }
                }
            }
        }
    }

    fn subscribe(&mut self, client: &RedisClient) {
        // First, because a channel that made room may be wanted again.
        for (how, name) in client.channels.take_leaving() {
            self.pushes.unsubscribe(how, name);
        }
        for (how, name) in client.channels.take_wanted() {
            self.pushes.subscribe(how, name);
        }
    }

    fn log_in(&mut self, issued: &Arc<Issued>) {
        if let Some(login) = &self.login {
            login.is_renewed(issued);
        }
        self.pushes
            .send(Login(Arc::clone(issued)), LOCK_REPLY, |out| {
                out.command("AUTH")
                    .arg(&*issued.user)
                    .arg(&*issued.password);
            });
    }
}

/// What a push changes. [`Pushes`] is borrowed by the push.
struct Seen<'a> {
    client: &'a RedisClient,
    warnings: &'a mut Warnings,
    run_id: u64,
    was_confirmed: &'a mut bool,
    was_missed: &'a mut bool,
}

impl Seen<'_> {
    async fn handle(&mut self, push: Push<'_, Login>) -> Result<(), LockError> {
        match push {
            Push::Message { channel, text } => match key_of(channel) {
                Some(key) => receive_release(self.client, key),
                None => receive_text(self.client, text, self.run_id).await,
            },
            Push::Subscribed(how, channel) => self.subscribed(how, &channel),
            Push::Refused(how, channel, error) => self.refused(how, &channel, error),
            Push::Ended(how, channel) => {
                let channel = String::from_utf8_lossy(channel);
                if self.client.channels.forget(how, &channel) {
                    // They subscribe at the new owner.
                    self.client.notifications.poll_all();
                }
            }
            Push::Reply(Login(issued), reply) => return self.logged_in(&issued, reply),
            Push::Other => {}
        }
        Ok(())
    }

    fn subscribed(&mut self, how: Subscribing, channel: &str) {
        let channels = &self.client.channels;
        *self.was_confirmed = true;
        self.warnings.connection = Warning::default();
        let Some(kind) = channels.kind(how, channel) else {
            return;
        };
        *self.warnings.of(kind) = Warning::default();
        if channels.set(how, channel, Phase::Up(self.run_id)) {
            match key_of_channel(channel) {
                Some(key) => drop(self.client.notifications.notify_released(key)),
                None => *self.was_missed = true,
            }
        }
    }

    fn refused(&mut self, how: Subscribing, channel: &str, error: ServerError<'_>) {
        let channels = &self.client.channels;
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
        channels.set(how, channel, Phase::Refused { until });
        // The other channels of this kind will be refused too.
        if let Some(kind) = channels.kind(how, channel) {
            self.warnings.of(kind).warn(self.client, &error);
        }
    }

    fn logged_in(&self, issued: &Issued, reply: Reply<'_>) -> Result<(), LockError> {
        let Some(error) = reply.error() else {
            return Ok(());
        };
        let error = issued.refused(Refusal::of(error));
        self.client.reporter.emit(&LockEvent::LoginFailed {
            error: &error,
            reason: None,
        });
        Err(error)
    }
}

fn broken(node: &Node, error: io::Error) -> LockError {
    let text = format!("the subscription to {} broke", node.text());
    io_error(text, &error.into())
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
async fn renewed_login(login: Option<&mut SubscriptionLogin>) -> Arc<Issued> {
    match login {
        Some(login) => login.renewed().await,
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

/// Delivers the notifications of one message of the server process with this run id: one in each line. Other tasks of
/// the thread run in between, because a client can publish thousands of lines.
async fn receive_text(client: &RedisClient, text: &[u8], run_id: u64) {
    let received = Clock::System.now();
    let mut is_known = true;
    for (number, line) in (1..).zip(text.split(|byte| *byte == b'\n')) {
        let line = str::from_utf8(line).ok().and_then(WireNotification::parse);
        match line {
            Some(notification) => receive_line(client, &notification, run_id, received),
            None => is_known = false,
        }
        if number % LINES_OF_A_TURN == 0 {
            tokio::task::yield_now().await;
        }
    }
    if !is_known {
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
