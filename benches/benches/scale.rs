//! Measures how costs grow with work: `cargo bench -p benches --bench scale`
//!
//! Each line has the mean cost of one operation: the time of the server in its scripts (`server`), the
//! processor time of all threads of the client (`client`), and the scripts that clients sent
//! (`commands`). `join_1_to_10000_server` divides the cost at the largest size by the cost at the
//! smallest: one means that it does not grow. A table at the end shows all of them.
//!
//! With this many waiters of one key, in one manager:
//!
//! - `join`: a caller enters the queue behind the others.
//! - `cancel`: a caller at the end of the queue gives up.
//! - `poll`: a waiter at the end of the queue polls. A head-of-queue notification makes it poll now.
//!   One waiter or ten poll alone after a pause, with cold caches; a hundred poll at once.
//! - `handover`: the holder releases, the next waiter runs, and the releaser waits again.
//! - `resubscribe`: the connection that receives notifications breaks, and is restored at once. Then every waiter
//!   polls twice: it may have missed a notification, and its entry says how it learns of a grant.
//!
//! With this many waiters of one key, each in its own manager: `handover_managers`.
//!
//! An uncontended acquire and release: `pair_keys` while the same manager holds this many other keys,
//! `pair_managers` beside this many other managers, each with a lock of its own.
//!
//! `waiting`: the polls of 10,000 waiters that only wait, and what they cost in percent of a core. All
//! of them enter at once, and the window of 30 s begins there. So each waiter polls about once.
//!
//! The short form has two sizes of each, and no `waiting`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use benches::contention::{NAME, connect, queue_length, shut_down};
use benches::figures::{number, percent, report};
use benches::operation_cost::{Meter, OperationCost};
use benches::process::own_processor_time;
use benches::server_info::scripts;
use benches::{held, is_short};
use lock_core::{LockGuard, LockManager, LockRequest};
use test_support::RedisServer;
use test_support::fixtures::multi_thread_runtime;
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// The sizes at which a cost is measured.
struct Sizes {
    waiters: &'static [usize],
    waiting_managers: &'static [usize],
    keys: &'static [usize],
    managers: &'static [usize],
}

const SIZES: Sizes = Sizes {
    waiters: &[1, 10, 100, 1_000, MOST_WAITERS],
    waiting_managers: &[1, 10, 100],
    keys: &[1, 10, 100, 1_000, 10_000, 100_000],
    managers: &[1, 10, 100, 1_000],
};
/// A hundred waiters poll at once, as more do. Fewer poll with cold caches.
const SHORT_SIZES: Sizes = Sizes {
    waiters: &[100, 2_000],
    waiting_managers: &[5, 50],
    keys: &[10, 5_000],
    managers: &[1, 100],
};
const MOST_WAITERS: usize = 10_000;
/// Longer than the bench, so that no wait ends and no lock is renewed.
const LONG: Duration = Duration::from_secs(3_600);
/// Most costs are the median of this many measurements.
const ROUNDS: usize = 5;
/// The joins and cancels of a measurement, and the waiters that poll at once.
const OPERATIONS: usize = 100;
const POLLS: usize = 100;
/// Few waiters poll this often in a measurement.
const MOST_POLLS: usize = 6;
const PAIRS: u32 = 400;
/// The sections of the one measurement of handovers.
const HANDOVERS: u32 = 600;
/// A head-of-queue notification makes a waiter poll at most once in 50 ms.
const POLL_AGAIN: Duration = Duration::from_millis(60);
/// How often to check whether the polls after a resubscription have ended.
const QUIET: Duration = Duration::from_millis(300);
const WAITING: Duration = Duration::from_secs(30);
/// Notifies the last waiters of a queue as if they were at its head, behind an expired lease.
const NOTIFY_LAST: &str = "
    for _, entry in ipairs(redis.call('ZRANGE', KEYS[1], -ARGV[1], -1)) do
      local id, channel = string.match(entry, '^(%x%x%x%x%x%x%x%x)%S* %S+ %d+ %d+ (%S+) ')
      redis.call('PUBLISH', channel, 'h ' .. id .. ' 0 0')
    end";

/// The costs of one operation, by size.
struct Row {
    operation: &'static str,
    costs: Vec<(usize, OperationCost)>,
}

fn main() {
    let sizes = if is_short() { SHORT_SIZES } else { SIZES };
    let runtime = multi_thread_runtime(2);
    let mut rows: Vec<Row> = Vec::new();
    for &waiters in sizes.waiters {
        let costs = runtime.block_on(with_waiters(waiters));
        for (operation, cost) in costs {
            add(&mut rows, operation, waiters, cost);
        }
    }
    for &managers in sizes.waiting_managers {
        let cost = runtime.block_on(with_waiting_managers(managers));
        add(&mut rows, "handover_managers", managers, cost);
    }
    with_keys(&runtime, sizes.keys, &mut rows);
    with_managers(&runtime, sizes.managers, &mut rows);
    if !is_short() {
        runtime.block_on(waiting());
    }
    print(&rows, sizes.keys);
}

fn add(rows: &mut Vec<Row>, operation: &'static str, size: usize, cost: OperationCost) {
    let figure = format!("scale.{operation}_{size}");
    report(&format!("{figure}_server"), cost.server_us, "us");
    report(&format!("{figure}_client"), cost.client_us, "us");
    report(&format!("{figure}_commands"), cost.commands, "commands");
    match rows.iter_mut().find(|row| row.operation == operation) {
        Some(row) => row.costs.push((size, cost)),
        None => rows.push(Row {
            operation,
            costs: vec![(size, cost)],
        }),
    }
}

fn request(locks: &LockManager) -> LockRequest {
    locks.lock(NAME).ttl(LONG).wait(LONG)
}

async fn queue_reaches(server: &RedisServer, length: usize) {
    while queue_length(server, NAME) != length {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Tasks that wait for the lock, release it at once and wait again.
struct Waiters {
    tasks: JoinSet<()>,
    sections: Arc<AtomicU32>,
    done: Arc<Notify>,
}

impl Waiters {
    fn start(managers: &[LockManager], count: usize) -> Self {
        let (sections, done) = (Arc::<AtomicU32>::default(), Arc::<Notify>::default());
        let mut tasks = JoinSet::new();
        for task in 0..count {
            let locks = managers[task % managers.len()].clone();
            let (sections, done) = (Arc::clone(&sections), Arc::clone(&done));
            tasks.spawn(async move {
                loop {
                    let held = request(&locks).acquire().await.expect("the wait is long");
                    if sections.fetch_add(1, Ordering::Relaxed) == HANDOVERS {
                        done.notify_one();
                        std::future::pending::<()>().await;
                    }
                    held.release().await.expect("the lock was held");
                }
            });
        }
        Self {
            tasks,
            sections,
            done,
        }
    }

    /// Measures handovers from the release of the first holder on. After them one task holds the
    /// lock, and the others wait.
    async fn handovers(
        self,
        server: &RedisServer,
        first: LockGuard,
    ) -> (JoinSet<()>, OperationCost) {
        let meter = Meter::start(server);
        first.release().await.expect("the lock was held");
        self.done.notified().await;
        let cost = meter.stop(f64::from(self.sections.load(Ordering::Relaxed)));
        (self.tasks, cost)
    }
}

async fn with_waiters(count: usize) -> Vec<(&'static str, OperationCost)> {
    let server = RedisServer::start();
    let managers = connect(&server.url(), 1).await;
    let first = request(&managers[0]).acquire().await.expect("free");
    let waiters = Waiters::start(&managers, count);
    queue_reaches(&server, count).await;

    let [mut joins, mut cancels] = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        let operations = number(OPERATIONS as u64);
        let meter = Meter::start(&server);
        let mut joining = JoinSet::new();
        for _ in 0..OPERATIONS {
            joining.spawn(request(&managers[0]).acquire());
        }
        queue_reaches(&server, count + OPERATIONS).await;
        joins.push(meter.stop(operations));

        let meter = Meter::start(&server);
        joining.shutdown().await;
        queue_reaches(&server, count).await;
        cancels.push(meter.stop(operations));
    }
    let [join, cancel] = [joins, cancels].map(|costs| OperationCost::median(&costs));

    let poll = polls(&server, count).await.expect("the server is up");
    let (mut tasks, handover) = waiters.handovers(&server, first).await;
    let one_more = request(&managers[0]).acquire();
    tasks.spawn(async move {
        let _held = one_more.await;
    });
    queue_reaches(&server, count).await;
    // The last: a grant after it has to be confirmed, which is one more command.
    let resubscribe = resubscribe(&server, count).await;
    tasks.shutdown().await;
    shut_down(&managers).await;
    vec![
        ("join", join),
        ("cancel", cancel),
        ("poll", poll),
        ("handover", handover),
        ("resubscribe", resubscribe),
    ]
}

/// Makes the last waiters poll.
async fn polls(server: &RedisServer, waiters: usize) -> std::io::Result<OperationCost> {
    let queue = format!("{{lock:{NAME}}}:q");
    let at_once = waiters.min(OPERATIONS);
    let mut connection = server.connect()?;
    let mut notify_last = || {
        let words = ["EVAL", NOTIFY_LAST, "1", &queue, &at_once.to_string()];
        connection.call(&words)
    };
    let mut costs = Vec::new();
    for _ in 0..ROUNDS {
        let meter = Meter::start(server);
        for _ in 0..(POLLS / at_once).clamp(1, MOST_POLLS) {
            notify_last()?;
            tokio::time::sleep(POLL_AGAIN).await;
        }
        let calls = meter.calls();
        costs.push(meter.stop(calls));
    }
    Ok(OperationCost::median(&costs))
}

/// Cuts the connection that receives notifications, and waits until no waiter polls any more.
async fn resubscribe(server: &RedisServer, waiters: usize) -> OperationCost {
    let meter = Meter::start(server);
    server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    let waiters = number(waiters as u64);
    let mut calls = 0.0;
    loop {
        tokio::time::sleep(QUIET).await;
        let before = std::mem::replace(&mut calls, meter.calls());
        // Polls at the usual times continue, and are fewer.
        if calls > 0.0 && calls - before <= 1.0 + waiters / 20.0 {
            break;
        }
    }
    meter.stop(waiters)
}

async fn with_waiting_managers(count: usize) -> OperationCost {
    let server = RedisServer::start();
    let managers = connect(&server.url(), count + 1).await;
    let first = request(&managers[count]).acquire().await.expect("free");
    // Each of the waiters, and the one that releases, has its own manager.
    let waiters = Waiters::start(&managers, count + 1);
    queue_reaches(&server, count + 1).await;
    let (mut tasks, cost) = waiters.handovers(&server, first).await;
    tasks.shutdown().await;
    shut_down(&managers).await;
    cost
}

async fn pairs(server: &RedisServer, locks: &LockManager) -> OperationCost {
    let mut costs = Vec::new();
    for _ in 0..ROUNDS {
        let meter = Meter::start(server);
        for _ in 0..PAIRS {
            let held = request(locks).acquire().await.expect("the lock is free");
            held.release().await.expect("the lock was held");
        }
        costs.push(meter.stop(f64::from(PAIRS)));
    }
    OperationCost::median(&costs)
}

fn with_keys(runtime: &Runtime, sizes: &[usize], rows: &mut Vec<Row>) {
    let server = RedisServer::start();
    let locks = runtime.block_on(connect(&server.url(), 1)).remove(0);
    let mut held: Vec<LockGuard> = Vec::new();
    for &count in sizes {
        let [before, after] = [held.len(), count].map(|n| u32::try_from(n).expect("few"));
        runtime.block_on(held::acquire_all(&locks, before..after, LONG, &mut held));
        let cost = runtime.block_on(pairs(&server, &locks));
        add(rows, "pair_keys", count, cost);
    }
    drop(held);
    runtime.block_on(shut_down(&[locks]));
}

fn with_managers(runtime: &Runtime, sizes: &[usize], rows: &mut Vec<Row>) {
    let server = RedisServer::start();
    let locks = runtime.block_on(connect(&server.url(), 1)).remove(0);
    let mut others: Vec<(LockManager, LockGuard)> = Vec::new();
    for &count in sizes {
        runtime.block_on(async {
            for number in others.len()..count {
                let other = LockManager::connect(&server.url()).await.expect("up");
                let request = other.lock(format!("other:{number}")).ttl(LONG);
                let held = request.try_acquire().await.expect("up").expect("free");
                others.push((other, held));
            }
        });
        let cost = runtime.block_on(pairs(&server, &locks));
        add(rows, "pair_managers", count, cost);
    }
    let (others, held): (Vec<_>, Vec<_>) = others.into_iter().unzip();
    drop(held);
    runtime.block_on(shut_down(&others));
}

async fn waiting() {
    let server = RedisServer::start();
    let managers = connect(&server.url(), 1).await;
    let first = request(&managers[0]).acquire().await.expect("free");
    let count = MOST_WAITERS;
    let waiters = Waiters::start(&managers, count);
    queue_reaches(&server, count).await;
    let (started, before, used) = (Instant::now(), scripts(&server), own_processor_time());
    tokio::time::sleep(WAITING).await;
    let elapsed = started.elapsed();
    let client = own_processor_time().saturating_sub(used);
    let cost = scripts(&server) - before;
    let on_server = Duration::from_secs_f64(cost.micros / 1e6);
    let figure = |name| format!("scale.waiting_{count}_{name}");
    let polls = cost.calls / elapsed.as_secs_f64();
    report(&figure("polls"), polls, "per second");
    report(
        &figure("server"),
        percent(on_server, elapsed),
        "% of a core",
    );
    report(&figure("client"), percent(client, elapsed), "% of a core");
    let mut tasks = waiters.tasks;
    tasks.shutdown().await;
    drop(first);
    shut_down(&managers).await;
}

/// Prints the growth of each cost, and all costs as a table.
fn print(rows: &[Row], sizes: &[usize]) {
    for row in rows {
        let [(smallest, first), .., (largest, last)] = row.costs[..] else {
            continue;
        };
        let figure = format!("scale.{}_{smallest}_to_{largest}", row.operation);
        for (name, growth) in [
            ("server", last.server_us / first.server_us),
            ("client", last.client_us / first.client_us),
        ] {
            report(&format!("{figure}_{name}"), growth, "x");
        }
    }
    if is_short() {
        return;
    }
    println!("\nserver us / client us / commands of one operation\n");
    println!(
        "| operation | {} |",
        sizes
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(" | ")
    );
    println!("|---{}|", "|---".repeat(sizes.len()));
    for row in rows {
        let cell = |size: &usize| {
            let cost = row.costs.iter().find(|(known, _)| known == size);
            cost.map_or(String::new(), |(_, cost)| {
                let (server, client) = (cost.server_us, cost.client_us);
                format!("{server:.0} / {client:.0} / {:.2}", cost.commands)
            })
        };
        let cells: Vec<_> = sizes.iter().map(cell).collect();
        println!("| {} | {} |", row.operation, cells.join(" | "));
    }
}
