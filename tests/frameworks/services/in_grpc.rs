//! Two instances of the shop with tonic.

use std::net::SocketAddr;
use std::time::Duration;

use frameworks::orders::orders_client::OrdersClient;
use frameworks::orders::{PayRequest, ShipRequest, SweepRequest};
use lock_core::LockManager;
use test_support::RedisServer;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tonic::transport::Channel;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::grpc_shop::serve;
use crate::store::Store;
use crate::{assert_no_manager_is_global, instance, other_holder};

struct Instance {
    client: OrdersClient<Channel>,
    stop: oneshot::Sender<()>,
    served: JoinHandle<Result<(), Box<dyn std::error::Error + Send + Sync>>>,
}

async fn start(locks: LockManager, store: &Store) -> Instance {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let incoming = TcpIncoming::bind(any).expect("a free port");
    let address = incoming.local_addr().expect("it is bound");
    let (stop, stopped) = oneshot::channel();
    let stopped = async { stopped.await.expect("the test stops it") };
    let served = tokio::spawn(serve(incoming, locks, store.clone(), stopped));
    let client = OrdersClient::connect(format!("http://{address}")).await;
    Instance {
        client: client.expect("it listens"),
        stop,
        served,
    }
}

impl Instance {
    async fn stop(self) {
        self.stop.send(()).expect("it runs");
        let served = self.served.await.expect("no panic");
        served.expect("it ends without an error");
    }
}

fn pay(order: &str) -> PayRequest {
    let order = order.to_owned();
    PayRequest { order }
}

fn ship(order: &str) -> ShipRequest {
    let order = order.to_owned();
    ShipRequest { order }
}

/// Checks the whole status that a client got.
fn assert_status(status: &Status, code: Code, message: &str, reason: &str, retry: Option<u64>) {
    assert_eq!((status.code(), status.message()), (code, message));
    let details = status.get_error_details();
    let info = details.error_info().expect("there is an ErrorInfo");
    assert_eq!(
        (info.reason.as_str(), info.domain.as_str()),
        (reason, "lock-core")
    );
    assert!(info.metadata.is_empty(), "{info:?}");
    let delay = details.retry_info().and_then(|info| info.retry_delay);
    assert_eq!(delay, retry.map(Duration::from_secs));
}

#[tokio::test]
async fn grpc_shop_replies_in_two_instances() {
    let server = RedisServer::start();
    let store = Store::default();
    let mut first = start(instance(&server).await, &store).await;
    let mut second = start(instance(&server).await, &store).await;
    let other = other_holder(&server).await;

    let unpaid = first
        .client
        .ship(ship("7"))
        .await
        .expect_err("it is not paid");
    assert_eq!(unpaid.message(), "the order is not paid");
    let paid = first.client.pay(pay("7")).await.expect("it is free");
    assert_eq!(paid.into_inner().payment, 1);
    let parcel = second.client.ship(ship("7")).await.expect("it is paid");
    assert_eq!(parcel.into_inner().parcel, 1);
    let swept = second
        .client
        .sweep(SweepRequest {})
        .await
        .expect("it is free");
    assert_eq!(swept.metadata().get("lock-outcome"), None);
    assert_eq!(swept.into_inner().removed, Some(1));

    let order = other.lock("order:7").acquire().await.expect("it is free");
    let sweep = other.lock("sweep").acquire().await.expect("it is free");
    for instance in [&mut first, &mut second] {
        let client = &mut instance.client;
        let busy = client.pay(pay("7")).await.expect_err("it is held");
        let title = "the resource was not free in time";
        assert_status(&busy, Code::Aborted, title, "LOCK_TIMEOUT", Some(1));
        let busy = client.ship(ship("7")).await.expect_err("it is held");
        let title = "the resource is in use";
        assert_status(&busy, Code::Aborted, title, "LOCK_CONTENDED", Some(1));
        let skipped = client.sweep(SweepRequest {}).await.expect("it is skipped");
        let outcome = skipped.metadata().get("lock-outcome").expect("it is set");
        assert_eq!(outcome, "skipped");
        assert_eq!(skipped.into_inner().removed, None);
    }
    order.release().await.expect("it is held");
    sweep.release().await.expect("it is held");

    let mut payments = JoinSet::new();
    for round in 0..20 {
        let instance = [&first, &second][round % 2];
        let mut client = instance.client.clone();
        payments.spawn(async move { client.pay(pay("77")).await });
    }
    let payments = payments.join_all().await;
    let paid = payments.iter().filter(|payment| payment.is_ok()).count();
    assert!(paid > 0);
    assert_eq!(store.read("payments:77").await, paid as u64);

    let nameless = second.client.pay(pay("")).await.expect_err("it is empty");
    let title = "a value in the request cannot name a resource";
    assert_status(
        &nameless,
        Code::InvalidArgument,
        title,
        "LOCK_INVALID_NAME",
        None,
    );

    assert_no_manager_is_global().await;
    first.stop().await;
    server.kill9();
    let title = "the lock service is not available";
    let down = [
        second.client.pay(pay("7")).await.map(drop),
        second.client.ship(ship("7")).await.map(drop),
        second.client.sweep(SweepRequest {}).await.map(drop),
    ];
    for down in down {
        let status = down.expect_err("the server is down");
        assert_status(
            &status,
            Code::Unavailable,
            title,
            "LOCK_UNAVAILABLE",
            Some(2),
        );
    }
    // A release without a reply may still be open, so this shutdown could not succeed.
    second.served.abort();
}
