//! axum drops a handler whose connection is closed, even when only one direction is closed.

use std::net::SocketAddr;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::post;
use frameworks::client::start;
use frameworks::h2_client::H2Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use lock_core::{LockError, distributed_lock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::{Work, reset, with_each_backend};

#[distributed_lock(name = "job:{id}", wait = "0s", manager = work.locks)]
async fn handler(State(work): State<Work>, Path(id): Path<String>) -> Result<String, LockError> {
    Ok(work.run().await)
}

fn app(work: &Work) -> Router {
    let router = Router::new().route("/{id}", post(handler));
    router.with_state(work.clone())
}

async fn serve(work: &Work) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let app = app(work);
    tokio::spawn(async { axum::serve(listener, app).await });
    address
}

#[tokio::test]
async fn closing_the_connection_frees_the_lock_in_axum() {
    with_each_backend(async |work| {
        let connection = start(serve(&work).await, "POST", "/1", "").await;
        work.begun().await;
        assert!(!work.is_free("1").await);
        drop(connection);
        work.assert_dropped("1").await;
    })
    .await;
}

#[tokio::test]
async fn resetting_the_connection_frees_the_lock_in_axum() {
    with_each_backend(async |work| {
        let connection = start(serve(&work).await, "POST", "/1", "").await;
        work.begun().await;
        reset(connection);
        work.assert_dropped("1").await;
    })
    .await;
}

#[tokio::test]
async fn half_closed_connection_frees_the_lock_in_axum() {
    with_each_backend(async |work| {
        let mut connection = start(serve(&work).await, "POST", "/1", "").await;
        work.begun().await;
        connection.shutdown().await.expect("it is connected");
        work.assert_dropped("1").await;
        let mut bytes = Vec::new();
        let read = connection.read_to_end(&mut bytes).await;
        read.expect("the server closes it");
        assert!(bytes.is_empty(), "{bytes:?}");
    })
    .await;
}

/// Serves the app with hyper-util, for clients that half-close.
async fn serve_half_closed(listener: TcpListener, app: Router) {
    while let Ok((connection, _)) = listener.accept().await {
        let service = TowerToHyperService::new(app.clone());
        tokio::spawn(async move {
            let mut builder = Builder::new(TokioExecutor::new());
            builder.http1().half_close(true);
            let connection = TokioIo::new(connection);
            builder.serve_connection(connection, service).await
        });
    }
}

#[tokio::test]
async fn half_close_of_hyper_keeps_the_handler() {
    with_each_backend(async |work| {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        tokio::spawn(serve_half_closed(listener, app(&work)));
        let mut connection = start(address, "POST", "/1", "").await;
        work.begun().await;
        connection.shutdown().await.expect("it is connected");
        work.assert_runs_on("1").await;
        let mut reply = String::new();
        let read = connection.read_to_string(&mut reply).await;
        read.expect("the server replies");
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    })
    .await;
}

#[tokio::test]
async fn reset_stream_of_http2_drops_one_handler_only() {
    with_each_backend(async |work| {
        let mut client = H2Client::connect(serve(&work).await).await;
        let first = client.start("/1", "".into(), &[]).await;
        let second = client.start("/2", "".into(), &[]).await;
        work.begun().await;
        work.begun().await;
        first.reset();
        work.assert_dropped("1").await;
        work.assert_runs_on("2").await;
        let reply = second.reply().await.expect("the connection is alive");
        assert_eq!(reply.status, 200);
    })
    .await;
}
