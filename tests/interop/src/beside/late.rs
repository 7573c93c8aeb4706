//! An acquire that the server runs after its client has given up.

use std::time::Duration;

use test_support::holds_within;

use super::agent::Side;
use super::bench::{Bench, KEY, SOON, TTL};
use super::table::{check_wait, ms};
use crate::worker::micros;

/// The command timeout of the agents.
const TIMEOUT_MS: &str = "500";

/// How long the server runs no writes and no scripts, in milliseconds.
const PAUSE_MS: &str = "2000";

/// Long compared with the time that a late command takes.
const AFTER: Duration = Duration::from_millis(500);

pub(super) fn acquires(bench: &Bench) -> Result<String, String> {
    let ours = late_of_ours(bench)?;
    let theirs = late_of_redisson(bench)?;
    Ok(format!("{ours}; {theirs}"))
}

fn late_of_ours(bench: &Bench) -> Result<String, String> {
    let agent = bench.agent_with(Side::Ours, TTL, &[("TIMEOUT_MS", TIMEOUT_MS)]);
    agent.call(&format!("lock {KEY} -1"))?.expect("held")?;
    agent.call(&format!("unlock {KEY}"))?.expect("done")?;
    let monitor = bench.server.monitor();
    pause(bench);
    let failed = agent
        .call(&format!("tryLock {KEY} 0 -1"))?
        .expect("failed")?;
    let reported = failed.since(failed.began);
    end_of_pause(bench);
    if holds_within(AFTER, || bench.left(KEY).is_some()) {
        return Err("a late acquire of ours took the lock".to_owned());
    }
    let recording = monitor.stop();
    // The cancel that follows has no ttl.
    let ttl = TTL.as_millis().to_string();
    let late = recording.from_clients().filter(|it| {
        it.name() == "EVALSHA"
            && [KEY, &ttl]
                .iter()
                .all(|word| it.words.iter().any(|w| w == word))
    });
    if late.count() == 0 {
        return Err("the late acquire of ours did not run, so this shows nothing".to_owned());
    }
    let mut scripts = recording.all().iter().filter(|it| it.is_from_script());
    let writes = ["HSET", "HINCRBY", "INCR", "PEXPIRE", "DEL", "HDEL"];
    if let Some(write) = scripts.find(|it| writes.contains(&it.name().as_str())) {
        return Err(format!(
            "a late command of ours wrote: {}",
            write.words.join(" ")
        ));
    }
    Ok(format!(
        "ours reports {} after {}, and the late command writes nothing",
        failed.details,
        ms(reported)
    ))
}

fn late_of_redisson(bench: &Bench) -> Result<String, String> {
    let limits = [("TIMEOUT_MS", TIMEOUT_MS), ("RETRIES", "0")];
    let theirs = bench.agent_with(Side::Redisson, TTL, &limits);
    let ours = bench.agent(Side::Ours, TTL);
    theirs.call(&format!("lock {KEY} -1"))?.expect("held")?;
    theirs.call(&format!("unlock {KEY}"))?.expect("done")?;
    pause(bench);
    let failed = theirs.call(&format!("lock {KEY} -1"))?.expect("failed")?;
    let (details, reported) = (&failed.details, ms(failed.since(failed.began)));
    end_of_pause(bench);
    let from = micros();
    let Some(left) = bench.left(KEY) else {
        return Ok(format!(
            "Redisson reports {details} after {reported}, and leaves nothing"
        ));
    };
    let waited = ours.send(&format!("lock {KEY} -1")).held(SOON)?.since(from);
    check_wait(waited, left)?;
    Ok(format!(
        "Redisson reports {details} after {reported}, and leaves a lock with {} left, which ours \
         gets after {}",
        ms(left),
        ms(waited)
    ))
}

/// Lets the server run no writes and no scripts for some time.
fn pause(bench: &Bench) {
    bench.cli(&["CLIENT", "PAUSE", PAUSE_MS, "WRITE"]);
}

/// Returns when the server has run the commands that waited for the end of the pause.
fn end_of_pause(bench: &Bench) {
    bench.cli(&["SET", "after the pause", "1"]);
}
