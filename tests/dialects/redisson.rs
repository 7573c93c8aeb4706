//! Locks of Redisson: what is on the server, and which keys are refused. `redisson_waits` has the waiters.
//!
//! The other side is a connection that does what Redisson does. `tests/interop` races Redisson itself.

use std::time::{Duration, Instant};

use lock_core::dialect::{Dialect, RedissonLock};
use lock_core::error::BackendErrorKind;
use lock_core::{LockError, LockManager, Renew};
use test_support::fixtures::{AT_ONCE, KEY, LONG, NAME, NOTICE, SLACK, SOON, exists, ms};
use test_support::fixtures::{all_keys, time_to_expiry};
use test_support::{Connection, RedisServer, Reply, eventually_async};
use tests::{Trace, fencing_token, in_time, lost_in_time, one_attempt, shut_down};

use super::{connect_in, refusal};

pub(crate) const REDISSON: Dialect = Dialect::Redisson {
    lock: RedissonLock::Plain,
};
pub(crate) const FENCED: Dialect = Dialect::Redisson {
    lock: RedissonLock::Fenced,
};

/// A thread of Redisson, as its locks name it.
const THREAD: &str = "3f0cf1e4-63a4-4a5e-9d3f-0b6a2f6f9f11:41";
pub(crate) const CHANNEL: &str = "redisson_lock__channel:{lock:job}";
const TOKEN: &str = "redisson_lock_token:{lock:job}";

/// Acquires the lock as Redisson does.
pub(crate) fn lock_as_redisson(server: &RedisServer, lease: Duration) {
    let lease = lease.as_millis().to_string();
    assert_eq!(server.cli(&["HSET", KEY, THREAD, "1"]), Reply::Integer(1));
    assert_eq!(server.cli(&["PEXPIRE", KEY, &lease]), Reply::Integer(1));
}

/// Releases the lock as Redisson does, and returns how many clients received the message.
pub(crate) fn unlock_as_redisson(server: &RedisServer) -> i64 {
    server.cli(&["DEL", KEY]);
    server.cli(&["PUBLISH", CHANNEL, "0"]).integer()
}

/// Returns how many scripts the server has run.
pub(crate) fn scripts_run(server: &RedisServer) -> i64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let line = stats.text().lines().find_map(|line| {
        let rest = line.strip_prefix("cmdstat_evalsha:calls=")?;
        rest.split(',').next()?.parse().ok()
    });
    line.unwrap_or(0)
}

fn fields(server: &RedisServer) -> Vec<String> {
    let fields = server.cli(&["HGETALL", KEY]);
    fields.array().iter().map(|it| it.text().into()).collect()
}

/// Subscribes to the channel of the lock.
fn subscriber(server: &RedisServer) -> Connection {
    let mut subscriber = server.connect().unwrap();
    subscriber.call(&["SUBSCRIBE", CHANNEL]).unwrap();
    subscriber
}

fn message(subscriber: &mut Connection) -> String {
    subscriber.receive().unwrap().array()[2].text().to_owned()
}

#[tokio::test]
async fn lock_has_the_format_of_redisson() {
    for dialect in [REDISSON, FENCED] {
        let server = RedisServer::start();
        let locks = connect_in(dialect, &server.url()).await;
        let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
        let [owner, count] = &fields(&server)[..] else {
            panic!("{:?}", fields(&server));
        };
        let (id, label) = owner.split_once(' ').unwrap();
        assert_eq!((id.len(), label, count.as_str()), (36, "rust", "1"));
        assert!(time_to_expiry(&server, KEY) > LONG - SLACK);
        let expected: &[&str] = match dialect {
            FENCED => &[KEY, TOKEN],
            _ => &[KEY],
        };
        assert_eq!(all_keys(&server), expected);
        let token = held.fencing_token().map(u64::from);
        assert_eq!(token, (dialect == FENCED).then_some(1));
        held.release().await.unwrap();
        assert!(!exists(&server, KEY));
    }
}

/// The counter is shared with Redisson, and nothing but the counter makes tokens grow.
#[tokio::test]
async fn token_is_the_next_number_of_the_shared_counter() {
    let server = RedisServer::start();
    let locks = connect_in(FENCED, &server.url()).await;
    let acquire = async || {
        let held = locks.lock(NAME).acquire().await.unwrap();
        let token = fencing_token(&held);
        held.renew().await.unwrap();
        assert_eq!(fencing_token(&held), token);
        held.release().await.unwrap();
        token
    };
    assert_eq!(acquire().await, 1);
    server.cli(&["INCRBY", TOKEN, "6"]);
    assert_eq!(acquire().await, 8);
    assert_eq!(server.cli(&["PTTL", TOKEN]), Reply::Integer(-1));
    server.cli(&["FLUSHALL"]);
    assert_eq!(acquire().await, 1, "the server has lost its data");
    assert!(!FENCED.capabilities().is_fenced_after_data_loss());
}

/// A counter that is no number is found before anything is acquired.
#[tokio::test]
async fn broken_counter_acquires_nothing() {
    let server = RedisServer::start();
    let locks = connect_in(FENCED, &server.url()).await;
    let largest = i64::MAX.to_string();
    for broken in [
        &["SET", TOKEN, "x"][..],
        &["SET", TOKEN, &largest],
        &["SET", TOKEN, "-5"],
        // Lua would give two holders one token.
        &["SET", TOKEN, "9007199254740994"],
        &["RPUSH", TOKEN, "1"],
    ] {
        server.cli(broken);
        let error = refusal(&locks).await;
        assert!(matches!(error, LockError::ForeignKey { .. }), "{error}");
        assert!(error.to_string().contains(TOKEN), "{error}");
        assert!(!exists(&server, KEY));
        server.cli(&["DEL", TOKEN]);
    }
}

/// Java's waiters sleep until the end of the lease that they have seen, or until the message.
#[tokio::test]
async fn release_is_announced_also_when_the_key_stays_locked() {
    let server = RedisServer::start();
    let locks = connect_in(REDISSON, &server.url()).await;
    let mut subscriber = subscriber(&server);
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    held.release().await.unwrap();
    assert_eq!(message(&mut subscriber), "0");
    let request = locks.lock(NAME).ttl(LONG).min_hold(ms(1_500));
    let held = request.acquire().await.unwrap();
    held.release().await.unwrap();
    assert_eq!(message(&mut subscriber), "0");
    let left = time_to_expiry(&server, KEY);
    assert!(left > Duration::ZERO && left <= ms(1_500), "{left:?}");
    let error = refusal(&locks).await;
    assert!(error.is_contended(), "{error}");
    // A guard that is dropped is released in the background, with a message.
    server.cli(&["DEL", KEY]);
    drop(locks.lock(NAME).acquire().await.unwrap());
    assert_eq!(message(&mut subscriber), "0");
}

/// A release that the holder does not own any more says nothing to anybody.
#[tokio::test]
async fn release_frees_only_its_own_field() {
    let server = RedisServer::start();
    let locks = connect_in(REDISSON, &server.url()).await;
    let mut subscriber = subscriber(&server);
    let held = locks.lock(NAME).acquire().await.unwrap();
    server.cli(&["DEL", KEY]);
    lock_as_redisson(&server, LONG);
    let error = held.release().await.unwrap_err();
    assert!(matches!(error, LockError::Lost { .. }), "{error}");
    assert_eq!(fields(&server), [THREAD, "1"]);
    // The write lock of a read-write lock adds its fields to a lock that is held.
    server.cli(&["DEL", KEY]);
    let held = locks.lock(NAME).acquire().await.unwrap();
    server.cli(&["HSET", KEY, "mode", "write", THREAD, "1"]);
    held.release().await.unwrap();
    assert_eq!(fields(&server), ["mode", "write", THREAD, "1"]);
    assert_eq!(message(&mut subscriber), "0");
}

#[tokio::test]
async fn holder_is_shown_without_its_token() {
    let server = RedisServer::start();
    let locks = connect_in(REDISSON, &server.url()).await;
    lock_as_redisson(&server, LONG);
    let error = refusal(&locks).await;
    let holder = error.holder().unwrap();
    assert_eq!(&*holder.label, "a client of another library");
    assert!(!error.to_string().contains(THREAD), "{error}");
    assert!(holder.remaining > Some(LONG - SLACK));
    let info = locks.admin().inspect(NAME).await.unwrap();
    assert!(info.holder().unwrap().is_foreign());
    let refused = locks.admin().force_release(NAME).await.unwrap_err();
    assert!(
        refused.to_string().contains("no lock of this library"),
        "{refused}"
    );
    let mut subscriber = subscriber(&server);
    let seen = locks.admin().inspect_foreign(NAME).await.unwrap();
    let request = locks
        .admin()
        .force_release(NAME)
        .remove_foreign()
        .free_at_once();
    request.expect_unchanged(&seen).await.unwrap();
    assert!(!exists(&server, KEY));
    assert_eq!(message(&mut subscriber), "0", "waiters in Java learn of it");
}

#[tokio::test]
async fn operators_list_the_locks_only() {
    let server = RedisServer::start();
    let locks = connect_in(FENCED, &server.url()).await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    server.cli(&["HSET", "lock:map", "a", "1", "b", "2"]);
    server.cli(&["SET", "lock:text", "me"]);
    let page = locks.admin().list("*").await.unwrap();
    let names: Vec<_> = page.locks.iter().map(|lock| lock.name.as_str()).collect();
    assert_eq!(names, [NAME]);
    // The holder has the last token of the counter.
    let force = || locks.admin().force_release(NAME).free_at_once();
    let token = held.fencing_token().unwrap();
    server.cli(&["INCR", TOKEN]);
    let changed = force().expect_token(token).await.unwrap_err();
    assert!(
        changed.to_string().contains("nothing was released"),
        "{changed}"
    );
    server.cli(&["DECR", TOKEN]);
    force().expect_token(token).await.unwrap();
    assert!(held.renew().await.is_err());
}

/// Each of them would be a second holder, or hang, or destroy data.
#[tokio::test]
async fn other_objects_are_refused() {
    let server = RedisServer::start();
    let locks = connect_in(REDISSON, &server.url()).await;
    for (setup, part) in [
        (
            &["HSET", KEY, "mode", "write", THREAD, "1"][..],
            "RReadWriteLock",
        ),
        (&["HSET", KEY, "a", "1", "b", "2"], "no lock of Redisson"),
        (
            &["SET", KEY, "1"],
            "a string where `Dialect::Redisson` expects a hash",
        ),
        (&["RPUSH", KEY, "1"], "a list"),
        (&["ZADD", KEY, "1", "1"], "semaphores"),
        // Redisson itself would wait for ever.
        (&["HSET", KEY, THREAD, "1"], "without an expiry"),
    ] {
        server.cli(setup);
        let before = server.cli(&["DUMP", KEY]);
        for wait in [Duration::ZERO, SOON] {
            let started = Instant::now();
            let error = locks.lock(NAME).wait(wait).acquire().await.unwrap_err();
            assert!(matches!(error, LockError::ForeignKey { .. }), "{error}");
            assert!(error.to_string().contains(part), "{error}");
            assert!(started.elapsed() < SOON / 4);
        }
        assert_eq!(server.cli(&["DUMP", KEY]), before);
        server.cli(&["DEL", KEY]);
    }
}

/// A command that comes after its time writes nothing: no client would release the lock.
///
/// A stopped process reads the late command when it continues, even from a connection that has ended by then.
#[tokio::test]
async fn late_acquire_writes_nothing() {
    let server = RedisServer::start();
    let builder = one_attempt(LockManager::builder()).dialect(FENCED);
    let builder = builder.command_timeout(ms(200));
    let locks = builder.connect(&server.url()).await.unwrap();
    let held = locks.lock(NAME).acquire().await.unwrap();
    held.release().await.unwrap();
    let before = scripts_run(&server);
    server.stop();
    let error = locks.lock(NAME).ttl(LONG).acquire().await.unwrap_err();
    assert!(
        matches!(&error, LockError::Backend(error) if error.kind() == BackendErrorKind::TimedOut),
        "{error}"
    );
    tokio::time::sleep(ms(500)).await;
    server.cont();
    shut_down(&locks).await;
    // The late acquire, and the release that follows it.
    eventually_async(SOON, async || scripts_run(&server) == before + 2).await;
    assert!(!exists(&server, KEY));
    assert_eq!(server.cli(&["GET", TOKEN]).integer(), 1);
}

/// A holder learns of the loss within a third of its ttl.
#[tokio::test]
async fn removed_lock_is_lost() {
    let server = RedisServer::start();
    let locks = connect_in(REDISSON, &server.url()).await;
    let ttl = Duration::from_secs(3);
    let held = locks.lock(NAME).ttl(ttl).acquire().await.unwrap();
    server.cli(&["DEL", KEY]);
    in_time(ttl / 3 + NOTICE, held.lost()).await;
    assert_eq!(held.loss_reason().unwrap().as_str(), "removed");
    // A lease that is not renewed ends at its holder before it ends at the server.
    let request = locks.lock(NAME).ttl(ms(500)).renew(Renew::Never);
    let held = request.acquire().await.unwrap();
    lost_in_time(&held).await;
    assert_eq!(held.loss_reason().unwrap().as_str(), "expired");
}

/// Without the right to the channel everything works, but waiters poll, and the operator is warned once.
#[tokio::test]
async fn user_without_the_channel_is_warned_once() {
    let server = RedisServer::start();
    let rights = ["~*", "resetchannels", "+@all"];
    let user = [&["ACL", "SETUSER", "app", "on", ">pass"][..], &rights].concat();
    server.cli(&user);
    let (trace, _guard) = Trace::begin();
    let url = format!("redis://app:pass@{}", server.address());
    let locks = connect_in(REDISSON, &url).await;
    for _ in 0..2 {
        let held = locks.lock(NAME).acquire().await.unwrap();
        held.release().await.unwrap();
    }
    assert_eq!(
        trace.count("do not learn of all releases"),
        1,
        "{}",
        trace.text()
    );
    lock_as_redisson(&server, LONG);
    let waiting = tokio::spawn(locks.lock(NAME).wait(SOON).acquire());
    tokio::time::sleep(ms(100)).await;
    server.cli(&["DEL", KEY]);
    let held = in_time(AT_ONCE, waiting).await.unwrap().unwrap();
    held.release().await.unwrap();
    assert!(!locks.ping().await.unwrap().notifies_waiters);
}
