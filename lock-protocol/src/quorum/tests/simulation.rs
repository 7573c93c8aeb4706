//! Clients that drive the machines over a network that loses, delays and reorders messages, and servers that restart.
//! Each client knows the servers by addresses, which come to lead to other servers, and each server's clock may have
//! been set forward after a restart. As in the driver, only [`Members`] says which servers count.

mod clients;
mod servers;

use std::collections::{BTreeMap, HashMap, HashSet};

use super::*;
use proptest::prelude::*;

const TTL_US: u64 = 1_000_000;
const QUARANTINE_US: u64 = 2_000_000;
const END_US: u64 = 40_000_000;
/// How far a server's clock may have been set forward.
const CLOCK_STEP_US: u64 = 60_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rounds {
    /// The token of the first round is not written back: the obvious design, which is wrong.
    One,
    Two,
    /// A dialect without tokens.
    WithoutTokens,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    Kept,
    /// A restarted server is empty, and is in quarantine.
    Lost,
    /// A restarted server is empty, and counts at once.
    LostWithoutQuarantine,
}

/// Which servers take a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SimAdmission {
    Trusted,
    Any,
}

#[derive(Clone, Copy, Debug)]
enum SimCommand {
    Acquire,
    Raise(FencingToken),
    SetToken(FencingToken),
    Renew,
    Cancel,
}

#[derive(Clone, Copy, Debug)]
enum SimAnswer {
    Held(FencingToken, Duration),
    Busy(Duration, u64),
    Raised(FencingToken, Duration),
    Renewed(Duration),
    NotOurs,
    TimedOut,
}

#[derive(Debug)]
enum SimEvent {
    AtServer {
        call: SimCall,
        command: SimCommand,
    },
    AtClient {
        call: SimCall,
        answer: SimAnswer,
    },
    Wake {
        client: usize,
        number: u64,
    },
    Crash,
    /// A name comes to lead to another server, or back to its own.
    Move,
}

#[derive(Clone, Copy, Debug)]
struct SimCall {
    client: usize,
    owner: u64,
    /// The number of the server for the machines.
    address: usize,
    process: SimProcess,
    /// The process wasn't in quarantine.
    counts: bool,
    sent_at: Moment,
    number: u64,
}

impl SimCall {
    fn met(&self) -> MetProcess {
        MetProcess {
            run_id: self.process.run_id(),
            counts: self.counts,
        }
    }
}

/// One run of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SimProcess {
    server: usize,
    run: usize,
}

impl SimProcess {
    fn run_id(self) -> u64 {
        (self.server as u64 + 1) << 32 | self.run as u64
    }
}

struct SimServer {
    key: Option<SimKey>,
    counter: u64,
    up_from: u64,
    /// How much longer than it ran it says that it runs.
    clock_step: u64,
    /// When each earlier run ended.
    ends: Vec<u64>,
}

impl SimServer {
    fn run(&self) -> usize {
        self.ends.len()
    }
}

struct SimKey {
    owner: u64,
    token: FencingToken,
    ends: u64,
}

enum SimPhase {
    Idle,
    Acquiring(QuorumAcquire),
    Holding {
        lease: QuorumLease,
        until: Moment,
        release_at: u64,
        has_asked_again: bool,
    },
}

struct SimClient {
    offset: u64,
    rate: u64,
    owner: u64,
    next_wake: u64,
    phase: SimPhase,
    open_calls: HashSet<u64>,
    held: HashMap<usize, ServerLease>,
    /// The holder that an attempt saw.
    seen: u64,
    members: Members,
    /// The server to which a new connection to each address leads.
    leads_to: Vec<usize>,
    /// The process to which the last connection to each address led.
    connected: Vec<Option<SimProcess>>,
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
    duplicates: usize,
}

struct Sim {
    rounds: Rounds,
    memory: Memory,
    random: u64,
    now: u64,
    events: BTreeMap<(u64, u64), SimEvent>,
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
            key: None,
            counter,
            up_from: 0,
            clock_step: CLOCK_STEP_US,
            ends: Vec::new(),
        });
    }
    let quarantine = match memory {
        Memory::Lost => Duration::from_micros(QUARANTINE_US),
        Memory::Kept | Memory::LostWithoutQuarantine => Duration::ZERO,
    };
    for client in 0..4 {
        let (offset, rate) = (sim.below_u64(1 << 40), 995 + sim.below_u64(11));
        sim.clients.push(SimClient {
            offset,
            rate,
            owner: 0,
            next_wake: 0,
            phase: SimPhase::Idle,
            open_calls: HashSet::new(),
            held: HashMap::new(),
            seen: 0,
            members: Members::new(servers, quarantine),
            leads_to: (0..servers).collect(),
            connected: vec![None; servers],
        });
        for address in 0..servers {
            sim.connect(client, address);
        }
        let wake = sim.below_u64(TTL_US);
        sim.wake_at(client, wake);
    }
    sim.at(TTL_US, SimEvent::Crash);
    sim.at(TTL_US, SimEvent::Move);
    while let Some(((time, _), event)) = sim.events.pop_first() {
        if time > END_US {
            break;
        }
        sim.now = time;
        sim.handle(&event);
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

    fn at(&mut self, time: u64, event: SimEvent) {
        self.sequence += 1;
        self.events.insert((time, self.sequence), event);
    }

    /// Replaces an earlier wake-up of the client.
    fn wake_at(&mut self, client: usize, time: u64) {
        let number = self.sequence + 1;
        self.clients[client].next_wake = number;
        self.at(time.max(self.now + 1), SimEvent::Wake { client, number });
    }

    fn handle(&mut self, event: &SimEvent) {
        match *event {
            SimEvent::AtServer { call, command } => self.at_server(call, command),
            SimEvent::AtClient { call, answer } => {
                let client = &mut self.clients[call.client];
                if client.owner == call.owner {
                    let first = client.open_calls.remove(&call.number);
                    if first || !matches!(answer, SimAnswer::TimedOut) {
                        self.feed(call, answer);
                    }
                }
            }
            SimEvent::Wake { client, number } if number == self.clients[client].next_wake => {
                self.wake(client);
            }
            SimEvent::Wake { .. } => {}
            SimEvent::Crash => self.crash(),
            SimEvent::Move => self.move_name(),
        }
    }

    /// Sends a command over a new connection, or over one to the same process. Returns `false` if there is none, or if
    /// the server doesn't count and the command is for those that do.
    fn send(
        &mut self,
        client: usize,
        address: usize,
        command: SimCommand,
        admission: SimAdmission,
    ) -> bool {
        let Some((process, counts)) = self.connect(client, address) else {
            return false;
        };
        if admission == SimAdmission::Trusted && !counts {
            return false;
        }
        self.sequence += 1;
        let number = self.sequence;
        let now = self.now;
        let state = &mut self.clients[client];
        let call = SimCall {
            client,
            owner: state.owner,
            address,
            process,
            counts,
            sent_at: state.clock(now),
            number,
        };
        state.open_calls.insert(number);
        if let Some(delay) = self.delay() {
            let event = SimEvent::AtServer { call, command };
            self.at(now + delay, event);
        }
        let answer = SimAnswer::TimedOut;
        self.at(now + TTL_US / 4, SimEvent::AtClient { call, answer });
        true
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
        sum.duplicates += run.duplicates;
    }
    sum
}

#[test]
fn two_rounds_with_restarts_that_remember_exclude_and_keep_tokens_in_order() {
    let sum = survey(150, Rounds::Two, Memory::Kept);
    eprintln!("simulated: {sum:?}");
    assert_eq!((sum.overlaps, sum.regressions), (0, 0), "{sum:?}");
    assert!(sum.grants > 1000 && sum.renewals > 1000, "{sum:?}");
    assert!(sum.heals > 100 && sum.duplicates > 100, "{sum:?}");
}

#[test]
fn locks_without_tokens_exclude() {
    for memory in [Memory::Kept, Memory::Lost] {
        let sum = survey(150, Rounds::WithoutTokens, memory);
        eprintln!("simulated: {sum:?}");
        assert_eq!(sum.overlaps, 0, "{sum:?}");
        assert!(sum.grants > 500 && sum.renewals > 500, "{sum:?}");
        assert!(sum.heals > 100, "{sum:?}");
    }
}

#[test]
fn one_round_breaks_the_order_of_tokens() {
    let sum = survey(80, Rounds::One, Memory::Kept);
    assert_eq!(sum.overlaps, 0, "{sum:?}");
    assert!(sum.regressions > 10, "{sum:?}");
}

#[test]
fn quarantine_of_servers_that_forget_keeps_exclusion() {
    let sum = survey(150, Rounds::Two, Memory::Lost);
    eprintln!("simulated: {sum:?}");
    assert_eq!(sum.overlaps, 0, "{sum:?}");
    assert!(sum.grants > 500 && sum.heals > 100, "{sum:?}");
}

#[test]
fn servers_that_forget_without_quarantine_break_exclusion() {
    let sum = survey(150, Rounds::Two, Memory::LostWithoutQuarantine);
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
        let run = simulate(seed, Rounds::WithoutTokens, Memory::Lost);
        prop_assert_eq!(run.overlaps, 0);
    }
}
