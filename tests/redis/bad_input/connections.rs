//! Servers that cannot be reached, or that do not reply.

use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;

use lock_core::error::BackendErrorKind;
use lock_core::{LockError, LockManager};
use test_support::fixtures::NAME;
use test_support::{Proxy, RedisServer};
use tests::acquire_and_release;

use super::{SHORT, assert_backend, assert_usable_again, builder, connect, connect_error, errors};

#[tokio::test]
async fn invalid_url_is_rejected() {
    for url in [
        "",
        "localhost",
        "localhost:6379",
        "127.0.0.1:6379",
        "redis:",
        "redis:/localhost",
        "http://localhost:6379",
        "postgres://localhost/locks",
        "://localhost",
        "redis://localhost:port",
        "redis://localhost:99999",
        "redis://[::1",
        "unix://",
        "ключ",
    ] {
        let error = connect_error(url).await;
        let advice = "redis+cluster://, redis+quorum:// or memory://";
        assert_backend(&error, BackendErrorKind::InvalidUrl, advice);
    }
}

/// The text after the last `/` may be a part of a password, so the error does not show it.
#[tokio::test]
async fn database_that_is_no_number_is_rejected() {
    for url in [
        "redis://localhost:6379/locks",
        "redis://localhost/-1",
        "redis://localhost/1/2",
        "redis://localhost/99999999999999999999",
    ] {
        let error = connect_error(url).await;
        let advice = "the path of the URL must be a database number such as /0";
        assert_backend(&error, BackendErrorKind::InvalidUrl, advice);
        assert!(!error.is_retryable());
    }
    for url in [
        "unix:///s?db=locks",
        "unix:///s?db=",
        "redis+unix:///s?db=x",
    ] {
        let error = connect_error(url).await;
        assert_backend(&error, BackendErrorKind::InvalidUrl, "such as `?db=0`");
    }
}

/// A logged error must not contain the password.
#[tokio::test]
async fn errors_do_not_repeat_the_password() {
    for url in [
        "redis://user:s3cret@localhost:port",
        "http://user:s3cret@localhost",
        "user:s3cret@localhost:6379",
        "redis://user:s3cret@127.0.0.1:1",
    ] {
        let error = connect_error(url).await;
        let mut cause: Option<&dyn Error> = Some(&error);
        while let Some(error) = cause {
            let texts = format!("{error} {error:?}");
            assert!(!texts.contains("s3cret"), "{texts}");
            cause = error.source();
        }
    }
}

#[tokio::test]
async fn connect_without_a_server_is_unreachable() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = builder().connect(&proxy.url()).await.unwrap();
    proxy.refuse();
    proxy.cut_all();
    let advice = "check that the server runs";
    let error = connect_error(&proxy.url()).await;
    assert_backend(&error, BackendErrorKind::Unreachable, advice);
    for error in errors(locks.lock(NAME).ttl(SHORT)).await {
        assert_backend(&error, BackendErrorKind::Unreachable, advice);
    }
    proxy.forward();
    assert_usable_again(&server, &locks).await;
    let nowhere = server.directory().join("missing.sock");
    let error = connect_error(&format!("unix://{}", nowhere.display())).await;
    assert_backend(&error, BackendErrorKind::Unreachable, advice);
}

/// Connecting and every request end with the command timeout.
async fn assert_times_out(locks: &LockManager, url: &str) {
    let advice = "check the server's load and the network";
    let error = connect_error(url).await;
    assert_backend(&error, BackendErrorKind::TimedOut, advice);
    for error in errors(locks.lock(NAME).ttl(SHORT)).await {
        assert_backend(&error, BackendErrorKind::TimedOut, advice);
    }
}

#[tokio::test]
async fn server_that_stops_replying_times_out() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = builder().connect(&proxy.url()).await.unwrap();
    acquire_and_release(&locks).await;
    proxy.black_hole();
    assert_times_out(&locks, &proxy.url()).await;
    proxy.forward();
    assert_usable_again(&server, &locks).await;
}

/// The kernel accepts connections and commands. The server executes them when it continues.
#[tokio::test]
async fn connect_to_a_frozen_server_times_out() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    acquire_and_release(&locks).await;
    server.stop();
    assert_times_out(&locks, &server.url()).await;
    server.cont();
    assert_usable_again(&server, &locks).await;
}

/// A web server, or a server that closes the connection.
#[tokio::test]
async fn connect_to_another_kind_of_server_returns_a_backend_error() {
    for greeting in ["HTTP/1.1 400 Bad Request\r\n\r\n", ""] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept()?;
            let _said = stream.read(&mut [0; 64])?;
            stream.write_all(greeting.as_bytes())
        });
        let error = connect_error(&format!("redis://{address}")).await;
        assert!(matches!(error, LockError::Backend(_)), "{error:?}");
        assert!(
            error.to_string().contains("check that the server runs")
                || error.to_string().contains("use Redis 6.2"),
            "{error}"
        );
    }
}
