//! axum handlers, with and without `#[debug_handler]`.

use axum::body::Body;
use axum::debug_handler;
use axum::extract::{Path, State};
use axum::handler::Handler;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use lock_core::{LockError, LockManager, distributed_lock};

struct Failure(LockError);

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        Self(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        if self.0.is_contended() {
            StatusCode::CONFLICT.into_response()
        } else {
            StatusCode::SERVICE_UNAVAILABLE.into_response()
        }
    }
}

#[distributed_lock(name = "order", ttl = "30s", wait = "0s", manager = locks)]
async fn plain(State(locks): State<LockManager>) -> Result<&'static str, Failure> {
    tokio::task::yield_now().await;
    Ok("shipped")
}

#[debug_handler(state = LockManager)]
#[distributed_lock(name = "order", ttl = "30s", wait = "0s", manager = locks)]
async fn below(State(locks): State<LockManager>) -> Result<String, Failure> {
    tokio::task::yield_now().await;
    Ok("shipped".into())
}

#[distributed_lock(name = "order", ttl = "30s", wait = "0s", manager = locks)]
#[debug_handler(state = LockManager)]
async fn above(State(locks): State<LockManager>) -> Result<String, Failure> {
    tokio::task::yield_now().await;
    Ok("shipped".into())
}

#[debug_handler(state = LockManager)]
#[distributed_lock(
    name = "order",
    wait = "0s",
    on_error = |e| Failure(e).into_response(),
    manager = locks,
)]
async fn hidden(State(locks): State<LockManager>) -> impl IntoResponse {
    "shipped".into_response()
}

#[distributed_lock(name = "order", on_contended = skip, manager = locks)]
#[debug_handler(state = LockManager)]
async fn skipped(State(locks): State<LockManager>) -> Result<(), Failure> {
    Ok(())
}

#[debug_handler(state = LockManager)]
#[distributed_lock(name = "item:{id}", manager = locks)]
async fn extracts(
    State(locks): State<LockManager>,
    Path(id): Path<u64>,
    body: String,
) -> Result<String, Failure> {
    drop(body);
    Ok(id.to_string())
}

async fn status<H, T>(handler: H, locks: &LockManager) -> StatusCode
where
    H: Handler<T, LockManager>,
{
    let request = Request::new(Body::empty());
    handler.call(request, locks.clone()).await.status()
}

#[tokio::test]
async fn handler_works_with_the_attributes_in_either_order() {
    let locks = LockManager::in_memory();
    let all = async || {
        [
            status(plain, &locks).await,
            status(below, &locks).await,
            status(above, &locks).await,
            status(hidden, &locks).await,
        ]
    };
    assert_eq!(all().await, [StatusCode::OK; 4]);
    assert_eq!(status(skipped, &locks).await, StatusCode::OK);
    let _guard = locks.lock("order").acquire().await.expect("free");
    assert_eq!(all().await, [StatusCode::CONFLICT; 4]);
    assert_eq!(status(skipped, &locks).await, StatusCode::OK);
}

#[test]
fn router_accepts_annotated_handlers() {
    let _: axum::Router = axum::Router::new()
        .route("/plain", post(plain))
        .route("/above", post(above).put(below).patch(hidden))
        .route("/items/{id}", post(extracts))
        .with_state(LockManager::in_memory());
}
