//! The servers of the simulation.

use super::*;

impl Sim {
    pub(super) fn crash(&mut self) {
        let server = self.below(self.servers.len());
        let down = self.below_u64(TTL_US);
        let up_from = self.now + down;
        let state = &mut self.servers[server];
        state.run += 1;
        state.up_from = up_from;
        if self.memory != Memory::Kept {
            state.key = None;
            state.counter = 0;
            state.forgot_at = Some(up_from);
        }
        let next = self.now + 500_000 + self.below_u64(4 * TTL_US);
        self.at(next, SimEvent::Crash);
    }

    pub(super) fn at_server(&mut self, call: SimCall, command: SimCommand, run: u64) {
        let now = self.now;
        let server = &mut self.servers[call.server];
        if server.run != run || now < server.up_from {
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
