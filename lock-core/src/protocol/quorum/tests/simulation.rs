//! Clients that drive the machines over a network that loses, delays and reorders messages, and
//! servers that restart.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::*;
use proptest::prelude::*;

const TTL_US: u64 = 1_000_000;
const QUARANTINE_US: u64 = 2_000_000;
const END_US: u64 = 40_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rounds {
    /// The token of the first round is not written back: the obvious design, which is wrong.
    One,
    Two,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    Kept,
    /// A restarted server is empty, and is in quarantine.
    Lost,
    /// A restarted server is empty, and counts at once.
    LostWithoutQuarantine,
}

#[derive(Clone, Copy, Debug)]
enum Command {
    Acquire,
    Raise(FencingToken),
    Renew,
    Cancel,
}

#[derive(Clone, Copy, Debug)]
enum Answer {
    Held(FencingToken, Duration),
    Busy(Duration),
    Raised(FencingToken, Duration),
    Renewed(Duration),
    NotOurs,
    TimedOut,
}

#[derive(Debug)]
enum Event {
    AtServer {
        call: Call,
        command: Command,
        run: u64,
    },
    AtClient {
        call: Call,
        answer: Answer,
    },
    Wake {
        client: usize,
        number: u64,
    },
    Crash,
}

#[derive(Clone, Copy, Debug)]
struct Call {
    client: usize,
    owner: u64,
    server: usize,
    sent_at: Moment,
    number: u64,
}

#[derive(Default)]
struct SimServer {
    key: Option<SimKey>,
    counter: u64,
    run: u64,
    up_from: u64,
    /// When it lost its memory.
    forgot_at: Option<u64>,
}

struct SimKey {
    owner: u64,
    token: FencingToken,
    ends: u64,
}

enum Phase {
    Idle,
    Acquiring(QuorumAcquire),
    Holding {
        lease: QuorumLease,
        until: Moment,
        release_at: u64,
    },
}

struct SimClient {
    offset: u64,
    rate: u64,
    owner: u64,
    next_wake: u64,
    phase: Phase,
    open_calls: HashSet<u64>,
    held: HashMap<usize, ServerLease>,
    /// The run of each server as this lease knows it.
    runs: Vec<u64>,
}

impl SimClient {
    fn clock(&self, now: u64) -> Moment {
        Moment::from_nanos(self.offset + now * self.rate)
    }

    fn true_time(&self, moment: Moment) -> u64 {
        (moment.as_nanos().saturating_sub(self.offset)).div_ceil(self.rate)
    }
}

#[derive(Default, Debug)]
struct Findings {
    grants: usize,
    overlaps: usize,
    regressions: usize,
    heals: usize,
    renewals: usize,
}

struct Sim {
    rounds: Rounds,
    memory: Memory,
    random: u64,
    now: u64,
    events: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    servers: Vec<SimServer>,
    clients: Vec<SimClient>,
    highest: FencingToken,
    findings: Findings,
}

fn simulate(seed: u64, rounds: Rounds, memory: Memory) -> Findings {
    let mut sim = Sim {
        rounds,
        memory,
        random: seed,
        now: 0,
        events: BTreeMap::new(),
        sequence: 0,
        servers: Vec::new(),
        clients: Vec::new(),
        highest: token(0),
        findings: Findings::default(),
    };
    let servers = [3, 4, 5][sim.below(3)];
    for _ in 0..servers {
        // The counters have no order: each server is somewhere else.
        let counter = sim.below_u64(1000);
        sim.servers.push(SimServer {
            counter,
            ..SimServer::default()
        });
    }
    for client in 0..4 {
        let (offset, rate) = (sim.below_u64(1 << 40), 995 + sim.below_u64(11));
        sim.clients.push(SimClient {
            offset,
            rate,
            owner: 0,
            next_wake: 0,
            phase: Phase::Idle,
            open_calls: HashSet::new(),
            held: HashMap::new(),
            runs: vec![0; servers],
        });
        let wake = sim.below_u64(TTL_US);
        sim.wake_at(client, wake);
    }
    sim.at(TTL_US, Event::Crash);
    while let Some(((time, _), event)) = sim.events.pop_first() {
        if time > END_US {
            break;
        }
        sim.now = time;
        sim.handle(event);
    }
    sim.findings
}

impl Sim {
    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below_u64(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.below_u64(end as u64)).unwrap()
    }

    /// The time on the way, or `None` for a message that is lost.
    fn delay(&mut self) -> Option<u64> {
        match self.below_u64(100) {
            0..3 => None,
            3..85 => Some(500 + self.below_u64(20_000)),
            85..96 => Some(self.below_u64(300_000)),
            _ => Some(self.below_u64(2 * TTL_US)),
        }
    }

    fn at(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        self.events.insert((time, self.sequence), event);
    }

    /// Replaces an earlier wake-up of the client.
    fn wake_at(&mut self, client: usize, time: u64) {
        let number = self.sequence + 1;
        self.clients[client].next_wake = number;
        self.at(time.max(self.now + 1), Event::Wake { client, number });
    }

    fn in_quarantine(&self, server: usize) -> bool {
        let forgot = self.servers[server].forgot_at;
        self.memory == Memory::Lost && forgot.is_some_and(|at| self.now < at + QUARANTINE_US)
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::AtServer { call, command, run } => self.at_server(call, command, run),
            Event::AtClient { call, answer } => {
                let client = &mut self.clients[call.client];
                if client.owner == call.owner {
                    let first = client.open_calls.remove(&call.number);
                    if first || !matches!(answer, Answer::TimedOut) {
                        self.feed(call, answer);
                    }
                }
            }
            Event::Wake { client, number } if number == self.clients[client].next_wake => {
                self.wake(client);
            }
            Event::Wake { .. } => {}
            Event::Crash => self.crash(),
        }
    }

    fn crash(&mut self) {
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
        self.at(next, Event::Crash);
    }

    fn at_server(&mut self, call: Call, command: Command, run: u64) {
        let now = self.now;
        let server = &mut self.servers[call.server];
        if server.run != run || now < server.up_from {
            return;
        }
        server.key.take_if(|key| key.ends <= now);
        let left = |ends: u64| Duration::from_micros(ends - now);
        let ours = server.key.as_mut().filter(|key| key.owner == call.owner);
        let answer = match (command, ours) {
            (Command::Acquire, Some(key)) => Answer::Held(key.token, left(key.ends)),
            (Command::Acquire, None) => match &server.key {
                Some(key) => Answer::Busy(left(key.ends)),
                None => {
                    server.counter += 1;
                    let (owner, token) = (call.owner, token(server.counter));
                    let ends = now + TTL_US;
                    server.key = Some(SimKey { owner, token, ends });
                    Answer::Held(token, left(ends))
                }
            },
            (Command::Raise(token), Some(key)) => {
                server.counter = server.counter.max(token.as_u64());
                key.token = token;
                Answer::Raised(token, left(key.ends))
            }
            (Command::Renew, Some(key)) => {
                key.ends = now + TTL_US;
                Answer::Renewed(left(key.ends))
            }
            (Command::Cancel, Some(_)) => {
                server.key = None;
                return;
            }
            (_, None) => Answer::NotOurs,
        };
        if let Some(delay) = self.delay() {
            self.at(now + delay, Event::AtClient { call, answer });
        }
    }

    fn send(&mut self, client: usize, server: usize, command: Command) {
        self.sequence += 1;
        let (number, run) = (self.sequence, self.servers[server].run);
        let now = self.now;
        let state = &mut self.clients[client];
        let call = Call {
            client,
            owner: state.owner,
            server,
            sent_at: state.clock(now),
            number,
        };
        state.open_calls.insert(number);
        if let Some(delay) = self.delay() {
            let event = Event::AtServer { call, command, run };
            self.at(now + delay, event);
        }
        let answer = Answer::TimedOut;
        self.at(now + TTL_US / 4, Event::AtClient { call, answer });
    }

    fn feed(&mut self, call: Call, answer: Answer) {
        let (server, sent_at) = (call.server, call.sent_at);
        let client = &mut self.clients[call.client];
        let now = client.clock(self.now);
        let lease = |token, remaining| ServerLease {
            token,
            remaining,
            sent_at,
        };
        match &mut client.phase {
            Phase::Idle => {}
            Phase::Acquiring(machine) => match answer {
                Answer::Held(token, remaining) => {
                    client.held.insert(server, lease(token, remaining));
                    machine.held(server, lease(token, remaining), now);
                }
                Answer::Busy(remaining) => machine.busy(server, Some(remaining), now),
                Answer::Raised(token, remaining) => {
                    machine.raised(server, lease(token, remaining), now);
                }
                Answer::NotOurs => machine.not_ours(server, now),
                Answer::TimedOut => machine.failed(server, now),
                Answer::Renewed(_) => {}
            },
            Phase::Holding {
                lease: machine,
                until,
                ..
            } => {
                match answer {
                    Answer::Held(token, remaining) => {
                        machine.held(server, lease(token, remaining), now);
                    }
                    Answer::Busy(_) => machine.busy(server),
                    Answer::Raised(token, remaining) => {
                        machine.raised(server, lease(token, remaining), now);
                    }
                    Answer::Renewed(remaining) => machine.renewed(server, sent_at, remaining),
                    Answer::NotOurs => machine.not_ours(server),
                    Answer::TimedOut => machine.failed(server),
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

    fn wake(&mut self, client: usize) {
        let state = &mut self.clients[client];
        let now = state.clock(self.now);
        match &mut state.phase {
            Phase::Idle => self.start(client),
            Phase::Acquiring(machine) => {
                machine.tick(now);
                self.pump(client);
            }
            Phase::Holding {
                until, release_at, ..
            } if *until <= now || *release_at <= self.now => self.let_go(client, TTL_US / 2),
            Phase::Holding { .. } => {
                self.look_for_restarts(client);
                let state = &mut self.clients[client];
                if let Phase::Holding { lease, .. } = &mut state.phase {
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
            if let Phase::Holding { lease, .. } = &mut state.phase {
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
        state.phase = Phase::Acquiring(QuorumAcquire::new(servers, ttl(), now, order));
        self.pump(client);
    }

    /// Carries out the machine's actions, and takes over its result.
    fn pump(&mut self, client: usize) {
        loop {
            let actions = match &mut self.clients[client].phase {
                Phase::Idle => return,
                Phase::Acquiring(machine) => machine.actions(),
                Phase::Holding { lease, .. } => lease.actions(),
            };
            let mut idle = true;
            for action in actions {
                idle &= !self.act(client, action);
            }
            if idle {
                break;
            }
        }
        let Phase::Acquiring(machine) = &self.clients[client].phase else {
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
                    if let Phase::Acquiring(machine) = &mut state.phase {
                        machine.failed(server, now);
                    }
                    return true;
                }
                self.send(client, server, Command::Acquire);
            }
            QuorumAction::Raise(server, token) => {
                let state = &mut self.clients[client];
                let now = state.clock(self.now);
                if let (Rounds::One, Phase::Acquiring(machine)) = (self.rounds, &mut state.phase) {
                    let lease = ServerLease {
                        token,
                        ..state.held[&server]
                    };
                    machine.raised(server, lease, now);
                    return true;
                }
                self.send(client, server, Command::Raise(token));
            }
            QuorumAction::Renew(server) => self.send(client, server, Command::Renew),
            QuorumAction::Heal(server) => {
                self.findings.heals += 1;
                self.send(client, server, Command::Acquire);
            }
            QuorumAction::CancelAll => {}
            QuorumAction::Wait { until } => {
                let time = self.clients[client].true_time(until);
                self.wake_at(client, time);
            }
        }
        false
    }

    fn granted(&mut self, client: usize, token: FencingToken, lease: QuorumLease, until: Moment) {
        self.findings.grants += 1;
        self.findings.regressions += usize::from(token <= self.highest);
        self.highest = self.highest.max(token);
        for other in self.clients.iter() {
            if let Phase::Holding { until, .. } = other.phase {
                self.findings.overlaps += usize::from(other.clock(self.now) < until);
            }
        }
        let release_at = self.now + self.below_u64(4 * TTL_US);
        self.clients[client].phase = Phase::Holding {
            lease,
            until,
            release_at,
        };
        self.wake_at(client, self.now + TTL_US / 3);
    }

    /// Cancels at all servers, and begins anew after a pause.
    fn let_go(&mut self, client: usize, longest_pause: u64) {
        for server in 0..self.servers.len() {
            self.send(client, server, Command::Cancel);
        }
        self.sequence += 1;
        let state = &mut self.clients[client];
        state.phase = Phase::Idle;
        state.owner = self.sequence;
        let wake = self.now + 1 + self.below_u64(longest_pause);
        self.wake_at(client, wake);
    }
}

/// The sum of many runs.
fn survey(seeds: u64, rounds: Rounds, memory: Memory) -> Findings {
    let mut sum = Findings::default();
    for seed in 0..seeds {
        let run = simulate(seed, rounds, memory);
        sum.grants += run.grants;
        sum.overlaps += run.overlaps;
        sum.regressions += run.regressions;
        sum.heals += run.heals;
        sum.renewals += run.renewals;
    }
    sum
}

#[test]
fn two_rounds_with_restarts_that_remember_exclude_and_keep_tokens_in_order() {
    let sum = survey(150, Rounds::Two, Memory::Kept);
    println!("{sum:?}");
    assert_eq!((sum.overlaps, sum.regressions), (0, 0), "{sum:?}");
    assert!(sum.grants > 1000 && sum.renewals > 1000 && sum.heals > 100);
}

#[test]
fn one_round_breaks_the_order_of_tokens() {
    let sum = survey(20, Rounds::One, Memory::Kept);
    println!("{sum:?}");
    assert_eq!(sum.overlaps, 0, "{sum:?}");
    assert!(sum.regressions > 10, "{sum:?}");
}

#[test]
fn quarantine_of_servers_that_forget_keeps_exclusion() {
    let sum = survey(150, Rounds::Two, Memory::Lost);
    println!("{sum:?}");
    assert_eq!(sum.overlaps, 0, "{sum:?}");
    assert!(sum.grants > 500 && sum.heals > 100, "{sum:?}");
}

#[test]
fn servers_that_forget_without_quarantine_break_exclusion() {
    let sum = survey(150, Rounds::Two, Memory::LostWithoutQuarantine);
    println!("{sum:?}");
    assert!(sum.overlaps > 0, "{sum:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn any_schedule_keeps_exclusion_and_the_order_of_tokens(seed: u64) {
        let run = simulate(seed, Rounds::Two, Memory::Kept);
        prop_assert_eq!((run.overlaps, run.regressions), (0, 0));
        let run = simulate(seed, Rounds::Two, Memory::Lost);
        prop_assert_eq!(run.overlaps, 0);
    }
}
