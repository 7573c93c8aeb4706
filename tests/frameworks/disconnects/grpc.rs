//! tonic drops a call that is cancelled, that loses its connection, or that exceeds its deadline.

use std::net::SocketAddr;

use frameworks::h2_client::H2Client;
use frameworks::orders::orders_server::{Orders, OrdersServer};
use frameworks::orders::{PayReply, PayRequest, ShipReply, ShipRequest, SweepReply, SweepRequest};
use lock_core::{distributed_lock, lock_name};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Request, Response, Status};

use crate::{Work, with_each_backend};

struct Shop(Work);

#[tonic::async_trait]
impl Orders for Shop {
    #[distributed_lock(
        name = lock_name!("job:{}", request.get_ref().order),
        wait = "0s",
        manager = self.0.locks,
    )]
    async fn pay(&self, request: Request<PayRequest>) -> Result<Response<PayReply>, Status> {
        self.0.run().await;
        let payment = request.into_inner().order.parse();
        Ok(Response::new(PayReply {
            payment: payment.expect("it is a number"),
        }))
    }

    async fn ship(&self, _: Request<ShipRequest>) -> Result<Response<ShipReply>, Status> {
        Err(Status::unimplemented("not in these tests"))
    }

    async fn sweep(&self, _: Request<SweepRequest>) -> Result<Response<SweepReply>, Status> {
        Err(Status::unimplemented("not in these tests"))
    }
}

async fn client(work: &Work) -> H2Client {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let incoming = TcpIncoming::bind(any).expect("a free port");
    let address = incoming.local_addr().expect("it is bound");
    let server = Server::builder().add_service(OrdersServer::new(Shop(work.clone())));
    tokio::spawn(server.serve_with_incoming(incoming));
    H2Client::connect(address).await
}

fn pay(order: &str) -> PayRequest {
    let order = order.to_owned();
    PayRequest { order }
}

const PAY: &str = "/shop.Orders/Pay";

#[tokio::test]
async fn cancelled_call_frees_the_lock_in_tonic() {
    with_each_backend(async |work| {
        let mut client = client(&work).await;
        let cancelled = client.start_call(PAY, &pay("1"), &[]).await;
        let other = client.start_call(PAY, &pay("2"), &[]).await;
        work.begun().await;
        work.begun().await;
        cancelled.reset();
        work.assert_dropped("1").await;
        work.assert_runs_on("2").await;
        let reply = other.reply().await.expect("the connection is alive");
        let status = Status::from_header_map(&reply.trailers);
        assert_eq!(status.expect("it has a status").code(), Code::Ok);
    })
    .await;
}

#[tokio::test]
async fn closing_the_connection_frees_the_lock_in_tonic() {
    with_each_backend(async |work| {
        let mut client = client(&work).await;
        let _stream = client.start_call(PAY, &pay("1"), &[]).await;
        work.begun().await;
        assert!(!work.is_free("1").await);
        client.cut().await;
        work.assert_dropped("1").await;
    })
    .await;
}

/// The client of this test sends the deadline, and does not cancel the call itself.
#[tokio::test]
async fn grpc_deadline_frees_the_lock() {
    with_each_backend(async |work| {
        let mut client = client(&work).await;
        let deadline = [("grpc-timeout", "300m")];
        let call = client.start_call(PAY, &pay("1"), &deadline).await;
        work.begun().await;
        let reply = call.reply().await.expect("the server replies");
        let status = Status::from_header_map(&reply.trailers);
        let code = status.expect("it has a status").code();
        assert!(
            matches!(code, Code::Cancelled | Code::DeadlineExceeded),
            "{code:?}"
        );
        work.assert_dropped("1").await;
    })
    .await;
}
