//! Errors of the server: each is named, none is a busy lock, and those that pass are waited out.

use std::fs;
use std::time::Duration;

use lock_core::{BackendErrorKind, Handover, LockError, LockManager, Renew};
use test_support::fixtures::{
    AT_ONCE, COUNTER, KEY, NAME, QUEUE, SOON, exists, keys, ms, time_to_expiry,
};
use test_support::{RedisServer, eventually_async};
use tests::{
    Trace, assert_held_for, assert_nothing_left, backend_error_kind, connect, connect_to,
    connect_with_timeout, fencing_token, granted, in_time, lost_in_time, shut_down, start_waiter,
};

const TIMEOUT: Duration = ms(300);

/// A waiter that is not done while the server refuses.
async fn waits_out(
    server: &RedisServer,
    locks: &LockManager,
    kind: BackendErrorKind,
    mend: impl FnOnce(),
) {
    let outcome = in_time(AT_ONCE, locks.lock(NAME).try_acquire()).await;
    assert_eq!(backend_error_kind(outcome), kind);
    let wait = TIMEOUT * 2;
    let outcome = in_time(wait, locks.lock(NAME).wait(wait).acquire()).await;
    assert_eq!(backend_error_kind(outcome), kind);
    let waiting = tokio::spawn(locks.lock(NAME).wait(SOON).acquire());
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    mend();
    granted(SOON, waiting).await.release().await.unwrap();
    assert_nothing_left(server, locks).await;
}

#[tokio::test]
async fn f11_a_loading_server_is_waited_for() {
    let full = RedisServer::options()
        .args(["--rdbcompression", "no"])
        .start();
    let value = "v".repeat(1024);
    for number in 0..128 {
        full.cli(&["SET", &format!("{number}:f"), &value]);
    }
    full.cli(&["SAVE"]);
    // So many microseconds for each key, and clients are looked after once in so many bytes.
    let server = RedisServer::options()
        .args(["--key-load-delay", "20000"])
        .args(["--loading-process-events-interval-bytes", "1024"])
        .start();
    let locks = connect(&server).await;
    let dump = |server: &RedisServer| server.directory().join("dump.rdb");
    fs::copy(dump(&full), dump(&server)).unwrap();
    server.restart_loading();
    waits_out(&server, &locks, BackendErrorKind::Loading, || ()).await;
}

/// It ends when its owner ends it: the script may be the only copy of a long job.
#[tokio::test]
async fn f12_a_busy_server_is_waited_for_and_its_script_left_alone() {
    let server = RedisServer::start();
    let locks = connect_with_timeout(&server.url(), TIMEOUT).await;
    server.cli(&["CONFIG", "SET", "busy-reply-threshold", "20"]);
    let mut endless = server.connect().unwrap();
    endless.send(&["EVAL", "while true do end", "0"]).unwrap();
    eventually_async(SOON, async || {
        let answer = server.cli(&["PING"]);
        answer.error().is_some_and(|said| said.starts_with("BUSY"))
    })
    .await;
    waits_out(&server, &locks, BackendErrorKind::ScriptBusy, || {
        let killed = server.cli(&["SCRIPT", "KILL"]);
        assert_eq!(killed.text(), "OK", "it was ended before");
    })
    .await;
}

#[tokio::test]
async fn f13_forgotten_scripts_are_told_again() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let forget = || assert_eq!(server.cli(&["SCRIPT", "FLUSH"]).text(), "OK");
    for _ in 0..5 {
        forget();
        let held = locks.lock(NAME).acquire().await.unwrap();
        forget();
        held.renew().await.unwrap();
        forget();
        let waiting = start_waiter(&server, locks.lock(NAME).wait(SOON), 1).await;
        forget();
        held.release().await.unwrap();
        let held = granted(AT_ONCE, waiting).await;
        forget();
        drop(held);
        assert_nothing_left(&server, &locks).await;
    }
}

/// No new connection gets in; the open ones work on, and after the fault new ones work.
#[tokio::test]
async fn f14_without_memory_locks_are_kept_released_and_handed_over() {
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

/// It refuses every write, also those of whoever holds a lock.
#[tokio::test]
async fn f15_a_server_that_cannot_save_costs_the_lease_and_says_so() {
    let server = RedisServer::start();
    let locks = connect_with_timeout(&server.url(), TIMEOUT).await;
    let held = locks.lock(NAME).ttl(ms(900)).acquire().await.unwrap();
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
    waits_out(&server, &locks, BackendErrorKind::Misconfigured, || {
        fs::remove_dir(&dump).unwrap();
        server.cli(&["BGSAVE"]);
    })
    .await;
}

#[tokio::test]
async fn f16_too_few_replicas_grant_nothing() {
    let server = RedisServer::start();
    let locks = connect_with_timeout(&server.url(), TIMEOUT).await;
    let set = |replicas: &str| {
        let answer = server.cli(&["CONFIG", "SET", "min-replicas-to-write", replicas]);
        assert_eq!(answer.text(), "OK");
    };
    set("1");
    waits_out(&server, &locks, BackendErrorKind::NoReplicas, || {
        assert_eq!(keys(&server), Vec::<String>::new());
        set("0");
    })
    .await;
}

/// A primary that became a replica: its locks are no locks any more, and it is left alone until
/// it is a primary again.
#[tokio::test]
async fn f17_a_demoted_primary_is_not_a_lock_server() {
    let server = RedisServer::start();
    let locks = connect_with_timeout(&server.url(), TIMEOUT).await;
    let held = locks.lock(NAME).ttl(ms(900)).acquire().await.unwrap();
    let before = fencing_token(&held);
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    assert_eq!(
        backend_error_kind(held.renew().await),
        BackendErrorKind::NotPrimary
    );
    lost_in_time(&held).await;
    drop(held);
    waits_out(&server, &locks, BackendErrorKind::NotPrimary, || {
        server.cli(&["REPLICAOF", "NO", "ONE"]);
    })
    .await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    assert!(fencing_token(&held) > before);
}

/// Plain SET is allowed, so that a library which does not look would believe that all is well.
#[tokio::test]
async fn f18_missing_rights_are_told_and_waiters_without_channels_ask() {
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

    let asks = connect_to(&user("unheard", &["resetchannels", "+@all"])).await;
    let held = asks.lock(NAME).acquire().await.unwrap();
    let waiting = start_waiter(&server, asks.lock(NAME).wait(SOON), 1).await;
    held.release().await.unwrap();
    // It asks every half second.
    granted(AT_ONCE * 2, waiting).await.release().await.unwrap();
    assert_nothing_left(&server, &asks).await;
}

/// Whatever it is, the library does not change it.
#[tokio::test]
async fn f19_a_foreign_key_is_named_and_never_deleted() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let writes: [&[&str]; 4] = [
        &["RPUSH", KEY, "x"],
        &["HSET", KEY, "f", "v"],
        &["SET", KEY, "settings"],
        &["SET", KEY, "lk1:settings"],
    ];
    for write in writes {
        // Taken first, and then overwritten while it is held.
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

/// A script that fails in the middle is not rolled back, so the counter comes before the key.
#[tokio::test]
async fn f20_a_script_that_fails_leaves_no_lock() {
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

/// All answers stand still for longer than a lease.
#[tokio::test]
async fn f21_a_pause_of_the_server_grants_nothing_that_is_over() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let ttl = ms(200);
    let held = locks.lock(NAME).ttl(ttl).acquire().await.unwrap();
    server.cli(&["CLIENT", "PAUSE", "500", "ALL"]);
    let request = locks.lock(NAME).ttl(ttl).renew(Renew::Never);
    let waiting = tokio::spawn(request.wait(SOON).acquire());
    lost_in_time(&held).await;
    // Carried out when the pause is over, it is a grant by the server's count, and none by that
    // of whoever asked.
    let outcome = locks.lock("other").ttl(ttl).try_acquire().await;
    assert_eq!(backend_error_kind(outcome), BackendErrorKind::TimedOut);
    let next = granted(SOON, waiting).await;
    let theirs = time_to_expiry(&server, KEY);
    assert!(next.remaining() <= theirs);
    next.release().await.unwrap();
    drop(held);
    assert_nothing_left(&server, &locks).await;
}

/// A node of a cluster refuses scripts over keys of two slots. Whether it takes ours is seen from
/// the commands that another server gets, since clusters are not supported yet.
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
    assert_ne!(slot(QUEUE), slot("lock:job:q"), "a companion without a tag");
}
