//! Flags, the first line, and the texts of failures.

use std::net::TcpListener;
use std::process::{Command, Output};

use test_support::{RedisServer, Scratch};

use crate::demo::Demo;

fn run(arguments: &[&str]) -> Output {
    program()
        .args(arguments)
        .output()
        .expect("the program starts")
}

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_flash-sale"))
}

/// Checks the exit code, and that there is one line.
#[track_caller]
fn check(output: &Output, code: i32, text: &str) {
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        format!("flash-sale: {text}\n")
    );
    assert_eq!(output.status.code(), Some(code));
    assert!(output.stdout.is_empty());
}

#[test]
fn wrong_flags_are_named_in_one_line() {
    check(
        &run(&["--prot", "1"]),
        2,
        "unknown option `--prot`; see --help",
    );
    check(
        &run(&["--instances", "1"]),
        2,
        "`1` is not a valid value of `--instances`; use a number from 2 to 8",
    );
    let help = run(&["--help"]);
    assert!(help.status.success());
    let text = String::from_utf8(help.stdout).expect("the help is UTF-8");
    for flag in "port instances items rate seed redis database in-process".split(' ') {
        assert!(text.contains(&format!("  --{flag} ")), "{flag}: {text}");
    }
}

#[test]
fn busy_port_is_named_with_the_way_out() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let text = format!(
        "port {port} is in use; choose another one with --port, or a free one with --port 0"
    );
    check(&run(&["--port", &port]), 1, &text);
}

#[test]
fn missing_redis_server_is_named_with_the_ways_out() {
    let empty = Scratch::new();
    let output = program()
        .args(["--port", "0"])
        .env("PATH", empty.path())
        .output();
    let text = "no redis-server found; install it (apt-get install redis-server), or pass \
        --redis URL, or --in-process";
    check(&output.expect("the program starts"), 1, text);
}

#[test]
fn servers_that_do_not_answer_are_one_line() {
    for (flag, url) in [
        // Nothing listens on port 1.
        ("--redis", "redis://127.0.0.1:1"),
        ("--database", "postgres://shop@127.0.0.1:1/shop"),
        ("--database", "sqlite:/no/such/folder/stock.sqlite"),
    ] {
        let output = run(&["--port", "0", flag, url]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.starts_with("flash-sale: cannot "), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

#[test]
fn first_line_has_the_address_and_the_parts() {
    let demo = Demo::start(&["--instances", "3"]);
    let line = &demo.line;
    assert!(
        line.contains(" (3 instances, redis-server on 127.0.0.1:"),
        "{line}"
    );
    assert!(line.ends_with(", SQLite); Ctrl-C ends it"), "{line}");
    assert_eq!(demo.pids().len(), 3);
}

#[test]
fn given_server_and_file_are_used() {
    let server = RedisServer::start();
    let scratch = Scratch::new();
    let file = scratch.path().join("my stock.sqlite");
    let database = format!("sqlite:{}", file.display());
    let demo = Demo::start(&[
        "--redis",
        &server.url(),
        "--database",
        &database,
        "--items",
        "7",
    ]);
    let verdict = demo.sell();
    assert_eq!(verdict, "Stock 7 · Sold 7 · Oversold 0 — the lock held");
    assert!(file.exists());
    let keys = test_support::fixtures::all_keys(&server);
    assert!(!keys.is_empty());
    assert!(
        keys.iter().all(|key| key.contains("flash-sale:stock:")),
        "{keys:?}"
    );
}
