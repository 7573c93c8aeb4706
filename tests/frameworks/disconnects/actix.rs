//! actix-web drops a handler only when its connection is reset. Each test says what this version does,
//! so that a change of actix-web is noticed.

use std::net::SocketAddr;

use actix_web::{App, HttpServer, web};
use frameworks::client::start;
use lock_core::{LockError, distributed_lock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{Work, reset, with_each_backend};

#[distributed_lock(name = "job:{id}", wait = "0s", manager = work.locks)]
async fn handler(work: web::Data<Work>, id: web::Path<String>) -> Result<String, LockError> {
    Ok(work.run().await)
}

fn serve(work: &Work) -> SocketAddr {
    let work = web::Data::new(work.clone());
    let app = move || {
        let app = App::new().app_data(work.clone());
        app.route("/{id}", web::post().to(handler))
    };
    let server = HttpServer::new(app).workers(1).disable_signals();
    let server = server.bind("127.0.0.1:0").expect("a free port");
    let address = server.addrs()[0];
    tokio::spawn(server.run());
    address
}

#[tokio::test]
async fn closing_the_connection_frees_the_lock_in_actix_when_the_handler_ends() {
    with_each_backend(async |work| {
        let connection = start(serve(&work), "POST", "/1", "").await;
        work.begun().await;
        drop(connection);
        work.assert_runs_on("1").await;
    })
    .await;
}

#[tokio::test]
async fn resetting_the_connection_frees_the_lock_in_actix() {
    with_each_backend(async |work| {
        let connection = start(serve(&work), "POST", "/1", "").await;
        work.begun().await;
        assert!(!work.is_free("1").await);
        reset(connection);
        work.assert_dropped("1").await;
    })
    .await;
}

#[tokio::test]
async fn half_closed_connection_gets_its_reply_in_actix() {
    with_each_backend(async |work| {
        let mut connection = start(serve(&work), "POST", "/1", "").await;
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
