//! The recipe `leader`.

use std::time::{Duration, Instant};

use test_support::fixtures::{SOON, time_to_expiry};
use test_support::{Process, RedisServer, Reply, eventually};

use crate::examples::example;
use crate::examples::service::terminate;

const KEY: &str = "lock:leader:billing";

/// The ttl of the lead.
const TTL: Duration = Duration::from_secs(3);

fn start(server: &RedisServer) -> Process {
    let process = example("leader").arg("--redis").arg(server.url());
    let process = process
        .arg("--folder")
        .arg(server.directory().join("bills"));
    let process = process.spawn();
    eventually(SOON, || !process.lines().is_empty());
    process
}

/// Returns the token of each time for which the instance led.
fn turns(process: &Process) -> Vec<u64> {
    let lines = process.lines();
    let tokens = lines
        .iter()
        .filter_map(|line| line.strip_prefix("leading with token "));
    tokens.map(|token| token.parse().unwrap()).collect()
}

fn has_led(process: &Process, times: usize) -> impl FnMut() -> bool {
    move || turns(process).len() == times
}

/// Returns a leader and an instance in its queue.
fn leader_and_standby(server: &RedisServer) -> (Process, Process) {
    let leader = start(server);
    eventually(SOON, has_led(&leader, 1));
    let standby = start(server);
    let queue = format!("{{{KEY}}}:q");
    eventually(SOON, || server.cli(&["ZCARD", &queue]) == Reply::Integer(1));
    (leader, standby)
}

#[test]
fn standby_follows_a_leader_that_stops_before_its_lease_ends() {
    let server = RedisServer::start();
    let (leader, standby) = leader_and_standby(&server);
    let left = time_to_expiry(&server, KEY);
    let stopped = Instant::now();
    terminate(&leader);
    eventually(SOON, has_led(&standby, 1));
    assert!(stopped.elapsed() < left, "only the end of the lease helped");
    assert!(leader.wait(SOON).success());
    assert!(leader.lines().iter().any(|line| line == "stopping"));
    assert!(turns(&standby)[0] > turns(&leader)[0]);
    terminate(&standby);
    assert!(standby.wait(SOON).success());
    assert_eq!(server.cli(&["EXISTS", KEY]), Reply::Integer(0));
}

#[test]
fn standby_follows_a_killed_leader_within_the_ttl() {
    let server = RedisServer::start();
    let (leader, standby) = leader_and_standby(&server);
    let killed = Instant::now();
    leader.kill9();
    assert!(turns(&standby).is_empty());
    eventually(SOON, has_led(&standby, 1));
    // A busy machine may be late by a second.
    assert!(killed.elapsed() < TTL + Duration::from_secs(1));
}

#[test]
fn leader_that_was_frozen_stops_its_work_and_waits_again() {
    let server = RedisServer::start();
    let (leader, standby) = leader_and_standby(&server);
    // The step has just begun, and takes half a second.
    let steps = || {
        leader
            .lines()
            .iter()
            .filter(|line| *line == "computing")
            .count()
    };
    let before = steps();
    eventually(SOON, || steps() > before);
    leader.stop();
    eventually(SOON, has_led(&standby, 1));
    // The standby has written under its token.
    eventually(SOON, || standby.lines().iter().any(|line| line == "step"));
    leader.cont();
    let lost = "not the leader any more";
    eventually(SOON, || leader.lines().iter().any(|line| line == lost));
    // The leader was stopped in the middle of a step, which goes on. Its token is too low.
    let refused = "refused: a later leader has sent bills";
    eventually(SOON, || leader.lines().iter().any(|line| line == refused));
    standby.kill9();
    eventually(SOON, has_led(&leader, 2));
    let lines = leader.lines();
    let at = |wanted: &str| lines.iter().position(|line| line.starts_with(wanted));
    let (lost, led) = (at(lost).unwrap(), {
        let later = lines
            .iter()
            .rposition(|line| line.starts_with("leading with"));
        later.unwrap()
    });
    // No step takes effect between the terms.
    assert!(
        !lines[lost..led].iter().any(|line| line == "step"),
        "{lines:#?}"
    );
    assert!(turns(&leader)[1] > turns(&standby)[0]);
}
