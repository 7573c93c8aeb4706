//! axum drops a handler whose connection is closed, even when only one direction is closed.

use std::fs;
use std::future::pending;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::post;
use frameworks::client::start;
use frameworks::h2_client::H2Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use lock_core::{LockError, LockManager, distributed_lock};
use test_support::child::{say_line, wait_for_end_of_input};
use test_support::fixtures::SOON;
use test_support::{Helper, eventually, eventually_async, eventually_some};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::{Work, reset, with_each_backend};

/// The time for running requests after the signal to stop.
const DRAIN: Duration = Duration::from_secs(20);

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

/// Serves the app with hyper-util, for clients that half-close. It ends as `axum::serve` with a bound does.
async fn serve_half_closed(listener: TcpListener, app: Router, stop: impl Future<Output = ()>) {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().half_close(true);
    let connections = GracefulShutdown::new();
    let mut stop = pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stop => break,
        };
        let connection = match accepted {
            Ok((connection, _)) => TokioIo::new(connection),
            Err(error) => {
                // For example, too many files are open. A moment later it may work.
                tracing::warn!(%error, "cannot accept a connection");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let service = TowerToHyperService::new(app.clone());
        let serving = builder.serve_connection(connection, service).into_owned();
        tokio::spawn(connections.watch(serving));
    }
    drop(listener);
    if timeout(DRAIN, connections.shutdown()).await.is_err() {
        tracing::warn!("some requests did not end in time");
    }
}

#[tokio::test]
async fn half_close_of_hyper_keeps_the_handler() {
    with_each_backend(async |work| {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        tokio::spawn(serve_half_closed(listener, app(&work), pending()));
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
async fn half_close_of_hyper_drains_after_the_stop() {
    with_each_backend(async |work| {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async { stopped.await.expect("the test stops it") };
        let served = tokio::spawn(serve_half_closed(listener, app(&work), stopped));
        let mut connection = start(address, "POST", "/1", "").await;
        work.begun().await;
        stop.send(()).expect("it serves");
        eventually_async(SOON, async || TcpStream::connect(address).await.is_err()).await;
        work.assert_runs_on("1").await;
        let mut reply = String::new();
        let read = connection.read_to_string(&mut reply).await;
        read.expect("the server replies");
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
        served.await.expect("it does not panic");
    })
    .await;
}

/// The service of the next test. Only a process of its own can run out of files.
#[tokio::test]
#[ignore = "a child of the next test"]
async fn half_closing_service_until_the_end_of_its_input() {
    let work = Work::new(LockManager::in_memory());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    say_line(&format!("listening on {address}"));
    work.end_one();
    let input = tokio::task::spawn_blocking(wait_for_end_of_input);
    let stop = async { input.await.expect("it does not panic") };
    serve_half_closed(listener, app(&work), stop).await;
}

#[tokio::test]
async fn half_close_of_hyper_accepts_again_after_it_had_no_files() {
    const FILES: usize = 40;
    let this = std::env::current_exe().expect("this program has a path");
    let service = Helper::new("sh")
        .arg("-c")
        .arg(format!("ulimit -n {FILES}; exec \"$0\" \"$@\""))
        .arg(this)
        .arg("axums::half_closing_service_until_the_end_of_its_input")
        .arg("--exact")
        .arg("--ignored")
        .arg("--nocapture")
        .spawn();
    let address: SocketAddr = eventually_some(SOON, || {
        let lines = service.lines();
        let mut found = lines
            .iter()
            .filter_map(|line| line.split_once("listening on ")?.1.parse().ok());
        found.next()
    });
    let mut connections = Vec::new();
    for _ in 0..FILES {
        connections.push(TcpStream::connect(address).await.expect("a backlog"));
    }
    // It has a file for each of the first connections, and no file for the others.
    let files = format!("/proc/{}/fd", service.pid());
    let is_open = |file: usize| fs::symlink_metadata(format!("{files}/{file}")).is_ok();
    eventually(SOON, || (0..FILES).all(is_open));
    drop(connections);
    let mut connection = start(address, "POST", "/1", "").await;
    let mut reply = String::new();
    let read = connection.read_to_string(&mut reply).await;
    read.expect("the server replies");
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    drop(connection);
    service.close_stdin();
    assert!(service.wait(SOON).success());
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
