//! A process without a manager and without a URL.

use test_support::fixtures::{SOON, all_keys};
use test_support::{Helper, RedisServer};

/// The attribute's answer in a process with this DISTRIBUTED_LOCK_URL, or none.
fn ask(url: Option<&str>) -> String {
    let worker = env!("CARGO_BIN_EXE_lock-worker");
    let without = Helper::new("env")
        .arg("-u")
        .arg("DISTRIBUTED_LOCK_URL")
        .arg(worker);
    let asking = match url {
        None => without.arg("call"),
        Some(url) => Helper::new(worker)
            .env("DISTRIBUTED_LOCK_URL", url)
            .arg("call"),
    };
    let process = asking.spawn();
    assert!(process.wait(SOON).success());
    let answer = process.records().pop().expect("it said something");
    answer["error"].as_str().unwrap_or("done").to_owned()
}

#[test]
fn neither_a_manager_nor_a_url() {
    let said = ask(None);
    assert!(said.contains("LockManager::connect(url)"), "{said}");
    assert!(said.contains("install_global()"), "{said}");
    assert!(said.contains("DISTRIBUTED_LOCK_URL"), "{said}");
}

#[test]
fn the_url_of_the_environment() {
    let server = RedisServer::start();
    assert_eq!(ask(Some(&server.url())), "done");
    assert_eq!(all_keys(&server), ["{lock:asked}:f"]);
    let said = ask(Some("nonsense"));
    assert!(said.contains("redis://"), "{said}");
    let said = ask(Some(""));
    assert!(said.contains("redis://"), "{said}");
}
