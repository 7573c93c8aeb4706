//! actix handlers.

use actix_web::http::StatusCode;
use actix_web::{App, HttpResponse, Responder, ResponseError, get, post, test, web};
use lock_core::{LockError, LockManager, distributed_lock};

#[derive(Debug)]
struct Failure(LockError);

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        Self(error)
    }
}

impl ResponseError for Failure {
    fn status_code(&self) -> StatusCode {
        StatusCode::CONFLICT
    }
}

#[get("/below")]
#[distributed_lock(name = "order", wait = "0s", manager = locks.get_ref())]
async fn below(locks: web::Data<LockManager>) -> Result<HttpResponse, Failure> {
    Ok(HttpResponse::Ok().finish())
}

#[distributed_lock(name = "order", wait = "0s", manager = locks.get_ref())]
#[get("/above")]
async fn above(locks: web::Data<LockManager>) -> Result<HttpResponse, Failure> {
    Ok(HttpResponse::Ok().finish())
}

#[post("/hidden/{id}")]
#[distributed_lock(
    name = "order",
    wait = "0s",
    on_error = |_| HttpResponse::Conflict().finish(),
    manager = locks.get_ref(),
)]
async fn hidden(locks: web::Data<LockManager>, id: web::Path<u8>) -> impl Responder {
    assert_eq!(id.into_inner(), 3);
    HttpResponse::Ok().finish()
}

#[distributed_lock(name = "item:{id}", manager = locks.get_ref())]
async fn unrouted(
    locks: web::Data<LockManager>,
    id: web::Path<u8>,
) -> actix_web::Result<String, Failure> {
    Ok(id.to_string())
}

// The lock above the test attribute of actix, as in the test above with tokio's.
#[distributed_lock(name = "test", manager = LockManager::in_memory(), on_error = |e| panic!("{e}"))]
#[actix_web::test]
async fn handler_works_with_the_attributes_in_either_order() {
    let locks = LockManager::in_memory();
    let app = App::new()
        .app_data(web::Data::new(locks.clone()))
        .service(below)
        .service(above)
        .service(hidden)
        .route("/items/{id}", web::get().to(unrouted));
    let app = test::init_service(app).await;
    let all = async || {
        let mut all = Vec::new();
        for request in [
            test::TestRequest::get().uri("/below"),
            test::TestRequest::get().uri("/above"),
            test::TestRequest::post().uri("/hidden/3"),
        ] {
            let response = test::call_service(&app, request.to_request()).await;
            all.push(response.status());
        }
        all
    };
    assert_eq!(all().await, [StatusCode::OK; 3]);
    let request = test::TestRequest::get().uri("/items/7").to_request();
    let body = test::call_and_read_body(&app, request).await;
    assert_eq!(body, "7");
    let _guard = locks.lock("order").acquire().await.expect("free");
    assert_eq!(all().await, [StatusCode::CONFLICT; 3]);
}
