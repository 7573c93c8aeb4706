//! The connection of the subscriptions to one node of a cluster.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::{PushKind, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::channels::{AFTER_ERROR, ChannelPhase};
use super::super::client::RedisClient;
use super::super::credentials::SubscriptionLogin;
use super::super::dial::Stream;
use super::super::errors::{io_error, lock_error};
use super::super::key_channels::{KeyChannels, Subscribing};
use super::super::pubsub::{
    AFTER_REFUSAL, HEARTBEAT, receive_release, receive_text, renewed_login,
};
use super::SlotChannels;
use crate::error::{BackendErrorKind, LockError};
use crate::sync::caught;
use crate::telemetry::{ConnectionKind, LockEvent, PanicSource};
use lock_protocol::backoff::{Backoff, Jitter};
use lock_protocol::clock::{Clock, Moment};
use lock_protocol::resp::{FrameScan, LOCK_REPLY};

/// A connection that lived this long did not break because of what is sent on it.
const STEADY: Duration = Duration::from_secs(1);
/// The pause between two searches for idle channels.
const IDLE_SEARCH: Duration = Duration::from_secs(5);
/// The pause after a panic.
const AFTER_PANIC: Duration = Duration::from_secs(1);

/// Receives the notifications of one node for as long as it is polled, also after a panic.
pub(in crate::backend::redis) async fn listen(client: Arc<RedisClient>) {
    let Some(slots) = &client.shards else {
        return;
    };
    let channels = NodeChannels {
        slots,
        keys: &client.key_channels,
    };
    while let Err(payload) = caught(receive_all(&client, channels)).await {
        client.reporter.panicked(PanicSource::Worker, payload);
        channels.all_down();
        client.notifications.poll_all();
        tokio::time::sleep(AFTER_PANIC).await;
    }
}

/// Connects when the first waiter needs it, and again whenever the connection breaks.
async fn receive_all(client: &Arc<RedisClient>, channels: NodeChannels<'_>) {
    let mut backoff = Backoff::new(Jitter::from_os());
    let mut is_reconnect = false;
    let mut warned = false;
    loop {
        while !channels.has_any() {
            client.listener.wanted().await;
        }
        let pause = match Subscriber::connect(client).await {
            Ok(mut subscriber) => {
                let connector = &client.pool.connector;
                let report = connector.report(&connector.node(), ConnectionKind::Pubsub);
                report.connected(std::mem::replace(&mut is_reconnect, true));
                let began = Clock::System.now();
                let error = subscriber.run(client, channels).await;
                report.disconnected(error.as_ref().err());
                let is_steady = Clock::System.now().since(began) >= STEADY;
                // The server may accept connections and close each of them.
                if is_steady || subscriber.was_confirmed {
                    backoff.reset();
                    warned = false;
                }
                if is_steady {
                    Duration::ZERO
                } else {
                    backoff.pause()
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut warned, true) {
                    client.reporter.emit(&LockEvent::NotificationsOff {
                        server: &client.pool.connector.node().server,
                        error: &error.to_string(),
                    });
                }
                if error.is_retryable() {
                    backoff.pause()
                } else {
                    AFTER_REFUSAL
                }
            }
        };
        channels.all_down();
        // Notifications may have been lost.
        client.notifications.poll_all();
        client.listener.pause(pause).await;
    }
}

/// The channels of one node.
#[derive(Clone, Copy)]
struct NodeChannels<'a> {
    slots: &'a SlotChannels,
    keys: &'a KeyChannels,
}

impl NodeChannels<'_> {
    fn has_any(self) -> bool {
        self.slots.channels.has_any() || self.keys.has_any()
    }

    fn all_down(self) {
        self.slots.channels.all_down();
        self.keys.all_down();
    }

    /// Sets the phase of a channel. Returns the key whose waiters may have missed a message.
    fn set_phase(self, how: Subscribing, name: &str, phase: ChannelPhase) -> Option<Arc<str>> {
        if self.keys.has(how, name) {
            return self.keys.set_phases(how, &[name], phase).pop();
        }
        if how == Subscribing::Sharded {
            // Waiters in a queue poll for a grant that they have missed.
            let _missed = self.slots.channels.set_phases(&[name], phase);
        }
        None
    }

    /// Forgets a channel whose slot has moved. Returns whether it was known.
    fn forget(self, how: Subscribing, name: &str) -> bool {
        self.keys.forget(how, name)
            || how == Subscribing::Sharded && self.slots.channels.forget(name)
    }
}

/// A command that has no reply yet.
enum Sent {
    /// A subscription to this channel. Its reply is a push message, or an error.
    Subscribe(Subscribing, Arc<str>),
    /// The end of a subscription. Its reply is a push message too, and that does not mean that the slot has moved.
    Unsubscribe(Subscribing, Arc<str>),
    /// A command with an ordinary reply, and whether it is a login.
    Command { is_login: bool },
}

struct Subscriber {
    stream: Stream,
    run_id: u64,
    login: Option<SubscriptionLogin>,
    sent: VecDeque<Sent>,
    /// When the oldest command without a reply was sent.
    silent_since: Option<Moment>,
    /// The server has refused a subscription.
    is_refusal_known: bool,
    /// The server has confirmed a subscription.
    was_confirmed: bool,
    /// When to look for idle channels.
    idle_search_at: Moment,
    buffer: Vec<u8>,
    scan: FrameScan,
}

impl Subscriber {
    async fn connect(client: &Arc<RedisClient>) -> Result<Self, LockError> {
        let connector = &client.pool.connector;
        let (stream, opened) = connector.connect_raw(client.command_timeout).await?;
        let source = connector.access.credentials.as_ref();
        let login = source.zip(opened.issued);
        Ok(Self {
            stream,
            run_id: opened.first.run_id,
            login: login.map(|(source, issued)| source.register_subscription(&issued)),
            sent: VecDeque::new(),
            silent_since: None,
            is_refusal_known: false,
            was_confirmed: false,
            idle_search_at: Clock::System.now().plus(IDLE_SEARCH),
            buffer: Vec::new(),
            scan: FrameScan::default(),
        })
    }

    /// Subscribes and receives until the connection breaks.
    async fn run(
        &mut self,
        client: &RedisClient,
        channels: NodeChannels<'_>,
    ) -> Result<(), LockError> {
        let broken = |error: io::Error| {
            let address = &client.pool.connector.node().text;
            io_error(
                format!("the subscription to {address} broke"),
                &error.into(),
            )
        };
        let mut chunk = vec![0; 4096];
        loop {
            self.subscribe(channels).await.map_err(broken)?;
            let patience = self.patience(client.command_timeout);
            let until_search = self.idle_search_at.since(Clock::System.now());
            tokio::select! {
                read = self.stream.read(&mut chunk) => match read.map_err(broken)? {
                    0 => return Err(broken(io::ErrorKind::UnexpectedEof.into())),
                    len => {
                        self.buffer.extend_from_slice(&chunk[..len]);
                        self.receive(client, channels)?;
                    }
                },
                () = client.listener.wanted() => {}
                issued = renewed_login(self.login.as_mut()) => {
                    if let Some(login) = &self.login {
                        login.is_renewed(&issued);
                    }
                    let auth = issued.auth().get_packed_command();
                    self.send(&auth, Sent::Command { is_login: true }).await.map_err(broken)?;
                }
                () = tokio::time::sleep(patience) => {
                    if self.silent_since.is_some() {
                        return Err(broken(io::ErrorKind::TimedOut.into()));
                    }
                    let ping = redis::cmd("PING").get_packed_command();
                    self.send(&ping, Sent::Command { is_login: false }).await.map_err(broken)?;
                }
                () = tokio::time::sleep(until_search) => {
                    self.idle_search_at = Clock::System.now().plus(IDLE_SEARCH);
                    let idle = channels.slots.channels.take_idle();
                    self.unsubscribe(Subscribing::Sharded, idle).await.map_err(broken)?;
                    for (how, keys) in channels.keys.all() {
                        self.unsubscribe(how, keys.take_idle()).await.map_err(broken)?;
                    }
                }
            }
        }
    }

    /// How long to wait for the next message, before the connection is checked or is broken.
    fn patience(&self, timeout: Duration) -> Duration {
        match self.silent_since {
            Some(since) => since.plus(timeout).since(Clock::System.now()),
            None => HEARTBEAT,
        }
    }

    async fn send(&mut self, bytes: &[u8], sent: Sent) -> io::Result<()> {
        self.sent.push_back(sent);
        self.silent_since.get_or_insert_with(|| Clock::System.now());
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    async fn subscribe(&mut self, channels: NodeChannels<'_>) -> io::Result<()> {
        let slots = &channels.slots.channels;
        // A channel that made room may be wanted again.
        self.unsubscribe(Subscribing::Sharded, slots.take_leaving())
            .await?;
        self.subscribe_to(Subscribing::Sharded, slots.take_wanted())
            .await?;
        for (how, keys) in channels.keys.all() {
            self.unsubscribe(how, keys.take_leaving()).await?;
            self.subscribe_to(how, keys.take_wanted()).await?;
        }
        Ok(())
    }

    async fn subscribe_to(&mut self, how: Subscribing, names: Vec<Arc<str>>) -> io::Result<()> {
        let verb = match how {
            Subscribing::Classic => "SUBSCRIBE",
            Subscribing::Sharded => "SSUBSCRIBE",
        };
        for name in names {
            let mut command = redis::cmd(verb);
            command.arg(&*name);
            let command = command.get_packed_command();
            self.send(&command, Sent::Subscribe(how, name)).await?;
        }
        Ok(())
    }

    async fn unsubscribe(&mut self, how: Subscribing, names: Vec<Arc<str>>) -> io::Result<()> {
        let verb = match how {
            Subscribing::Classic => "UNSUBSCRIBE",
            Subscribing::Sharded => "SUNSUBSCRIBE",
        };
        for name in names {
            let mut command = redis::cmd(verb);
            command.arg(&*name);
            let command = command.get_packed_command();
            self.send(&command, Sent::Unsubscribe(how, name)).await?;
        }
        Ok(())
    }

    /// Forgets a command that a push message has answered. Returns whether it was sent.
    fn is_answer_to(&mut self, is_it: impl Fn(&Sent) -> bool) -> bool {
        let at = self.sent.iter().position(is_it);
        if let Some(at) = at {
            self.sent.remove(at);
            self.answered();
        }
        at.is_some()
    }

    /// Reads the complete messages.
    fn receive(
        &mut self,
        client: &RedisClient,
        channels: NodeChannels<'_>,
    ) -> Result<(), LockError> {
        let malformed = || {
            LockError::backend(
                BackendErrorKind::Unsupported,
                "the server does not speak the protocol of Redis",
            )
        };
        let mut at = 0;
        while let Some(len) = self
            .scan
            .scan(&self.buffer[at..], LOCK_REPLY)
            .map_err(|_| malformed())?
        {
            let message = redis::parse_redis_value(&self.buffer[at..at + len]);
            at += len;
            self.handle(message.map_err(|_| malformed())?, client, channels)?;
        }
        self.buffer.drain(..at);
        Ok(())
    }

    fn handle(
        &mut self,
        message: Value,
        client: &RedisClient,
        channels: NodeChannels<'_>,
    ) -> Result<(), LockError> {
        let Value::Push { kind, data } = message else {
            return self.on_reply(message, client, channels);
        };
        let text = |at: usize| match data.get(at) {
            Some(Value::BulkString(text)) => text.as_slice(),
            _ => b"",
        };
        let how = match kind {
            PushKind::Message | PushKind::Subscribe | PushKind::Unsubscribe => Subscribing::Classic,
            _ => Subscribing::Sharded,
        };
        let channel = String::from_utf8_lossy(text(0));
        match kind {
            PushKind::Message | PushKind::SMessage => {
                let is_of_key = receive_release(client, text(0));
                if !is_of_key {
                    receive_text(client, text(1), self.run_id);
                }
            }
            PushKind::Subscribe | PushKind::SSubscribe => {
                self.is_answer_to(|sent| {
                    matches!(sent, Sent::Subscribe(by, name) if *by == how && **name == *channel)
                });
                self.was_confirmed = true;
                let up = ChannelPhase::Up(self.run_id);
                if let Some(key) = channels.set_phase(how, &channel, up) {
                    client.notifications.notify_released(&key);
                }
            }
            PushKind::Unsubscribe | PushKind::SUnsubscribe => {
                let has_moved = self.has_moved(how, &channel, channels);
                if has_moved {
                    client.notifications.poll_all();
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Records that a subscription has ended. Returns whether its slot has moved: its waiters subscribe at the new
    /// owner. The reply to a command of this connection does not mean that.
    fn has_moved(&mut self, how: Subscribing, channel: &str, channels: NodeChannels<'_>) -> bool {
        let is_ours = self.is_answer_to(
            |sent| matches!(sent, Sent::Unsubscribe(by, name) if *by == how && **name == *channel),
        );
        !is_ours && channels.forget(how, channel)
    }

    /// Reads a reply to the oldest command that has none.
    fn on_reply(
        &mut self,
        reply: Value,
        client: &RedisClient,
        channels: NodeChannels<'_>,
    ) -> Result<(), LockError> {
        let sent = self.sent.pop_front();
        self.answered();
        let Err(error) = reply.extract_error() else {
            return Ok(());
        };
        match sent {
            Some(Sent::Subscribe(how, name)) if error.code() == Some("MOVED") => {
                // The next acquire goes to the new owner.
                channels.forget(how, &name);
            }
            Some(Sent::Subscribe(how, name)) => {
                let error = lock_error("cannot subscribe to the channel", &error);
                let pause = if error.is_retryable() {
                    AFTER_ERROR
                } else {
                    AFTER_REFUSAL
                };
                let until = Clock::System.now().plus(pause);
                channels.set_phase(how, &name, ChannelPhase::Refused { until });
                // The other channels of the node will be refused too. One log line is enough.
                if !std::mem::replace(&mut self.is_refusal_known, true) {
                    client.reporter.emit(&LockEvent::NotificationsOff {
                        server: &client.pool.connector.node().server,
                        error: &error.to_string(),
                    });
                }
            }
            Some(Sent::Command { is_login: true }) => {
                let error = super::super::credentials::refused(&error);
                let event = LockEvent::LoginFailed {
                    error: &error,
                    reason: None,
                };
                client.reporter.emit(&event);
                return Err(error);
            }
            // A user may lack the right to run PING.
            Some(Sent::Command { is_login: false } | Sent::Unsubscribe(..)) | None => {}
        }
        Ok(())
    }

    /// Starts the time of the next command without a reply.
    fn answered(&mut self) {
        self.silent_since = (!self.sent.is_empty()).then(|| Clock::System.now());
    }
}

#[cfg(test)]
mod tests;
