//! Sets of locks: their commands, and what they leave on the server.

use std::time::{Duration, Instant};

use lock_core::{LockError, LockManager, LockSet, Renew};
use test_support::fixtures::{AT_ONCE, SOON, keys, ms};
use test_support::monitor::Command as RecordedCommand;
use test_support::{
    Direction, Lost, Monitor, Proxy, RedisServer, Reply, completes_within, eventually_async,
};
use tests::in_time;

use super::{connect, connect_with};

const NAMES: [&str; 3] = ["a", "b", "c"];

/// Returns the names of the commands of clients, but for heartbeats.
fn names(monitor: Monitor) -> Vec<String> {
    let recording = monitor.stop();
    let names = recording.from_clients().map(RecordedCommand::name);
    names.filter(|name| name != "PING").collect()
}

/// The locks that exist, without counters.
fn locked(server: &RedisServer) -> Vec<String> {
    let mut keys = keys(server);
    keys.retain(|key| !key.ends_with(":f"));
    keys
}

async fn acquire_and_release(locks: &LockManager) {
    let set = locks.lock_all(NAMES).wait(SOON).acquire().await.unwrap();
    assert_eq!(set.guards().len(), 3);
    set.release().await.unwrap();
    let set = locks.lock_all(NAMES).try_acquire().await.unwrap();
    set.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn set_of_three_free_names_costs_one_acquire_and_one_release_of_each() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    // The first set sends the scripts, and subscribes.
    acquire_and_release(&locks).await;
    let monitor = server.monitor();
    acquire_and_release(&locks).await;
    // The releases go out together, so each set costs two round trips.
    assert_eq!(names(monitor), ["EVALSHA"; 2 * (1 + 3)]);
    assert_eq!(locked(&server), Vec::<String>::new());
}

#[tokio::test]
async fn set_of_one_name_is_an_ordinary_lock() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let monitor = server.monitor();
    let set = locks.lock_all(["a", "a"]).try_acquire().await.unwrap();
    set.unwrap().release().await.unwrap();
    // The scripts of sets are unknown to the server, so they would need their text.
    assert_eq!(names(monitor), ["EVALSHA"; 2]);
}

#[tokio::test]
async fn single_attempt_at_a_set_with_a_busy_lock_leaves_nothing() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    acquire_and_release(&locks).await;
    for busy in NAMES {
        let held = locks.lock(busy).acquire().await.unwrap();
        let monitor = server.monitor();
        let none = locks.lock_all(NAMES).try_acquire().await.unwrap();
        assert!(none.is_none());
        assert_eq!(names(monitor), ["EVALSHA"; 1]);
        assert_eq!(locked(&server), [format!("lock:{busy}")]);
        held.release().await.unwrap();
    }
}

#[tokio::test]
async fn waiting_set_costs_one_more_command_for_each_busy_name() {
    let server = RedisServer::start();
    let (holder, locks) = (connect(&server).await, connect(&server).await);
    acquire_and_release(&locks).await;
    let held = holder.lock("b").acquire().await.unwrap();
    let monitor = server.monitor();
    let waiting = tokio::spawn(locks.lock_all(NAMES).wait(SOON).acquire());
    let is_queued = async || server.cli(&["ZCARD", "{lock:b}:q"]).integer() == 1;
    eventually_async(SOON, is_queued).await;
    assert_eq!(server.cli(&["EXISTS", "lock:a"]).integer(), 1);
    assert_eq!(server.cli(&["EXISTS", "lock:c"]).integer(), 0);
    held.release().await.unwrap();
    let set = completes_within(AT_ONCE, waiting).await.unwrap();
    set.unwrap().unwrap().release().await.unwrap();
    let recording = monitor.stop();
    let count = |script: &str| {
        let commands = recording.from_clients();
        commands.filter(|command| command.name() == script).count()
    };
    // The set: `a` and the queue of `b`, then `c`, then three releases. The holder: its release.
    assert_eq!(count("EVALSHA") + count("EVAL"), 6);
}

#[tokio::test]
async fn set_that_times_out_leaves_nothing_and_is_in_time() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let _held = locks.lock("c").acquire().await.unwrap();
    for wait in [ms(600), ms(900)] {
        let began = Instant::now();
        let error = in_time(wait, locks.lock_all(NAMES).wait(wait).acquire()).await;
        let took = began.elapsed();
        assert!(
            matches!(&error, Err(LockError::Timeout { key, .. }) if &**key == "lock:c"),
            "{error:?}"
        );
        assert!(took >= wait, "{took:?}");
        let only_holder = async || locked(&server) == ["lock:c"];
        eventually_async(AT_ONCE, only_holder).await;
    }
}

/// Acquires the set and returns the command for it, without the set.
async fn recorded_attempt(server: &RedisServer, locks: &LockManager) -> (LockSet, Vec<String>) {
    let monitor = server.monitor();
    let set = locks.lock_all(NAMES).try_acquire().await.unwrap().unwrap();
    let recording = monitor.stop();
    let command = recording.from_clients().find(|command| {
        let words = &command.words;
        words.iter().any(|word| word == "lock:a") && command.name().starts_with("EVAL")
    });
    (set, command.expect("the set was acquired").words.clone())
}

fn values(server: &RedisServer) -> Vec<String> {
    let value = |name: &str| {
        server
            .cli(&["GET", &format!("lock:{name}")])
            .text()
            .to_owned()
    };
    NAMES.map(value).into()
}

fn first_text(reply: &Reply) -> &str {
    match reply {
        Reply::Array(parts) => parts[0].text(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn repeated_copy_of_an_attempt_changes_nothing() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    acquire_and_release(&locks).await;
    let (set, command) = recorded_attempt(&server, &locks).await;
    let before = values(&server);
    let reply = server.cli(&command);
    assert!(first_text(&reply).starts_with("held "), "{reply:?}");
    assert_eq!(values(&server), before);
    set.release().await.unwrap();
}

/// A late copy must not release what the holder uses by now, although another holder has one of the locks.
#[tokio::test]
async fn late_copy_of_an_attempt_leaves_all() {
    let server = RedisServer::start();
    let builder = LockManager::builder().command_timeout(ms(200));
    let locks = connect_with(builder, &server.url()).await;
    acquire_and_release(&locks).await;
    let (set, command) = recorded_attempt(&server, &locks).await;
    server.cli(&["SET", "lock:b", "another", "PX", "60000"]);
    let before = values(&server);
    tokio::time::sleep(ms(600)).await;
    let reply = server.cli(&command);
    assert!(first_text(&reply).starts_with("late "), "{reply:?}");
    assert_eq!(values(&server), before);
    drop(set);
}

/// The time goes on within a script. Whether a copy is late is asked once, before anything: a lock that is late by
/// itself must not undo what the holder uses by now.
#[tokio::test]
async fn copy_that_gets_late_while_it_runs_leaves_all() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    acquire_and_release(&locks).await;
    let (set, mut command) = recorded_attempt(&server, &locks).await;
    let before = values(&server);
    let keys: usize = command[2].parse().unwrap();
    // After the keys: the number of keys of a lock, not_after and the mode. Then the arguments of each lock.
    let mut lock = 3 + keys + 3;
    while lock < command.len() {
        let arguments: usize = command[lock].parse().unwrap();
        command[lock + 4] = "1".into();
        lock += arguments + 1;
    }
    let reply = server.cli(&command);
    assert!(first_text(&reply).starts_with("held "), "{reply:?}");
    assert_eq!(values(&server), before);
    set.release().await.unwrap();
}

/// What an earlier copy of the attempt had got goes with the rest.
#[tokio::test]
async fn attempt_releases_what_an_earlier_copy_had_got() {
    let server = RedisServer::start();
    let builder = LockManager::builder().command_timeout(Duration::from_secs(30));
    let locks = connect_with(builder, &server.url()).await;
    acquire_and_release(&locks).await;
    for busy in NAMES {
        let (set, command) = recorded_attempt(&server, &locks).await;
        let key = format!("lock:{busy}");
        server.cli(&["SET", &key, "another", "PX", "60000"]);
        let reply = server.cli(&command);
        assert_eq!(first_text(&reply), "undone", "{reply:?}");
        assert_eq!(locked(&server), [&*key]);
        // Not in the background: the next recording begins after it.
        let released = set.release().await;
        assert!(
            matches!(released, Err(LockError::Lost { .. })),
            "{released:?}"
        );
        server.cli(&["DEL", &key]);
    }
}

#[tokio::test]
async fn attempt_at_a_set_of_readers_leaves_nothing_when_one_lock_is_written() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock("c").acquire().await.unwrap();
    let readers = || locks.lock_all(NAMES).read();
    assert!(readers().try_acquire().await.unwrap().is_none());
    assert_eq!(locked(&server), ["lock:c"]);
    held.release().await.unwrap();
    let (first, second) = (readers().await.unwrap(), readers().await.unwrap());
    first.release().await.unwrap();
    assert!(!second.is_lost());
    second.release().await.unwrap();
    assert_eq!(locked(&server), Vec::<String>::new());
}

/// The error of one lock does not hide what the others got.
#[tokio::test]
async fn set_with_a_key_of_another_type_names_it_and_leaves_nothing() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    server.cli(&["RPUSH", "lock:b", "x"]);
    for wait in [Duration::ZERO, SOON] {
        let error = locks.lock_all(NAMES).wait(wait).acquire().await;
        assert!(
            matches!(&error, Err(LockError::ForeignKey { key, .. }) if &**key == "lock:b"),
            "{error:?}"
        );
        let only_list = async || locked(&server) == ["lock:b"];
        eventually_async(AT_ONCE, only_list).await;
    }
    server.cli(&["DEL", "lock:b"]);
    server.cli(&["RPUSH", "{lock:b}:q", "x"]);
    let error = locks.lock_all(NAMES).wait(SOON).acquire().await;
    assert!(
        matches!(&error, Err(LockError::ForeignKey { key, .. }) if &**key == "lock:b"),
        "{error:?}"
    );
    let only_list = async || locked(&server) == ["{lock:b}:q"];
    eventually_async(SOON, only_list).await;
}

/// In written order, two such sets would wait for each other.
#[tokio::test]
async fn sets_in_opposite_orders_do_not_deadlock() {
    let server = RedisServer::start();
    let locks = [connect(&server).await, connect(&server).await];
    let transfer = async |locks: &LockManager, names: [&'static str; 2]| {
        for _ in 0..20 {
            let set = locks.lock_all(names).wait(SOON).acquire().await.unwrap();
            tokio::task::yield_now().await;
            set.release().await.unwrap();
        }
    };
    tokio::join!(
        transfer(&locks[0], ["a", "b"]),
        transfer(&locks[1], ["b", "a"])
    );
}

/// A waiting set is renewed, so its early locks outlive their ttl.
#[tokio::test]
async fn early_locks_of_a_waiting_set_are_renewed() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock("b").acquire().await.unwrap();
    let set = locks.lock_all(["a", "b"]).ttl(ms(1_500)).wait(SOON);
    let waiting = tokio::spawn(set.acquire());
    let has_first = async || server.cli(&["EXISTS", "lock:a"]).integer() == 1;
    eventually_async(AT_ONCE, has_first).await;
    let token = server.cli(&["GET", "lock:a"]).text().to_owned();
    tokio::time::sleep(ms(3_500)).await;
    assert_eq!(server.cli(&["GET", "lock:a"]).text(), token);
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

/// A set that lost a lock on its way starts again, and does not run with the rest.
#[tokio::test]
async fn waiting_set_that_loses_a_lock_acquires_it_again() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock("b").acquire().await.unwrap();
    let set = locks.lock_all(["a", "b"]).ttl(ms(300)).wait(SOON);
    let waiting = tokio::spawn(set.acquire());
    let has_first = async || server.cli(&["EXISTS", "lock:a"]).integer() == 1;
    eventually_async(AT_ONCE, has_first).await;
    let first = server.cli(&["GET", "lock:a"]).text().to_owned();
    server.cli(&["DEL", "lock:a"]);
    eventually_async(SOON, async || {
        let again = server.cli(&["GET", "lock:a"]);
        matches!(again, Reply::Bulk(_)) && again.text() != first
    })
    .await;
    held.release().await.unwrap();
    let set = waiting.await.unwrap().unwrap();
    assert!(!set.is_lost());
    set.release().await.unwrap();
}

/// A reply that comes after the end of the leases grants nothing. The set then goes on with its first lock: with a
/// later lock it could wait for a set that waits for this one.
#[tokio::test]
async fn set_whose_reply_is_late_goes_on_with_its_first_lock() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = connect_with(LockManager::builder(), &proxy.url()).await;
    acquire_and_release(&locks).await;
    let single = server.monitor();
    let held = locks.lock("z").wait(SOON).acquire().await.unwrap();
    let single = single.stop();
    let acquire = single.from_clients().find(|it| it.name() == "EVALSHA");
    let acquire = acquire.expect("the lock was acquired").words[1].clone();
    held.release().await.unwrap();

    let monitor = server.monitor();
    proxy.delay(Direction::ToClient, ms(400));
    let set = locks.lock_all(NAMES).ttl(ms(300)).wait(SOON).acquire();
    let set = tokio::spawn(set);
    eventually_async(SOON, async || locked(&server).len() == 3).await;
    tokio::time::sleep(ms(350)).await;
    proxy.delay(Direction::ToClient, Duration::ZERO);
    set.await.unwrap().unwrap().release().await.unwrap();
    let recording = monitor.stop();
    let mut alone = recording
        .from_clients()
        .filter(|it| it.name() == "EVALSHA" && it.words[1] == acquire);
    let first = alone.next().expect("the late locks were acquired again");
    assert_eq!(first.words[3], "lock:a", "{first:?}");
}

/// A single attempt is one command, also when it goes out again: the new copy gets what the first one had got.
#[tokio::test]
async fn attempt_goes_out_again_as_a_whole_after_its_connection_broke() {
    for lost in [Lost::Request, Lost::Reply] {
        // Of its own: the worker repeats the release of an acquire whose request was lost.
        let server = RedisServer::start();
        let proxy = Proxy::in_front_of(&server);
        let locks = connect_with(LockManager::builder(), &proxy.url()).await;
        acquire_and_release(&locks).await;
        let monitor = server.monitor();
        proxy.lose_next(lost, "EVALSHA");
        let set = locks.lock_all(NAMES).try_acquire().await.unwrap();
        let set = set.expect("no other client has the locks");
        assert!(!proxy.is_armed());
        let recording = monitor.stop();
        let commands = recording.from_clients();
        let attempts = commands.filter(|it| it.words.iter().any(|word| word == "all"));
        // The number of keys: each copy is for all three locks.
        let keys: Vec<_> = attempts.map(|it| it.words[2].as_str()).collect();
        let executed: &[_] = if lost == Lost::Reply {
            &["15", "15"]
        } else {
            &["15"]
        };
        assert_eq!(keys, executed, "{lost:?}");
        set.release().await.unwrap();
        assert_eq!(locked(&server), Vec::<String>::new());
    }
}

#[tokio::test]
async fn renewal_of_a_set_renews_the_others_of_a_lost_lock() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let request = locks.lock_all(NAMES).renew(Renew::Never).ttl(ms(60_000));
    let set = request.acquire().await.unwrap();
    set.renew().await.unwrap();
    server.cli(&["DEL", "lock:b"]);
    server.cli(&["PEXPIRE", "lock:c", "30000"]);
    let error = set.renew().await.unwrap_err();
    assert!(
        matches!(&error, LockError::Lost { key, .. } if &**key == "lock:b"),
        "{error:?}"
    );
    assert!(server.cli(&["PTTL", "lock:c"]).integer() > 30_000);
    // Now it is known to be lost, and nothing is sent for it.
    let error = set.renew().await.unwrap_err();
    assert!(
        matches!(&error, LockError::Lost { key, .. } if &**key == "lock:b"),
        "{error:?}"
    );
}
