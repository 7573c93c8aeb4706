//! The example `web_service`, which the guide's page `web` shows as a whole.

use std::thread;
use std::time::{Duration, Instant};

use lock_core::LockManager;
use test_support::fixtures::{SOON, exists};
use test_support::{Helper, RedisServer, eventually, eventually_some};

use super::example;
use super::service::{Service, terminate};

fn program(server: &RedisServer) -> Helper {
    example("web_service")
        .env("DISTRIBUTED_LOCK_URL", server.url())
        .env("LISTEN", "127.0.0.1:0")
}

#[test]
fn requests_for_one_order_pay_it_once() {
    let server = RedisServer::start();
    let service = Service::start(&program(&server));
    let mut replies: Vec<_> = thread::scope(|scope| {
        let requests: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| service.post("/orders/7/payment", &[], "")))
            .collect();
        requests.into_iter().map(|r| r.join().unwrap()).collect()
    });
    replies.sort();
    let before = (200, "order 7 was paid before".to_owned());
    let now = (200, "order 7 is paid now".to_owned());
    assert_eq!(replies, [now, before.clone(), before]);
    assert!(!exists(&server, "lock:order:7"));
}

/// The bank has the order when the client goes away. The row must follow, or the next request pays again.
#[test]
fn payment_ends_although_its_client_disconnects() {
    let server = RedisServer::start();
    let service = Service::start(&program(&server));
    let path = "/orders/7/payment";
    service.post_and_disconnect(path, &[], || exists(&server, "lock:order:7"));
    let reply = service.post(path, &[], "");
    assert_eq!(reply, (200, "order 7 was paid before".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn held_order_is_a_conflict() {
    let server = RedisServer::start();
    let service = Service::start(&program(&server));
    let other = LockManager::connect(&server.url()).await.unwrap();
    let guard = other.lock("order:7").acquire().await.unwrap();
    let (status, text) = service.post("/orders/7/payment", &[], "");
    assert_eq!(status, 409, "{text}");
    assert!(text.contains("guide/problems"), "{text}");
    guard.release().await.unwrap();
    // An ordinary conflict is no trouble.
    let lines = service.process.lines();
    let trouble = ["WARN", "ERROR", "the request got no lock"];
    let is_quiet = |line: &String| trouble.iter().all(|text| !line.contains(text));
    assert!(lines.iter().all(is_quiet), "{lines:#?}");
}

/// Sends a payment whose reply is 500, and returns the line of the log that has its cause.
#[track_caller]
fn failed_payment(service: &Service) -> String {
    let (status, text) = service.post("/orders/71/payment", &[], "");
    assert_eq!(status, 500, "{text}");
    assert!(!text.contains("order:71"), "{text}");
    eventually_some(SOON, || {
        let mut lines = service.process.lines().into_iter();
        lines.find(|line| line.contains("ERROR web_service"))
    })
}

#[test]
fn key_with_other_data_is_an_error_in_the_log() {
    let server = RedisServer::start();
    let service = Service::start(&program(&server));
    server.cli(&["SET", "lock:order:71", "data"]);
    let line = failed_payment(&service);
    for part in [
        "the request failed",
        "lock:order:71",
        "holds a value without an expiry",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
}

#[test]
fn right_that_is_taken_away_is_an_error_in_the_log() {
    let server = RedisServer::start();
    let service = Service::start(&program(&server));
    server.cli(&["ACL", "SETUSER", "default", "-evalsha", "-eval"]);
    let line = failed_payment(&service);
    for part in ["the request failed", "evalsha"] {
        assert!(line.contains(part), "{part}: {line}");
    }
}

#[test]
fn sigterm_lets_the_payment_end_and_leaves_no_lock() {
    let server = RedisServer::start();
    let service = Service::start(&program(&server));
    thread::scope(|scope| {
        let paying = scope.spawn(|| service.post("/orders/7/payment", &[], ""));
        eventually(SOON, || exists(&server, "lock:order:7"));
        terminate(&service.process);
        let reply = (200, "order 7 is paid now".to_owned());
        assert_eq!(paying.join().unwrap(), reply);
    });
    let ended = service.process.wait(SOON);
    assert_eq!(ended.code(), Some(0), "{:#?}", service.process.lines());
    assert!(!exists(&server, "lock:order:7"));
}

/// A request that waits for another instance's order would hold up the stop for the rest of its wait, 2 s.
#[test]
fn sigterm_ends_requests_that_wait_at_once() {
    let server = RedisServer::start();
    let service = Service::start(&program(&server));
    let value = "lk1:00000000-0000-4000-8000-000000000001 7 1 other";
    server.cli(&["SET", "lock:order:7", value, "PX", "60000"]);
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| service.post("/orders/7/payment", &[], "")))
            .collect();
        eventually(SOON, || {
            server.cli(&["ZCARD", "{lock:order:7}:q"]).integer() == 3
        });
        let stopped = Instant::now();
        terminate(&service.process);
        for waiting in waiting {
            let (status, text) = waiting.join().unwrap();
            assert_eq!(status, 503, "{text}");
            assert!(text.contains("shutting-down"), "{text}");
        }
        let ended = service.process.wait(SOON);
        assert_eq!(ended.code(), Some(0), "{:#?}", service.process.lines());
        let took = stopped.elapsed();
        assert!(took < Duration::from_millis(1_200), "{took:?}");
        println!("the stop took {took:?}");
    });
}

#[test]
fn release_that_stays_open_is_logged_and_is_no_failure() {
    let server = RedisServer::start();
    let service = Service::start(&program(&server));
    thread::scope(|scope| {
        let paying = scope.spawn(|| service.post("/orders/7/payment", &[], ""));
        eventually(SOON, || exists(&server, "lock:order:7"));
        server.kill9();
        terminate(&service.process);
        paying.join().unwrap();
    });
    let ended = service.process.wait(SOON);
    let lines = service.process.lines();
    assert_eq!(ended.code(), Some(0), "{lines:#?}");
    let warning = lines
        .iter()
        .filter(|line| line.contains("WARN web_service"));
    assert_eq!(warning.count(), 1, "{lines:#?}");
}

#[test]
fn failed_start_logs_the_text_of_the_error() {
    let server = RedisServer::start();
    let program = program(&server);
    server.kill9();
    let process = program.spawn();
    assert_eq!(process.wait(SOON).code(), Some(1));
    let lines = process.lines();
    let error = lines.join("\n");
    assert!(
        error.contains("cannot connect to the lock server"),
        "{error}"
    );
    // Not `Debug`, which `fn main() -> Result<_, LockError>` prints.
    assert!(!error.contains("Backend"), "{error}");
}

#[test]
fn missing_right_ends_the_start() {
    let server = RedisServer::start();
    server.cli(&["ACL", "SETUSER", "default", "-evalsha", "-eval"]);
    let process = program(&server).spawn();
    assert_eq!(process.wait(SOON).code(), Some(1));
    let error = process.lines().join("\n");
    assert!(error.contains("the service failed"), "{error}");
    assert!(error.contains("evalsha"), "{error}");
}
