//! The recipe `election`.

use std::time::{Duration, Instant};

use test_support::fixtures::{SOON, time_to_expiry};
use test_support::{RedisServer, eventually, eventually_some};

use crate::examples::example;
use crate::examples::service::{Service, terminate};

const KEY: &str = "lock:leader:billing";

/// The ttl of the lead.
const TTL: Duration = Duration::from_secs(3);

fn start(server: &RedisServer) -> Service {
    Service::start(&example("election").arg("--redis").arg(server.url()))
}

/// Returns what the instance says of the leader.
fn leader(instance: &Service) -> (u16, String) {
    instance.get("/leader")
}

fn leads(instance: &Service) -> bool {
    leader(instance) == (200, "this instance leads".into())
}

/// Returns the tokens of the instance's terms.
fn terms(instance: &Service) -> Vec<u64> {
    let lines = instance.process.lines();
    let tokens = lines
        .iter()
        .filter_map(|line| line.strip_prefix("leading with token "));
    tokens.map(|token| token.parse().unwrap()).collect()
}

/// Returns a leader, and an instance that names it by the label of its process.
fn leader_and_standby(server: &RedisServer) -> (Service, Service) {
    let first = start(server);
    eventually(SOON, || leads(&first));
    let standby = start(server);
    let (status, text) = leader(&standby);
    assert_eq!(status, 200);
    let pid = first.process.pid().to_string();
    assert!(text.ends_with(" leads") && text.contains(&pid), "{text}");
    (first, standby)
}

#[test]
fn standby_follows_a_leader_that_stops_and_every_instance_names_it() {
    let server = RedisServer::start();
    let (first, standby) = leader_and_standby(&server);
    let left = time_to_expiry(&server, KEY);
    let stopped = Instant::now();
    terminate(&first.process);
    eventually(SOON, || !terms(&standby).is_empty());
    assert!(stopped.elapsed() < left, "only the end of the lease helped");
    eventually(SOON, || leads(&standby));
    assert!(first.process.wait(SOON).success());
    let lines = first.process.lines();
    assert_eq!(
        lines[lines.len() - 2..],
        ["not the leader any more", "stopped"]
    );
    assert!(terms(&standby)[0] > terms(&first)[0]);
    terminate(&standby.process);
    assert!(standby.process.wait(SOON).success());
}

#[test]
fn standby_follows_a_killed_leader_within_the_ttl() {
    let server = RedisServer::start();
    let (first, standby) = leader_and_standby(&server);
    let killed = Instant::now();
    first.process.kill9();
    eventually(SOON, || !terms(&standby).is_empty());
    // A busy machine may be late by a second.
    assert!(killed.elapsed() < TTL + Duration::from_secs(1));
    eventually(SOON, || leads(&standby));
}

/// What cannot be read is unknown. The leader hears that its term has ended, and leads again when the server is back.
#[test]
fn leader_is_unknown_during_an_outage() {
    let server = RedisServer::start();
    let (first, standby) = leader_and_standby(&server);
    server.kill9();
    for instance in [&first, &standby] {
        let unknown = (503, "the leader is unknown".to_owned());
        eventually(SOON, || leader(instance) == unknown);
    }
    let lost = "not the leader any more";
    eventually(SOON, || {
        first.process.lines().iter().any(|line| line == lost)
    });
    server.restart();
    let next = eventually_some(SOON, || [&first, &standby].into_iter().find(|it| leads(it)));
    assert!(terms(next).last() > terms(&first).first());
}
