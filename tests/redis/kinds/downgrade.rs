//! Downgrades that are refused, that lose their reply, and that overtake a renewal.

use std::time::Duration;

use lock_core::error::{BackendErrorKind, InvalidKindReason, InvalidSetting};
use lock_core::{Kind, LockError, LockGuard, LockManager, Renew};
use test_support::fixtures::{AT_ONCE, KEY, LONG, NAME, SOON, ms, time_to_expiry};
use test_support::monitor::Command as RecordedCommand;
use test_support::{Direction, Lost, Proxy, RedisServer, completes_within, eventually_async};
use tests::{assert_nothing_left, backend_error_kind, in_time, shut_down};

use crate::{connect, connect_with};

/// Long enough that no lease ends while a connection is held up.
const TTL: Duration = Duration::from_secs(3);
const INTERVAL: Duration = ms(200);

const TIMEOUT: Duration = ms(300);

async fn write(locks: &LockManager) -> LockGuard {
    let request = locks.lock(NAME).write().ttl(TTL);
    let request = request.renew(Renew::Every(INTERVAL));
    request.acquire().await.unwrap()
}

/// Returns whether this is the acquire of a downgrade.
fn is_downgrade(command: &RecordedCommand) -> bool {
    command.words.iter().any(|word| word == ">r")
}

/// Returns how many scripts the server has run.
fn scripts_run(server: &RedisServer) -> String {
    let info = server.cli(&["INFO", "commandstats"]);
    let mut lines = info.text().lines();
    let line = lines.find(|line| line.starts_with("cmdstat_evalsha:"));
    let line = line.expect("the server has run scripts");
    line.split(',').next().unwrap_or_default().to_owned()
}

/// Connects through the proxy and returns the manager, and the number of the background worker's connection.
async fn connect_through(proxy: &Proxy) -> (LockManager, usize) {
    let locks = connect_with(LockManager::builder(), &proxy.url()).await;
    drop(write(&locks).await);
    shut_down(&locks).await;
    assert_eq!(proxy.accepted(), 2, "one of this runtime and the worker's");
    (locks, 1)
}

/// The caller of a refused downgrade has given the guard away, so the lock is released, too.
#[tokio::test]
async fn refused_downgrade_releases_the_lock() {
    let server = RedisServer::start();
    for locks in [connect(&server).await, LockManager::in_memory()] {
        let lock = || locks.lock(NAME).ttl(LONG);
        let min_hold = ms(200);
        for request in [
            lock().read(),
            lock().permits(1),
            lock().permits(4).weight(2),
            lock().min_hold(min_hold),
        ] {
            let held = request.acquire().await.unwrap();
            let (kind, watch) = (held.kind(), held.watch());
            let monitor = server.monitor();
            let error = held.downgrade().await.unwrap_err();
            assert!(
                matches!(
                    error,
                    LockError::Invalid(InvalidSetting::Kind { kind: refused, reason: InvalidKindReason::Downgrade, .. })
                        if refused == kind
                ),
                "{error}"
            );
            assert!(!watch.is_held() && !watch.is_lost());
            let next = in_time(min_hold, locks.lock(NAME).wait(SOON).acquire());
            next.await.unwrap().release().await.unwrap();
            let recording = monitor.stop();
            let downgrade = recording.from_clients().find(|it| is_downgrade(it));
            assert_eq!(downgrade, None, "{kind}");
        }
        assert_nothing_left(&server, &locks).await;
        assert_eq!(locks.stats().lost, 0);
    }
}

/// The client sends the command again, and the second copy changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn downgrade_whose_command_or_reply_is_lost_takes_effect_once() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = connect_with(LockManager::builder(), &proxy.url()).await;
    for lost in [Lost::Request, Lost::Reply] {
        let writer = write(&locks).await;
        let (written, watch) = (writer.fencing_token(), writer.watch());
        let monitor = server.monitor();
        proxy.lose_next(lost, ">r");
        let reader = writer.downgrade().await.unwrap();
        assert!(!proxy.is_armed(), "the proxy lost nothing");
        let recording = monitor.stop();
        let counted = recording.all().iter().filter(|c| c.name() == "INCR");
        assert_eq!(counted.count(), 1, "{lost:?}");
        assert!(reader.remaining() <= time_to_expiry(&server, KEY));
        assert!(reader.fencing_token() > written);
        assert!(!watch.is_held() && !watch.is_lost());
        // The token is that of the group.
        let other = locks.lock(NAME).read().try_acquire().await.unwrap();
        let other = other.expect("readers share the lock");
        assert_eq!(other.fencing_token(), reader.fencing_token());
        reader.renew().await.unwrap();
        reader.release().await.unwrap();
        other.release().await.unwrap();
    }
    assert_nothing_left(&server, &locks).await;
    assert_eq!(locks.stats().lost, 0);
}

/// The server makes the lock a read lock, and the client never learns it. The release ends either form long before
/// the ttl.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn downgrade_without_a_reply_is_released() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let builder = LockManager::builder().command_timeout(TIMEOUT);
    let locks = connect_with(builder, &proxy.url()).await;
    let writer = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    let watch = writer.watch();
    for connection in 0..proxy.accepted() {
        proxy.mute(connection, Direction::ToClient);
    }
    let downgrade = tokio::spawn(in_time(TIMEOUT, writer.downgrade()));
    let is_shared = async || server.cli(&["GET", KEY]).text().starts_with("lks:r ");
    eventually_async(SOON, is_shared).await;
    let outcome = downgrade.await.unwrap();
    assert_eq!(backend_error_kind(outcome), BackendErrorKind::TimedOut);
    assert!(!watch.is_held());
    proxy.forward();
    assert_nothing_left(&server, &locks).await;
    let free = locks.lock(NAME).write().try_acquire().await.unwrap();
    free.expect("the lock is free").release().await.unwrap();
}

/// A renewal of the writer that the server executes after the downgrade finds no writer. That is no loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_on_its_way_does_not_end_a_downgraded_lock() {
    let server = RedisServer::start();
    for late in [Direction::ToServer, Direction::ToClient] {
        let proxy = Proxy::in_front_of(&server);
        let (locks, worker) = connect_through(&proxy).await;
        let monitor = server.monitor();
        proxy.hold(worker, late);
        let writer = write(&locks).await;
        let watch = writer.watch();
        let is_sent = async || match late {
            Direction::ToServer => writer.remaining() < TTL - 2 * INTERVAL,
            Direction::ToClient => time_to_expiry(&server, KEY) > writer.remaining() + INTERVAL / 2,
        };
        eventually_async(SOON, is_sent).await;
        let reader = completes_within(AT_ONCE, writer.downgrade()).await;
        let reader = reader.expect("the downgrade does not wait").unwrap();
        proxy.resume(worker);
        // Only a renewal makes the remaining time longer again.
        let left = reader.remaining();
        eventually_async(SOON, async || reader.remaining() < left - INTERVAL / 2).await;
        eventually_async(SOON, async || reader.remaining() > left - INTERVAL / 4).await;
        assert!(!reader.is_lost());
        assert!(!watch.is_lost() && watch.loss_reason().is_none());
        assert!(!watch.is_held());

        let recording = monitor.stop();
        let commands: Vec<_> = recording.from_clients().collect();
        let downgrade = commands.iter().position(|it| is_downgrade(it));
        // A renewal of an exclusive lock has one key.
        let is_renewal = |words: &[String]| words.len() > 3 && words[2] == "1" && words[3] == KEY;
        let renewal = commands.iter().rposition(|it| is_renewal(&it.words));
        assert_eq!(late == Direction::ToServer, renewal > downgrade, "{late:?}");
        assert!(renewal.is_some() && downgrade.is_some());

        reader.release().await.unwrap();
        assert_nothing_left(&server, &locks).await;
        assert_eq!(locks.stats().lost, 0);
    }
}

/// The refused renewal arrives while the client does not know yet that it is a reader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_refused_before_the_reply_to_the_downgrade_is_no_loss() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let (locks, worker) = connect_through(&proxy).await;
    let writer = write(&locks).await;
    proxy.hold(worker, Direction::ToServer);
    let watch = writer.watch();
    let is_sent = async || writer.remaining() < TTL - 2 * INTERVAL;
    eventually_async(SOON, is_sent).await;
    proxy.hold(0, Direction::ToClient);
    let downgrade = tokio::spawn(writer.downgrade());
    let is_shared = async || server.cli(&["GET", KEY]).text().starts_with("lks:r ");
    eventually_async(SOON, is_shared).await;
    let before = scripts_run(&server);
    proxy.resume(worker);
    eventually_async(SOON, async || scripts_run(&server) != before).await;
    assert!(!downgrade.is_finished());
    proxy.resume(0);
    let reader = downgrade.await.unwrap().unwrap();
    assert_eq!(reader.kind(), Kind::Read);
    assert!(!reader.is_lost() && !watch.is_lost());
    reader.renew().await.unwrap();
    reader.release().await.unwrap();
    assert_nothing_left(&server, &locks).await;
    assert_eq!(locks.stats().lost, 0);
}
