//! A whole web service: the program of the guide's page `web`.
//!
//! ```sh
//! export DISTRIBUTED_LOCK_URL=redis://127.0.0.1:6379
//! cargo run -p examples --example web_service --features axum
//! ```
//!
//! `LISTEN` sets its address. The block below is the whole `main.rs` of a new project.

// region: program
use std::collections::BTreeSet;
use std::error::Error;
use std::panic::resume_unwind;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::post;
use lock_core::web::ScopeLayer;
use lock_core::{LockError, LockManager, distributed_lock};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{RwLock, oneshot};
use tokio::time::{sleep, timeout};

/// The time for running requests after the signal to stop.
const DRAIN: Duration = Duration::from_secs(20);

/// The paid orders. It stands for the database of the service.
type Store = Arc<RwLock<BTreeSet<u32>>>;

/// Pays in a task of its own. When the client disconnects, axum drops this handler, but the task runs to its
/// end: a payment must not stop between the bank and the row in the store. A `LockError` becomes a response.
async fn pay(State(store): State<Store>, Path(order): Path<u32>) -> Result<String, LockError> {
    // The task is outside of the request's scope, so it takes the manager along.
    let locks = LockManager::current()?;
    let paying = tokio::spawn(async move { locks.scope(pay_once(store, order)).await });
    // If the task panics, so does the handler.
    paying
        .await
        .unwrap_or_else(|panicked| resume_unwind(panicked.into_panic()))
}

/// For each order, one call at a time runs here, in all instances.
#[distributed_lock(name = "order:{order}", ttl = "10s", wait = "2s")]
async fn pay_once(store: Store, order: u32) -> Result<String, LockError> {
    // Check inside the lock: the next caller runs after you.
    if store.read().await.contains(&order) {
        return Ok(format!("order {order} was paid before\n"));
    }
    sleep(Duration::from_secs(1)).await; // The bank needs a second.
    store.write().await.insert(order);
    Ok(format!("order {order} is paid now\n"))
}

/// Logs the `LockError` of a response. Its text and its causes are not for clients.
async fn log(response: Response) -> Response {
    if let Some(error) = response.extensions().get::<LockError>() {
        let error: &(dyn Error + 'static) = error;
        match response.status() {
            // A wrong setting, a key with other data, or a lost lock: an operator has to act.
            StatusCode::INTERNAL_SERVER_ERROR => tracing::error!(error, "the request failed"),
            StatusCode::SERVICE_UNAVAILABLE => tracing::info!(error, "no lock at the moment"),
            // Two requests needed one order: this is ordinary.
            _ => tracing::debug!(error, "the request got no lock"),
        }
    }
    response
}

fn app(locks: &LockManager, store: Store) -> Router {
    Router::new()
        .route("/orders/{order}/payment", post(pay))
        .with_state(store)
        .layer(map_response(log))
        // The attribute uses this manager in each request.
        .layer(ScopeLayer::new(locks.clone()))
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt::init();
    let Err(error) = run().await else {
        return ExitCode::SUCCESS;
    };
    // The log gets the text of the error and of its causes.
    tracing::error!(error = &*error, "the service failed");
    ExitCode::FAILURE
}

async fn run() -> Result<(), Box<dyn Error>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    // Reads DISTRIBUTED_LOCK_URL. A wrong address stops the start, and not the first request.
    let locks = LockManager::from_env().await?;
    // So does a missing right to lock: this acquires and releases one.
    locks.ping().await?;
    let listen = std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".into());
    let listener = TcpListener::bind(listen).await?;
    println!("listening on http://{}", listener.local_addr()?);

    let (drain, drained) = oneshot::channel::<()>();
    let server = axum::serve(listener, app(&locks, Store::default()));
    // Begins when `drain` is dropped.
    let server = server.with_graceful_shutdown(async { _ = drained.await });
    let mut server = pin!(server.into_future());
    tokio::select! {
        ended = &mut server => return Ok(ended?),
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    // Requests that wait for a lock end now, and don't use up the time of the others. Held locks stay.
    locks.close();
    // The server accepts no more connections. It has no bound of its own for the running requests.
    drop(drain);
    if let Ok(ended) = timeout(DRAIN, server).await {
        ended?;
    } else {
        tracing::warn!("some requests did not end in time");
    }
    // Last, when no request needs a lock. It ends after `shutdown_timeout`, 5 s, at the latest.
    if let Err(error) = locks.shutdown().await {
        // The service has ended in order all the same: the lock stays until its ttl.
        tracing::warn!("{error}");
    }
    Ok(())
}
// endregion
