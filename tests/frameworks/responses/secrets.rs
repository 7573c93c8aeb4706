//! What must not leave the process.

use std::net::SocketAddr;
use std::sync::Arc;

use actix_web::{App, HttpServer};
use axum::Router;
use axum::extract::{Path, State};
use axum::routing::get;
use frameworks::client::send;
use frameworks::h2_client::H2Client;
use frameworks::orders::orders_server::{Orders, OrdersServer};
use frameworks::orders::{PayReply, PayRequest, ShipReply, ShipRequest, SweepReply, SweepRequest};
use lock_core::LockError;
use test_support::RedisServer;
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use crate::errors::{Row, SECRET, every_row};

type Rows = Arc<Vec<Row>>;

async fn in_axum(State(rows): State<Rows>, Path(row): Path<usize>) -> Result<(), LockError> {
    Err(rows[row].error.clone())
}

async fn serve_axum(rows: &Rows) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let app = Router::new()
        .route("/{row}", get(in_axum))
        .with_state(Arc::clone(rows));
    tokio::spawn(async { axum::serve(listener, app).await });
    address
}

async fn in_actix(
    rows: actix_web::web::Data<Vec<Row>>,
    row: actix_web::web::Path<usize>,
) -> Result<&'static str, LockError> {
    Err(rows[row.into_inner()].error.clone())
}

fn serve_actix(rows: &Rows) -> SocketAddr {
    let data = actix_web::web::Data::from(Arc::clone(rows));
    let app = move || {
        App::new()
            .app_data(data.clone())
            .route("/{row}", actix_web::web::get().to(in_actix))
    };
    let server = HttpServer::new(app).workers(1).disable_signals();
    let server = server.bind("127.0.0.1:0").expect("a free port");
    let address = server.addrs()[0];
    tokio::spawn(server.run());
    address
}

struct InTonic(Rows);

impl InTonic {
    fn status(&self, row: &str) -> Status {
        let row: usize = row.parse().expect("it is a number");
        self.0[row].error.clone().into()
    }
}

#[tonic::async_trait]
impl Orders for InTonic {
    async fn pay(&self, request: Request<PayRequest>) -> Result<Response<PayReply>, Status> {
        Err(self.status(&request.get_ref().order))
    }

    async fn ship(&self, request: Request<ShipRequest>) -> Result<Response<ShipReply>, Status> {
        Err(self.status(&request.get_ref().order))
    }

    async fn sweep(&self, _: Request<SweepRequest>) -> Result<Response<SweepReply>, Status> {
        Err(self.status("0"))
    }
}

fn serve_tonic(rows: &Rows) -> SocketAddr {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let incoming = TcpIncoming::bind(any).expect("a free port");
    let address = incoming.local_addr().expect("it is bound");
    let orders = OrdersServer::new(InTonic(Arc::clone(rows)));
    let server = Server::builder().add_service(orders);
    tokio::spawn(server.serve_with_incoming(incoming));
    address
}

/// The words that no client may see: the holder's host and process id, keys, labels, and the address
/// of the lock server.
fn secrets(rows: &[Row]) -> Vec<String> {
    let label = rows[2]
        .error
        .holder()
        .expect("it is known")
        .label
        .to_string();
    let pid = std::process::id().to_string();
    assert!(
        label.contains(&pid),
        "the default label has the process id: {label}"
    );
    let host = label.replace(&pid, "");
    let host = host.trim_matches(|c: char| !c.is_alphanumeric()).to_owned();
    assert!(!host.is_empty(), "the default label has the host: {label}");
    let fixed = [SECRET, "lock:", "127.0.0.1", "localhost", "redis"];
    let mut secrets = vec![label];
    // A short number could be a length or a status, and a short or common word a part of a header.
    let is_public = |word: &str| rows.iter().any(|row| row.title.contains(word));
    let is_rare = |word: &String| word.len() > 3 && !is_public(word);
    secrets.extend([pid, host].into_iter().filter(is_rare));
    secrets.extend(fixed.map(ToOwned::to_owned));
    secrets
}

fn assert_none_in(bytes: &[u8], secrets: &[String], what: &str) {
    let text = String::from_utf8_lossy(bytes).to_lowercase();
    // The date may have any number.
    let lines = text.lines().filter(|line| !line.starts_with("date:"));
    let text: String = lines.collect::<Vec<_>>().join("\n");
    assert!(!text.is_empty(), "{what}");
    for secret in secrets {
        let secret = secret.to_lowercase();
        assert!(!text.contains(&secret), "{what} has `{secret}`: {text}");
    }
}

#[tokio::test]
async fn no_body_names_host_pid_key_or_label() {
    let server = RedisServer::start();
    let rows: Rows = Arc::new(every_row(&server).await);
    let mut secrets = secrets(&rows);
    secrets.push(server.address().port().to_string());
    // The texts of the errors have them.
    let texts: Vec<_> = rows.iter().map(|row| row.error.to_string()).collect();
    let texts = texts.join("\n");
    for secret in [SECRET, "lock:", "127.0.0.1", &secrets[0]] {
        assert!(texts.contains(secret), "{texts}");
    }

    let [axum, actix] = [serve_axum(&rows).await, serve_actix(&rows)];
    let mut tonic = H2Client::connect(serve_tonic(&rows)).await;
    for (at, row) in rows.iter().enumerate() {
        for server in [axum, actix] {
            let reply = send(server, "GET", &format!("/{at}"), "").await;
            assert_eq!(reply.status, row.status);
            assert_none_in(&reply.bytes, &secrets, &reply.body);
        }
        let order = at.to_string();
        let reply = tonic
            .call("/shop.Orders/Pay", &PayRequest { order }, &[])
            .await;
        let reply = reply.expect("the server replies");
        let status = Status::from_header_map(&reply.trailers).expect("it has a status");
        assert_eq!(status.message(), row.title.to_lowercase());
        assert_none_in(&reply.bytes, &secrets, row.title);
        // They are encoded in the headers.
        assert_none_in(status.details(), &secrets, row.title);
    }
}
