//! The choice of the dialect, and the limits of each dialect.

use std::time::Duration;

use lock_core::dialect::Dialect;
use lock_core::error::{InvalidDialectReason, InvalidSetting};
use lock_core::{LockError, LockManager, Renew, distributed_lock};
use test_support::fixtures::{KEY, NAME, SOON, exists, ms, time_to_expiry};
use test_support::{Direction, Proxy, RedisServer, Stopwatch};
use tests::{SET_NX_PX, connect, supported_dialects};

use super::{connect_in, redisson, redisson_waits, refusal, value};

fn reason(error: LockError) -> (Dialect, InvalidDialectReason) {
    match error {
        LockError::Invalid(InvalidSetting::Dialect {
            dialect, reason, ..
        }) => (dialect, reason),
        error => panic!("{error}"),
    }
}

#[tokio::test]
async fn request_dialect_overrides_the_manager_dialect() {
    let server = RedisServer::start();
    let native = connect(&server).await;
    let others = connect_in(SET_NX_PX, &server.url()).await;
    let held = native
        .lock(NAME)
        .dialect(SET_NX_PX)
        .acquire()
        .await
        .unwrap();
    assert!(!value(&server).starts_with("lk1:"));
    assert_eq!(held.fencing_token(), None);
    held.release().await.unwrap();
    let held = others
        .lock(NAME)
        .dialect(Dialect::Native)
        .acquire()
        .await
        .unwrap();
    assert!(value(&server).starts_with("lk1:"));
    assert!(held.fencing_token().is_some());
    held.release().await.unwrap();
}

#[distributed_lock(name = "job", manager = locks)]
async fn annotated(locks: &LockManager, server: &RedisServer) -> Result<String, LockError> {
    Ok(value(server))
}

#[tokio::test]
async fn attribute_uses_the_dialect_of_its_manager() {
    let server = RedisServer::start();
    let locks = connect_in(SET_NX_PX, &server.url()).await;
    let owner = annotated(&locks, &server).await.unwrap();
    assert!(
        owner.ends_with(" rust") && !owner.starts_with("lk1:"),
        "{owner}"
    );
    assert!(!exists(&server, KEY));
}

/// The documentation names all required rights.
#[tokio::test]
async fn documented_rights_are_sufficient() {
    let page = include_str!("../../lock-core/docs/dialects.md");
    for dialect in supported_dialects() {
        let row = format!("| `{dialect}` | `+");
        let Some(line) = page.lines().find(|line| line.starts_with(&row)) else {
            assert_eq!(dialect, Dialect::Native, "`guide::redis` has its rights");
            continue;
        };
        let server = RedisServer::start();
        let rights = line.split('`').nth(3).unwrap().replace("\\|", "|");
        // Before Redis 7, a new user may use all channels.
        let mut command = vec!["ACL", "SETUSER", "app", "on", ">pass", "~lock:*"];
        command.push("resetchannels");
        command.extend(["+role", "+info", "+time", "+client|setname"]);
        assert_eq!(server.cli(&command).text(), "OK");
        for right in rights.split(' ') {
            let granted = server.cli(&["ACL", "SETUSER", "app", right]);
            // Each server has at most one of the two.
            let is_optional = ["+delex", "+delifeq"].contains(&right);
            assert!(
                granted.error().is_none() || is_optional,
                "{right}: {granted:?}"
            );
        }
        let locks = connect_in(dialect, &format!("redis://app:pass@{}", server.address())).await;
        let held = locks.lock(NAME).min_hold(ms(50)).acquire().await.unwrap();
        assert!(refusal(&locks).await.is_contended(), "{dialect}");
        held.renew().await.unwrap();
        held.release().await.unwrap();
        let held = locks.lock(NAME).wait(SOON).acquire().await.unwrap();
        held.release().await.unwrap();
        server.cli(&["HSET", KEY, "f", "v"]);
        let error = refusal(&locks).await;
        assert!(
            matches!(error, LockError::ForeignKey { .. }),
            "{dialect}: {error}"
        );
        server.cli(&["DEL", KEY]);
        if matches!(dialect, Dialect::Redisson { .. }) {
            redisson::lock_as_redisson(&server, SOON);
            let waiting = tokio::spawn(locks.lock(NAME).wait(SOON).acquire());
            redisson_waits::is_subscribed(&server).await;
            redisson::unlock_as_redisson(&server);
            waiting.await.unwrap().unwrap().release().await.unwrap();
            let denied = server.denied();
            assert!(denied.is_empty(), "{dialect}: {denied:?}");
            continue;
        }
        // Repair, waiting and errors: each needs its own rights.
        server.cli(&["SET", KEY, "1577836800000", "PX", "100"]);
        let held = locks.lock(NAME).wait(SOON).acquire().await.unwrap();
        held.release().await.unwrap();
        server.cli(&["SET", KEY, "me"]);
        let _foreign_or_repaired = refusal(&locks).await;
        assert_eq!(locks.stats().renewals_failed, 0);
        let denied = server.denied();
        assert!(denied.is_empty(), "{dialect}: {denied:?}");
    }
}

/// The background worker renews all held locks, in any dialect.
#[tokio::test]
async fn one_worker_renews_locks_of_all_dialects() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let ttl = Duration::from_secs(1);
    let mut held = Vec::new();
    for dialect in supported_dialects() {
        for number in 0..3 {
            let request = locks.lock(format!("{dialect} {number}")).dialect(dialect);
            held.push(request.ttl(ttl).acquire().await.unwrap());
        }
    }
    tokio::time::sleep(ttl * 2).await;
    for guard in held {
        assert!(!guard.is_lost(), "{}", guard.key());
        guard.release().await.unwrap();
    }
    assert_eq!(locks.stats().lost, 0);
}

#[tokio::test]
async fn ttl_that_the_dialect_cannot_express_is_refused() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let seconds = locks.lock(NAME).dialect(Dialect::LuaSetnxExpire);
    let error = seconds.ttl(ms(1_500)).acquire().await.unwrap_err();
    assert!(
        error.to_string().contains("use a ttl of whole seconds"),
        "{error}"
    );
    let refused = (Dialect::LuaSetnxExpire, InvalidDialectReason::WholeSeconds);
    assert_eq!(reason(error), refused);
    let short = locks.lock(NAME).dialect(Dialect::DeadlineGetset);
    let error = short.ttl(ms(999)).acquire().await.unwrap_err();
    let (dialect, refused) = reason(error);
    assert_eq!(dialect, Dialect::DeadlineGetset);
    let InvalidDialectReason::TooShort { shortest, .. } = refused else {
        panic!("{refused}");
    };
    assert_eq!(shortest, Duration::from_secs(1));
    assert!(!exists(&server, KEY));
    let builder = LockManager::builder().default_ttl(ms(1_500));
    let builder = builder.dialect(Dialect::LuaSetnxExpire);
    let error = builder.connect(&server.url()).await.unwrap_err();
    assert_eq!(reason(error).1, InvalidDialectReason::WholeSeconds);
}

#[tokio::test]
async fn in_memory_manager_refuses_other_dialects() {
    let builder = LockManager::builder().dialect(SET_NX_PX);
    let connected = builder.clone().connect("memory://").await;
    let request = LockManager::in_memory().lock(NAME).dialect(SET_NX_PX);
    for error in [
        builder.in_memory().unwrap_err(),
        connected.unwrap_err(),
        request.acquire().await.unwrap_err(),
    ] {
        assert!(
            error.to_string().contains("connect to a Redis server"),
            "{error}"
        );
        assert_eq!(reason(error), (SET_NX_PX, InvalidDialectReason::NoServer));
    }
}

/// The key stays, but the caller does not wait, in every dialect.
#[tokio::test]
async fn min_hold_keeps_the_key_but_not_the_caller() {
    for dialect in supported_dialects() {
        let server = RedisServer::start();
        let locks = connect_in(dialect, &server.url()).await;
        let shortest = ms(900);
        let started = Stopwatch::start();
        let held = locks.lock(NAME).min_hold(shortest).acquire().await.unwrap();
        held.release().await.unwrap();
        assert!(
            started.elapsed() < shortest,
            "{dialect}: the caller had to wait"
        );
        assert!(refusal(&locks).await.is_contended(), "{dialect}");
        let next = locks.lock(NAME).wait(SOON).acquire().await.unwrap();
        let took = started.elapsed();
        assert!(took > shortest - ms(20), "{dialect}: {took:?}");
        // Far less than the ttl.
        assert!(
            took < shortest * 4 + started.stalled(),
            "{dialect}: {took:?}"
        );
        next.release().await.unwrap();
        assert!(!exists(&server, KEY), "{dialect}");
    }
}

/// A lease without renewal ends for its holder before it ends on the server, however late the reply comes.
#[tokio::test]
async fn unrenewed_lease_ends_for_its_holder_before_the_server() {
    for dialect in supported_dialects() {
        let server = RedisServer::start();
        let proxy = Proxy::in_front_of(&server);
        proxy.delay(Direction::ToClient, ms(100));
        let locks = connect_in(dialect, &proxy.url()).await;
        let ttl = Duration::from_secs(1);
        let request = locks.lock(NAME).ttl(ttl).renew(Renew::Never);
        let held = request.acquire().await.unwrap();
        // The server first: what passes until the second look shortens only the holder's time.
        let on_server = time_to_expiry(&server, KEY);
        let remaining = held.remaining();
        assert!(
            remaining < on_server,
            "{dialect}: {remaining:?}, on the server {on_server:?}"
        );
        held.lost().await;
        assert!(held.remaining().is_zero(), "{dialect}");
    }
}
