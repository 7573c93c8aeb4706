//! The connections between the processes and the server.
//!
//! Each direction of a connection keeps its order, as TCP does. A packet that was sent arrives unless
//! the connection is cut. It may arrive much later, also when its sender has closed the connection.

use std::collections::VecDeque;

use lock_testing::Nanos;

use super::{Simulation, Timed};
use crate::acquisition::FailureClass;
use crate::clock::Moment;
use crate::clock_sync::ClockSync;
use crate::owner_id::OwnerId;
use crate::tests::virtual_client::{MessageLane, Reply, Request};
use crate::wire::WireNotification;

/// The use of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The commands of the callers.
    Callers,
    /// The commands of the background worker.
    Worker,
    Subscription,
}

impl Purpose {
    pub(super) const ALL: [Self; 3] = [Self::Callers, Self::Worker, Self::Subscription];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heading {
    ToServer,
    ToClient,
}

/// The recipient of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Addressee {
    Task(usize, MessageLane),
    Cleanup(OwnerId),
}

#[derive(Debug)]
pub(super) struct SentCommand {
    pub(super) call: u64,
    pub(super) addressee: Addressee,
    pub(super) key: usize,
    pub(super) owner_id: OwnerId,
    pub(super) request: Request,
}

#[derive(Debug)]
pub(super) enum Packet {
    Hello,
    Command(Box<SentCommand>),
    Ping,
    Welcome {
        server_us: u64,
        run_id: u64,
    },
    Reply {
        call: u64,
        addressee: Addressee,
        result: Result<Reply, FailureClass>,
        server_us: u64,
    },
    Notify(WireNotification),
    Pong,
    /// The other side has closed the connection.
    Fin,
}

/// One direction of a connection.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    pub(super) packets: VecDeque<Packet>,
    last_arrival: Nanos,
    /// Nothing arrives before this time.
    pub(super) muted_until: Nanos,
}

/// The client's side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientEnd {
    Dialing { sent: Moment },
    Up { first: ClockSync },
    Closed,
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) process: usize,
    pub(super) purpose: Purpose,
    pub(super) client: ClientEnd,
    pub(super) server_open: bool,
    pub(super) to_server: Pipe,
    pub(super) to_client: Pipe,
    /// When the oldest command without a reply was sent.
    pub(super) silent_since: Option<Moment>,
    /// When the ping was sent whose reply is awaited.
    pub(super) pinged: Option<Moment>,
}

impl Link {
    fn new(process: usize, purpose: Purpose, sent: Moment) -> Self {
        Self {
            process,
            purpose,
            client: ClientEnd::Dialing { sent },
            server_open: false,
            to_server: Pipe::default(),
            to_client: Pipe::default(),
            silent_since: None,
            pinged: None,
        }
    }

    pub(super) fn pipe(&mut self, heading: Heading) -> &mut Pipe {
        match heading {
            Heading::ToServer => &mut self.to_server,
            Heading::ToClient => &mut self.to_client,
        }
    }

    /// Returns the clock sync at the beginning of a connection that is up.
    pub(super) fn first(&self) -> Option<ClockSync> {
        match self.client {
            ClientEnd::Up { first } => Some(first),
            ClientEnd::Dialing { .. } | ClientEnd::Closed => None,
        }
    }

    /// Returns whether a command without a reply shows that the connection is broken.
    pub(super) fn is_broken_by(&mut self, sent: Moment, now: Moment, patience_ns: u64) -> bool {
        let since = self.silent_since.map_or(sent, |known| known.min(sent));
        self.silent_since = Some(since);
        let silent = now.as_nanos().saturating_sub(since.as_nanos());
        silent >= patience_ns / 2
    }
}

impl Simulation {
    pub(super) fn open_link(&mut self, process: usize, purpose: Purpose) -> usize {
        let id = self.links.len();
        let sent = self.processes[process].clock.at(self.now);
        let mut link = Link::new(process, purpose, sent);
        let muted_until = self.processes[process].network.black_hole_until;
        link.to_server.muted_until = muted_until;
        link.to_client.muted_until = muted_until;
        self.links.push(link);
        self.send(id, Heading::ToServer, Packet::Hello);
        id
    }

    /// Sends a packet. It arrives behind the earlier packets of its direction.
    pub(super) fn send(&mut self, id: usize, heading: Heading, packet: Packet) {
        let process = &self.processes[self.links[id].process];
        let extra = match heading {
            Heading::ToServer => process.network.to_server,
            Heading::ToClient => process.network.to_client,
        };
        let extra = if process.network.until > self.now {
            extra
        } else {
            0
        };
        let latency = process.latency + self.random.number() % process.latency + extra;
        let pipe = self.links[id].pipe(heading);
        let arrival = (self.now + latency).max(pipe.last_arrival + 1);
        pipe.last_arrival = arrival;
        pipe.packets.push_back(packet);
        self.push(arrival, Timed::Deliver { link: id, heading });
    }

    /// Returns until when no packet of this direction arrives.
    fn blocked_until(&self, id: usize, heading: Heading) -> Nanos {
        let link = &self.links[id];
        match heading {
            Heading::ToServer => {
                let is_command = matches!(link.to_server.packets.front(), Some(Packet::Command(_)));
                let commands = self.server.commands_paused_until;
                let paused = self.server.paused_until;
                let paused = if is_command {
                    paused.max(commands)
                } else {
                    paused
                };
                link.to_server.muted_until.max(paused)
            }
            Heading::ToClient => {
                let process = &self.processes[link.process];
                link.to_client.muted_until.max(process.paused_until)
            }
        }
    }

    pub(super) fn deliver(&mut self, id: usize, heading: Heading) {
        let blocked = self.blocked_until(id, heading);
        if blocked > self.now {
            // Connections and timers continue in any order.
            let at = blocked + self.random.number() % 2_000_000;
            self.push(at, Timed::Deliver { link: id, heading });
            return;
        }
        let Some(packet) = self.links[id].pipe(heading).packets.pop_front() else {
            return;
        };
        match heading {
            Heading::ToServer => self.at_server(id, packet),
            Heading::ToClient => self.at_client(id, packet),
        }
    }

    /// Cuts a connection. Some of the packets on their way still arrive.
    pub(super) fn cut(&mut self, id: usize) {
        if self.links[id].client == ClientEnd::Closed && !self.links[id].server_open {
            return;
        }
        for heading in [Heading::ToServer, Heading::ToClient] {
            let packets = self.links[id].pipe(heading).packets.len();
            let left = self.random.below(packets + 1);
            self.links[id].pipe(heading).packets.truncate(left);
            self.send(id, heading, Packet::Fin);
        }
    }
}
