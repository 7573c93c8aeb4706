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
    let mut said: Vec<Vec<String>> = instances
        .iter()
        .map(|instance| {
            assert!(instance.wait(SOON).success());
            instance.lines()
        })
        .collect();
    said.sort();
    assert!(said[0][0].starts_with("running"), "{said:#?}");
    assert!(said[0][1].starts_with("finished"), "{said:#?}");
    for skipped in &said[1..] {
        assert!(skipped[0].starts_with("skipped"), "{said:#?}");
    }
    assert_eq!(
        server.cli(&["EXISTS", "lock:nightly-report"]),
        Reply::Integer(0)
    );
}

#[test]
fn does_not_run_when_it_cannot_ask() {
    let server = RedisServer::start();
    let url = server.url();
    server.kill9();
    let instance = example("nightly_job").arg("--redis").arg(url).spawn();
    assert!(!instance.wait(SOON).success());
    assert_eq!(instance.lines(), [""; 0]);
}
