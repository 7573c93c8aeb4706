//! Servers that refuse commands because of their state.

use lock_core::LockError;
use lock_core::config::Endpoint;
use lock_core::error::BackendErrorKind;
use test_support::fixtures::{NAME, SOON};
use test_support::{RedisServer, ServerOptions, eventually};
use tests::acquire_and_release;

use super::{
    SHORT, assert_at_rest, assert_backend, assert_says, assert_usable_again, builder, connect,
    connect_error, errors,
};

#[tokio::test]
async fn full_server_returns_too_many_clients() {
    let server = RedisServer::start();
    let mut admin = server.connect().unwrap();
    admin.call(&["CONFIG", "SET", "maxclients", "1"]).unwrap();
    let error = connect_error(&server.url()).await;
    // The server sends the reason and closes the connection before the client sends anything, so
    // the client does not always read the reason.
    let LockError::Backend(cause) = &error else {
        panic!("{error}");
    };
    let kinds = [
        BackendErrorKind::TooManyClients,
        BackendErrorKind::Unreachable,
    ];
    assert!(kinds.contains(&cause.kind()), "{error:?}");
    assert_says(&error, &["clients"]);
}

#[tokio::test]
async fn replica_returns_not_primary() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    let error = connect_error(&server.url()).await;
    assert_backend(
        &error,
        BackendErrorKind::NotPrimary,
        "connect to the primary",
    );
    for error in errors(locks.lock(NAME)).await {
        assert_backend(
            &error,
            BackendErrorKind::NotPrimary,
            "connect to the primary",
        );
    }
    server.cli(&["REPLICAOF", "NO", "ONE"]);
    assert_usable_again(&server, &locks).await;
}

/// Reads, renewals and releases still work.
#[tokio::test]
async fn server_without_memory_returns_out_of_memory() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock("held").acquire().await.unwrap();
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    for error in errors(locks.lock(NAME)).await {
        let advice = "raise the server's maxmemory";
        assert_backend(&error, BackendErrorKind::OutOfMemory, advice);
    }
    held.renew().await.unwrap();
    held.release().await.unwrap();
    assert_at_rest(&server, locks, &["{lock:held}:f"]).await;
}

#[tokio::test]
async fn server_without_replicas_returns_no_replicas() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    server.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    for error in errors(locks.lock(NAME).ttl(SHORT)).await {
        let advice = "min-replicas-to-write";
        assert_backend(&error, BackendErrorKind::NoReplicas, advice);
    }
    server.cli(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    assert_usable_again(&server, &locks).await;
}

/// An endless script of another client. The library does not end it.
#[tokio::test]
async fn busy_server_returns_script_busy() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    server.cli(&["CONFIG", "SET", "lua-time-limit", "20"]);
    let mut endless = server.connect().unwrap();
    endless.send(&["EVAL", "while true do end", "0"]).unwrap();
    eventually(SOON, || {
        let reply = server.cli(&["PING"]);
        reply.error().is_some_and(|text| text.starts_with("BUSY"))
    });
    for error in errors(locks.lock(NAME).ttl(SHORT)).await {
        assert_backend(&error, BackendErrorKind::ScriptBusy, "a long script");
    }
    let killed = server.cli(&["SCRIPT", "KILL"]);
    assert_eq!(killed.text(), "OK", "the script ended before");
    assert_usable_again(&server, &locks).await;
}

/// The configuration is wrong, not the server.
#[tokio::test]
async fn missing_database_is_an_invalid_url() {
    let server = ServerOptions::default().args(["--databases", "2"]).start();
    for number in ["2", "9", "4294967295"] {
        let error = connect_error(&format!("{}/{number}", server.url())).await;
        assert_backend(&error, BackendErrorKind::InvalidUrl, "fewer databases");
        let text = format!("{} has no database {number}:", server.address());
        assert_says(&error, &[&text, "`databases` in its redis.conf"]);
        assert!(!error.is_retryable());
    }
    assert_no_database(&server, -1).await;
    let locks = builder().connect(&format!("{}/1", server.url())).await;
    acquire_and_release(&locks.unwrap()).await;
}

async fn assert_no_database(server: &RedisServer, db: i64) {
    let address = server.address();
    let endpoint = Endpoint::tcp(address.ip().to_string(), address.port()).db(db);
    let error = builder().connect_to(endpoint).await;
    let error = error.unwrap_err();
    assert_backend(&error, BackendErrorKind::InvalidUrl, "fewer databases");
    assert_says(&error, &[&format!("no database {db}")]);
}

#[tokio::test]
async fn database_of_a_cluster_node_is_unsupported() {
    let options = ServerOptions::default();
    let server = options.args(["--cluster-enabled", "yes"]).start();
    let error = connect_error(&format!("{}/1", server.url())).await;
    assert_backend(&error, BackendErrorKind::Unsupported, "cluster");
    assert_says(&error, &["is a node of a Redis Cluster"]);
}
