//! A service replaces the mapping.

use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::middleware::{Next, from_fn};
use actix_web::{HttpResponse, body::BoxBody};
use axum::body::{Body, to_bytes};
use axum::http::{HeaderValue, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Router, middleware};
use lock_core::web::{Problem, ProblemLayer};
use lock_core::{LockError, LockManager};
use tower::ServiceExt;

const BASE: &str = "https://api.example.com/problems/";

async fn contended() -> LockError {
    let locks = LockManager::builder().label("vault-7").in_memory().unwrap();
    let _held = locks.lock("job").acquire().await.expect("it is free");
    let busy = locks.lock("job").wait(std::time::Duration::ZERO);
    busy.acquire().await.expect_err("it is held")
}

async fn body(response: Response) -> String {
    let bytes = to_bytes(response.into_body(), 1_000).await;
    String::from_utf8(bytes.expect("it is short").into()).expect("it is text")
}

async fn busy() -> Result<(), LockError> {
    Err(contended().await)
}

/// A handler that changes its own problem.
async fn titled() -> Problem {
    Problem::from(&contended().await)
        .title("Order is being paid")
        .retry_after(None)
}

/// A response with the error for logs, and a body of its own.
async fn teapot() -> Response {
    let mut response = (StatusCode::IM_A_TEAPOT, "short").into_response();
    response.extensions_mut().insert(contended().await);
    response
}

async fn plain() -> (StatusCode, &'static str) {
    (StatusCode::CONFLICT, "not ours")
}

async fn add_header(mut response: Response) -> Response {
    let value = HeaderValue::from_static("kept");
    response.headers_mut().insert("x-request-id", value);
    response
}

fn app() -> Router {
    let layer = ProblemLayer::new(|error: &LockError, problem: Problem| {
        problem.type_base(BASE).holder(error)
    });
    Router::new()
        .route("/busy", get(busy))
        .route("/titled", get(titled))
        .route("/teapot", get(teapot))
        .route("/plain", get(plain))
        .layer(middleware::map_response(add_header))
        .layer(layer)
}

async fn reply(path: &str) -> Response {
    let request = Request::get(path).body(Body::empty()).expect("it is valid");
    app().oneshot(request).await.expect("it cannot fail")
}

#[tokio::test]
async fn problem_layer_changes_each_response_with_a_lock_error() {
    let busy = reply("/busy").await;
    assert_eq!(busy.headers()["x-request-id"], "kept");
    assert_eq!(busy.headers()["retry-after"], "1");
    assert!(busy.extensions().get::<LockError>().is_some());
    let text = format!(
        r#"{{"type":"{BASE}contended","title":"The resource is in use","status":409,"retry_after":1,"holder":"vault-7"}}"#
    );
    assert_eq!(body(busy).await, text);

    let titled = reply("/titled").await;
    assert_eq!(titled.headers().get("retry-after"), None);
    let text = format!(
        r#"{{"type":"{BASE}contended","title":"Order is being paid","status":409,"holder":"vault-7"}}"#
    );
    assert_eq!(body(titled).await, text);

    let teapot = reply("/teapot").await;
    assert_eq!(teapot.status(), StatusCode::CONFLICT);
    let types: Vec<_> = teapot.headers().get_all("content-type").iter().collect();
    assert_eq!(types, ["application/problem+json"]);
    let length = teapot.headers().get("content-length").cloned();
    let text = body(teapot).await;
    assert!(text.contains("contended"), "{text}");
    if let Some(length) = length {
        assert_eq!(length, text.len().to_string());
    }

    let plain = reply("/plain").await;
    assert_eq!(plain.status(), StatusCode::CONFLICT);
    assert_eq!(body(plain).await, "not ours");
}

/// Changes each response that carries a lock error, as `ProblemLayer` does in axum.
async fn change_problems(
    request: ServiceRequest,
    next: Next<BoxBody>,
) -> Result<ServiceResponse, actix_web::Error> {
    let response = next.call(request).await?;
    let error = response.response().error();
    let Some(error) = error.and_then(|error| error.as_error::<LockError>()) else {
        return Ok(response);
    };
    let problem = Problem::from(error).type_base("https://api.example.com/problems/");
    Ok(response.into_response(HttpResponse::from(problem)))
}

async fn busy_in_actix() -> Result<HttpResponse, LockError> {
    Err(contended().await)
}

async fn titled_in_actix() -> Problem {
    Problem::from(&contended().await).title("Order is being paid")
}

#[actix_web::test]
async fn from_fn_changes_each_response_with_a_lock_error() {
    let app = actix_web::App::new()
        .route("/busy", actix_web::web::get().to(busy_in_actix))
        .route("/titled", actix_web::web::get().to(titled_in_actix))
        .wrap(from_fn(change_problems));
    let app = actix_web::test::init_service(app).await;
    let request = |path| actix_web::test::TestRequest::get().uri(path).to_request();
    let response = actix_web::test::call_service(&app, request("/busy")).await;
    assert_eq!(response.status().as_u16(), 409);
    let body = actix_web::test::read_body(response).await;
    let text = format!(
        r#"{{"type":"{BASE}contended","title":"The resource is in use","status":409,"retry_after":1}}"#
    );
    assert_eq!(body, text);
    let response = actix_web::test::call_service(&app, request("/titled")).await;
    let error = response.response().extensions().get::<LockError>().cloned();
    assert!(error.expect("it is there for logs").is_contended());
    let body = actix_web::test::read_body(response).await;
    assert!(
        body.starts_with(b"{\"type\":\"https://docs.rs/"),
        "{body:?}"
    );
}
