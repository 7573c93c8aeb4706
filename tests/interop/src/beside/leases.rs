//! A lease that ends while its holder works, and leases that are renewed.

use std::thread;
use std::time::Duration;

use super::agent::Side;
use super::bench::{Bench, KEY, SLACK, SOON, TTL};
use super::table::{check_wait, ms};

/// A lease time that is not renewed.
const LEASE: Duration = Duration::from_secs(1);

/// The default of both sides.
const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// Between two reads of a PTTL.
const READ: Duration = Duration::from_millis(5);

pub(super) fn ends(bench: &Bench) -> Result<String, String> {
    let theirs = end(bench, Side::Redisson)?;
    let ours = end(bench, Side::Ours)?;
    Ok(format!("{theirs}; {ours}"))
}

fn end(bench: &Bench, side: Side) -> Result<String, String> {
    let [holder, waiter] = [side, side.other()].map(|side| bench.agent(side, TTL));
    let lease = LEASE.as_millis();
    let held = holder
        .call(&format!("lock {KEY} {lease}"))?
        .expect("held")?;
    let next = bench.wait_for(&waiter, KEY).held(SOON)?;
    let took = next.since(held.ended);
    check_wait(took, LEASE)?;
    if side == Side::Ours && holder.event("lost", KEY, SOON)?.ended > next.ended {
        return Err("the loss was reported after the other side had the lock".to_owned());
    }
    bench.late_unlock(&holder, KEY)?;
    waiter.call(&format!("unlock {KEY}"))?.expect("done")?;
    let (name, other) = (side.name(), side.other().name());
    Ok(format!(
        "{name} for {}, {other} after {}, late unlock of {name}: gone",
        ms(LEASE),
        ms(took)
    ))
}

pub(super) fn watchdogs(bench: &Bench) -> Result<String, String> {
    watch(bench, TTL, Duration::from_secs(7))
}

pub(super) fn default_watchdogs(bench: &Bench) -> Result<String, String> {
    watch(bench, DEFAULT_TTL, Duration::from_secs(12))
}

/// Each side holds a lock that the other side wants for this time.
fn watch(bench: &Bench, ttl: Duration, time: Duration) -> Result<String, String> {
    let sides = [Side::Redisson, Side::Ours];
    let agents = sides.map(|side| bench.agent(side, ttl));
    let keys = sides.map(Side::name);
    for (agent, key) in agents.iter().zip(keys) {
        agent.call(&format!("lock {key} -1"))?.expect("held")?;
    }
    let waits = [(&agents[1], keys[0]), (&agents[0], keys[1])];
    let time = time.as_millis();
    let waits = waits.map(|(agent, key)| agent.send(&format!("tryLock {key} {time} -1")));
    let mut lowest = [ttl; 2];
    while waits.iter().any(|wait| wait.now().is_none()) {
        for (lowest, key) in lowest.iter_mut().zip(keys) {
            let left = bench.left(key).ok_or(format!("the lock of {key} ended"))?;
            *lowest = left.min(*lowest);
        }
        thread::sleep(READ);
    }
    for wait in &waits {
        wait.reply(SOON)?.expect("busy")?;
    }
    for (agent, key) in agents.iter().zip(keys) {
        agent.call(&format!("unlock {key}"))?.expect("done")?;
    }
    let [theirs, ours] = lowest;
    if lowest.iter().any(|lowest| *lowest + SLACK < ttl / 3 * 2) {
        return Err(format!(
            "the lowest PTTL is {} and {}",
            ms(theirs),
            ms(ours)
        ));
    }
    Ok(format!(
        "in {} s the lowest PTTL is {} of Redisson and {} of ours, and neither side gets in",
        time / 1000,
        ms(theirs),
        ms(ours)
    ))
}
