//! A holder that is killed, and a holder that is stopped for longer than its lease.

use super::agent::Side;
use super::bench::{Bench, KEY, SLACK, SOON, TTL};
use super::table::{check_wait, ms};
use crate::worker::micros;

pub(super) fn killed(bench: &Bench) -> Result<String, String> {
    let theirs = killed_holder(bench, Side::Redisson)?;
    let ours = killed_holder(bench, Side::Ours)?;
    Ok(format!("{theirs}; {ours}"))
}

fn killed_holder(bench: &Bench, side: Side) -> Result<String, String> {
    let [holder, waiter] = [side, side.other()].map(|side| bench.agent(side, TTL));
    holder.call(&format!("lock {KEY} -1"))?.expect("held")?;
    let wait = bench.wait_for(&waiter, KEY);
    let left = bench.left(KEY).ok_or("the lock is free")?;
    let from = micros();
    holder.process.kill9();
    let took = wait.held(SOON)?.since(from);
    check_wait(took, left)?;
    waiter.call(&format!("unlock {KEY}"))?.expect("done")?;
    let (left, other) = (ms(left), side.other().name());
    Ok(format!(
        "{} with {left} left, {other} after {}",
        side.name(),
        ms(took)
    ))
}

pub(super) fn stopped(bench: &Bench) -> Result<String, String> {
    let theirs = stopped_holder(bench, Side::Redisson)?;
    let ours = stopped_holder(bench, Side::Ours)?;
    Ok(format!("{theirs}; {ours}"))
}

fn stopped_holder(bench: &Bench, side: Side) -> Result<String, String> {
    let [holder, waiter] = [side, side.other()].map(|side| bench.agent(side, TTL));
    holder.call(&format!("lock {KEY} -1"))?.expect("held")?;
    let wait = bench.wait_for(&waiter, KEY);
    holder.process.stop();
    let from = micros();
    let left = bench.left(KEY).ok_or("the lock is free")?;
    let took = wait.held(SOON)?.since(from);
    check_wait(took, left)?;
    let woken = micros();
    holder.process.cont();
    let on_waking = match side {
        // Only its next unlock reports that the lock is lost.
        Side::Redisson => String::new(),
        Side::Ours => {
            let lost = holder.event("lost", KEY, SOON)?.since(woken);
            if lost > SLACK {
                return Err(format!("the loss was reported {} after waking", ms(lost)));
            }
            format!("`Lost` {} after waking, ", ms(lost))
        }
    };
    bench.late_unlock(&holder, KEY)?;
    waiter.call(&format!("unlock {KEY}"))?.expect("done")?;
    let (left, other) = (ms(left), side.other().name());
    let took = ms(took);
    Ok(format!(
        "{} with {left} left, {other} after {took}; on waking: {on_waking}unlock: gone",
        side.name()
    ))
}
