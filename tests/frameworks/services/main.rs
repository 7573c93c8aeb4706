//! Services as users write them, on real sockets and a real server: without `on_error`, and without a
//! global manager.

mod actix_shop;
mod axum_shop;
mod grpc_shop;
mod guide;
mod in_actix;
mod in_axum;
mod in_grpc;
mod in_worker;
mod routes;
mod store;
mod worker;

use lock_core::{LockError, LockManager};
use test_support::RedisServer;

/// Connects as one instance of a service does.
async fn instance(server: &RedisServer) -> LockManager {
    let connected = LockManager::connect(&server.url()).await;
    connected.expect("the server runs")
}

/// Connects another holder, whose label no client may see.
async fn other_holder(server: &RedisServer) -> LockManager {
    let builder = LockManager::builder().label("SECRET");
    let connected = builder.connect(&server.url()).await;
    connected.expect("the server runs")
}

/// The services must work without this.
async fn assert_no_manager_is_global() {
    let current = LockManager::current();
    assert!(
        matches!(current, Err(LockError::NotConfigured)),
        "{current:?}"
    );
}
