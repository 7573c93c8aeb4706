//! Measures how many locks a client gets in a second:
//! `cargo bench -p benches --bench throughput`
//!
//! - `tasks_N_ratio`: N tasks, each on a key of its own, acquire and release through one manager, which
//!   has one connection for them. The ratio is pairs per second divided by those of the raw pair with
//!   as many tasks on one connection. `tasks_100_client` and `tasks_100_server` are the processor times
//!   during the library's blocks, in percent of a core: they show which process is the bound. The
//!   target at 100 tasks is 0.6 where the client is the bound, and 0.4 where the server is.
//! - `tasks_N_client_cost`, `tasks_N_server_cost`: the processor time of a pair in the two processes,
//!   divided by that of the raw pair. Other work on the machine changes these ratios less.
//! - `tasks_100_reads`, `..._bytes_in`, `..._bytes_out`: how often the server reads from a connection
//!   for a pair, and the bytes that it receives and sends.
//! - `full_...`: as many managers, with a connection each, as it takes to use the server's whole core,
//!   or to use as much of it as they can. Their threads leave one core to the server. `full_ratio` is
//!   measured beside the raw pair on as many connections. `full_server_pairs` and
//!   `full_server_raw_pairs` are pairs for each second of the server's processor time, which do not
//!   depend on whether the clients had enough cores.
//!
//! The blocks of the two sides alternate, and each ratio is a median of adjacent blocks, so that other work on the
//! machine meets both. The short form has 100 tasks only.

use std::time::Duration;

use benches::figures::{median, report, report_at_least};
use benches::process::{Processors, Usage};
use benches::raw::RawPair;
use benches::server_info::Traffic;
use benches::{is_short, pairs};
use lock_core::LockManager;
use test_support::RedisServer;
use test_support::fixtures::{current_thread_runtime, multi_thread_runtime};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// The pairs of a block: some 50 to 100 ms.
const BLOCK: u32 = 2_000;
/// Keeps a connection busy.
const TASKS_OF_A_CONNECTION: u32 = 100;
/// The part of a core that counts as full. The rest is the server's waiting for the network.
const FULL: f64 = 95.0;
const MOST_CONNECTIONS: u32 = 16;

fn main() {
    let server = RedisServer::start();
    let rounds = 40;
    let runtime = current_thread_runtime();
    let clients = Clients::connect(&runtime, &server, 1);
    let counts: &[u32] = if is_short() {
        &[100]
    } else {
        &[1, 10, 100, 1_000]
    };
    for &tasks in counts {
        let sides = compare(&runtime, &server, &clients, tasks, rounds);
        one_connection(tasks, &sides);
        if tasks == 100 {
            print_traffic("", traffic(&runtime, &server, &clients, Client::Guard));
            print_traffic("raw_", traffic(&runtime, &server, &clients, Client::Raw));
        }
    }
    drop(clients);
    if !is_short() {
        full_server(&server, rounds / 2);
    }
}

fn one_connection(tasks: u32, sides: &Sides) {
    let figure = |name| format!("throughput.tasks_{tasks}_{name}");
    let usage = sides.guard.usage;
    report(&figure("pairs"), sides.guard.rate(), "pairs/s");
    report(&figure("raw_pairs"), sides.raw.rate(), "pairs/s");
    report(&figure("client"), usage.client_percent(), "% of a core");
    report(&figure("server"), usage.server_percent(), "% of a core");
    let [client_cost, server_cost] = sides.cost_ratios();
    report(&figure("client_cost"), client_cost, "x");
    report(&figure("server_cost"), server_cost, "x");
    if tasks == 100 {
        let target = if usage.server > usage.client {
            0.4
        } else {
            0.6
        };
        report_at_least(&figure("ratio"), sides.ratio, "x", target);
    } else {
        report(&figure("ratio"), sides.ratio, "x");
    }
}

fn print_traffic(side: &str, traffic: Traffic) {
    let figure = |name| format!("throughput.tasks_100_{side}{name}");
    report(&figure("reads"), traffic.reads, "reads/pair");
    report(&figure("bytes_in"), traffic.bytes_in, "bytes/pair");
    report(&figure("bytes_out"), traffic.bytes_out, "bytes/pair");
}

fn full_server(server: &RedisServer, rounds: usize) {
    // One core is the server's.
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let runtime = multi_thread_runtime((cores - 1).max(1));
    let mut fullest: Option<(u32, Sides)> = None;
    let mut connections = 1;
    while connections <= MOST_CONNECTIONS {
        let clients = Clients::connect(&runtime, server, connections);
        let tasks = connections * TASKS_OF_A_CONNECTION;
        let sides = compare(&runtime, server, &clients, tasks, rounds);
        let server_part = sides.guard.usage.server_percent();
        if fullest
            .as_ref()
            .is_none_or(|(_, fullest)| server_part > fullest.guard.usage.server_percent())
        {
            fullest = Some((connections, sides));
        }
        if server_part >= FULL {
            break;
        }
        connections *= 2;
    }

    let (connections, Sides { raw, guard, ratio }) = fullest.expect("one connection was measured");
    let figure = |name| format!("throughput.full_{name}");
    report(
        &figure("connections"),
        f64::from(connections),
        "connections",
    );
    report(&figure("pairs"), guard.rate(), "pairs/s");
    report(&figure("raw_pairs"), raw.rate(), "pairs/s");
    report(
        &figure("client"),
        guard.usage.client_percent(),
        "% of a core",
    );
    report(
        &figure("server"),
        guard.usage.server_percent(),
        "% of a core",
    );
    report(
        &figure("raw_server"),
        raw.usage.server_percent(),
        "% of a core",
    );
    report(&figure("server_pairs"), guard.server_rate(), "pairs/s");
    report(&figure("server_raw_pairs"), raw.server_rate(), "pairs/s");
    report_at_least(&figure("ratio"), ratio, "x", 0.4);
}

/// Which of the two clients runs.
#[derive(Clone, Copy)]
enum Client {
    Raw,
    Guard,
}

/// Returns the traffic of a pair, with 100 tasks on one connection.
fn traffic(runtime: &Runtime, server: &RedisServer, clients: &Clients, client: Client) -> Traffic {
    let (tasks, each) = (100, 50);
    let before = Traffic::read(server);
    match client {
        Client::Raw => runtime.block_on(raw_block(&clients.raw, tasks, each)),
        Client::Guard => runtime.block_on(guard_block(&clients.locks, tasks, each)),
    }
    Traffic::read(server).per(before, tasks * each)
}

/// Connections with and without the library, as many of each.
struct Clients {
    raw: Vec<RawPair>,
    locks: Vec<LockManager>,
}

impl Clients {
    fn connect(runtime: &Runtime, server: &RedisServer, connections: u32) -> Self {
        let url = server.url();
        runtime.block_on(async {
            let mut clients = Self {
                raw: Vec::new(),
                locks: Vec::new(),
            };
            for _ in 0..connections {
                clients.raw.push(RawPair::connect(&url).await);
                clients.locks.push(pairs::connect(server).await);
            }
            clients
        })
    }
}

/// All blocks of one side.
#[derive(Default)]
struct Side {
    pairs: u32,
    usage: Usage,
    blocks: Vec<Usage>,
    rates: Vec<f64>,
}

impl Side {
    fn add(&mut self, pairs: u32, usage: Usage) {
        self.pairs += pairs;
        self.usage.add(usage);
        self.blocks.push(usage);
        self.rates
            .push(f64::from(pairs) / usage.elapsed.as_secs_f64());
    }

    /// Pairs per second.
    fn rate(&self) -> f64 {
        median(self.rates.iter().copied())
    }

    /// Pairs per second of the server's processor time.
    fn server_rate(&self) -> f64 {
        f64::from(self.pairs) / self.usage.server.as_secs_f64()
    }
}

struct Sides {
    raw: Side,
    guard: Side,
    ratio: f64,
}

impl Sides {
    /// The processor times of a pair in the client and in the server, divided by those of the raw pair.
    fn cost_ratios(&self) -> [f64; 2] {
        // Each block has as many pairs.
        let ratio = |time: fn(&Usage) -> Duration| {
            let blocks = self.guard.blocks.iter().zip(&self.raw.blocks);
            median(blocks.map(|(guard, raw)| time(guard).div_duration_f64(time(raw))))
        };
        [ratio(|usage| usage.client), ratio(|usage| usage.server)]
    }
}

fn compare(
    runtime: &Runtime,
    server: &RedisServer,
    clients: &Clients,
    tasks: u32,
    rounds: usize,
) -> Sides {
    let (mut raw, mut guard) = (Side::default(), Side::default());
    let each = (BLOCK / tasks).max(2);
    let measure_block = |side: &mut Side, is_counted: bool, block: &dyn Fn()| {
        let processors = Processors::start(server.pid());
        block();
        if is_counted {
            side.add(each * tasks, processors.stop());
        }
    };
    let raw_block = || runtime.block_on(raw_block(&clients.raw, tasks, each));
    let guard_block = || runtime.block_on(guard_block(&clients.locks, tasks, each));
    // The first round fills caches.
    for round in 0..=rounds {
        let is_counted = round > 0;
        if round % 2 == 0 {
            measure_block(&mut raw, is_counted, &raw_block);
            measure_block(&mut guard, is_counted, &guard_block);
        } else {
            measure_block(&mut guard, is_counted, &guard_block);
            measure_block(&mut raw, is_counted, &raw_block);
        }
    }
    let ratios = guard.rates.iter().zip(&raw.rates);
    let ratio = median(ratios.map(|(guard, raw)| guard / raw));
    Sides { raw, guard, ratio }
}

async fn raw_block(connections: &[RawPair], tasks: u32, each: u32) {
    let mut running = JoinSet::new();
    for (task, raw) in (0..tasks).zip(connections.iter().cycle()) {
        let mut raw = raw.clone();
        running.spawn(async move {
            let key = format!("lock:raw:{task}");
            for _ in 0..each {
                raw.run(&key).await;
            }
        });
    }
    running.join_all().await;
}

async fn guard_block(managers: &[LockManager], tasks: u32, each: u32) {
    let mut running = JoinSet::new();
    for (task, locks) in (0..tasks).zip(managers.iter().cycle()) {
        let locks = locks.clone();
        running.spawn(async move {
            let key = format!("guard:{task}");
            for _ in 0..each {
                pairs::guard(&locks, &key, pairs::WAIT).await;
            }
        });
    }
    running.join_all().await;
}
