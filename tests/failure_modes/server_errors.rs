//! Errors of the server. Each has a kind of its own, none counts as contended, and waiters retry
//! after those that are temporary.

use std::fs;
use std::time::Duration;

use lock_core::config::Handover;
use lock_core::error::BackendErrorKind;
use lock_core::{LockError, LockManager, Renew};
use test_support::fixtures::{
    AT_ONCE, COUNTER, KEY, NAME, QUEUE, SOON, exists, keys, ms, time_to_expiry,
};
use test_support::{RedisServer, eventually_async};
use tests::{
    Trace, assert_held_for, assert_nothing_left, backend_error_kind, connect, connect_to,
    connect_with_timeout, fencing_token, granted, in_time, lost_in_time, shut_down, start_waiter,
};

const TIMEOUT: Duration = ms(1_000);

/// Checks that a waiter retries while the server refuses commands, and gets the lock after
/// `repair`.
async fn assert_waiter_retries(
    server: &RedisServer,
    locks: &LockManager,
    kind: BackendErrorKind,
    repair: impl FnOnce(),
) {
    let outcome = in_time(TIMEOUT, locks.lock(NAME).try_acquire()).await;
    assert_eq!(backend_error_kind(outcome), kind);
    let wait = TIMEOUT * 2;
    let outcome = in_time(wait, locks.lock(NAME).wait(wait).acquire()).await;
    assert_eq!(backend_error_kind(outcome), kind);
    let waiting = tokio::spawn(locks.lock(NAME).wait(SOON).acquire());
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    repair();
    granted(SOON, waiting).await.release().await.unwrap();
    assert_nothing_left(server, locks).await;
}

#[tokio::test]
async fn f11_waiter_retries_while_the_server_loads() {
    let full = RedisServer::options()
        .args(["--rdbcompression", "no"])
        .start();
    let value = "v".repeat(1024);
    for number in 0..128 {
        full.cli(&["SET", &format!("{number}:f"), &value]);
    }
    full.cli(&["SAVE"]);
    // The server sleeps this many microseconds for each key while it loads. It serves clients once
    // per interval of bytes.
    let server = RedisServer::options()
        .args(["--key-load-delay", "20000"])
        .args(["--loading-process-events-interval-bytes", "1024"])
        .start();
    let (trace, _guard) = Trace::begin();
    let locks = connect(&server).await;
    let dump = |server: &RedisServer| server.directory().join("dump.rdb");
    fs::copy(dump(&full), dump(&server)).unwrap();
    server.restart_loading();
    assert_waiter_retries(&server, &locks, BackendErrorKind::Loading, || ()).await;
    // Its user has all rights.
    assert_eq!(trace.count("SCRIPT LOAD"), 0, "{}", trace.text());
    assert_eq!(trace.count("lacks a right"), 0, "{}", trace.text());
}

/// The library leaves the script to the operator: it may be the only run of a long job.
#[tokio::test]
async fn f12_waiter_retries_and_never_kills_the_busy_script() {
    let server = RedisServer::start();
    let locks = connect_with_timeout(&server.url(), TIMEOUT).await;
    server.cli(&["CONFIG", "SET", "lua-time-limit", "20"]);
    let mut endless = server.connect().unwrap();
    endless.send(&["EVAL", "while true do end", "0"]).unwrap();
    eventually_async(SOON, async || {
        let reply = server.cli(&["PING"]);
        reply.error().is_some_and(|text| text.starts_with("BUSY"))
    })
    .await;
    assert_waiter_retries(&server, &locks, BackendErrorKind::ScriptBusy, || {
        let killed = server.cli(&["SCRIPT", "KILL"]);
        assert_eq!(killed.text(), "OK", "the script ended before");
    })
    .await;
}

#[tokio::test]
async fn f13_flushed_scripts_are_sent_again() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let flush_scripts = || assert_eq!(server.cli(&["SCRIPT", "FLUSH"]).text(), "OK");
    for _ in 0..5 {
        flush_scripts();
        let held = locks.lock(NAME).acquire().await.unwrap();
        flush_scripts();
        held.renew().await.unwrap();
        flush_scripts();
        let waiting = start_waiter(&server, locks.lock(NAME).wait(SOON), 1).await;
        flush_scripts();
        held.release().await.unwrap();
        let held = granted(AT_ONCE, waiting).await;
        flush_scripts();
        drop(held);
        assert_nothing_left(&server, &locks).await;
    }
}

/// The server accepts no new connection. Open connections keep working, and new ones work after the
/// fault.
#[tokio::test]
async fn f14_held_locks_are_renewed_and_handed_over_without_memory() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let ttl = ms(800);
    let held = locks.lock(NAME).ttl(ttl).acquire().await.unwrap();
    let waiting = start_waiter(&server, locks.lock(NAME).ttl(ttl).wait(SOON), 1).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let outcome = locks.lock("other").try_acquire().await;
    assert_eq!(backend_error_kind(outcome), BackendErrorKind::OutOfMemory);
    assert!(!exists(&server, "lock:other"));
    held.renew().await.unwrap();
    assert_held_for(ttl * 3 / 2, &held).await;
    let before = fencing_token(&held);
    held.release().await.unwrap();
    let held = granted(AT_ONCE, waiting).await;
    assert!(fencing_token(&held) > before);
    assert_held_for(ttl * 3 / 2, &held).await;
    held.release().await.unwrap();
    assert_nothing_left(&server, &locks).await;
}

/// The server refuses every write, the holder's too.
#[tokio::test]
async fn f15_server_that_cannot_save_ends_leases_with_a_typed_error() {
    let server = RedisServer::start();
    let locks = connect_with_timeout(&server.url(), TIMEOUT).await;
    let held = locks.lock(NAME).ttl(ms(3_000)).acquire().await.unwrap();
    let dump = server.directory().join("dump.rdb");
    fs::create_dir(&dump).unwrap();
    server.cli(&["CONFIG", "SET", "save", "3600 1"]);
    let saved = |status: &str| {
        let info = server.cli(&["INFO", "persistence"]);
        let line = format!("rdb_last_bgsave_status:{status}");
        info.text().contains(&line) && info.text().contains("rdb_bgsave_in_progress:0")
    };
    server.cli(&["BGSAVE"]);
    eventually_async(SOON, async || saved("err")).await;
    let outcome = locks.lock("other").try_acquire().await;
    assert_eq!(backend_error_kind(outcome), BackendErrorKind::Misconfigured);
    assert_eq!(
        backend_error_kind(held.renew().await),
        BackendErrorKind::Misconfigured
    );
    lost_in_time(&held).await;
    assert_eq!(
        backend_error_kind(in_time(TIMEOUT, held.release()).await),
        BackendErrorKind::Misconfigured
    );
    assert_waiter_retries(&server, &locks, BackendErrorKind::Misconfigured, || {
        fs::remove_dir(&dump).unwrap();
        server.cli(&["BGSAVE"]);
    })
    .await;
}

#[tokio::test]
async fn f16_acquire_with_too_few_replicas_grants_nothing() {
    let server = RedisServer::start();
    let locks = connect_with_timeout(&server.url(), TIMEOUT).await;
    let set = |replicas: &str| {
        let reply = server.cli(&["CONFIG", "SET", "min-replicas-to-write", replicas]);
        assert_eq!(reply.text(), "OK");
    };
    set("1");
    assert_waiter_retries(&server, &locks, BackendErrorKind::NoReplicas, || {
        assert_eq!(keys(&server), Vec::<String>::new());
        set("0");
    })
    .await;
}

/// A primary becomes a replica: its locks are lost. Waiters get no lock from it until it is a
/// primary again.
#[tokio::test]
async fn f17_demoted_primary_grants_nothing() {
    let server = RedisServer::start();
    let locks = connect_with_timeout(&server.url(), TIMEOUT).await;
    let held = locks.lock(NAME).ttl(ms(3_000)).acquire().await.unwrap();
    let before = fencing_token(&held);
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    assert_eq!(
        backend_error_kind(held.renew().await),
        BackendErrorKind::NotPrimary
    );
    lost_in_time(&held).await;
    drop(held);
    assert_waiter_retries(&server, &locks, BackendErrorKind::NotPrimary, || {
        server.cli(&["REPLICAOF", "NO", "ONE"]);
    })
    .await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    assert!(fencing_token(&held) > before);
}

/// Plain `SET` is allowed, so a library that does not check for scripts would find no fault.
#[tokio::test]
async fn f18_missing_rights_are_reported_and_waiters_without_channels_poll() {
    let server = RedisServer::start();
    let user = |name: &str, rights: &[&str]| {
        let mut command = vec!["ACL", "SETUSER", name, "on", ">pass", "~*"];
        command.extend(rights);
        assert_eq!(server.cli(&command).error(), None);
        format!("redis://{name}:pass@{}", server.address())
    };
    let (trace, _tracing) = Trace::begin();
    let locks = connect_to(&user("scriptless", &["&*", "+@all", "-@scripting"])).await;
    trace.assert_says("does not load scripts");
    for request in [locks.lock(NAME), locks.lock(NAME).wait(SOON)] {
        let outcome = in_time(AT_ONCE, request.try_acquire()).await;
        assert_eq!(backend_error_kind(outcome), BackendErrorKind::Permission);
    }
    assert_nothing_left(&server, &locks).await;

    let polling = connect_to(&user("channelless", &["resetchannels", "+@all"])).await;
    let held = polling.lock(NAME).acquire().await.unwrap();
    let waiting = start_waiter(&server, polling.lock(NAME).wait(SOON), 1).await;
    held.release().await.unwrap();
    // The waiter polls every half second.
    granted(AT_ONCE * 2, waiting).await.release().await.unwrap();
    assert_nothing_left(&server, &polling).await;
}

/// The library does not change the key, whatever its value is.
#[tokio::test]
async fn f19_foreign_key_is_reported_and_never_deleted() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let writes: [&[&str]; 4] = [
        &["RPUSH", KEY, "x"],
        &["HSET", KEY, "f", "v"],
        &["SET", KEY, "settings"],
        &["SET", KEY, "lk1:settings"],
    ];
    for write in writes {
        // The lock is acquired first, and its key is overwritten while it is held.
        let held = locks.lock(NAME).acquire().await.unwrap();
        server.cli(&["DEL", KEY]);
        assert_eq!(server.cli(write).error(), None);
        let dump = server.cli(&["DUMP", KEY]);
        let foreign = |error: LockError| {
            assert!(matches!(error, LockError::ForeignKey { .. }), "{error}");
        };
        foreign(locks.lock(NAME).acquire().await.unwrap_err());
        foreign(locks.lock(NAME).try_acquire().await.unwrap_err());
        foreign(locks.lock(NAME).wait(SOON).acquire().await.unwrap_err());
        assert!(matches!(held.renew().await, Err(LockError::Lost { .. })));
        assert!(matches!(held.release().await, Err(LockError::Lost { .. })));
        shut_down(&locks).await;
        assert_eq!(server.cli(&["DUMP", KEY]), dump, "{write:?}");
        assert_eq!(server.cli(&["PTTL", KEY]).integer(), -1);
        server.cli(&["DEL", KEY]);
    }
}

/// Redis does not roll back a script that fails, so the counter is written before the key.
#[tokio::test]
async fn f20_failed_script_leaves_no_lock() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    for broken in [["RPUSH", COUNTER, "x"], ["SET", COUNTER, "x"]] {
        server.cli(&["DEL", COUNTER]);
        server.cli(&broken);
        for request in [locks.lock(NAME), locks.lock(NAME).wait(SOON)] {
            let error = in_time(AT_ONCE, request.acquire()).await.unwrap_err();
            assert!(matches!(error, LockError::ForeignKey { .. }), "{error}");
            assert!(!exists(&server, KEY));
        }
        assert_nothing_left(&server, &locks).await;
    }
    server.cli(&["DEL", COUNTER]);
    let held = locks.lock(NAME).acquire().await.unwrap();
    held.release().await.unwrap();
}

/// The server sends no reply for longer than a lease.
#[tokio::test]
async fn f21_grant_that_expired_in_a_server_pause_is_not_used() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let ttl = ms(200);
    let held = locks.lock(NAME).ttl(ttl).acquire().await.unwrap();
    server.cli(&["CLIENT", "PAUSE", "500", "ALL"]);
    let request = locks.lock(NAME).ttl(ttl).renew(Renew::Never);
    let waiting = tokio::spawn(request.wait(SOON).acquire());
    lost_in_time(&held).await;
    // The server executes the command after the pause and grants the lock. By then the lease is
    // over for the client.
    let outcome = locks.lock("other").ttl(ttl).try_acquire().await;
    assert_eq!(backend_error_kind(outcome), BackendErrorKind::TimedOut);
    let next = granted(SOON, waiting).await;
    let at_server = time_to_expiry(&server, KEY);
    assert!(next.remaining() <= at_server);
    next.release().await.unwrap();
    drop(held);
    assert_nothing_left(&server, &locks).await;
}

/// A cluster node refuses scripts with keys in two slots. The test checks the slots of the commands that
/// another server gets.
#[tokio::test]
async fn f22_all_keys_of_a_lock_are_in_one_slot() {
    let server = RedisServer::start();
    let node = RedisServer::options()
        .args(["--cluster-enabled", "yes"])
        .start();
    let builder = LockManager::builder().handover(Handover::YieldToOthers);
    let refused = builder.clone().connect(&node.url()).await;
    assert_eq!(backend_error_kind(refused), BackendErrorKind::Unsupported);

    let locks = builder.connect(&server.url()).await.unwrap();
    let slot = |key: &str| node.cli(&["CLUSTER", "KEYSLOT", key]).integer();
    for name in [NAME, "{user1}:cart", "cart:{user1}", "a:b:q"] {
        let monitor = server.monitor();
        let held = locks.lock(name).acquire().await.unwrap();
        let waiting = tokio::spawn(locks.lock(name).wait(SOON).acquire());
        eventually_async(SOON, async || keys(&server).len() == 2).await;
        held.release().await.unwrap();
        granted(AT_ONCE, waiting).await.release().await.unwrap();
        shut_down(&locks).await;
        let own = slot(&format!("lock:{name}"));
        let recording = monitor.stop();
        let scripts = recording.from_clients().filter(|c| c.name() == "EVALSHA");
        let mut seen = 0;
        for command in scripts {
            let count: usize = command.words[2].parse().unwrap();
            for key in &command.words[3..3 + count] {
                assert_eq!(slot(key), own, "{command:?}");
                seen += 1;
            }
        }
        assert!(seen >= 16, "{seen} keys in four commands");
    }
    assert_ne!(
        slot(QUEUE),
        slot("lock:job:q"),
        "without a hash tag the queue is in another slot"
    );
}
