//! The server: it executes each command on the production lock state.

use std::sync::Arc;

use lock_testing::Nanos;

use super::Simulation;
use super::link::{Heading, Packet, Purpose, SentCommand};
use super::nemesis::LostPacket;
use super::sabotage::Sabotage;
use crate::acquisition::FailureClass;
use crate::clock::ServerMs;
use crate::lock_state::{AcquireReply, Env, Expiring, KeyValue, LockState, RenewReply};
use crate::owner_id::OwnerId;
use crate::tests::virtual_client::{Reply, Request};
use crate::wire::{Mode, QueueEntry, WireNotification};

/// The server's wall clock at the beginning, in microseconds.
const EPOCH_US: u64 = 1_700_000_000_000_000;

/// Which commands the server refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It has no memory for an acquire.
    OutOfMemory,
    /// It executes no command that writes: MISCONF, NOREPLICAS or READONLY.
    Writes,
    /// It executes nothing, and accepts no connection: LOADING or BUSY.
    All,
    /// It accepts no connection: maxclients.
    Connections,
}

#[derive(Debug)]
pub(super) struct SimulatedServer {
    pub(super) states: Vec<LockState>,
    pub(super) run_id: u64,
    /// How far its wall clock was set forward or back.
    step_us: i64,
    pub(super) down_until: Nanos,
    pub(super) paused_until: Nanos,
    pub(super) commands_paused_until: Nanos,
    pub(super) refusal: Option<(Refusal, Nanos)>,
    /// The open subscriptions of each process.
    pub(super) subscriptions: Vec<Vec<usize>>,
    /// The open connections.
    pub(super) open: Vec<usize>,
    /// An earlier state of all keys.
    pub(super) snapshot: Vec<LockState>,
}

impl SimulatedServer {
    pub(super) fn new(keys: usize, run_id: u64) -> Self {
        Self {
            states: vec![LockState::default(); keys],
            run_id,
            step_us: 0,
            down_until: 0,
            paused_until: 0,
            commands_paused_until: 0,
            refusal: None,
            subscriptions: Vec::new(),
            open: Vec::new(),
            snapshot: vec![LockState::default(); keys],
        }
    }

    pub(super) fn now_us(&self, now: Nanos) -> u64 {
        (EPOCH_US + now / 1_000).saturating_add_signed(self.step_us)
    }

    pub(super) fn now_ms(&self, now: Nanos) -> ServerMs {
        ServerMs::from_micros(self.now_us(now))
    }

    /// Returns the true time at which a value with this expiry is gone.
    pub(super) fn when_expired(&self, expires_ms: ServerMs) -> Nanos {
        let gone_us = (expires_ms.as_u64() + 1).saturating_mul(1_000);
        let since = gone_us.saturating_add_signed(-self.step_us);
        since.saturating_sub(EPOCH_US).saturating_mul(1_000)
    }

    pub(super) fn step_clock(&mut self, by_us: i64) {
        self.step_us += by_us;
    }

    fn refused(&self, now: Nanos) -> Option<Refusal> {
        self.refusal
            .filter(|(_, until)| now < *until)
            .map(|(refusal, _)| refusal)
    }

    fn error_of(&self, request: &Request, now: Nanos) -> Option<FailureClass> {
        match (self.refused(now)?, request) {
            (Refusal::OutOfMemory, Request::Acquire { .. }) => Some(FailureClass::OutOfMemory),
            (Refusal::Writes | Refusal::All, _) => Some(FailureClass::Retry),
            (Refusal::OutOfMemory | Refusal::Connections, _) => None,
        }
    }
}

impl Simulation {
    pub(super) fn at_server(&mut self, id: usize, packet: Packet) {
        let process = self.links[id].process;
        if let Packet::Hello = packet {
            return self.welcome(id);
        }
        if !self.links[id].server_open {
            return;
        }
        match packet {
            Packet::Command(command) => {
                if self.loses(process, LostPacket::Request) {
                    self.cut(id);
                    return;
                }
                self.execute(id, &command);
            }
            Packet::Ping => self.send(id, Heading::ToClient, Packet::Pong),
            Packet::Fin => self.close_at_server(id),
            _ => {}
        }
    }

    fn loses(&mut self, process: usize, what: LostPacket) -> bool {
        let network = &mut self.processes[process].network;
        let loses = network.lose_next == Some(what);
        if loses {
            network.lose_next = None;
        }
        loses
    }

    fn welcome(&mut self, id: usize) {
        let process = self.links[id].process;
        let refused = self.server.refused(self.now);
        if self.server.down_until > self.now
            || self.processes[process].network.refused_until > self.now
            || matches!(refused, Some(Refusal::All | Refusal::Connections))
        {
            self.send(id, Heading::ToClient, Packet::Fin);
            return;
        }
        self.links[id].server_open = true;
        self.server.open.push(id);
        if self.links[id].purpose == Purpose::Subscription {
            self.server.subscriptions[process].push(id);
        }
        let server_us = self.server.now_us(self.now);
        let run_id = self.server.run_id;
        self.send(id, Heading::ToClient, Packet::Welcome { server_us, run_id });
    }

    pub(super) fn close_at_server(&mut self, id: usize) {
        let link = &mut self.links[id];
        if std::mem::replace(&mut link.server_open, false) {
            self.server.open.retain(|open| *open != id);
            self.server.subscriptions[link.process].retain(|open| *open != id);
            link.to_server.packets.clear();
        }
    }

    /// The server closes a connection.
    pub(super) fn kill_link(&mut self, id: usize) {
        if self.links[id].server_open {
            self.close_at_server(id);
            self.send(id, Heading::ToClient, Packet::Fin);
        }
    }

    fn execute(&mut self, id: usize, command: &SentCommand) {
        let process = self.links[id].process;
        let server_us = self.server.now_us(self.now);
        let mut notifications = Vec::new();
        let result = if let Some(class) = self.server.error_of(&command.request, self.now) {
            Err(class)
        } else {
            let (reply, published) = self.execute_now(command);
            notifications = published;
            Ok(reply)
        };
        self.tell(|| {
            let owner = command.owner_id.short();
            format!(
                "server: {owner} {} -> {result:?}",
                super::story::named(&command.request)
            )
        });
        for (to, notification) in notifications {
            self.publish(to, &notification);
        }
        if self.loses(process, LostPacket::Reply) {
            self.cut(id);
            return;
        }
        let reply = Packet::Reply {
            call: command.call,
            addressee: command.addressee,
            result,
            server_us,
        };
        self.send(id, Heading::ToClient, reply);
    }

    fn execute_now(&mut self, command: &SentCommand) -> (Reply, Vec<(usize, WireNotification)>) {
        let now = self.now;
        let key = command.key;
        self.before_execution(key);
        let now_us = self.server.now_us(now);
        let limit_ms = self.server.now_ms(now);
        let subscriptions = &self.server.subscriptions;
        let has_subscriber = |channel: &str| {
            let process = channel_process(channel);
            process.is_some_and(|process| !subscriptions[process].is_empty())
        };
        let env = Env {
            now_us,
            has_subscriber: &has_subscriber,
        };
        let state = &mut self.server.states[key];
        let mut sabotaged = None;
        let (request, owner_id) = match self.sabotage {
            None => (&command.request, command.owner_id),
            Some(sabotage) => {
                let owner_id = sabotaged_owner(sabotage, command, state, limit_ms);
                sabotaged = Some(sabotaged_request(sabotage, &command.request));
                (sabotaged.as_ref().unwrap_or(&command.request), owner_id)
            }
        };
        // The channels of the entries, before a grant removes one of them.
        let queue = state.queue.as_ref();
        let entries = queue.into_iter().flat_map(|queue| queue.value.values());
        let channels = &mut self.channels;
        channels.clear();
        let of_entries = entries.take(ENTRIES_READ).filter_map(KnownEntry::of);
        channels.extend(of_entries);
        let (mut reply, notifications) = request.execute(state, owner_id, &env);
        if let Some(sabotage) = self.sabotage {
            sabotage_state(sabotage, command, state, &mut reply, now_us);
        }
        drop(sabotaged);
        let later = state.queue.as_ref();
        let head = later.and_then(|queue| queue.value.values().next());
        let head = head.and_then(KnownEntry::of);
        let published = notifications.into_iter().filter_map(|notification| {
            let known = channels.iter().chain(&head);
            let to = known.into_iter().find(|entry| match &notification {
                WireNotification::Grant { owner_id: to, .. } => entry.owner_id == *to,
                WireNotification::Head { to, .. } => entry.owner_id.short() == *to,
            });
            to.map(|entry| (entry.process, notification))
        });
        let published: Vec<_> = published.collect();
        self.after_execution(command, &reply);
        (reply, published)
    }

    /// Publishes a notification to the subscriptions of a process.
    pub(super) fn publish(&mut self, process: usize, notification: &WireNotification) {
        if self.nemesis.records_notifications {
            let published = (process, notification.clone());
            self.nemesis.published.push(published);
        }
        for at in 0..self.server.subscriptions[process].len() {
            let id = self.server.subscriptions[process][at];
            self.send(id, Heading::ToClient, Packet::Notify(notification.clone()));
        }
    }
}

/// One call of the server grants one entry, behind at most a hundred dead ones.
const ENTRIES_READ: usize = 128;

/// An entry in the queue before a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownEntry {
    pub(super) owner_id: OwnerId,
    pub(super) process: usize,
    pub(super) mode: Mode,
}

impl KnownEntry {
    fn of(entry: &QueueEntry) -> Option<Self> {
        Some(Self {
            owner_id: entry.owner_id,
            process: channel_process(&entry.channel)?,
            mode: entry.mode,
        })
    }
}

pub(super) fn channel_of(process: usize) -> Arc<str> {
    format!("c{process}").into()
}

fn channel_process(channel: &str) -> Option<usize> {
    channel.strip_prefix('c')?.parse().ok()
}

fn sabotaged_owner(
    sabotage: Sabotage,
    command: &SentCommand,
    state: &LockState,
    now_ms: ServerMs,
) -> OwnerId {
    if let (Sabotage::ReleaseByAnyOwner, Request::Release { .. }) = (sabotage, &command.request)
        && let Some(Expiring {
            value: KeyValue::Native(owner),
            expires_ms,
        }) = &state.key
        && expires_ms.is_none_or(|end| now_ms <= end)
    {
        return owner.owner_id;
    }
    command.owner_id
}

fn sabotaged_request(sabotage: Sabotage, request: &Request) -> Request {
    let mut request = request.clone();
    match (sabotage, &mut request) {
        (Sabotage::NotAfterIgnored, Request::Acquire { not_after_ms, .. }) => {
            *not_after_ms = ServerMs::LAST;
        }
        (
            Sabotage::FloorIgnored,
            Request::Acquire { floor_us, .. } | Request::Release { floor_us, .. },
        ) => *floor_us = 0,
        _ => {}
    }
    request
}

fn sabotage_state(
    sabotage: Sabotage,
    command: &SentCommand,
    state: &mut LockState,
    reply: &mut Reply,
    now_us: u64,
) {
    match (sabotage, &mut *reply) {
        (Sabotage::RenewalRecreates, Reply::Renew(reply)) => {
            if let (RenewReply::NotOwner, None, Request::Renew { ttl_ms, .. }) =
                (*reply, &state.key, &command.request)
            {
                let token = crate::fencing_token::FencingToken::new(now_us);
                let since_ms = ServerMs::from_micros(now_us);
                state.key = Some(Expiring {
                    value: KeyValue::Native(crate::wire::OwnerValue {
                        owner_id: command.owner_id,
                        token,
                        since_ms,
                        label: String::new(),
                    }),
                    expires_ms: Some(since_ms.plus(*ttl_ms)),
                });
                *reply = RenewReply::Held {
                    token,
                    remaining_ms: *ttl_ms,
                };
            }
        }
        (Sabotage::EndlessKeys, Reply::Acquire(AcquireReply::Held { .. })) => {
            if let Some(key) = &mut state.key {
                key.expires_ms = None;
            }
        }
        _ => {}
    }
}
