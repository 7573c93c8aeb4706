//! `ReleaseMethod::Conditional` and `ReleaseMethod::Auto`: what the server can do decides how the owner is
//! checked. The server under test may have the commands or not; each test holds for both.

use lock_core::dialect::Dialect;
use lock_core::error::BackendErrorKind;
use lock_core::{LockError, LockManager};
use test_support::RedisServer;
use test_support::fixtures::{KEY, NAME, exists, ms};
use tests::{
    SET_NX_PX, SET_NX_PX_AUTO, SET_NX_PX_CONDITIONAL, WATCH_MULTI, connect, has_owner_commands,
    one_attempt, supported_dialects,
};

use super::connect_in;

const PASSWORD: &str = "pass";

/// Starts a server with a user who has all rights except these. Returns the user's URL.
fn without_rights(server: &RedisServer, denied: &[&str]) -> String {
    let all = ["ACL", "SETUSER", "app", "on", ">pass", "~*", "&*", "+@all"];
    assert_eq!(server.cli(&all).text(), "OK");
    for right in denied {
        // A server refuses the name of a command that it does not have.
        server.cli(&["ACL", "SETUSER", "app", right]);
    }
    format!("redis://app:{PASSWORD}@{}", server.address())
}

fn unsupported(error: &LockError) {
    assert!(
        matches!(error, LockError::Backend(error) if error.kind() == BackendErrorKind::Unsupported),
        "{error}"
    );
    assert!(error.to_string().contains("ReleaseMethod::Auto"), "{error}");
}

/// Returns the names of the commands that clients send while a lock is acquired, renewed and released.
async fn commands_of(server: &RedisServer, locks: &LockManager) -> Vec<String> {
    let monitor = server.monitor();
    let held = locks.lock(NAME).acquire().await.unwrap();
    held.renew().await.unwrap();
    held.release().await.unwrap();
    assert!(!exists(server, KEY));
    let recording = monitor.stop();
    let commands = recording.from_clients();
    commands
        .map(|command| command.words[0].to_uppercase())
        .collect()
}

fn sends(commands: &[String], name: &str) -> bool {
    commands.iter().any(|command| command == name)
}

fn sends_delete_command(commands: &[String]) -> bool {
    sends(commands, "DELEX") || sends(commands, "DELIFEQ")
}

#[tokio::test]
async fn conditional_method_uses_commands_or_does_not_connect() {
    let server = RedisServer::start();
    if has_owner_commands(&server) {
        let locks = connect_in(SET_NX_PX_CONDITIONAL, &server.url()).await;
        let commands = commands_of(&server, &locks).await;
        assert!(sends_delete_command(&commands), "{commands:?}");
        assert!(
            !sends(&commands, "EVALSHA") && !sends(&commands, "WATCH"),
            "{commands:?}"
        );
        return;
    }
    let builder = one_attempt(LockManager::builder()).dialect(SET_NX_PX_CONDITIONAL);
    unsupported(&builder.connect(&server.url()).await.unwrap_err());
    // The handshake of another dialect has not asked.
    let locks = connect(&server).await;
    let request = locks.lock(NAME).dialect(SET_NX_PX_CONDITIONAL);
    unsupported(&request.acquire().await.unwrap_err());
    assert!(!exists(&server, KEY), "a lock that cannot be released");
}

#[tokio::test]
async fn auto_prefers_commands_to_scripts() {
    let server = RedisServer::start();
    let has_commands = has_owner_commands(&server);
    let by_manager = connect_in(SET_NX_PX_AUTO, &server.url()).await;
    for _ in 0..2 {
        let commands = commands_of(&server, &by_manager).await;
        assert_eq!(
            sends_delete_command(&commands),
            has_commands,
            "{commands:?}"
        );
        assert_eq!(sends(&commands, "EVALSHA"), !has_commands, "{commands:?}");
        assert!(!sends(&commands, "WATCH"), "{commands:?}");
        assert!(
            !sends(&commands, "COMMAND"),
            "the handshake has asked: {commands:?}"
        );
    }
}

#[tokio::test]
async fn auto_uses_transactions_where_scripts_are_denied() {
    let server = RedisServer::start();
    let has_commands = has_owner_commands(&server);
    let url = without_rights(&server, &["-@scripting"]);
    let locks = connect_in(SET_NX_PX_AUTO, &url).await;
    let commands = commands_of(&server, &locks).await;
    assert_eq!(
        sends_delete_command(&commands),
        has_commands,
        "{commands:?}"
    );
    assert_eq!(sends(&commands, "WATCH"), !has_commands, "{commands:?}");
    let url = without_rights(&server, &["-@scripting", "-delex", "-delifeq", "-command"]);
    let locks = connect_in(SET_NX_PX_AUTO, &url).await;
    let commands = commands_of(&server, &locks).await;
    assert!(sends(&commands, "WATCH"), "{commands:?}");
}

/// The server has the commands, but refuses them.
#[tokio::test]
async fn auto_remembers_a_refused_command() {
    let server = RedisServer::start();
    let url = without_rights(&server, &["-delex", "-delifeq"]);
    let locks = connect_in(SET_NX_PX_AUTO, &url).await;
    for _ in 0..2 {
        let held = locks.lock(NAME).min_hold(ms(1)).acquire().await.unwrap();
        tokio::time::sleep(ms(5)).await;
        held.release().await.unwrap();
        assert!(!exists(&server, KEY));
    }
    let commands = commands_of(&server, &locks).await;
    assert!(sends(&commands, "EVALSHA"), "{commands:?}");
    assert!(!sends_delete_command(&commands), "{commands:?}");
}

/// Many guards are released in the background, in one pipeline.
#[tokio::test]
async fn dropped_guards_are_released_together() {
    let server = RedisServer::start();
    for dialect in supported_dialects() {
        if !matches!(dialect, Dialect::SetNxPx { .. }) {
            continue;
        }
        let locks = connect_in(dialect, &server.url()).await;
        let mut held = Vec::new();
        for number in 0..50 {
            let request = locks.lock(format!("{NAME}{number}"));
            held.push(request.acquire().await.unwrap());
        }
        drop(held);
        locks.shutdown().await.unwrap();
        assert_eq!(server.cli(&["DBSIZE"]).integer(), 0, "{dialect}");
    }
}

/// The outcomes do not depend on the method.
#[tokio::test]
async fn loss_has_the_same_reason_in_each_method() {
    let server = RedisServer::start();
    let theirs: [&[&str]; 4] = [
        &["DEL", KEY],
        &["SET", KEY, "another owner"],
        &["RPUSH", KEY, "x"],
        &["HSET", KEY, "f", "v"],
    ];
    for setup in theirs {
        let mut found = Vec::new();
        for dialect in supported_dialects() {
            if !matches!(dialect, Dialect::SetNxPx { .. }) {
                continue;
            }
            let locks = connect_in(dialect, &server.url()).await;
            for renews in [true, false] {
                let held = locks.lock(NAME).acquire().await.unwrap();
                server.cli(&["DEL", KEY]);
                server.cli(setup);
                let before = server.cli(&["DUMP", KEY]);
                let reason = if renews {
                    let error = held.renew().await.unwrap_err();
                    assert!(
                        matches!(error, LockError::Lost { .. }),
                        "{dialect}: {error}"
                    );
                    format!("{:?}", held.loss_reason())
                } else {
                    let error = held.release().await.unwrap_err();
                    assert!(
                        matches!(error, LockError::Lost { .. }),
                        "{dialect}: {error}"
                    );
                    error.to_string()
                };
                assert_eq!(server.cli(&["DUMP", KEY]), before, "{dialect}: {setup:?}");
                server.cli(&["DEL", KEY]);
                found.push((renews, reason));
            }
        }
        let first = found[..2].to_vec();
        for pair in found.chunks(2) {
            assert_eq!(pair, first, "{setup:?}");
        }
    }
}

/// A renewal never leaves the key without an expiry.
#[tokio::test]
async fn renewed_key_has_the_expiry_of_its_ttl() {
    let server = RedisServer::start();
    let locks = connect_in(SET_NX_PX_AUTO, &server.url()).await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    server.cli(&["PEXPIRE", KEY, "5000"]);
    held.renew().await.unwrap();
    let left = server.cli(&["PTTL", KEY]).integer();
    assert!((29_000..=30_000).contains(&left), "{left}");
    held.release().await.unwrap();
}

/// Only the dialects that depend on the commands ask for them.
#[tokio::test]
async fn other_dialects_do_not_ask_for_commands() {
    let server = RedisServer::start();
    for dialect in [Dialect::Native, SET_NX_PX, WATCH_MULTI] {
        let monitor = server.monitor();
        let locks = connect_in(dialect, &server.url()).await;
        let held = locks.lock(NAME).acquire().await.unwrap();
        held.release().await.unwrap();
        let recording = monitor.stop();
        let asks = |name: &str| name == "COMMAND";
        assert!(
            !recording.all().iter().any(|command| asks(&command.name())),
            "{dialect}"
        );
    }
}

#[tokio::test]
async fn native_lock_without_script_rights_names_the_dialect_that_needs_none() {
    let server = RedisServer::start();
    let url = without_rights(&server, &["-@scripting"]);
    let locks = connect_in(Dialect::Native, &url).await;
    let error = locks.lock(NAME).acquire().await.unwrap_err().to_string();
    assert!(error.contains("Dialect::SetNxPx"), "{error}");
    assert!(error.contains("ReleaseMethod::Auto"), "{error}");
    assert!(error.contains("grant the user this right"), "{error}");
}
