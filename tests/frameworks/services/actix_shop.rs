//! A shop with actix-web. No handler has an `on_error`, and no manager is global.

use std::error::Error;
use std::net::TcpListener;

use actix_web::body::BoxBody;
use actix_web::dev::{Server, ServiceRequest};
use actix_web::middleware::{Next, from_fn};
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, Responder, ResponseError, web};
use actix_web::{delete, get, post};
use lock_core::web::FromSkipped;
use lock_core::web::Problem;
use lock_core::{LockError, LockManager, distributed_lock};
use serde::Serialize;

use crate::store::Store;

/// Starts the server. Each worker thread builds its own app.
pub(crate) fn server(
    listener: TcpListener,
    locks: LockManager,
    store: Store,
) -> std::io::Result<Server> {
    let app = move || {
        let locks = locks.clone();
        // The attribute uses this manager in each request.
        let scope = from_fn(move |request: ServiceRequest, next: Next<BoxBody>| {
            let locks = locks.clone();
            async move { locks.scope(next.call(request)).await }
        });
        App::new()
            .app_data(web::Data::new(store.clone()))
            .configure(routes)
            .wrap(scope)
    };
    // `shutdown_timeout` bounds the time for running requests after the signal to stop.
    let server = HttpServer::new(app).workers(1).shutdown_timeout(20);
    Ok(server.disable_signals().listen(listener)?.run())
}

/// Serves until the server is stopped, and then releases the locks.
pub(crate) async fn serve(
    server: Server,
    locks: LockManager,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    server.await?;
    locks.shutdown().await?;
    Ok(())
}

fn routes(config: &mut web::ServiceConfig) {
    let all = (
        pay, cancel, invoice, redeem, sweep, reindex, archive, webhook,
    );
    config.service(all);
}

#[derive(Serialize)]
struct Receipt {
    payment: u64,
}

/// Waits for a request that works on the same order. Then the reply is definite.
#[post("/orders/{order}/payment")]
#[distributed_lock(name = "order:{order}", ttl = "10s", wait = "100ms", max_hold = "1m")]
async fn pay(
    store: web::Data<Store>,
    order: web::Path<String>,
) -> Result<web::Json<Receipt>, LockError> {
    let payment = store.add_one(&format!("payments:{order}")).await;
    Ok(web::Json(Receipt { payment }))
}

/// Does not wait: a client that cancels during the payment gets 409 at once.
#[delete("/orders/{order}")]
#[distributed_lock(name = "order:{order}", ttl = "10s", wait = "0s")]
async fn cancel(
    store: web::Data<Store>,
    order: web::Path<String>,
) -> actix_web::Result<impl Responder> {
    store.write(&format!("payments:{order}"), 0).await;
    Ok(HttpResponse::NoContent())
}

/// A handler that builds its response itself needs no `Result`.
#[get("/orders/{order}/invoice")]
#[distributed_lock(name = "invoice:{order}", ttl = "10s", wait = "0s")]
async fn invoice(store: web::Data<Store>, order: web::Path<String>) -> HttpResponse {
    let number = store.add_one("invoices").await;
    HttpResponse::Ok().body(format!("invoice {number} of {order}\n"))
}

/// The service's own error type. It changes the title of one problem.
#[derive(Debug)]
enum ShopError {
    Lock(LockError),
    AlreadyRedeemed,
}

impl From<LockError> for ShopError {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

impl std::fmt::Display for ShopError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lock(error) => error.fmt(f),
            Self::AlreadyRedeemed => f.write_str("the coupon is already redeemed"),
        }
    }
}

impl ResponseError for ShopError {
    fn error_response(&self) -> HttpResponse {
        match self {
            Self::Lock(e) if e.is_contended() => Problem::from(e)
                .title("The coupon is being redeemed")
                .into(),
            Self::Lock(e) => e.error_response(),
            Self::AlreadyRedeemed => HttpResponse::Gone().finish(),
        }
    }
}

#[post("/coupons/{code}")]
#[distributed_lock(name = "coupon:{code}", ttl = "10s", wait = "0s")]
async fn redeem(
    store: web::Data<Store>,
    code: web::Path<String>,
) -> Result<&'static str, ShopError> {
    match store.add_one(&format!("coupon:{code}")).await {
        1 => Ok("redeemed\n"),
        _ => Err(ShopError::AlreadyRedeemed),
    }
}

/// A scheduler calls all instances. One of them works, the others reply 202.
#[post("/jobs/sweep")]
#[distributed_lock(name = "sweep", ttl = "10s", on_contended = skip)]
async fn sweep(store: web::Data<Store>) -> HttpResponse {
    store.add_one("sweeps").await;
    HttpResponse::Ok().finish()
}

#[post("/jobs/reindex")]
#[distributed_lock(name = "reindex", ttl = "10s", on_contended = skip)]
async fn reindex(store: web::Data<Store>) -> Result<HttpResponse, ShopError> {
    store.add_one("indexes").await;
    Ok(HttpResponse::Ok().finish())
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

impl Responder for Archive {
    type Body = BoxBody;

    fn respond_to(self, _: &HttpRequest) -> HttpResponse {
        match self {
            Self::Archived(orders) => HttpResponse::Ok().json(orders),
            Self::AnotherInstanceArchives => HttpResponse::Accepted().body("busy\n"),
        }
    }
}

#[post("/jobs/archive")]
#[distributed_lock(name = "archive", ttl = "10s", on_contended = skip)]
async fn archive(store: web::Data<Store>) -> Result<Archive, LockError> {
    Ok(Archive::Archived(store.add_one("archives").await))
}

/// Does not skip. After a 2xx the sender never sends the event again, and the request that has the
/// lock may still fail. After 409 it sends the event again.
#[post("/webhooks/{event}")]
#[distributed_lock(name = "webhook:{event}", ttl = "10s", wait = "0s")]
async fn webhook(
    store: web::Data<Store>,
    event: web::Path<String>,
) -> Result<HttpResponse, LockError> {
    let name = format!("event:{event}");
    if store.read(&name).await == 0 {
        store.add_one("events").await;
        store.write(&name, 1).await;
    }
    Ok(HttpResponse::NoContent().finish())
}
