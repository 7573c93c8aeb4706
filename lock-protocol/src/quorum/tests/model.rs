//! A bounded model of acquisitions at three servers, explored completely.
//!
//! The clients drive the production machine. The model runs their commands in every order that a connection to each
//! server allows, early or late, loses a command or its reply, and lets time pass. A server may restart empty.

use std::collections::VecDeque;

use stateright::{Checker, Model, Property};

use super::*;

const EXCLUSION: &str = "no two clients hold the lock at once";
const ORDER: &str = "each grant has a higher token than all earlier ones";
const PROGRESS: &str = "several clients get the lock, one after the other";

const SERVERS: usize = 3;
const TICK_MS: u64 = 500;
/// The ttl, in ticks.
const TTL: u8 = 2;
/// Longer than each lease that a restarted server may have forgotten.
const QUARANTINE: u8 = TTL + 1;

/// What is tried.
#[derive(Clone, Copy)]
struct QuorumModel {
    ticks: u8,
    /// Each client makes one attempt.
    clients: usize,
    lost_messages: u8,
    restarts: u8,
    mutation: QuorumMutation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QuorumMutation {
    None,
    /// The token of the first round counts.
    OneRound,
    /// A restarted server counts at once.
    NoQuarantine,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ModelCommand {
    Acquire,
    Raise(FencingToken),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ModelAnswer {
    /// With the ticks that were left when the server replied.
    Held(FencingToken, u8),
    Busy,
    Raised(FencingToken, u8),
    NotOurs,
}

/// The commands of a client on their way to a server, with the ticks at which they were sent. What is sent first
/// arrives first.
type ModelLink = VecDeque<(ModelCommand, u8)>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct ModelServer {
    counter: u64,
    /// The client, its token, and the tick at which the lease ends.
    key: Option<(usize, FencingToken, u8)>,
    /// Until when it does not count.
    quarantine: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ModelClient {
    Idle,
    Acquiring(QuorumAcquire),
    Holding { until: Moment },
    Ended,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct QuorumState {
    ticks: u8,
    servers: [ModelServer; SERVERS],
    clients: Vec<(ModelClient, [ModelLink; SERVERS])>,
    lost_messages: u8,
    restarts: u8,
    highest: FencingToken,
    grants: u8,
    is_exclusive: bool,
    is_in_order: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QuorumStep {
    Begin(usize),
    /// The client, and the server.
    Run(usize, usize),
    /// The command does not arrive, and its time runs out.
    LoseCommand(usize, usize),
    LoseReply(usize, usize),
    Release(usize),
    Restart(usize),
    Tick,
}

fn now_of(ticks: u8) -> Moment {
    at(u64::from(ticks) * TICK_MS)
}

impl QuorumState {
    fn begin(&mut self, client: usize, mutation: QuorumMutation) {
        // Clients do not always agree on the order.
        let mut order: Vec<_> = (0..SERVERS).collect();
        order.rotate_left(client % 2);
        let ticks = self.ticks;
        if mutation != QuorumMutation::NoQuarantine {
            order.retain(|server| self.servers[*server].quarantine <= ticks);
        }
        let attempt = QuorumAcquire::new(SERVERS, ttl(), now_of(ticks), order);
        self.clients[client].0 = ModelClient::Acquiring(attempt);
        self.pump(client, mutation);
    }

    /// Carries out what the machine of a client wants, and takes over its result.
    fn pump(&mut self, client: usize, mutation: QuorumMutation) {
        let (now, ticks) = (now_of(self.ticks), self.ticks);
        let (phase, links) = &mut self.clients[client];
        let ModelClient::Acquiring(attempt) = phase else {
            return;
        };
        let mut actions = VecDeque::from(attempt.actions());
        while let Some(action) = actions.pop_front() {
            let (server, command) = match action {
                QuorumAction::Acquire(server)
                    if mutation != QuorumMutation::NoQuarantine
                        && self.servers[server].quarantine > ticks =>
                {
                    // The driver does not ask it.
                    attempt.failed(server, now);
                    actions.extend(attempt.actions());
                    continue;
                }
                QuorumAction::Acquire(server) => (server, ModelCommand::Acquire),
                QuorumAction::Raise(server, token) if mutation == QuorumMutation::OneRound => {
                    let lease = ServerLease {
                        token: Some(token),
                        remaining: ms(u64::from(TTL) * TICK_MS),
                        sent_at: now,
                        run_id: UNKNOWN_RUN_ID,
                    };
                    attempt.raised(server, lease, now);
                    actions.extend(attempt.actions());
                    continue;
                }
                QuorumAction::Raise(server, token) => (server, ModelCommand::Raise(token)),
                QuorumAction::CancelAll | QuorumAction::Wait { .. } => continue,
                QuorumAction::SetToken(..) | QuorumAction::Renew(_) | QuorumAction::Heal(_) => {
                    unreachable!("no renewals")
                }
            };
            links[server].push_back((command, ticks));
        }
        match attempt.outcome().cloned() {
            None => {}
            Some(QuorumOutcome::Granted { token, ends_at, .. }) => {
                *phase = ModelClient::Holding { until: ends_at };
                self.granted(client, token.expect("a native lock"));
            }
            Some(_) => self.end(client),
        }
    }

    fn granted(&mut self, client: usize, token: FencingToken) {
        let now = now_of(self.ticks);
        let others = self.clients.iter().enumerate();
        let overlaps = others.filter(|(other, (phase, _))| {
            *other != client && matches!(phase, ModelClient::Holding { until } if now < *until)
        });
        self.is_exclusive &= overlaps.count() == 0;
        self.is_in_order &= self.highest < token;
        self.highest = self.highest.max(token);
        self.grants += 1;
    }

    /// Cancels at all servers. Commands on their way are refused: they carry a time limit, and the cancel is
    /// repeated until then.
    fn end(&mut self, client: usize) {
        let (phase, links) = &mut self.clients[client];
        *phase = ModelClient::Ended;
        links.iter_mut().for_each(VecDeque::clear);
        for server in &mut self.servers {
            server.key = server.key.filter(|(owner, ..)| *owner != client);
        }
    }

    /// Returns the reply of a server to the first command on its way, and when that was sent.
    fn reply(&mut self, client: usize, server: usize) -> Option<(ModelAnswer, u8)> {
        let ticks = self.ticks;
        let (command, sent) = self.clients[client].1[server].pop_front()?;
        let state = &mut self.servers[server];
        state.key = state.key.filter(|(_, _, ends)| *ends > ticks);
        let answer = match (command, &mut state.key) {
            (ModelCommand::Acquire, None) => {
                state.counter += 1;
                let token = FencingToken::new(state.counter);
                state.key = Some((client, token, ticks + TTL));
                ModelAnswer::Held(token, TTL)
            }
            (ModelCommand::Acquire, Some((owner, token, ends))) if *owner == client => {
                ModelAnswer::Held(*token, *ends - ticks)
            }
            (ModelCommand::Acquire, Some(_)) => ModelAnswer::Busy,
            (ModelCommand::Raise(to), Some((owner, token, ends))) if *owner == client => {
                state.counter = state.counter.max(to.as_u64());
                *token = to.max(*token);
                ModelAnswer::Raised(to, *ends - ticks)
            }
            (ModelCommand::Raise(_), _) => ModelAnswer::NotOurs,
        };
        Some((answer, sent))
    }

    fn run(&mut self, client: usize, server: usize, mutation: QuorumMutation) {
        let now = now_of(self.ticks);
        let Some((answer, sent)) = self.reply(client, server) else {
            return;
        };
        let ModelClient::Acquiring(attempt) = &mut self.clients[client].0 else {
            return;
        };
        let lease = |token, left: u8| ServerLease {
            token: Some(token),
            remaining: ms(u64::from(left) * TICK_MS),
            sent_at: now_of(sent),
            run_id: UNKNOWN_RUN_ID,
        };
        match answer {
            ModelAnswer::Held(token, left) => attempt.held(server, lease(token, left), now),
            ModelAnswer::Raised(token, left) => attempt.raised(server, lease(token, left), now),
            ModelAnswer::NotOurs => attempt.not_ours(server, now),
            ModelAnswer::Busy => {
                let by = BusyServer {
                    remaining: None,
                    may_be_stale: true,
                };
                attempt.busy(server, by, now);
            }
        }
        self.pump(client, mutation);
    }

    /// The time of a command without a reply runs out.
    fn fail(&mut self, client: usize, server: usize, mutation: QuorumMutation) {
        self.lost_messages += 1;
        let now = now_of(self.ticks);
        if let ModelClient::Acquiring(attempt) = &mut self.clients[client].0 {
            attempt.failed(server, now);
            self.pump(client, mutation);
        }
    }

    /// The server is empty afterwards. Its connections end, with the commands on their way.
    fn restart(&mut self, server: usize, mutation: QuorumMutation) {
        self.restarts += 1;
        self.servers[server] = ModelServer {
            quarantine: self.ticks + QUARANTINE,
            ..ModelServer::default()
        };
        let now = now_of(self.ticks);
        for client in 0..self.clients.len() {
            let (phase, links) = &mut self.clients[client];
            let lost = std::mem::take(&mut links[server]);
            if let (false, ModelClient::Acquiring(attempt)) = (lost.is_empty(), phase) {
                attempt.failed(server, now);
                self.pump(client, mutation);
            }
        }
    }

    fn tick(&mut self, mutation: QuorumMutation) {
        self.ticks += 1;
        let now = now_of(self.ticks);
        for client in 0..self.clients.len() {
            match &mut self.clients[client].0 {
                ModelClient::Acquiring(attempt) => {
                    attempt.tick(now);
                    self.pump(client, mutation);
                }
                ModelClient::Holding { until } if *until <= now => {
                    self.clients[client].0 = ModelClient::Ended;
                }
                _ => {}
            }
        }
    }
}

impl Model for QuorumModel {
    type State = QuorumState;
    type Action = QuorumStep;

    fn init_states(&self) -> Vec<QuorumState> {
        // The counters have no order: each server is somewhere else.
        let servers = [0, 20, 40].map(|counter| ModelServer {
            counter,
            ..ModelServer::default()
        });
        let client = || (ModelClient::Idle, <[ModelLink; SERVERS]>::default());
        vec![QuorumState {
            ticks: 0,
            servers,
            clients: (0..self.clients).map(|_| client()).collect(),
            lost_messages: 0,
            restarts: 0,
            highest: token(0),
            grants: 0,
            is_exclusive: true,
            is_in_order: true,
        }]
    }

    fn actions(&self, state: &QuorumState, actions: &mut Vec<QuorumStep>) {
        for (client, (phase, links)) in state.clients.iter().enumerate() {
            match phase {
                ModelClient::Idle => {
                    actions.push(QuorumStep::Begin(client));
                }
                ModelClient::Holding { .. } => actions.push(QuorumStep::Release(client)),
                ModelClient::Acquiring(_) | ModelClient::Ended => {}
            }
            for (server, link) in links.iter().enumerate() {
                if link.is_empty() {
                    continue;
                }
                actions.push(QuorumStep::Run(client, server));
                if state.lost_messages < self.lost_messages {
                    actions.push(QuorumStep::LoseCommand(client, server));
                    actions.push(QuorumStep::LoseReply(client, server));
                }
            }
        }
        if state.restarts < self.restarts {
            actions.extend((0..SERVERS).map(QuorumStep::Restart));
        }
        if state.ticks < self.ticks {
            actions.push(QuorumStep::Tick);
        }
    }

    fn next_state(&self, state: &QuorumState, step: QuorumStep) -> Option<QuorumState> {
        let mut next = state.clone();
        match step {
            QuorumStep::Begin(client) => next.begin(client, self.mutation),
            QuorumStep::Run(client, server) => next.run(client, server, self.mutation),
            QuorumStep::LoseCommand(client, server) => {
                next.clients[client].1[server].pop_front();
                next.fail(client, server, self.mutation);
            }
            QuorumStep::LoseReply(client, server) => {
                let _lost = next.reply(client, server);
                next.fail(client, server, self.mutation);
            }
            QuorumStep::Release(client) => next.end(client),
            QuorumStep::Restart(server) => next.restart(server, self.mutation),
            QuorumStep::Tick => next.tick(self.mutation),
        }
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, |_, state: &QuorumState| state.is_exclusive),
            Property::always(ORDER, |model: &QuorumModel, state: &QuorumState| {
                // A server that forgets its counter is outside of this promise.
                state.is_in_order || model.restarts > 0
            }),
            Property::sometimes(PROGRESS, |model: &QuorumModel, state: &QuorumState| {
                usize::from(state.grants) == model.clients.min(2)
            }),
        ]
    }
}

const MODEL: QuorumModel = QuorumModel {
    ticks: 4,
    clients: 2,
    lost_messages: 2,
    restarts: 0,
    mutation: QuorumMutation::None,
};

/// Explores all states, and returns the properties that do not hold.
fn explore(name: &str, model: QuorumModel) -> Vec<&'static str> {
    let checker = model.checker().threads(1).spawn_bfs().join();
    let states = checker.unique_state_count();
    assert!(states > 10_000, "{name}: {states} states");
    let found = checker.discoveries();
    let broken = [EXCLUSION, ORDER].into_iter();
    let mut broken: Vec<_> = broken.filter(|it| found.contains_key(it)).collect();
    if !found.contains_key(PROGRESS) {
        broken.push(PROGRESS);
    }
    broken
}

#[test]
fn two_rounds_exclude_and_keep_the_order_of_tokens() {
    assert_eq!(explore("a lost message", MODEL), [""; 0]);
}

#[test]
fn quarantine_excludes_when_a_server_forgets() {
    let model = QuorumModel {
        lost_messages: 0,
        restarts: 1,
        ..MODEL
    };
    assert_eq!(explore("a restart", model), [""; 0]);
}

#[test]
fn one_round_breaks_the_order_of_tokens() {
    let model = QuorumModel {
        mutation: QuorumMutation::OneRound,
        ..MODEL
    };
    assert_eq!(explore("one round", model), [ORDER]);
}

#[test]
fn server_that_forgets_and_counts_at_once_breaks_exclusion() {
    let model = QuorumModel {
        lost_messages: 0,
        restarts: 1,
        mutation: QuorumMutation::NoQuarantine,
        ..MODEL
    };
    assert_eq!(explore("no quarantine", model), [EXCLUSION]);
}
