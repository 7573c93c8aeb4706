//! A process without a manager and without a URL.

use test_support::fixtures::{SOON, all_keys};
use test_support::{Helper, RedisServer};

/// Returns the outcome of an annotated function in a process with this `DISTRIBUTED_LOCK_URL`, or
/// without one.
fn call_with_url(url: Option<&str>) -> String {
    let worker = env!("CARGO_BIN_EXE_lock-worker");
    let without = Helper::new("env")
        .arg("-u")
        .arg("DISTRIBUTED_LOCK_URL")
        .arg(worker);
    let process_options = match url {
        None => without.arg("call"),
        Some(url) => Helper::new(worker)
            .env("DISTRIBUTED_LOCK_URL", url)
            .arg("call"),
    };
    let process = process_options.spawn();
    assert!(process.wait(SOON).success());
    let record = process.records().pop().expect("the process wrote a record");
    record["error"].as_str().unwrap_or("done").to_owned()
}

#[test]
fn attribute_without_manager_and_url_is_not_configured() {
    let error = call_with_url(None);
    assert!(error.contains("LockManager::connect(url)"), "{error}");
    assert!(error.contains("install_global()"), "{error}");
    assert!(error.contains("DISTRIBUTED_LOCK_URL"), "{error}");
}

#[test]
fn invalid_url_in_the_environment_is_rejected() {
    let server = RedisServer::start();
    assert_eq!(call_with_url(Some(&server.url())), "done");
    assert_eq!(all_keys(&server), ["{lock:called}:f"]);
    let error = call_with_url(Some("nonsense"));
    assert!(error.contains("redis://"), "{error}");
    let error = call_with_url(Some(""));
    assert!(error.contains("redis://"), "{error}");
}
