//! The example `nightly_job`.

use test_support::fixtures::SOON;
use test_support::{RedisServer, Reply};

use super::example;

#[test]
fn one_instance_runs_and_the_others_skip() {
    let server = RedisServer::start();
    let instances: Vec<_> = (0..4)
        .map(|_| {
            example("nightly_job")
                .env("DISTRIBUTED_LOCK_URL", server.url())
                .arg("--takes")
                .arg("3000")
                .spawn()
        })
        .collect();
    let mut outputs: Vec<Vec<String>> = instances
        .iter()
        .map(|instance| {
            assert!(instance.wait(SOON).success());
            instance.lines()
        })
        .collect();
    outputs.sort();
    assert!(outputs[0][0].starts_with("running"), "{outputs:#?}");
    assert!(outputs[0][1].starts_with("finished"), "{outputs:#?}");
    for skipped in &outputs[1..] {
        assert!(skipped[0].starts_with("skipped"), "{outputs:#?}");
    }
    assert_eq!(
        server.cli(&["EXISTS", "lock:nightly-report"]),
        Reply::Integer(0)
    );
}

/// The job is quicker than the difference of two clocks. The lock and not the process waits for late starters.
#[test]
fn instance_that_starts_after_the_end_of_a_quick_job_skips() {
    let server = RedisServer::start();
    let start = || {
        let instance = example("nightly_job").arg("--redis").arg(server.url());
        let instance = instance.arg("--takes").arg("0").spawn();
        assert!(instance.wait(SOON).success());
        instance.lines()
    };
    assert!(start()[1].starts_with("finished"));
    assert!(start()[0].starts_with("skipped"));
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
