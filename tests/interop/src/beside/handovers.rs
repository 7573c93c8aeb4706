//! The time from a release by one process to the grant in another.

use std::thread;
use std::time::Duration;

use test_support::Random;

use super::agent::{Agent, Side};
use super::bench::{Bench, KEY};
use super::table::Latencies;

pub(super) const MIXED: &str = "handover between the sides, p50 / p99";
pub(super) const REDISSON: &str = "handover, Redisson to Redisson, p50 / p99";
pub(super) const OURS: &str = "handover, ours to ours, p50 / p99";

/// The handovers in each direction.
const ROUNDS: usize = 200;

/// No lease ends within an experiment, so a missed notification costs seconds.
const TTL: Duration = Duration::from_secs(30);

const HANDOVER: Duration = Duration::from_secs(10);

/// A waiter that gets its notification holds the lock within this time, also on a busy machine.
const AT_ONCE: Duration = Duration::from_millis(500);

/// The handovers to one agent.
#[derive(Default)]
struct Direction {
    latencies: Latencies,
    by_notification: usize,
}

impl Direction {
    /// Describes a direction to a side.
    ///
    /// # Errors
    /// Fails if waiters got no notifications.
    fn describe(&self, to: Side) -> Result<String, String> {
        let (latencies, count) = (&self.latencies, self.latencies.count());
        if latencies.percentile(99) > AT_ONCE {
            return Err(format!("p50 / p99 of a handover is {latencies}"));
        }
        let by_notification = self.by_notification;
        match to {
            Side::Redisson => Ok(latencies.to_string()),
            // The release may come before the waiter's second acquire.
            Side::Ours if by_notification * 100 < count * 95 => Err(format!(
                "only {by_notification} of {count} grants are by notification"
            )),
            Side::Ours => Ok(format!(
                "{latencies} ({by_notification} of {count} by notification)"
            )),
        }
    }
}

pub(super) fn mixed(bench: &Bench) -> Result<String, String> {
    let agents = [Side::Redisson, Side::Ours].map(|side| bench.agent(side, TTL));
    let [to_redisson, to_ours] = ping_pong(bench, &agents)?;
    let to_ours = to_ours.describe(Side::Ours)?;
    let to_redisson = to_redisson.describe(Side::Redisson)?;
    Ok(format!(
        "Redisson releases, ours holds {to_ours}; ours releases, Redisson holds {to_redisson}"
    ))
}

pub(super) fn among_redisson(bench: &Bench) -> Result<String, String> {
    among(bench, Side::Redisson)
}

pub(super) fn among_ours(bench: &Bench) -> Result<String, String> {
    among(bench, Side::Ours)
}

fn among(bench: &Bench, side: Side) -> Result<String, String> {
    let agents = [side, side].map(|side| bench.agent(side, TTL));
    let [mut one, other] = ping_pong(bench, &agents)?;
    one.latencies.append(other.latencies);
    one.by_notification += other.by_notification;
    one.describe(side)
}

/// Lets the agents hold the lock in turn, and measures the handovers to each of them.
fn ping_pong(bench: &Bench, agents: &[Agent; 2]) -> Result<[Direction; 2], String> {
    let mut random = Random::new(1);
    let mut directions = [Direction::default(), Direction::default()];
    let mut token = agents[0]
        .call(&format!("lock {KEY} -1"))?
        .expect("held")?
        .token();
    for turn in 0..2 * ROUNDS {
        let (holder, to) = (&agents[turn % 2], (turn + 1) % 2);
        let wait = bench.wait_for(&agents[to], KEY);
        // The section of the holder. Meanwhile the waiter asks a second time, and goes to sleep.
        thread::sleep(random.millis(10, 30));
        let released = holder.call(&format!("unlock {KEY}"))?.expect("done")?;
        let held = wait.held(HANDOVER)?;
        directions[to].latencies.add(held.since(released.began));
        directions[to].by_notification += usize::from(held.is_by_notification());
        if bench.is_fenced() && held.token() <= token {
            return Err(format!("the token {} came after {token}", held.token()));
        }
        token = held.token();
    }
    Ok(directions)
}
