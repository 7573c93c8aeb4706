//! Two instances of the shop with axum.

use std::net::SocketAddr;

use frameworks::client::{problem, send};
use lock_core::LockManager;
use test_support::RedisServer;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::axum_shop::serve;
use crate::routes::{
    Busy, Route, assert_problem_headers, check_without_a_server, pay_at_the_same_time,
};
use crate::store::Store;
use crate::{assert_no_manager_is_global, instance, other_holder};

/// One route for each handler.
static ROUTES: [Route; 14] = [
    Route::new("POST", "/orders/7/payment", "order:7", 200, Busy::Timeout),
    Route::new("DELETE", "/orders/7", "order:7", 204, Busy::Contended),
    Route::new("POST", "/orders/7/parcel", "order:7", 201, Busy::Contended),
    Route::new(
        "GET",
        "/orders/7/invoice",
        "invoice:7",
        200,
        Busy::Contended,
    ),
    Route::new("POST", "/notes", "note:red", 200, Busy::Contended).with_json(r#"{"topic":"red"}"#),
    Route::new("PUT", "/carts/3", "cart:3", 200, Busy::Contended),
    Route::new("DELETE", "/carts/3", "cart:3", 200, Busy::Contended),
    Route::new(
        "POST",
        "/coupons/spring",
        "coupon:spring",
        200,
        Busy::Title("The coupon is being redeemed"),
    ),
    Route::new(
        "GET",
        "/reports/monday",
        "report:monday",
        200,
        Busy::Contended,
    ),
    Route::new("POST", "/catalog/import", "import", 200, Busy::Contended),
    Route::new("POST", "/jobs/sweep", "sweep", 200, Busy::Skipped(None, "")),
    Route::new(
        "POST",
        "/jobs/reindex",
        "reindex",
        200,
        Busy::Skipped(Some("skipped"), ""),
    ),
    Route::new(
        "POST",
        "/jobs/archive",
        "archive",
        200,
        Busy::Skipped(None, "busy\n"),
    ),
    Route::new("POST", "/webhooks/e1", "webhook:e1", 204, Busy::Contended),
];

struct Instance {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    served: JoinHandle<Result<(), Box<dyn std::error::Error + Send + Sync>>>,
}

async fn start(locks: LockManager, store: &Store) -> Instance {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let (stop, stopped) = oneshot::channel();
    let stopped = async { stopped.await.expect("the test stops it") };
    let served = serve(listener, locks, store.clone(), stopped);
    Instance {
        address,
        stop,
        served: tokio::spawn(served),
    }
}

impl Instance {
    async fn stop(self) {
        self.stop.send(()).expect("it runs");
        let served = self.served.await.expect("no panic");
        served.expect("it ends without an error");
    }
}

#[tokio::test]
async fn axum_shop_replies_in_two_instances() {
    let server = RedisServer::start();
    let store = Store::default();
    let first = start(instance(&server).await, &store).await;
    let second = start(instance(&server).await, &store).await;
    let instances = [first.address, second.address];
    let other = other_holder(&server).await;
    for route in &ROUTES {
        route.check(&instances, &other).await;
    }

    let paid = pay_at_the_same_time(&instances).await;
    assert!(paid > 0);
    assert_eq!(store.read("payments:77").await, paid);

    let empty = send(second.address, "POST", "/notes", r#"{"topic":""}"#).await;
    let title = "A value in the request cannot name a resource";
    assert_eq!(empty.body, problem("invalid-name", title, 400, None));
    assert_problem_headers(&empty, None);

    assert_no_manager_is_global().await;
    first.stop().await;
    server.kill9();
    check_without_a_server(&ROUTES, second.address).await;
    // A release without a reply may still be open, so this shutdown could not succeed.
    second.served.abort();
}

#[tokio::test]
async fn running_request_gets_its_reply_before_the_shop_stops() {
    let server = RedisServer::start();
    let shop = start(instance(&server).await, &Store::default()).await;
    let other = other_holder(&server).await;
    let _held = other.lock("order:7").acquire().await.expect("it is free");
    let address = shop.address;
    let waiting = tokio::spawn(send(address, "POST", "/orders/7/payment", ""));
    test_support::eventually_async(test_support::fixtures::SOON, async || {
        server.cli(&["ZCARD", "{lock:order:7}:q"]).integer() == 1
    })
    .await;
    shop.stop().await;
    assert_eq!(waiting.await.expect("no panic").status, 409);
}
