//! The clients of the simulation: the drivers of the machines.

use super::*;

impl Sim {
    pub(super) fn feed(&mut self, call: SimCall, answer: SimAnswer) {
        let (server, sent_at) = (call.server, call.sent_at);
        let has_tokens = self.rounds != Rounds::WithoutTokens;
        let client = &mut self.clients[call.client];
        let now = client.clock(self.now);
        let lease = |token, remaining| ServerLease {
            token: has_tokens.then_some(token),
            remaining,
            sent_at,
        };
        match &mut client.phase {
            SimPhase::Idle => {}
            SimPhase::Acquiring(machine) => match answer {
                SimAnswer::Held(token, remaining) => {
                    client.held.insert(server, lease(token, remaining));
                    machine.held(server, lease(token, remaining), now);
                }
                SimAnswer::Busy(remaining, holder) => {
                    let may_be_stale = client.seen == holder;
                    client.seen = holder;
                    let remaining = Some(remaining);
                    let by = BusyServer {
                        remaining,
                        may_be_stale,
                    };
                    machine.busy(server, by, now);
                }
                SimAnswer::Raised(token, remaining) => {
                    machine.raised(server, lease(token, remaining), now);
                }
                SimAnswer::NotOurs => machine.not_ours(server, now),
                SimAnswer::TimedOut => machine.failed(server, now),
                SimAnswer::Renewed(_) => {}
            },
            SimPhase::Holding {
                lease: machine,
                until,
                ..
            } => {
                match answer {
                    SimAnswer::Held(token, remaining) => {
                        machine.held(server, lease(token, remaining), now);
                    }
                    SimAnswer::Busy(..) => machine.busy(server),
                    SimAnswer::Raised(token, remaining) => {
                        machine.raised(server, lease(token, remaining), now);
                    }
                    SimAnswer::Renewed(remaining) => machine.renewed(server, sent_at, remaining),
                    SimAnswer::NotOurs => machine.not_ours(server),
                    SimAnswer::TimedOut => machine.failed(server),
                }
                if let RenewalRound::Renewed { ends_at } = machine.round()
                    && now < *until
                {
                    self.findings.renewals += usize::from(*until < ends_at);
                    *until = ends_at;
                }
            }
        }
        self.pump(call.client);
    }

    pub(super) fn wake(&mut self, client: usize) {
        let state = &mut self.clients[client];
        let now = state.clock(self.now);
        match &mut state.phase {
            SimPhase::Idle => self.start(client),
            SimPhase::Acquiring(machine) => {
                machine.tick(now);
                self.pump(client);
            }
            SimPhase::Holding {
                until, release_at, ..
            } if *until <= now || *release_at <= self.now => self.let_go(client, TTL_US / 2),
            SimPhase::Holding {
                lease,
                has_asked_again,
                ..
            } if !*has_asked_again => {
                *has_asked_again = true;
                lease.ask_again(now);
                self.pump(client);
                let next = self.now + TTL_US / 4;
                self.wake_at(client, next);
            }
            SimPhase::Holding { .. } => {
                self.look_for_restarts(client);
                let state = &mut self.clients[client];
                if let SimPhase::Holding { lease, .. } = &mut state.phase {
                    lease.begin_round(now);
                }
                self.pump(client);
                let next = self.now + TTL_US / 3;
                self.wake_at(client, next);
            }
        }
    }

    fn look_for_restarts(&mut self, client: usize) {
        for server in 0..self.servers.len() {
            let (run, quarantined) = (self.servers[server].run, self.in_quarantine(server));
            let state = &mut self.clients[client];
            if let SimPhase::Holding { lease, .. } = &mut state.phase {
                if self.memory == Memory::Lost && state.runs[server] != run {
                    lease.restarted(server);
                } else if !quarantined {
                    lease.trusted(server);
                }
            }
            state.runs[server] = run;
        }
    }

    fn start(&mut self, client: usize) {
        self.sequence += 1;
        let owner = self.sequence;
        let mut order: Vec<_> = (0..self.servers.len()).collect();
        if self.below(3) == 0 {
            // Not the order of the other clients: the votes may split.
            order.rotate_left(client % self.servers.len());
        }
        order.retain(|server| !self.in_quarantine(*server));
        let runs = self.servers.iter().map(|server| server.run).collect();
        let servers = self.servers.len();
        let state = &mut self.clients[client];
        state.owner = owner;
        state.runs = runs;
        state.held.clear();
        state.open_calls.clear();
        let now = state.clock(self.now);
        state.phase = SimPhase::Acquiring(QuorumAcquire::new(servers, ttl(), now, order));
        self.pump(client);
    }

    /// Carries out the machine's actions, and takes over its result.
    fn pump(&mut self, client: usize) {
        loop {
            let actions = match &mut self.clients[client].phase {
                SimPhase::Idle => return,
                SimPhase::Acquiring(machine) => machine.actions(),
                SimPhase::Holding { lease, .. } => lease.actions(),
            };
            let mut idle = true;
            for action in actions {
                idle &= !self.act(client, action);
            }
            if idle {
                break;
            }
        }
        let SimPhase::Acquiring(machine) = &self.clients[client].phase else {
            return;
        };
        match machine.outcome().cloned() {
            None => {}
            Some(QuorumOutcome::Granted { token, ends_at, .. }) => {
                let lease = machine.lease().unwrap();
                assert_eq!(lease.ends_at(), Some(ends_at));
                self.granted(client, token, lease, ends_at);
            }
            Some(_) => self.let_go(client, 200_000),
        }
    }

    /// Returns whether the machine got an event meanwhile.
    fn act(&mut self, client: usize, action: QuorumAction) -> bool {
        match action {
            QuorumAction::Acquire(server) => {
                if self.in_quarantine(server) {
                    let state = &mut self.clients[client];
                    let now = state.clock(self.now);
                    if let SimPhase::Acquiring(machine) = &mut state.phase {
                        machine.failed(server, now);
                    }
                    return true;
                }
                self.send(client, server, SimCommand::Acquire);
            }
            QuorumAction::Raise(server, token) => {
                let state = &mut self.clients[client];
                let now = state.clock(self.now);
                if let (Rounds::One, SimPhase::Acquiring(machine)) = (self.rounds, &mut state.phase)
                {
                    let lease = ServerLease {
                        token: Some(token),
                        ..state.held[&server]
                    };
                    machine.raised(server, lease, now);
                    return true;
                }
                self.send(client, server, SimCommand::Raise(token));
            }
            QuorumAction::SetToken(server, token) => {
                self.send(client, server, SimCommand::SetToken(token));
            }
            QuorumAction::Renew(server) => self.send(client, server, SimCommand::Renew),
            QuorumAction::Heal(server) => {
                self.findings.heals += 1;
                self.send(client, server, SimCommand::Acquire);
            }
            QuorumAction::CancelAll => {}
            QuorumAction::Wait { until } => {
                let time = self.clients[client].true_time(until);
                self.wake_at(client, time);
            }
        }
        false
    }

    fn granted(
        &mut self,
        client: usize,
        token: Option<FencingToken>,
        lease: QuorumLease,
        until: Moment,
    ) {
        self.findings.grants += 1;
        if let Some(token) = token {
            self.findings.regressions += usize::from(token <= self.highest);
            self.highest = self.highest.max(token);
        }
        for other in &self.clients {
            if let SimPhase::Holding { until, .. } = other.phase {
                self.findings.overlaps += usize::from(other.clock(self.now) < until);
            }
        }
        let release_at = self.now + self.below_u64(4 * TTL_US);
        self.clients[client].phase = SimPhase::Holding {
            lease,
            until,
            release_at,
            has_asked_again: false,
        };
        self.wake_at(client, self.now + TTL_US / 12);
    }

    /// Cancels at all servers, and begins anew after a pause.
    fn let_go(&mut self, client: usize, longest_pause: u64) {
        for server in 0..self.servers.len() {
            self.send(client, server, SimCommand::Cancel);
        }
        self.sequence += 1;
        let state = &mut self.clients[client];
        state.phase = SimPhase::Idle;
        state.owner = self.sequence;
        let wake = self.now + 1 + self.below_u64(longest_pause);
        self.wake_at(client, wake);
    }
}
