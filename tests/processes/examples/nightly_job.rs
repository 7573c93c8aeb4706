//! The example `nightly_job`.

use std::time::Duration;

use test_support::fixtures::{SOON, time_to_expiry};
use test_support::{Helper, Process, RedisServer, eventually};

use super::example;

const KEY: &str = "lock:nightly-report";

fn instance(server: &RedisServer) -> Helper {
    example("nightly_job")
        .env("DISTRIBUTED_LOCK_URL", server.url())
        .arg("--takes")
}

#[track_caller]
fn lines_of(instance: &Process) -> Vec<String> {
    assert!(instance.wait(SOON).success(), "{:#?}", instance.lines());
    instance.lines()
}

#[test]
fn one_instance_runs_and_the_others_skip() {
    let server = RedisServer::start();
    let start = |_| instance(&server).arg("1000").spawn();
    let instances: Vec<_> = (0..4).map(start).collect();
    let mut outputs: Vec<_> = instances.iter().map(lines_of).collect();
    outputs.sort();
    assert!(outputs[0][0].starts_with("running"), "{outputs:#?}");
    assert!(outputs[0][1].starts_with("finished"), "{outputs:#?}");
    for skipped in &outputs[1..] {
        assert_eq!(*skipped, ["skipped: the report of this night is written"]);
    }
    let left = time_to_expiry(&server, KEY);
    assert!(left > Duration::from_secs(22 * 3600), "{left:?}");
}

/// One of the instances that wait runs the job at once, and the job is done when one succeeds.
#[test]
fn job_that_fails_or_is_killed_is_run_by_another_instance() {
    let server = RedisServer::start();
    let failing = instance(&server).arg("0").arg("--fails").arg("true");
    assert_eq!(
        lines_of(&failing.spawn())[1],
        "failed: the printer has no paper"
    );
    let killed = instance(&server).arg("60000").spawn();
    eventually(SOON, || !killed.lines().is_empty());
    let waiting = instance(&server).arg("0").spawn();
    killed.kill9();
    // The lease of the killed instance ends first.
    assert!(waiting.wait(2 * SOON).success(), "{:#?}", waiting.lines());
    assert!(waiting.lines()[1].starts_with("finished"));
    let late = instance(&server).arg("0").spawn();
    assert_eq!(
        lines_of(&late),
        ["skipped: the report of this night is written"]
    );
}

#[test]
fn job_does_not_run_without_the_lock_server() {
    let server = RedisServer::start();
    let url = server.url();
    server.kill9();
    let instance = example("nightly_job").arg("--redis").arg(url);
    let instance = instance.arg("--outage-wait").arg("500").spawn();
    assert!(!instance.wait(SOON).success());
    assert_eq!(instance.lines(), [""; 0]);
}

/// All machines have lost power, and the lock server is the last one to be back.
#[test]
fn jobs_that_start_before_the_lock_server_run_once() {
    let server = RedisServer::start();
    server.kill9();
    let start = || {
        let instance = example("nightly_job").arg("--redis").arg(server.url());
        instance.arg("--takes").arg("3000").spawn()
    };
    let instances: Vec<_> = (0..3).map(|_| start()).collect();
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    for instance in &instances {
        assert_eq!(instance.lines(), [""; 0]);
    }
    server.restart();
    let mut runs = 0;
    for instance in &instances {
        assert!(instance.wait(SOON).success(), "{:#?}", instance.lines());
        runs += usize::from(instance.lines()[0].starts_with("running"));
    }
    assert_eq!(runs, 1);
}
