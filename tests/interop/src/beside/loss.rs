//! A lock that the server loses, and a lock that Redisson releases by force.

use std::time::Duration;

use test_support::eventually;

use super::agent::{Agent, Side};
use super::bench::{Bench, KEY, SLACK, SOON, TTL};
use super::table::ms;
use crate::worker::micros;

/// The longest time without a poll of a waiter that gets no notification.
const POLL: Duration = Duration::from_secs(1);

/// How long a lock is held before it is released by force. A release within a few milliseconds of the
/// grant may be the one that made the grant possible, so it is no reason for a renewal.
const AGE: Duration = Duration::from_millis(100);

/// Returns when the loss was reported. The next renewal notices it at the latest.
fn time_to_loss(holder: &Agent, from: u64, longest: Duration) -> Result<Duration, String> {
    let lost = holder.event("lost", KEY, SOON)?.since(from);
    if lost > longest + SLACK {
        return Err(format!("the loss was reported after {}", ms(lost)));
    }
    Ok(lost)
}

pub(super) fn flushed(bench: &Bench) -> Result<String, String> {
    let theirs = flushed_holder(bench, Side::Redisson)?;
    let ours = flushed_holder(bench, Side::Ours)?;
    Ok(format!("{theirs}; {ours}"))
}

fn flushed_holder(bench: &Bench, side: Side) -> Result<String, String> {
    let [holder, waiter] = [side, side.other()].map(|side| bench.agent(side, TTL));
    holder.call(&format!("lock {KEY} -1"))?.expect("held")?;
    let wait = bench.wait_for(&waiter, KEY);
    let left = bench.left(KEY).ok_or("the lock is free")?;
    let from = micros();
    bench.cli(&["FLUSHALL"]);
    let took = wait.held(SOON)?.since(from);
    // Redisson sleeps for the lease that it read, and lock-core may have renewed the lock since then.
    let longest = match side {
        Side::Redisson => POLL,
        Side::Ours => TTL,
    };
    if took > longest + SLACK {
        return Err(format!(
            "the waiter waited {} with {} left",
            ms(took),
            ms(left)
        ));
    }
    let loss = match side {
        Side::Redisson => String::new(),
        Side::Ours => format!(
            ", `Lost` after {}",
            ms(time_to_loss(&holder, from, TTL / 3)?)
        ),
    };
    bench.late_unlock(&holder, KEY)?;
    waiter.call(&format!("unlock {KEY}"))?.expect("done")?;
    let (name, other) = (side.name(), side.other().name());
    let (took, left) = (ms(took), ms(left));
    Ok(format!(
        "{name} holds with {left} left, {other} after {took}{loss}"
    ))
}

pub(super) fn forced(bench: &Bench) -> Result<String, String> {
    let alone = forced_holder(bench, false)?;
    let subscribed = forced_holder(bench, true)?;
    Ok(format!(
        "ours learns it after {}; after {} where it waited for the lock before",
        ms(alone),
        ms(subscribed)
    ))
}

/// Returns when our holder learns it. A holder that took is still subscribed to the channel.
fn forced_holder(bench: &Bench, waits_before: bool) -> Result<Duration, String> {
    let [theirs, ours] = [Side::Redisson, Side::Ours].map(|side| bench.agent(side, TTL));
    if waits_before {
        theirs.call(&format!("lock {KEY} -1"))?.expect("held")?;
        let wait = bench.wait_for(&ours, KEY);
        theirs.call(&format!("unlock {KEY}"))?.expect("done")?;
        wait.held(SOON)?;
    } else {
        ours.call(&format!("lock {KEY} -1"))?.expect("held")?;
    }
    eventually(SOON, || {
        bench.left(KEY).is_some_and(|left| left + AGE < TTL)
    });
    let forced = theirs.call(&format!("forceUnlock {KEY}"))?.expect("done")?;
    let longest = if waits_before {
        Duration::ZERO
    } else {
        TTL / 3
    };
    let lost = time_to_loss(&ours, forced.began, longest)?;
    // Another holder is not disturbed by the release.
    theirs.call(&format!("lock {KEY} -1"))?.expect("held")?;
    bench.late_unlock(&ours, KEY)?;
    theirs.call(&format!("unlock {KEY}"))?.expect("done")?;
    Ok(lost)
}
