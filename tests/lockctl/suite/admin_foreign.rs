//! `release` of keys that other clients wrote.

use test_support::fixtures::{KEY, NAME, SOON, exists};
use test_support::{RedisServer, eventually};

use crate::admin::{hold, on};
use crate::terminal::Terminal;

#[test]
fn release_deletes_foreign_keys_on_demand_only() {
    let server = RedisServer::start();
    server.cli(&["SET", KEY, "uuid", "PX", "60000"]);
    let outcome = on(&server, &["release", NAME, "--yes"]);
    assert_eq!(outcome.code, Some(78), "{outcome:?}");
    assert!(
        outcome.stderr.ends_with("--foreign deletes it\n"),
        "{outcome:?}"
    );
    // Whoever knows the value can release the lock.
    for arguments in [&["release", NAME, "--yes"][..], &["show", NAME], &["list"]] {
        let shown = on(&server, arguments);
        let texts = [shown.stdout, shown.stderr].concat();
        assert!(!texts.contains("uuid"), "{texts}");
    }
    assert!(exists(&server, KEY));
    let outcome = on(&server, &["release", NAME, "--yes", "--foreign"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(!exists(&server, KEY));
}

#[test]
fn release_asks_before_it_deletes_a_foreign_key() {
    let server = RedisServer::start();
    let asks = |flags: &[&str], question: &str| {
        let mut program = vec![crate::program::LOCKCTL, "release", NAME];
        program.extend(flags);
        let mut terminal = Terminal::start(&server, &program);
        eventually(SOON, || terminal.screen().ends_with("[y/N] "));
        let screen = terminal.screen();
        assert!(screen.contains(question), "{screen}");
        terminal.press("n\n");
        assert_eq!(terminal.code(), Some(1));
        assert!(exists(&server, KEY));
    };
    let end = "at once? Its owner does not learn of it, so two may hold the lock then. [y/N] ";
    server.cli(&["SET", KEY, "of another library", "PX", "60000"]);
    for flags in [&["--foreign"][..], &["--foreign", "--now"]] {
        asks(flags, end);
    }
    // A value that is no lock at all.
    server.cli(&["DEL", KEY]);
    server.cli(&["RPUSH", KEY, "of a queue"]);
    asks(&["--foreign"], &format!("of the lock `job` {end}"));
    // A lock of this library is revoked all the same.
    server.cli(&["DEL", KEY]);
    let _holder = hold(&server, NAME, "web-1:42");
    asks(
        &["--foreign"],
        "It stays locked until its lease ends. [y/N] ",
    );
}

#[test]
fn release_asks_nothing_about_a_foreign_key_that_it_keeps() {
    let server = RedisServer::start();
    for command in [
        &["SET", KEY, "of another library", "PX", "60000"][..],
        &["HSET", KEY, "uuid-a:1", "1"],
    ] {
        server.cli(&["DEL", KEY]);
        server.cli(command);
        let mut terminal = Terminal::start(&server, &[crate::program::LOCKCTL, "release", NAME]);
        assert_eq!(terminal.code(), Some(78));
        let screen = terminal.screen();
        assert!(!screen.contains("[y/N]"), "{screen}");
        assert!(screen.contains("--foreign deletes it"), "{screen}");
    }
}

/// The key has changed between the question and the answer.
#[test]
fn release_keeps_a_foreign_key_that_was_not_shown() {
    let server = RedisServer::start();
    server.cli(&["HSET", KEY, "uuid-a:1", "1"]);
    let program = [crate::program::LOCKCTL, "release", NAME, "--foreign"];
    let mut terminal = Terminal::start(&server, &program);
    eventually(SOON, || terminal.screen().ends_with("[y/N] "));
    server.cli(&["HSET", KEY, "uuid-b:9", "1"]);
    terminal.press("y\n");
    assert_eq!(terminal.code(), Some(1));
    let screen = terminal.screen();
    let text = "the lock `job` changed: the key now holds a hash, as Redisson's locks are; nothing was released";
    assert!(screen.contains(text), "{screen}");
    assert!(exists(&server, KEY));
}
