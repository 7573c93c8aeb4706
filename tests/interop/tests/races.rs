//! The parts of the races that need no other language. The lock-core program follows the protocol,
//! and the race detects a client without exclusion.

use std::path::Path;

use interop::Options;
use interop::clients::ClientKind;
use interop::race::{LEAST, race};
use test_support::{Helper, RedisServer, helper};

fn native(name: &str) -> ClientKind {
    ClientKind::new(name, worker())
}

fn worker() -> Helper {
    helper!("interop-worker").env("DIALECT", "native")
}

#[test]
fn race_between_two_native_sides_loses_no_update() {
    let server = [RedisServer::start()];
    let sides = [&native("some"), &native("others")];
    let figures = race(&server, "lock:own", &sides, 60).expect("all processes follow the protocol");
    assert_eq!(figures.fault(LEAST), None);
    assert!(figures.sections() >= 60, "{figures:?}");
}

#[test]
fn race_at_a_quorum_loses_no_update() {
    let servers = [(); 3].map(|()| RedisServer::start());
    let plain = helper!("interop-worker").env("DIALECT", "set-nx-px");
    let sides = [&native("native"), &ClientKind::new("plain", plain)];
    let figures =
        race(&servers, "lock:own", &sides, 60).expect("all processes follow the protocol");
    assert_eq!(figures.fault(LEAST), None);
}

#[test]
fn race_detects_a_client_without_exclusion() {
    let server = [RedisServer::start()];
    // This client acquires another key.
    let elsewhere = Helper::new("sh")
        .arg("-c")
        .arg("LOCK_KEY=elsewhere exec \"$WORKER\"")
        .env("WORKER", env!("CARGO_BIN_EXE_interop-worker"))
        .env("DIALECT", "native");
    let sides = [
        &ClientKind::new("elsewhere", elsewhere),
        &native("lock-core"),
    ];
    let found = match race(&server, "lock:here", &sides, 200) {
        Ok(figures) => figures.fault(LEAST),
        Err(fault) => Some(fault),
    };
    let fault = found.expect("overlapping holders lose updates");
    let of_overlaps = ["are lost", "another process's write", "at the same time"];
    assert!(
        of_overlaps.iter().any(|text| fault.contains(text)),
        "{fault}"
    );
}

#[test]
fn client_without_its_language_is_skipped_by_name() {
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
         0 passed, 0 failed, 15 skipped"
    );
}
