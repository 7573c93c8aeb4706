//! The dialects that write an owner.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use lock_core::config::Handover;
use lock_core::dialect::Dialect;
use lock_core::error::BackendErrorKind;
use lock_core::{LockError, LockManager};
use test_support::fixtures::{KEY, NAME, SLACK, SOON, exists, ms};
use test_support::{Lost, Proxy, RedisServer, Stopwatch, eventually_async};
use tests::{SET_NX_PX, WATCH_MULTI, acquire_and_release, shut_down};
use tokio::task::JoinSet;

use super::{OWNERS, connect_in, refusal, value};

/// Returns the commands of one acquisition and its release, in order, without reads.
async fn written(dialect: Dialect) -> Vec<String> {
    let server = RedisServer::start();
    let locks = connect_in(dialect, &server.url()).await;
    // The scripts are loaded afterwards.
    acquire_and_release(&locks).await;
    let monitor = server.monitor();
    let held = locks.lock(NAME).acquire().await.unwrap();
    let owner = value(&server);
    assert!(owner.ends_with(" rust"), "{owner}");
    let pttl = server.cli(&["PTTL", KEY]).integer();
    assert!((29_000..=30_000).contains(&pttl), "{pttl}");
    held.release().await.unwrap();
    assert!(!exists(&server, KEY));
    let recording = monitor.stop();
    let reads = ["GET", "GETRANGE", "PTTL", "TIME", "EVALSHA", "EXISTS"];
    let writes = recording.all().iter().filter(|command| {
        let about_it = command.words.iter().any(|word| word == KEY);
        let of_a_transaction = ["MULTI", "EXEC"].contains(&&*command.name());
        (about_it || of_a_transaction) && !reads.contains(&&*command.name())
    });
    let line = |words: &[String]| words.join(" ").replace(&owner, "me").to_uppercase();
    writes.map(|command| line(&command.words)).collect()
}

/// The commands of the original library.
#[tokio::test]
async fn each_dialect_sends_the_commands_of_its_library() {
    assert_eq!(
        written(Dialect::SetnxExpire).await,
        [
            "SETNX LOCK:JOB ME",
            "PEXPIRE LOCK:JOB 30000",
            "DEL LOCK:JOB"
        ]
    );
    assert_eq!(
        written(Dialect::LuaSetnxExpire).await,
        ["SETNX LOCK:JOB ME", "EXPIRE LOCK:JOB 30", "DEL LOCK:JOB"]
    );
    assert_eq!(
        written(SET_NX_PX).await,
        ["SET LOCK:JOB ME NX PX 30000", "DEL LOCK:JOB"]
    );
    assert_eq!(
        written(WATCH_MULTI).await,
        [
            "SET LOCK:JOB ME NX PX 30000",
            "WATCH LOCK:JOB",
            "MULTI",
            "DEL LOCK:JOB",
            "EXEC"
        ]
    );
}

/// An owner identifies the acquisition, not the client.
#[tokio::test]
async fn each_acquisition_writes_a_unique_owner() {
    let server = RedisServer::start();
    let mut owners = BTreeSet::new();
    for dialect in OWNERS {
        let locks = connect_in(dialect, &server.url()).await;
        for _ in 0..25 {
            let held = locks.lock(NAME).acquire().await.unwrap();
            assert!(owners.insert(value(&server)));
            held.release().await.unwrap();
        }
    }
}

/// A lock that is held in any dialect is visible in all others, with its holder.
#[tokio::test]
async fn owner_dialects_and_the_native_dialect_respect_each_other() {
    let server = RedisServer::start();
    let mut managers = Vec::new();
    for dialect in [&OWNERS[..], &[Dialect::Native]].concat() {
        managers.push(connect_in(dialect, &server.url()).await);
    }
    for holder in &managers {
        let held = holder.lock(NAME).acquire().await.unwrap();
        for other in &managers {
            let error = refusal(other).await;
            assert!(matches!(error, LockError::Contended { .. }), "{error}");
            assert_eq!(&*error.holder().unwrap().label, "rust");
        }
        held.renew().await.unwrap();
        held.release().await.unwrap();
        server.cli(&["DEL", "{lock:job}:f"]);
    }
}

/// All dialects at once on one key: no update is lost, and each client gets turns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mixed_dialects_on_one_key_exclude_each_other() {
    const ROUNDS: u64 = 20;
    let server = RedisServer::start();
    let counter = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    let mut managers = Vec::new();
    for dialect in OWNERS {
        managers.push(connect_in(dialect, &server.url()).await);
    }
    let native = LockManager::builder().handover(Handover::YieldToOthers);
    managers.push(native.connect(&server.url()).await.unwrap());
    let tasks_count = 2 * managers.len() as u64;
    for locks in managers.iter().chain(&managers) {
        let locks = locks.clone();
        let counter = Arc::clone(&counter);
        tasks.spawn(async move {
            for _ in 0..ROUNDS {
                let add = async |_: &_| {
                    let read = counter.load(Ordering::Relaxed);
                    tokio::time::sleep(ms(1)).await;
                    counter.store(read + 1, Ordering::Relaxed);
                };
                locks.lock(NAME).wait(SOON).run(add).await.unwrap();
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(counter.load(Ordering::Relaxed), tasks_count * ROUNDS);
}

/// The holder died between SETNX and EXPIRE: the next client gives the key an expiry.
#[tokio::test]
async fn key_without_expiry_is_repaired_by_the_next_acquire() {
    let server = RedisServer::start();
    let locks = connect_in(Dialect::SetnxExpire, &server.url()).await;
    let ttl = ms(500);
    server.cli(&["SETNX", KEY, "died"]);
    let started = Stopwatch::start();
    let error = locks.lock(NAME).ttl(ttl).acquire().await.unwrap_err();
    assert!(matches!(error, LockError::Contended { .. }), "{error}");
    assert_eq!(
        &*error.holder().unwrap().label,
        "a client of another library"
    );
    let pttl = server.cli(&["PTTL", KEY]).integer();
    assert!((1..=500).contains(&pttl), "{pttl}");
    let held = locks.lock(NAME).wait(SOON).acquire().await.unwrap();
    let took = started.elapsed();
    assert!(
        took >= ttl - ms(2) && took < ttl + SLACK + started.stalled(),
        "{took:?}"
    );
    held.release().await.unwrap();

    // A key with an expiry is not changed, however short or long the expiry is.
    server.cli(&["SET", KEY, "lives", "PX", "60000"]);
    let error = locks.lock(NAME).ttl(ttl).acquire().await.unwrap_err();
    assert!(error.is_contended());
    assert!(server.cli(&["PTTL", KEY]).integer() > 50_000);
}

/// A failure between the two commands leaves no lock without a holder.
#[tokio::test]
async fn failed_expire_leaves_no_key() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = connect_in(Dialect::SetnxExpire, &proxy.url()).await;
    // A waiter retries under the same owner.
    proxy.lose_next(Lost::Request, "30000");
    let held = locks.lock(NAME).wait(SOON).acquire().await.unwrap();
    assert!(!proxy.is_armed());
    assert!(server.cli(&["PTTL", KEY]).integer() > 29_000);
    held.release().await.unwrap();
    // A dropped caller cancels its acquisition.
    proxy.lose_next(Lost::Request, "30000");
    let request = locks.lock(NAME).wait(SOON);
    let acquiring = tokio::spawn(request.acquire());
    eventually_async(SOON, async || !proxy.is_armed()).await;
    acquiring.abort();
    drop(acquiring.await);
    shut_down(&locks).await;
    assert!(!exists(&server, KEY));
}

/// The server executed a command once although its reply was lost, and a retry detects that.
#[tokio::test]
async fn lost_reply_is_resolved_by_a_retry() {
    for dialect in OWNERS {
        let server = RedisServer::start();
        let proxy = Proxy::in_front_of(&server);
        let locks = connect_in(dialect, &proxy.url()).await;
        proxy.lose_next(Lost::Reply, KEY);
        let held = locks.lock(NAME).wait(SOON).acquire().await.unwrap();
        assert!(!proxy.is_armed());
        let owner = value(&server);
        proxy.lose_next(Lost::Reply, KEY);
        held.release().await.unwrap();
        assert!(
            !proxy.is_armed() && !exists(&server, KEY),
            "{dialect}: {owner}"
        );
        shut_down(&locks).await;
    }
}

/// Only the owner renews and releases. The holder learns when it is no longer the owner.
#[tokio::test]
async fn changed_owner_loses_the_lock() {
    for dialect in OWNERS {
        let server = RedisServer::start();
        let locks = connect_in(dialect, &server.url()).await;
        for theirs in [None, Some("another owner")] {
            let held = locks.lock(NAME).acquire().await.unwrap();
            server.cli(&["DEL", KEY]);
            if let Some(theirs) = theirs {
                server.cli(&["SET", KEY, theirs, "PX", "60000"]);
            }
            let error = held.renew().await.unwrap_err();
            assert!(
                matches!(error, LockError::Lost { .. }),
                "{dialect}: {error}"
            );
            assert!(held.is_lost());
            let error = held.release().await.unwrap_err();
            assert!(
                matches!(error, LockError::Lost { .. }),
                "{dialect}: {error}"
            );
            assert_eq!(exists(&server, KEY), theirs.is_some(), "{dialect}");
            server.cli(&["DEL", KEY]);
        }
    }
}

/// Many waiters poll independently, within the set interval, and not in step.
#[tokio::test]
async fn waiters_poll_at_the_retry_interval() {
    let server = RedisServer::start();
    let builder = LockManager::builder().dialect(SET_NX_PX);
    let locks = builder.retry_interval(ms(40)).connect(&server.url()).await;
    let locks = locks.unwrap();
    let held = locks.lock(NAME).acquire().await.unwrap();
    let waiting = tokio::spawn(locks.lock(NAME).wait(SOON).acquire());
    tokio::time::sleep(ms(300)).await;
    let (monitor, started) = (server.monitor(), Instant::now());
    tokio::time::sleep(ms(2_000)).await;
    let recording = monitor.stop();
    let span = usize::try_from(started.elapsed().as_millis()).unwrap();
    let polls = recording
        .from_clients()
        .filter(|command| command.name() == "SET");
    // Between 30 and 40 ms apart; a busy machine polls less often.
    let polls = polls.count();
    assert!(
        (span / 125..=span / 30 + 3).contains(&polls),
        "{polls} in {span} ms"
    );
    held.release().await.unwrap();
    let held = tokio::time::timeout(SOON, waiting).await.unwrap();
    held.unwrap().unwrap().release().await.unwrap();
}

/// A user without the right to run scripts gets an error that says so, except in the dialect
/// without scripts.
#[tokio::test]
async fn only_the_transaction_dialect_needs_no_scripts() {
    let server = RedisServer::start();
    server.cli(&[
        "ACL",
        "SETUSER",
        "app",
        "on",
        ">pass",
        "~*",
        "&*",
        "+@all",
        "-@scripting",
    ]);
    let url = format!("redis://app:pass@{}", server.address());
    let scripted = connect_in(SET_NX_PX, &url).await;
    let held = scripted.lock(NAME).ttl(ms(500)).acquire().await.unwrap();
    let error = held.release().await.unwrap_err();
    let LockError::Backend(error) = error else {
        panic!("{error}");
    };
    assert_eq!(error.kind(), BackendErrorKind::Permission);

    let monitor = server.monitor();
    let locks = connect_in(WATCH_MULTI, &url).await;
    // The first caller's lock ends with its ttl.
    let held = locks
        .lock(NAME)
        .wait(SOON)
        .ttl(ms(1_500))
        .acquire()
        .await
        .unwrap();
    tokio::time::sleep(ms(3_500)).await;
    assert!(!held.is_lost(), "the lock is renewed");
    assert!(refusal(&locks).await.is_contended());
    held.release().await.unwrap();
    assert!(!exists(&server, KEY));
    let recording = monitor.stop();
    let of_scripts = |name: &str| ["EVAL", "EVALSHA", "SCRIPT"].contains(&name);
    assert!(
        !recording
            .all()
            .iter()
            .any(|command| of_scripts(&command.name()))
    );
}
