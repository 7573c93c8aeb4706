//! The clients of the simulation: the drivers of the machines.

use super::*;

impl Sim {
    pub(super) fn feed(&mut self, call: SimCall, answer: SimAnswer) {
        let (server, sent_at) = (call.address, call.sent_at);
        // The server may have restarted since it was asked.
        let run = self.servers[call.process.server].run();
        let is_same = self.clients[call.client].connected[server] == Some(call.process)
            && run == call.process.run;
        let has_tokens = self.rounds != Rounds::WithoutTokens;
        let client = &mut self.clients[call.client];
        let now = client.clock(self.now);
        let lease = |token, remaining| ServerLease {
            token: has_tokens.then_some(token),
            remaining,
            sent_at,
            run_id: call.process.run_id(),
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
                        machine.met(server, call.met());
                        machine.held(server, lease(token, remaining), now);
                    }
                    SimAnswer::Busy(..) => machine.busy(server),
                    SimAnswer::Raised(token, remaining) => {
                        machine.raised(server, lease(token, remaining), now);
                    }
                    SimAnswer::Renewed(remaining) if is_same => {
                        machine.met(server, call.met());
                        machine.renewed(server, sent_at, remaining);
                    }
                    SimAnswer::NotOurs => {
                        if is_same {
                            machine.met(server, call.met());
                        }
                        machine.not_ours(server);
                    }
                    SimAnswer::Renewed(_) | SimAnswer::TimedOut => machine.failed(server),
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

    fn start(&mut self, client: usize) {
        self.sequence += 1;
        let owner = self.sequence;
        let mut order: Vec<_> = (0..self.servers.len()).collect();
        if self.below(3) == 0 {
            // Not the order of the other clients: the votes may split.
            order.rotate_left(client % self.servers.len());
        }
        let servers = self.servers.len();
        let true_now = self.now;
        let state = &mut self.clients[client];
        let now = state.clock(true_now);
        let members = &state.members;
        order.retain(|server| members.standing(*server, now) != Some(Standing::Quarantined));
        state.owner = owner;
        state.held.clear();
        state.open_calls.clear();
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
        let (server, command, admission) = match action {
            QuorumAction::Acquire(server) => (server, SimCommand::Acquire, SimAdmission::Trusted),
            QuorumAction::Raise(server, token) => {
                let state = &mut self.clients[client];
                let now = state.clock(self.now);
                let admission = match &mut state.phase {
                    SimPhase::Acquiring(machine) if self.rounds == Rounds::One => {
                        let lease = ServerLease {
                            token: Some(token),
                            ..state.held[&server]
                        };
                        machine.raised(server, lease, now);
                        return true;
                    }
                    SimPhase::Acquiring(_) => SimAdmission::Trusted,
                    _ => SimAdmission::Any,
                };
                (server, SimCommand::Raise(token), admission)
            }
            QuorumAction::SetToken(server, token) => {
                (server, SimCommand::SetToken(token), SimAdmission::Any)
            }
            QuorumAction::Renew(server) => (server, SimCommand::Renew, SimAdmission::Any),
            QuorumAction::Heal(server) => {
                self.findings.heals += 1;
                (server, SimCommand::Acquire, SimAdmission::Any)
            }
            QuorumAction::CancelAll => return false,
            QuorumAction::Wait { until } => {
                let time = self.clients[client].true_time(until);
                self.wake_at(client, time);
                return false;
            }
        };
        let is_sent = self.send(client, server, command, admission);
        if !is_sent {
            let state = &mut self.clients[client];
            let now = state.clock(self.now);
            match &mut state.phase {
                SimPhase::Idle => {}
                SimPhase::Acquiring(machine) => machine.failed(server, now),
                SimPhase::Holding { lease, .. } => lease.failed(server),
            }
        }
        !is_sent
    }

    fn granted(
        &mut self,
        client: usize,
        token: Option<FencingToken>,
        mut lease: QuorumLease,
        until: Moment,
    ) {
        self.findings.grants += 1;
        let state = &mut self.clients[client];
        let now = state.clock(self.now);
        for server in 0..self.servers.len() {
            if let Some(process) = state.members.process(server, now) {
                lease.met_at_grant(server, process);
            }
        }
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
            self.send(client, server, SimCommand::Cancel, SimAdmission::Any);
        }
        self.sequence += 1;
        let state = &mut self.clients[client];
        state.phase = SimPhase::Idle;
        state.owner = self.sequence;
        let wake = self.now + 1 + self.below_u64(longest_pause);
        self.wake_at(client, wake);
    }
}
