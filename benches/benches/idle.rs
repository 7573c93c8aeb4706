//! Measures what a manager costs that does nothing: `cargo bench -p benches --bench idle`
//!
//! Each state is observed for some seconds. `..._wakeups` is how often a thread of the process woke up
//! in a second, without the thread that measures. `..._requests` is how often the server read from a
//! client in a second. The server reads a command alone, or a pipeline of commands.
//!
//! - `new`: the manager has connected, and no lock was acquired.
//! - `sections`: a thousand short sections ended before. No lock is held.
//! - `held`: one lock is held, with a ttl of 30 s. One renewal is due in 10 s.
//! - `waiting`: one caller waits for a lock of another manager, which the same process holds.
//!
//! `none` is the control: the process without a manager. The short form has neither
//! `none` nor `waiting`.

use std::time::Duration;

use benches::figures::{number, report, report_at_most};
use benches::is_short;
use benches::pairs::{self, WAIT};
use benches::process::sleeps;
use benches::server_info::Traffic;
use lock_core::Kind;
use test_support::RedisServer;
use test_support::fixtures::multi_thread_runtime;
use tokio::runtime::Runtime;

/// One in a second is near zero: an idle runtime of a service wakes up as often.
const TARGET: f64 = 1.0;
/// The interval of renewals, so that the state `held` contains one.
const SPAN: Duration = Duration::from_secs(10);
const SHORT_SPAN: Duration = Duration::from_secs(3);
const TTL: Duration = Duration::from_secs(30);

fn main() {
    let server = RedisServer::start();
    let runtime = multi_thread_runtime(1);
    if !is_short() {
        observe("none", &server);
    }

    let connect = || runtime.block_on(pairs::connect(&server));
    let locks = connect();
    observe("new", &server);

    runtime.block_on(async {
        for _ in 0..1_000 {
            pairs::guard(&locks, "section", WAIT).await;
        }
    });
    observe("sections", &server);

    let guard = runtime.block_on(pairs::acquire(&locks, "held", Kind::Exclusive, WAIT));
    observe("held", &server);
    if !is_short() {
        let other = connect();
        let waiter = runtime.spawn(async move {
            let request = other.lock("held").ttl(TTL).wait(Duration::from_secs(600));
            request.acquire().await
        });
        observe("waiting", &server);
        waiter.abort();
    }
    release(&runtime, guard);
}

fn observe(state: &str, server: &RedisServer) {
    let span = if is_short() { SHORT_SPAN } else { SPAN };
    // What the last state left behind ends first.
    std::thread::sleep(Duration::from_millis(500));
    let pid = std::process::id();
    let before = (sleeps(pid), Traffic::read(server).reads);
    std::thread::sleep(span);
    let after = (sleeps(pid), Traffic::read(server).reads);
    let seconds = span.as_secs_f64();
    let wakeups = number(after.0 - before.0) / seconds;
    // The end of the first INFO's connection and the second INFO are reads, too.
    let requests = (after.1 - before.1 - 2.0) / seconds;
    for (name, value, unit) in [
        ("wakeups", wakeups, "wake-ups/s"),
        ("requests", requests, "requests/s"),
    ] {
        let figure = format!("idle.{state}_{name}");
        // A waiter polls, in case a notification is lost.
        if state == "waiting" {
            report(&figure, value, unit);
        } else {
            report_at_most(&figure, value, unit, TARGET);
        }
    }
}

fn release(runtime: &Runtime, guard: lock_core::LockGuard) {
    let released = runtime.block_on(guard.release());
    released.expect("the lock was held");
}
