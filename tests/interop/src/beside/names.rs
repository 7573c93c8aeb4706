//! Names from which both sides have to derive the same channel and the same counter.

use std::thread;
use std::time::Duration;

use super::agent::{Agent, Side};
use super::bench::{Bench, SLACK};
use super::table::Latencies;

/// Redisson writes braces around a name that has none. lock-core refuses other braces than one tag.
const NAMES: [&str; 5] = [
    "orders",
    "orders:17",
    "{orders}:line",
    "orders:{17}:line",
    "заказ:№17",
];

/// No lease ends within the experiment, so a release that is not heard costs seconds.
const TTL: Duration = Duration::from_secs(30);

/// How long a waiter waits before the release.
const SECTION: Duration = Duration::from_millis(20);

pub(super) fn are_the_same(bench: &Bench) -> Result<String, String> {
    let agents = [Side::Redisson, Side::Ours].map(|side| bench.agent(side, TTL));
    let mut latencies = Latencies::default();
    for name in NAMES {
        let mut token = 0;
        for (holder, waiter) in [(&agents[0], &agents[1]), (&agents[1], &agents[0])] {
            let took = hand_over(bench, holder, waiter, name, &mut token);
            latencies.add(took.map_err(|fault| format!("`{name}`: {fault}"))?);
        }
    }
    let longest = latencies.percentile(100).as_millis();
    Ok(format!(
        "{} names, also with braces: each side hears the other after at most {longest} ms",
        NAMES.len()
    ))
}

fn hand_over(
    bench: &Bench,
    holder: &Agent,
    waiter: &Agent,
    name: &str,
    token: &mut u64,
) -> Result<Duration, String> {
    let first = holder.call(&format!("lock {name} -1"))?.expect("held")?;
    let wait = bench.wait_for(waiter, name);
    // A fenced lock of Redisson before 3.28.0 misses a release right after the second acquire of the
    // waiter, and then sleeps until the end of the lease. It does so among its own processes too.
    thread::sleep(SECTION);
    let released = holder.call(&format!("unlock {name}"))?.expect("done")?;
    let second = wait.held(SLACK)?;
    if waiter.side == Side::Ours && !second.is_by_notification() {
        return Err(format!("a wait of ours ended `{}`", second.details));
    }
    if bench.is_fenced() {
        for held in [&first, &second] {
            if held.token() <= *token {
                return Err(format!("the token {} came after {token}", held.token()));
            }
            *token = held.token();
        }
    }
    waiter.call(&format!("unlock {name}"))?.expect("done")?;
    Ok(second.since(released.began))
}
