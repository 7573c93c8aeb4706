//! Apps without a global manager.

use std::sync::Arc;

use actix_web::body::BoxBody;
use actix_web::dev::ServiceRequest;
use actix_web::middleware::{Next, from_fn};
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::routing::post;
use lock_core::web::ScopeLayer;
use lock_core::{LockError, LockManager, distributed_lock};
use tokio::sync::Barrier;
use tower::ServiceExt;

/// Ends only when as many calls run at the same time as the barrier has places.
#[distributed_lock(name = "job", wait = "0s", bind = held)]
async fn meet(State(barrier): State<Arc<Barrier>>) -> Result<String, LockError> {
    barrier.wait().await;
    Ok(held
        .fencing_token()
        .map_or(String::new(), |token| token.to_string()))
}

fn app(locks: &LockManager, barrier: &Arc<Barrier>) -> Router {
    Router::new()
        .route("/", post(meet))
        .with_state(Arc::clone(barrier))
        .layer(ScopeLayer::new(locks.clone()))
}

async fn status(app: Router) -> StatusCode {
    let request = Request::post("/").body(Body::empty()).expect("it is valid");
    app.oneshot(request).await.expect("it cannot fail").status()
}

#[tokio::test]
async fn scope_layer_separates_two_apps() {
    let managers = [LockManager::in_memory(), LockManager::in_memory()];
    let barrier = Arc::new(Barrier::new(2));
    let [first, second] = managers.each_ref().map(|locks| app(locks, &barrier));
    let both = tokio::join!(status(first.clone()), status(second.clone()));
    assert_eq!(both, (StatusCode::OK, StatusCode::OK));
    // A lock of the first manager concerns the first app only.
    let held = managers[0].lock("job").acquire().await.expect("it is free");
    assert_eq!(status(first).await, StatusCode::CONFLICT);
    let two = Arc::new(Barrier::new(1));
    assert_eq!(status(app(&managers[1], &two)).await, StatusCode::OK);
    drop(held);
}

#[distributed_lock(name = "job", wait = "0s")]
async fn meet_in_actix(
    barrier: actix_web::web::Data<Barrier>,
) -> Result<actix_web::HttpResponse, LockError> {
    barrier.wait().await;
    Ok(actix_web::HttpResponse::Ok().finish())
}

#[actix_web::test]
async fn scope_in_from_fn_separates_two_apps() {
    let barrier = actix_web::web::Data::new(Barrier::new(2));
    let managers = [LockManager::in_memory(), LockManager::in_memory()];
    let status = async |locks: &LockManager| {
        let locks = locks.clone();
        let scope = from_fn(move |request: ServiceRequest, next: Next<BoxBody>| {
            let locks = locks.clone();
            async move { locks.scope(next.call(request)).await }
        });
        let app = actix_web::App::new()
            .app_data(barrier.clone())
            .route("/", actix_web::web::post().to(meet_in_actix))
            .wrap(scope);
        let app = actix_web::test::init_service(app).await;
        let request = actix_web::test::TestRequest::post().to_request();
        let response = actix_web::test::call_service(&app, request).await;
        response.status().as_u16()
    };
    let both = tokio::join!(status(&managers[0]), status(&managers[1]));
    assert_eq!(both, (200, 200));
    let _held = managers[0].lock("job").acquire().await.expect("it is free");
    assert_eq!(status(&managers[0]).await, 409);
}

/// The call of a service may already use the manager, before its future is polled.
#[tokio::test]
async fn scope_layer_covers_the_call_and_the_future() {
    let service = tower::service_fn(|(): ()| {
        let in_call = tokio::spawn(async { LockManager::current() });
        let at_call = LockManager::current().is_ok();
        async move {
            let in_future = LockManager::current();
            let spawned = in_call.await.expect("no panic");
            Ok::<_, LockError>((at_call, in_future.is_ok(), spawned.is_ok()))
        }
    });
    let service = tower::ServiceBuilder::new()
        .layer(ScopeLayer::new(LockManager::in_memory()))
        .service(service);
    let found = service.oneshot(()).await.expect("it cannot fail");
    // A spawned task is outside of the scope, as the documentation says.
    assert_eq!(found, (true, true, false));
}
