//! Measures the memory of a held lock and of a waiter: `cargo bench -p benches --bench memory`
//!
//! - `held_client`: the bytes that the client allocates for a held lock and its guard, from a counting
//!   allocator. `held_client_resident` is the growth of the resident memory.
//! - `held_server`: the growth of the server's `used_memory`. It includes the fencing counter.
//!   `raw_server` is the same for a key with a UUID and a ttl.
//! - `waiter_client`: the bytes for a waiter of one key with many waiters. This is the total, with the
//!   task that the bench spawns for each waiter.
//! - `waiter_task`: the part of the user: the bytes for a spawned task that never does anything.
//! - `waiter_library`: the part of the library, which is the rest. It contains the future of the acquire
//!   in that task, which is `waiter_future` bytes large, and all that the library allocates.
//! - `waiter_server`: the growth of `used_memory` for a waiter of one key.
//! - `alone_client`, `alone_task`, `alone_library`, `alone_server`: the same for a waiter that is the
//!   only one of its key.

use std::process::Command;
use std::time::Duration;

use benches::allocations::{Allocations, Counting};
use benches::contention::queue_length;
use benches::figures::{number, report, report_at_most};
use benches::held::{self, AT_ONCE};
use benches::process::resident_bytes;
use benches::server_info::used_memory;
use benches::{is_short, pairs};
use lock_core::{LockError, LockGuard};
use test_support::fixtures::current_thread_runtime;
use test_support::{RedisServer, eventually_async};
use tokio::task::JoinSet;

#[global_allocator]
static ALLOCATOR: Counting = Counting::system();

const TARGET: f64 = 2_048.0;
const WAITER_ON_SERVER: f64 = 400.0;
/// Longer than the bench.
const TTL: Duration = Duration::from_secs(300);
const WAIT: Duration = Duration::from_secs(300);
/// Bound on the replies of the server.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() {
    let part =
        std::env::args().find_map(|argument| argument.strip_prefix("--part=").map(String::from));
    let Some(part) = part else {
        // Each in a process of its own: a process uses the memory again that an earlier part freed.
        let program = std::env::current_exe().expect("this program has a path");
        for part in ["held", "waiter", "alone"] {
            let arguments = std::env::args().skip(1).chain([format!("--part={part}")]);
            let status = Command::new(&program).args(arguments).status();
            assert!(
                status.expect("this program runs").success(),
                "{part} failed"
            );
        }
        return;
    };
    let count = if is_short() { 2_000 } else { 10_000 };
    let runtime = current_thread_runtime();
    runtime.block_on(async {
        match &*part {
            "held" => held_locks(count).await,
            "waiter" => waiters(&part, count, Keys::Shared).await,
            "alone" => waiters(&part, count, Keys::Own).await,
            _ => panic!("no such part: {part}"),
        }
    });
    runtime.shutdown_background();
}

/// What the client and the server use.
#[derive(Clone, Copy)]
struct Memory {
    client: f64,
    resident: f64,
    server: f64,
}

impl Memory {
    fn read(server: &RedisServer) -> Self {
        Self {
            client: Allocations::read(&ALLOCATOR).live_bytes,
            resident: number(resident_bytes(std::process::id())),
            server: used_memory(server),
        }
    }

    /// Returns the growth for each of `count` objects.
    fn growth(self, now: Self, count: u32) -> Self {
        let each = |before, now| (now - before) / f64::from(count);
        Self {
            client: each(self.client, now.client),
            resident: each(self.resident, now.resident),
            server: each(self.server, now.server),
        }
    }
}

async fn held_locks(count: u32) {
    let server = RedisServer::start();
    let before = used_memory(&server);
    for number in 0..count {
        let owner = "6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10";
        server.cli(&["SET", &format!("raw:job:{number}"), owner, "PX", "300000"]);
    }
    let raw = (used_memory(&server) - before) / f64::from(count);

    let locks = pairs::connect(&server).await;
    // Loads the scripts, and fills buffers.
    let mut guards = Vec::new();
    held::acquire_all(&locks, 0..AT_ONCE, TTL, &mut guards).await;
    for guard in guards.drain(..) {
        guard.release().await.expect("the lock was held");
    }
    let before = Memory::read(&server);
    guards.reserve_exact(count as usize);
    held::acquire_all(&locks, 0..count, TTL, &mut guards).await;
    let each = before.growth(Memory::read(&server), count);
    report_at_most("memory.held_client", each.client, "bytes", TARGET);
    report("memory.held_client_resident", each.resident, "bytes");
    report("memory.held_server", each.server, "bytes");
    report("memory.raw_server", raw, "bytes");
    // The process ends now. Nothing needs the locks.
    server.kill9();
    std::mem::forget((guards, locks));
}

/// Whether waiters have one key, or a key each.
#[derive(Clone, Copy)]
enum Keys {
    Shared,
    Own,
}

impl Keys {
    fn name(self, waiter: u32) -> String {
        match self {
            Self::Shared => held::name(0),
            Self::Own => held::name(waiter),
        }
    }

    /// The waiters in the queue of the last of `waiters` waiters.
    fn in_last_queue(self, waiters: u32) -> usize {
        match self {
            Self::Shared => waiters as usize,
            Self::Own => 1,
        }
    }
}

/// Returns the bytes of a spawned task that only waits.
fn idle_task(count: u32) -> f64 {
    let before = Allocations::read(&ALLOCATOR).live_bytes;
    let mut tasks = JoinSet::new();
    for _ in 0..count {
        tasks.spawn(std::future::pending::<Result<LockGuard, LockError>>());
    }
    let now = Allocations::read(&ALLOCATOR).live_bytes;
    (now - before) / f64::from(count)
}

async fn waiters(figure: &str, count: u32, keys: Keys) {
    let server = RedisServer::start();
    let (holder, locks) = (pairs::connect(&server).await, pairs::connect(&server).await);
    let mut guards = Vec::new();
    let held = match keys {
        Keys::Shared => 1,
        Keys::Own => count,
    };
    held::acquire_all(&holder, 0..held, TTL, &mut guards).await;
    // Loads the scripts and subscribes.
    let busy = locks.lock(held::name(0)).wait(Duration::from_millis(50));
    assert!(busy.acquire().await.is_err(), "the lock is held");

    let mut tasks = JoinSet::new();
    let before = Memory::read(&server);
    let mut future_size = 0;
    for first in (0..count).step_by(AT_ONCE as usize) {
        let end = count.min(first + AT_ONCE);
        for waiter in first..end {
            let request = locks.lock(keys.name(waiter)).ttl(TTL).wait(WAIT);
            let waiting = request.acquire();
            future_size = size_of_val(&waiting);
            tasks.spawn(waiting);
        }
        let last = keys.name(end - 1);
        eventually_async(PATIENCE, async || {
            queue_length(&server, &last) == keys.in_last_queue(end)
        })
        .await;
    }
    // Lets the client read the last replies.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let each = before.growth(Memory::read(&server), count);
    let name = |part| format!("memory.{figure}_{part}");
    report_at_most(&name("client"), each.client, "bytes", TARGET);
    let task = idle_task(count);
    report(&name("task"), task, "bytes");
    report(&name("library"), each.client - task, "bytes");
    report(&name("client_resident"), each.resident, "bytes");
    if let Keys::Shared = keys {
        report("memory.waiter_future", number(future_size as u64), "bytes");
    }
    report_at_most(&name("server"), each.server, "bytes", WAITER_ON_SERVER);
    server.kill9();
    std::mem::forget((guards, tasks, holder, locks));
}
