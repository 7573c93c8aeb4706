//! The races with other languages' clients, as far as they need no other language: that our own
//! program keeps the protocol, and that a client without exclusion is detected.

use std::path::Path;

use interop::Options;
use interop::clients::ClientKind;
use interop::race::race;
use test_support::{Helper, RedisServer, helper};

fn native(name: &str) -> ClientKind {
    ClientKind::new(name, worker())
}

fn worker() -> Helper {
    helper!("interop-worker").env("DIALECT", "native")
}

#[test]
fn nothing_is_lost_between_our_own() {
    let server = RedisServer::start();
    let sides = [&native("some"), &native("others")];
    let figures = race(&server, "lock:own", sides, 60).expect("all keep the protocol");
    assert_eq!(figures.fault(), None);
    assert!(figures.sections() >= 60, "{figures:?}");
}

#[test]
fn a_client_that_excludes_nobody_is_found_out() {
    let server = RedisServer::start();
    // It waits for its turn at another door.
    let elsewhere = Helper::new("sh")
        .arg("-c")
        .arg("LOCK_KEY=elsewhere exec \"$WORKER\"")
        .env("WORKER", env!("CARGO_BIN_EXE_interop-worker"))
        .env("DIALECT", "native");
    let sides = [&ClientKind::new("elsewhere", elsewhere), &native("ours")];
    let found = match race(&server, "lock:here", sides, 200) {
        Ok(figures) => figures.fault(),
        Err(fault) => Some(fault),
    };
    let fault = found.expect("two holders at once lose updates");
    assert!(
        fault.contains("are lost") || fault.contains("another process's write"),
        "{fault}"
    );
}

#[test]
fn a_client_whose_language_is_missing_is_named() {
    let options = Options {
        sections: 1,
        only: vec!["jedis".to_owned(), "go-redsync".to_owned()],
        clients: Path::new("no such folder").into(),
        worker: env!("CARGO_BIN_EXE_interop-worker").into(),
    };
    let summary = interop::run(&options, |_| {}).to_string();
    assert_eq!(
        summary,
        "0 pairs run, 0 updates lost; skipped: jedis (needs Java), go-redsync (needs Go)\n\
         0 passed, 0 failed, 13 skipped"
    );
}
