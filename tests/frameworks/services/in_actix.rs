//! Two instances of the shop with actix-web.

use std::net::{SocketAddr, TcpListener};

use actix_web::dev::ServerHandle;
use lock_core::LockManager;
use test_support::RedisServer;
use tokio::task::JoinHandle;

use crate::actix_shop::{serve, server};
use crate::routes::{Busy, Route, check_without_a_server, pay_at_the_same_time};
use crate::store::Store;
use crate::{assert_no_manager_is_global, instance, other_holder};

/// One route for each handler.
static ROUTES: [Route; 8] = [
    Route::new("POST", "/orders/7/payment", "order:7", 200, Busy::Timeout),
    Route::new("DELETE", "/orders/7", "order:7", 204, Busy::Contended),
    Route::new(
        "GET",
        "/orders/7/invoice",
        "invoice:7",
        200,
        Busy::Contended,
    ),
    Route::new(
        "POST",
        "/coupons/spring",
        "coupon:spring",
        200,
        Busy::Title("The coupon is being redeemed"),
    ),
    Route::new(
        "POST",
        "/jobs/sweep",
        "sweep",
        200,
        Busy::Skipped(Some("skipped"), ""),
    ),
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
    handle: ServerHandle,
    served: JoinHandle<Result<(), Box<dyn std::error::Error + Send + Sync>>>,
}

fn start(locks: LockManager, store: &Store) -> Instance {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let server = server(listener, locks.clone(), store.clone()).expect("it listens");
    Instance {
        address,
        handle: server.handle(),
        served: tokio::spawn(serve(server, locks)),
    }
}

impl Instance {
    async fn stop(self) {
        self.handle.stop(true).await;
        let served = self.served.await.expect("no panic");
        served.expect("it ends without an error");
    }
}

#[tokio::test]
async fn actix_shop_replies_in_two_instances() {
    let server = RedisServer::start();
    let store = Store::default();
    let first = start(instance(&server).await, &store);
    let second = start(instance(&server).await, &store);
    let instances = [first.address, second.address];
    let other = other_holder(&server).await;
    for route in &ROUTES {
        route.check(&instances, &other).await;
    }

    let paid = pay_at_the_same_time(&instances).await;
    assert!(paid > 0);
    assert_eq!(store.read("payments:77").await, paid);

    assert_no_manager_is_global().await;
    first.stop().await;
    server.kill9();
    check_without_a_server(&ROUTES, second.address).await;
    // A release without a reply may still be open, so that `serve` could not succeed.
    second.handle.stop(true).await;
}
