//! The servers of the simulation.

use super::*;

impl Sim {
    pub(super) fn crash(&mut self) {
        let server = self.below(self.servers.len());
        let down = self.below_u64(TTL_US);
        let clock_step = self.below_u64(2) * CLOCK_STEP_US;
        let (now, memory) = (self.now, self.memory);
        if !self.restarts_unseen(server) {
            let state = &mut self.servers[server];
            state.ends.push(now);
            state.up_from = now + down;
            state.clock_step = clock_step;
            if memory != Memory::Kept {
                state.key = None;
                state.counter = 0;
            }
        }
        let next = self.now + 500_000 + self.below_u64(4 * TTL_US);
        self.at(next, SimEvent::Crash);
    }

    /// A client knows the server by two addresses, and there is no quarantine. If the server restarts between two votes,
    /// its run ids don't show that it has given both.
    fn restarts_unseen(&self, server: usize) -> bool {
        let leads_here = |client: &SimClient| {
            let moved = client.leads_to.iter().enumerate();
            moved
                .filter(|(address, _)| *address != server)
                .any(|(_, to)| *to == server)
        };
        self.memory == Memory::Kept && self.clients.iter().any(leads_here)
    }

    pub(super) fn move_name(&mut self) {
        let client = self.below(self.clients.len());
        let address = self.below(self.servers.len());
        let to = if self.below(2) == 0 {
            address
        } else {
            self.below(self.servers.len())
        };
        let may_be_new = self.now < self.servers[to].up_from + TTL_US;
        if self.memory != Memory::Kept || to == address || !may_be_new {
            self.clients[client].leads_to[address] = to;
        }
        let next = self.now + self.below_u64(TTL_US);
        self.at(next, SimEvent::Move);
    }

    /// Connects a client to an address, as the driver does. Returns the process, and whether it counts; `None` if the
    /// server is down, or is one that the client knows by another address.
    pub(super) fn connect(&mut self, client: usize, address: usize) -> Option<(SimProcess, bool)> {
        let server = self.clients[client].leads_to[address];
        let state = &self.servers[server];
        if self.now < state.up_from {
            return None;
        }
        let process = SimProcess {
            server,
            run: state.run(),
        };
        let uptime = self.now - state.up_from + state.clock_step;
        // A connection shows when its process ended.
        let earlier = self.clients[client].connected[address];
        let ended = earlier.and_then(|earlier| {
            let ends = &self.servers[earlier.server].ends;
            ends.get(earlier.run).copied()
        });
        let true_now = self.now;
        let client = &mut self.clients[client];
        let now = client.clock(true_now);
        let seen = SeenProcess {
            run_id: process.run_id(),
            connected_at: now,
            uptime: Some(Duration::from_micros(uptime)),
        };
        let last_alive = client.clock(ended.unwrap_or(true_now));
        client.members.connected(address, seen, last_alive);
        client.connected[address] = Some(process);
        match client.members.standing(address, now)? {
            Standing::Counts => Some((process, true)),
            Standing::Quarantined => Some((process, false)),
            Standing::Duplicate(_) => {
                self.findings.duplicates += 1;
                None
            }
        }
    }

    pub(super) fn at_server(&mut self, call: SimCall, command: SimCommand) {
        let now = self.now;
        let server = &mut self.servers[call.process.server];
        if server.run() != call.process.run || now < server.up_from {
            return;
        }
        server.key.take_if(|key| key.ends <= now);
        let left = |ends: u64| Duration::from_micros(ends - now);
        let ours = server.key.as_mut().filter(|key| key.owner == call.owner);
        let answer = match (command, ours) {
            (SimCommand::Acquire, Some(key)) => SimAnswer::Held(key.token, left(key.ends)),
            (SimCommand::Acquire, None) => {
                if let Some(key) = &server.key {
                    SimAnswer::Busy(left(key.ends), key.owner)
                } else {
                    server.counter += 1;
                    let (owner, token) = (call.owner, token(server.counter));
                    let ends = now + TTL_US;
                    server.key = Some(SimKey { owner, token, ends });
                    SimAnswer::Held(token, left(ends))
                }
            }
            (SimCommand::Raise(token), Some(key)) => {
                server.counter = server.counter.max(token.as_u64());
                key.token = key.token.max(token);
                SimAnswer::Raised(token, left(key.ends))
            }
            (SimCommand::SetToken(token), Some(key)) => {
                server.counter = server.counter.max(token.as_u64());
                key.token = token;
                SimAnswer::Raised(token, left(key.ends))
            }
            (SimCommand::Renew, Some(key)) => {
                key.ends = now + TTL_US;
                SimAnswer::Renewed(left(key.ends))
            }
            (SimCommand::Cancel, Some(_)) => {
                server.key = None;
                return;
            }
            (_, None) => SimAnswer::NotOurs,
        };
        if let Some(delay) = self.delay() {
            self.at(now + delay, SimEvent::AtClient { call, answer });
        }
    }
}
