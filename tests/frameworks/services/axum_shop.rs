//! A shop with axum. No handler has an `on_error`, and no manager is global.

use std::error::Error;
use std::future::{Future, IntoFuture};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_DISPOSITION;
use axum::middleware::map_response;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Json, Router};
use lock_core::web::FromSkipped;
use lock_core::web::{Problem, ScopeLayer};
use lock_core::{LockError, LockManager, distributed_lock};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::store::Store;

/// Builds the app. Each instance, and each test, passes its own manager.
pub(crate) fn app(locks: LockManager, store: Store) -> Router {
    Router::new()
        .route("/orders/{order}/payment", post(pay))
        .route("/orders/{order}", delete(cancel))
        .route("/orders/{order}/parcel", post(ship))
        .route("/orders/{order}/invoice", get(invoice))
        .route("/notes", post(add_note))
        .route("/carts/{user}", put(fill_cart).delete(empty_cart))
        .route("/coupons/{code}", post(redeem))
        .route("/reports/{day}", get(report))
        .route("/catalog/import", post(import))
        .route("/jobs/sweep", post(sweep))
        .route("/jobs/reindex", post(reindex))
        .route("/jobs/archive", post(archive))
        .route("/webhooks/{event}", post(webhook))
        .with_state(store)
        .layer(map_response(log))
        .layer(ScopeLayer::new(locks))
}

/// Logs what clients do not see: a defect as an error, and an ordinary conflict for debugging only.
async fn log(response: Response) -> Response {
    if let Some(error) = response.extensions().get::<LockError>() {
        let error: &(dyn Error + 'static) = error;
        match response.status() {
            StatusCode::INTERNAL_SERVER_ERROR => tracing::error!(error, "the request failed"),
            StatusCode::SERVICE_UNAVAILABLE => tracing::info!(error, "no lock at the moment"),
            _ => tracing::debug!(error, "the request got no lock"),
        }
    }
    response
}

#[derive(Serialize)]
struct Receipt {
    payment: u64,
}

/// Waits for a request that works on the same order. Then the reply is definite.
#[distributed_lock(name = "order:{order}", ttl = "10s", wait = "100ms")]
async fn pay(
    State(store): State<Store>,
    Path(order): Path<String>,
) -> Result<Json<Receipt>, LockError> {
    let payment = store.add_one(&format!("payments:{order}")).await;
    Ok(Json(Receipt { payment }))
}

/// Does not wait: a client that cancels during the payment gets 409 at once.
#[distributed_lock(name = "order:{order}", ttl = "10s", wait = "0s")]
async fn cancel(
    State(store): State<Store>,
    Path(order): Path<String>,
) -> Result<StatusCode, LockError> {
    store.write(&format!("payments:{order}"), 0).await;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Serialize)]
struct Parcel {
    number: u64,
}

#[distributed_lock(name = "order:{order}", ttl = "10s", wait = "0s")]
async fn ship(
    State(store): State<Store>,
    Path(order): Path<String>,
) -> Result<(StatusCode, Json<Parcel>), LockError> {
    let number = store.add_one("parcels").await;
    store.write(&format!("parcel of {order}"), number).await;
    Ok((StatusCode::CREATED, Json(Parcel { number })))
}

/// A handler that builds its response itself needs no `Result`.
#[distributed_lock(name = "invoice:{order}", ttl = "10s", wait = "0s")]
async fn invoice(State(store): State<Store>, Path(order): Path<String>) -> Response {
    let number = store.add_one("invoices").await;
    let name = format!("attachment; filename=\"{order}.txt\"");
    ([(CONTENT_DISPOSITION, name)], format!("invoice {number}\n")).into_response()
}

#[derive(Deserialize)]
struct Note {
    topic: String,
}

/// The name comes from the body of the request: an empty topic is 400.
#[distributed_lock(name = "note:{note.topic}", ttl = "10s", wait = "0s")]
async fn add_note(State(store): State<Store>, Json(note): Json<Note>) -> Result<String, LockError> {
    let count = store.add_one(&format!("notes:{}", note.topic)).await;
    Ok(format!("{count} notes\n"))
}

#[distributed_lock(name = "cart:{user}", ttl = "10s", wait = "0s")]
async fn fill_cart(State(store): State<Store>, Path(user): Path<u64>) -> Result<(), LockError> {
    store.add_one(&format!("cart:{user}")).await;
    Ok(())
}

#[distributed_lock(name = "cart:{user}", ttl = "10s", wait = "0s")]
async fn empty_cart(
    State(store): State<Store>,
    Path(user): Path<u64>,
) -> Result<impl IntoResponse, LockError> {
    store.write(&format!("cart:{user}"), 0).await;
    Ok(([("x-cart", "empty")], StatusCode::OK))
}

/// The service's own error type. It changes the title of one problem.
enum ShopError {
    Lock(LockError),
    AlreadyRedeemed,
}

impl From<LockError> for ShopError {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

impl IntoResponse for ShopError {
    fn into_response(self) -> Response {
        match self {
            Self::Lock(e) if e.is_contended() => Problem::from(&e)
                .title("The coupon is being redeemed")
                .into_response(),
            Self::Lock(e) => e.into_response(),
            Self::AlreadyRedeemed => StatusCode::GONE.into_response(),
        }
    }
}

#[distributed_lock(name = "coupon:{code}", ttl = "10s", wait = "0s")]
async fn redeem(
    State(store): State<Store>,
    Path(code): Path<String>,
) -> Result<&'static str, ShopError> {
    match store.add_one(&format!("coupon:{code}")).await {
        1 => Ok("redeemed\n"),
        _ => Err(ShopError::AlreadyRedeemed),
    }
}

#[distributed_lock(name = "report:{day}", ttl = "10s", wait = "0s")]
async fn report(
    State(store): State<Store>,
    Path(day): Path<String>,
) -> Result<Html<String>, LockError> {
    let orders = store.read(&format!("orders:{day}")).await;
    Ok(Html(format!("<p>{orders} orders")))
}

#[distributed_lock(name = "import", ttl = "10s", wait = "0s")]
async fn import(State(store): State<Store>) -> axum::response::Result<String> {
    if store.add_one("imports").await > 1_000 {
        return Err(StatusCode::TOO_MANY_REQUESTS.into());
    }
    Ok("imported\n".into())
}

/// A scheduler calls all instances. One of them works, the others reply 202.
#[distributed_lock(name = "sweep", ttl = "10s", on_contended = skip)]
async fn sweep(State(store): State<Store>) -> Result<StatusCode, LockError> {
    store.add_one("sweeps").await;
    Ok(StatusCode::OK)
}

/// Skips with the header `lock-outcome: skipped`.
#[distributed_lock(name = "reindex", ttl = "10s", on_contended = skip)]
async fn reindex(State(store): State<Store>) -> Response {
    store.add_one("indexes").await;
    StatusCode::OK.into_response()
}

/// A reply of the service's own that can say that nothing was done.
enum Archive {
    Archived(u64),
    AnotherInstanceArchives,
}

impl FromSkipped for Archive {
    fn skipped() -> Self {
        Self::AnotherInstanceArchives
    }
}

impl IntoResponse for Archive {
    fn into_response(self) -> Response {
        match self {
            Self::Archived(orders) => Json(orders).into_response(),
            Self::AnotherInstanceArchives => (StatusCode::ACCEPTED, "busy\n").into_response(),
        }
    }
}

#[distributed_lock(name = "archive", ttl = "10s", on_contended = skip)]
async fn archive(State(store): State<Store>) -> Result<Archive, LockError> {
    Ok(Archive::Archived(store.add_one("archives").await))
}

/// Does not skip. After a 2xx the sender never sends the event again, and the request that has the
/// lock may still fail. After 409 it sends the event again.
#[distributed_lock(name = "webhook:{event}", ttl = "10s", wait = "0s")]
async fn webhook(
    State(store): State<Store>,
    Path(event): Path<String>,
) -> Result<StatusCode, LockError> {
    let name = format!("event:{event}");
    if store.read(&name).await == 0 {
        store.add_one("events").await;
        store.write(&name, 1).await;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// The time for running requests after the signal to stop.
const DRAIN: Duration = Duration::from_secs(20);

/// Serves until `stop`. Then it accepts no more connections, lets the requests end, and releases the
/// locks.
pub(crate) async fn serve(
    listener: TcpListener,
    locks: LockManager,
    store: Store,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let (sender, stopping) = oneshot::channel();
    let stop = async move {
        stop.await;
        // The receiver exists as long as the server does.
        _ = sender.send(());
    };
    let server = axum::serve(listener, app(locks.clone(), store)).with_graceful_shutdown(stop);
    // A graceful shutdown has no bound of its own: an open stream of events blocks it.
    let deadline = async {
        _ = stopping.await;
        tokio::time::sleep(DRAIN).await;
    };
    tokio::select! {
        ended = server.into_future() => ended?,
        () = deadline => tracing::warn!("some requests did not end in time"),
    }
    // Last, so that no request needs a lock afterwards. Otherwise a lock stays until its ttl.
    locks.shutdown().await?;
    Ok(())
}
