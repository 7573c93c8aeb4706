//! The recipes for web services: `idempotent_endpoint` and `webhook_dedup`.

use std::sync::Barrier;
use std::thread;

use test_support::fixtures::{SOON, exists};
use test_support::{RedisServer, eventually};

use crate::examples::example;
use crate::examples::service::Service;

/// Starts an instance on the server, with a table in the server's directory.
fn start(name: &str, server: &RedisServer, table: &str, time: (&str, &str)) -> Service {
    let program = example(name).arg("--redis").arg(server.url());
    let program = program.arg(table).arg(server.directory().join("table"));
    Service::start(&program.arg(time.0).arg(time.1))
}

/// Returns how often the instances printed this line.
fn count(instances: &[Service], line: &str) -> usize {
    let lines = instances.iter().flat_map(|one| one.process.lines());
    lines.filter(|printed| printed == line).count()
}

#[test]
fn requests_with_one_key_charge_once_and_get_the_same_receipt() {
    const REQUESTS: usize = 8;
    let server = RedisServer::start();
    let name = "idempotent_endpoint";
    let instances = [(); 2].map(|()| start(name, &server, "--receipts", ("--bank", "100")));
    let pay = |instance: &Service, key| instance.post("/payments", &[("Idempotency-Key", key)], "");
    let barrier = Barrier::new(REQUESTS);
    let replies: Vec<_> = thread::scope(|scope| {
        let requests: Vec<_> = (0..REQUESTS)
            .map(|number| {
                let (barrier, instance) = (&barrier, &instances[number % 2]);
                scope.spawn(move || {
                    barrier.wait();
                    pay(instance, "7f3a")
                })
            })
            .collect();
        requests.into_iter().map(|r| r.join().unwrap()).collect()
    });
    let first = replies[0].clone();
    assert_eq!(first.0, 200);
    assert!(first.1.starts_with("receipt "), "{first:?}");
    assert_eq!(replies, vec![first.clone(); REQUESTS]);
    assert_eq!(count(&instances, "charged 7f3a"), 1);

    // Another key is another payment, and a request needs a key.
    let (status, receipt) = pay(&instances[0], "9c01");
    assert_eq!(status, 200);
    assert_ne!(receipt, first.1);
    assert_eq!(instances[0].post("/payments", &[], "").0, 400);
}

#[test]
fn charge_and_receipt_end_although_the_client_disconnects() {
    let server = RedisServer::start();
    let instance = start(
        "idempotent_endpoint",
        &server,
        "--receipts",
        ("--bank", "500"),
    );
    let headers = [("Idempotency-Key", "7f3a")];
    let is_charging = || exists(&server, "lock:payment:7f3a");
    instance.post_and_disconnect("/payments", &headers, is_charging);
    let (status, receipt) = instance.post("/payments", &headers, "");
    assert_eq!(status, 200, "{receipt}");
    assert_eq!(count(&[instance], "charging 7f3a"), 1);
}

#[test]
fn delivery_is_processed_although_its_sender_disconnects() {
    let server = RedisServer::start();
    let instance = start("webhook_dedup", &server, "--seen", ("--work", "500"));
    let headers = [("Webhook-Id", "evt_1")];
    let is_processing = || exists(&server, "lock:webhook:evt_1");
    instance.post_and_disconnect("/webhooks", &headers, is_processing);
    eventually(SOON, || !exists(&server, "lock:webhook:evt_1"));
    assert_eq!(instance.post("/webhooks", &headers, "").0, 200);
    assert_eq!(count(&[instance], "processing evt_1"), 1);
}

#[test]
fn second_delivery_gets_409_until_the_first_is_done() {
    let server = RedisServer::start();
    let instances = [(); 2].map(|()| start("webhook_dedup", &server, "--seen", ("--work", "1000")));
    let [here, there] = &instances;
    let deliver = |to: &Service, body| to.post("/webhooks", &[("Webhook-Id", "evt_1")], body);
    thread::scope(|scope| {
        let first = scope.spawn(|| deliver(here, "paid"));
        eventually(SOON, || exists(&server, "lock:webhook:evt_1"));
        // Not 2xx: the sender has to try again, because the first delivery may fail.
        assert_eq!(deliver(there, "paid").0, 409);
        assert_eq!(first.join().unwrap().0, 200);
    });
    assert_eq!(deliver(there, "paid").0, 200);
    assert_eq!(count(&instances, "processed evt_1"), 1);
}

#[test]
fn failed_delivery_is_processed_again() {
    let server = RedisServer::start();
    let instances = [(); 2].map(|()| start("webhook_dedup", &server, "--seen", ("--work", "10")));
    let [here, there] = &instances;
    let deliver = |to: &Service, body| to.post("/webhooks", &[("Webhook-Id", "evt_2")], body);
    assert_eq!(deliver(here, "fail").0, 500);
    assert_eq!(deliver(there, "paid").0, 200);
    assert_eq!(deliver(here, "paid").0, 200);
    assert_eq!(count(&instances, "processing evt_2"), 2);
    assert_eq!(count(&instances, "processed evt_2"), 1);
}
