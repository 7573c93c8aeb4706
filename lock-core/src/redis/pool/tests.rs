//! On a real server, because a connection has to begin with its replies.

use std::time::Duration;

use test_support::RedisServer;

use super::*;
use crate::config::Settings;
use crate::redis::connector::Slots;
use crate::redis::location::Location;
use crate::redis::node_config::{DeploymentKind, NodeConfig};
use crate::redis::url::parse;
use crate::runtime::notifications::Notifications;
use crate::store::NotificationSink;

const SOON: Duration = Duration::from_secs(20);

fn pool_of(server: &RedisServer) -> Arc<Pool> {
    let deployment = parse(&server.url()).unwrap();
    let reporter = Arc::default();
    let notifications = Arc::new(Notifications::new(Arc::clone(&reporter)));
    let notifications = notifications as Arc<dyn NotificationSink>;
    let settings = Settings {
        command_timeout: SOON,
        ..Settings::default()
    };
    let kind = DeploymentKind::Standalone;
    let config = NodeConfig::new(
        &deployment,
        kind,
        None,
        &settings,
        &notifications,
        &reporter,
    );
    let config = config.unwrap();
    let address = crate::redis::deployment::NodeAddress::Tcp("127.0.0.1".into(), server.port());
    let location = Location::of(&address, Duration::ZERO, &reporter);
    let connector = Connector::new(config, location, Slots::Settled, Vec::new());
    Arc::new(Pool::new(connector))
}

async fn connection(pool: &Pool) -> Arc<Connection> {
    let deadline = Deadline::after(Clock::System, SOON);
    pool.for_current_runtime(deadline).await.unwrap()
}

async fn ping(pool: &Pool) -> Origin {
    let connection = connection(pool).await;
    connection.uses();
    let ping = |out: &mut lock_protocol::resp::CommandBuf<'_>| drop(out.command("PING"));
    connection.ask(ping, 1, SOON).await.unwrap();
    connection.origin
}

/// Runs a runtime of its own with one thread, and returns where its call went.
fn in_another_runtime(pool: &Arc<Pool>) -> std::thread::JoinHandle<Origin> {
    let pool = Arc::clone(pool);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(ping(&pool))
    })
}

async fn joined(calling: std::thread::JoinHandle<Origin>) -> Origin {
    tokio::task::spawn_blocking(|| calling.join().unwrap())
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runtimes_but_the_first_share_the_connection_of_the_worker() {
    let server = RedisServer::start();
    let pool = pool_of(&server);
    let first = ping(&pool).await;
    let worker = tokio::runtime::Builder::new_multi_thread();
    let worker = { worker }.worker_threads(1).enable_all().build().unwrap();
    {
        let _entered = worker.enter();
        pool.connector
            .config
            .driven_by(&tokio::runtime::Handle::current());
    }
    let mut calling = Vec::new();
    for _ in 0..8 {
        calling.push(in_another_runtime(&pool));
    }
    let mut others = Vec::new();
    for calling in calling {
        others.push(joined(calling).await);
    }
    let shared = others[0];
    assert_ne!(shared, first);
    assert_eq!(others, [shared; 8]);
    assert_eq!(ping(&pool).await, first);
    assert_eq!(pool.runtimes.lock().len(), 2);
    worker.shutdown_background();
}

/// A program may use one runtime after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_runtime_takes_the_place_of_the_first_one() {
    let server = RedisServer::start();
    let pool = pool_of(&server);
    pool.connector
        .config
        .driven_by(&tokio::runtime::Handle::current());
    let first = joined(in_another_runtime(&pool)).await;
    let second = joined(in_another_runtime(&pool)).await;
    assert_ne!(first, second);
    assert!(pool.runtimes.lock().len() <= 1, "both runtimes have ended");
}

/// A runtime that is never polled again may own such a connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runtimes_share_no_connection_for_transactions() {
    let server = RedisServer::start();
    let shared = pool_of(&server);
    shared.connector.config.driven_by(&Handle::current());
    let mut pool = Arc::into_inner(shared).unwrap();
    pool.is_shared = false;
    let pool = Arc::new(pool);
    let worker = ping(&pool).await;
    let (first, second) = (in_another_runtime(&pool), in_another_runtime(&pool));
    let (first, second) = (joined(first).await, joined(second).await);
    assert!(first != worker && second != worker && first != second);
}

#[cfg(feature = "cluster")]
#[tokio::test]
async fn connection_without_calls_is_closed_and_made_again_when_needed() {
    let server = RedisServer::start();
    let pool = pool_of(&server);
    let first = ping(&pool).await;
    for _ in 0..IDLE_SEARCHES {
        pool.close_idle();
    }
    assert_eq!(
        ping(&pool).await,
        first,
        "it was used before the first search"
    );
    for _ in 0..IDLE_SEARCHES {
        pool.close_idle();
        assert!(pool.is_any_connected());
    }
    pool.close_idle();
    assert!(!pool.is_any_connected());
    assert_ne!(ping(&pool).await, first);
    for _ in 0..3 * IDLE_SEARCHES {
        ping(&pool).await;
        pool.close_idle();
    }
    assert!(pool.is_any_connected(), "a connection in use was closed");
}
