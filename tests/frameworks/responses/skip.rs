//! `on_contended = skip` in each framework.

use axum::body::to_bytes;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use frameworks::orders::SweepReply;
use lock_core::web::FromSkipped;
use lock_core::{LockError, LockManager, distributed_lock};
use tonic::Status;

#[distributed_lock(name = "job", on_contended = skip, manager = locks)]
async fn axum_response(locks: &LockManager) -> Response {
    "done".into_response()
}

#[distributed_lock(name = "job", on_contended = skip, manager = locks)]
async fn axum_status(locks: &LockManager) -> Result<StatusCode, LockError> {
    Ok(StatusCode::CREATED)
}

#[tokio::test]
async fn skip_in_axum() {
    let locks = LockManager::in_memory();
    assert_eq!(axum_response(&locks).await.status(), StatusCode::OK);
    assert_eq!(
        axum_status(&locks).await.expect("it is free"),
        StatusCode::CREATED
    );
    let _held = locks.lock("job").acquire().await.expect("it is free");
    let skipped = axum_response(&locks).await;
    assert_eq!(skipped.status(), StatusCode::ACCEPTED);
    assert_eq!(skipped.headers()["lock-outcome"], "skipped");
    assert_eq!(skipped.headers().len(), 1);
    let body = to_bytes(skipped.into_body(), 10).await;
    assert!(body.expect("it is in memory").is_empty());
    let skipped = axum_status(&locks).await.expect("it is skipped");
    assert_eq!(skipped, StatusCode::ACCEPTED);
}

#[distributed_lock(name = "job", on_contended = skip, manager = locks)]
async fn actix_response(locks: &LockManager) -> actix_web::HttpResponse {
    actix_web::HttpResponse::Ok().body("done")
}

#[actix_web::test]
async fn skip_in_actix() {
    let locks = LockManager::in_memory();
    assert_eq!(actix_response(&locks).await.status(), 200);
    let _held = locks.lock("job").acquire().await.expect("it is free");
    let skipped = actix_response(&locks).await;
    assert_eq!(skipped.status(), 202);
    let outcome = skipped.headers().get("lock-outcome");
    assert_eq!(outcome.expect("it is set"), "skipped");
    assert_eq!(skipped.headers().len(), 1);
    let body = actix_web::body::to_bytes(skipped.into_body()).await;
    assert!(body.expect("it is in memory").is_empty());
}

#[distributed_lock(name = "job", on_contended = skip, manager = locks)]
async fn tonic_response(locks: &LockManager) -> Result<tonic::Response<SweepReply>, Status> {
    Ok(tonic::Response::new(SweepReply { removed: Some(3) }))
}

#[tokio::test]
async fn skip_in_tonic() {
    let locks = LockManager::in_memory();
    let done = tonic_response(&locks).await.expect("it is free");
    assert_eq!(done.get_ref().removed, Some(3));
    let _held = locks.lock("job").acquire().await.expect("it is free");
    let skipped = tonic_response(&locks).await.expect("it is skipped");
    let outcome = skipped.metadata().get("lock-outcome");
    assert_eq!(outcome.expect("it is set"), "skipped");
    assert_eq!(skipped.metadata().len(), 1);
    assert_eq!(skipped.get_ref().removed, None);
}

/// A reply type that is no response of a framework.
#[derive(Debug, PartialEq)]
enum Outcome {
    Done,
    AnotherInstanceWorks,
}

impl FromSkipped for Outcome {
    fn skipped() -> Self {
        Self::AnotherInstanceWorks
    }
}

#[distributed_lock(name = "job", on_contended = skip, manager = locks)]
async fn own_type(locks: &LockManager) -> anyhow::Result<Outcome> {
    Ok(Outcome::Done)
}

#[tokio::test]
async fn skip_in_a_users_type() {
    let locks = LockManager::in_memory();
    assert_eq!(own_type(&locks).await.expect("it is free"), Outcome::Done);
    let _held = locks.lock("job").acquire().await.expect("it is free");
    let skipped = own_type(&locks).await.expect("it is skipped");
    assert_eq!(skipped, Outcome::AnotherInstanceWorks);
}

/// Only a contended lock is skipped. Without a `Result`, another error is a response, too.
#[distributed_lock(name = "job:{id}", on_contended = skip, manager = locks)]
async fn nameless(locks: &LockManager, id: &str) -> Response {
    unreachable!("`{id}` is no part of a name")
}

#[distributed_lock(name = "job:{id}", on_contended = skip, manager = locks)]
async fn nameless_in_actix(locks: &LockManager, id: &str) -> actix_web::HttpResponse {
    unreachable!("`{id}` is no part of a name")
}

#[tokio::test]
async fn other_errors_are_responses_without_a_result() {
    let locks = LockManager::in_memory();
    let failed = nameless(&locks, "").await;
    assert_eq!(failed.status(), StatusCode::BAD_REQUEST);
    assert!(failed.extensions().get::<LockError>().is_some());
    let failed = nameless_in_actix(&locks, "").await;
    assert_eq!(failed.status(), 400);
    let error = failed.error().expect("it is there for logs");
    assert!(error.as_error::<LockError>().is_some());
}
