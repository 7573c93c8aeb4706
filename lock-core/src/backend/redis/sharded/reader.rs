//! The connection of the subscriptions to one node of a cluster.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::{PushKind, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::client::RedisClient;
use super::super::credentials::SubscriptionLogin;
use super::super::dial::Stream;
use super::super::errors::{io_error, lock_error};
use super::super::pubsub::{AFTER_REFUSAL, HEARTBEAT, receive_text, renewed_login};
use super::super::transport::frames::reply_len;
use super::{ChannelPhase, SlotChannels};
use crate::error::{BackendErrorKind, LockError};
use crate::protocol::backoff::{Backoff, Jitter};
use crate::protocol::clock::{Clock, Moment};
use crate::telemetry::{ConnectionKind, LockEvent};

/// Receives the notifications of one node for as long as it is polled. Connects when the first waiter
/// needs it, and again whenever the connection breaks.
pub(in crate::backend::redis) async fn listen(client: Arc<RedisClient>) {
    let Some(shards) = &client.shards else {
        return;
    };
    let mut backoff = Backoff::new(Jitter::from_os());
    let mut is_reconnect = false;
    let mut warned = false;
    loop {
        while !shards.has_any() {
            shards.wanted.notified().await;
        }
        let error = match Subscriber::connect(&client).await {
            Ok(mut subscriber) => {
                backoff.reset();
                warned = false;
                let connector = &client.pool.connector;
                let report = connector.report(&connector.node(), ConnectionKind::Pubsub);
                report.connected(std::mem::replace(&mut is_reconnect, true));
                let error = subscriber.run(&client, shards).await;
                report.disconnected(error.as_ref().err());
                None
            }
            Err(error) => Some(error),
        };
        shards.all_down();
        // Notifications may have been lost.
        client.notifications.poll_all();
        let Some(error) = error else {
            continue;
        };
        if !std::mem::replace(&mut warned, true) {
            client.reporter.emit(&LockEvent::NotificationsOff {
                server: &client.pool.connector.node().server,
                error: &error.to_string(),
            });
        }
        let lasts = !error.is_retryable();
        let pause = if lasts {
            AFTER_REFUSAL
        } else {
            backoff.pause()
        };
        tokio::time::sleep(pause).await;
    }
}

/// A command that has no reply yet.
enum Sent {
    /// A subscription to this channel. Its reply is a push message, or an error.
    Subscribe(Arc<str>),
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
    buffer: Vec<u8>,
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
            buffer: Vec::new(),
        })
    }

    /// Subscribes and receives until the connection breaks.
    async fn run(&mut self, client: &RedisClient, shards: &SlotChannels) -> Result<(), LockError> {
        let broken = |error: io::Error| {
            let address = &client.pool.connector.node().text;
            io_error(
                format!("the subscription to {address} broke"),
                &error.into(),
            )
        };
        let mut chunk = vec![0; 4096];
        loop {
            self.subscribe(shards).await.map_err(broken)?;
            let patience = self.patience(client.command_timeout);
            tokio::select! {
                read = self.stream.read(&mut chunk) => match read.map_err(broken)? {
                    0 => return Err(broken(io::ErrorKind::UnexpectedEof.into())),
                    len => {
                        self.buffer.extend_from_slice(&chunk[..len]);
                        self.receive(client, shards)?;
                    }
                },
                () = shards.wanted.notified() => {}
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
                    self.unsubscribe(shards).await.map_err(broken)?;
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

    async fn subscribe(&mut self, shards: &SlotChannels) -> io::Result<()> {
        for (_, name) in shards.take_wanted() {
            let mut command = redis::cmd("SSUBSCRIBE");
            command.arg(&*name);
            let command = command.get_packed_command();
            self.send(&command, Sent::Subscribe(name)).await?;
        }
        Ok(())
    }

    async fn unsubscribe(&mut self, shards: &SlotChannels) -> io::Result<()> {
        for name in shards.take_idle() {
            let mut command = redis::cmd("SUNSUBSCRIBE");
            command.arg(&*name);
            // Its reply is a push message for a channel that is not known any more.
            self.stream.write_all(&command.get_packed_command()).await?;
            self.stream.flush().await?;
        }
        Ok(())
    }

    /// Reads the complete messages.
    fn receive(&mut self, client: &RedisClient, shards: &SlotChannels) -> Result<(), LockError> {
        let malformed = || {
            LockError::backend(
                BackendErrorKind::Unsupported,
                "the server does not speak the protocol of Redis",
            )
        };
        let mut at = 0;
        while let Some(len) = reply_len(&self.buffer[at..]).map_err(|_| malformed())? {
            let message = redis::parse_redis_value(&self.buffer[at..at + len]);
            at += len;
            self.handle(message.map_err(|_| malformed())?, client, shards)?;
        }
        self.buffer.drain(..at);
        Ok(())
    }

    fn handle(
        &mut self,
        message: Value,
        client: &RedisClient,
        shards: &SlotChannels,
    ) -> Result<(), LockError> {
        let Value::Push { kind, data } = message else {
            return self.on_reply(message, client, shards);
        };
        let text = |at: usize| match data.get(at) {
            Some(Value::BulkString(text)) => text.as_slice(),
            _ => b"",
        };
        let channel = String::from_utf8_lossy(text(0));
        match kind {
            PushKind::SMessage => receive_text(client, text(1), self.run_id),
            PushKind::SSubscribe => {
                let is_it =
                    |sent: &Sent| matches!(sent, Sent::Subscribe(name) if **name == *channel);
                if let Some(at) = self.sent.iter().position(is_it) {
                    self.sent.remove(at);
                    self.answered();
                }
                shards.set_phase(&channel, ChannelPhase::Up(self.run_id));
            }
            // The slot has moved. Its waiters subscribe at the new owner.
            PushKind::SUnsubscribe if shards.forget(&channel) => client.notifications.poll_all(),
            _ => {}
        }
        Ok(())
    }

    /// Reads a reply to the oldest command that has none.
    fn on_reply(
        &mut self,
        reply: Value,
        client: &RedisClient,
        shards: &SlotChannels,
    ) -> Result<(), LockError> {
        let sent = self.sent.pop_front();
        self.answered();
        let Err(error) = reply.extract_error() else {
            return Ok(());
        };
        match sent {
            Some(Sent::Subscribe(name)) if error.code() == Some("MOVED") => {
                // The next acquire goes to the new owner.
                shards.forget(&name);
            }
            Some(Sent::Subscribe(name)) => {
                shards.set_phase(&name, ChannelPhase::Refused);
                // The other slots of the node will be refused too. One log line is enough.
                if !std::mem::replace(&mut self.is_refusal_known, true) {
                    let error = lock_error("cannot subscribe to the channel of a slot", &error);
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
            Some(Sent::Command { is_login: false }) | None => {}
        }
        Ok(())
    }

    /// Starts the time of the next command without a reply.
    fn answered(&mut self) {
        self.silent_since = (!self.sent.is_empty()).then(|| Clock::System.now());
    }
}
