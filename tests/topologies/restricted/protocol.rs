//! Servers without the third version of the protocol: connections speak RESP2.

use lock_core::LockManager;
use lock_core::error::BackendErrorKind;
use test_support::fixtures::{NAME, SOON, kill_clients};
use test_support::{Direction, Proxy, RedisServer};
use tests::{Trace, acquire_and_release, backend_error_kind, granted, one_attempt, start_waiter};
use topologies::{connect, use_when_connected};

const FALLBACK: &str = "connections speak RESP2";

/// Starts a server that does not know HELLO.
fn server_without_hello() -> RedisServer {
    let options = RedisServer::options().password("sesame");
    options.args(["--rename-command", "HELLO", ""]).start()
}

#[tokio::test]
async fn server_that_refuses_hello_is_used_in_resp2() {
    let (trace, _collecting) = Trace::begin();
    let server = server_without_hello();
    let (here, there) = (connect(&server.url()).await, connect(&server.url()).await);
    let held = here.lock(NAME).acquire().await.unwrap();
    assert!(there.lock(NAME).try_acquire().await.unwrap().is_none());
    let waiting = start_waiter(&server, there.lock(NAME).wait(SOON), 1).await;
    held.release().await.unwrap();
    granted(SOON, waiting).await.release().await.unwrap();
    assert!(!here.ping().await.unwrap().notifies_waiters);
    // Each manager warns once, and not for each connection.
    assert_eq!(trace.count(FALLBACK), 2, "{}", trace.text());
    kill_clients(&server, "normal");
    use_when_connected(&here, NAME).await;
    assert_eq!(trace.count(FALLBACK), 2, "{}", trace.text());
    assert_eq!(trace.count("sesame"), 0, "{}", trace.text());
}

/// Valkey 9.1 checks the login before it looks for the command.
#[tokio::test]
async fn server_that_asks_for_the_password_of_hello_is_used_in_resp2() {
    let server = server_without_hello();
    let proxy = Proxy::in_front_of(&server);
    let (unknown, asking) = (
        "-ERR unknown command 'HELLO'",
        "-NOAUTH Authentication required.",
    );
    proxy.replace(Direction::ToClient, unknown, asking);
    acquire_and_release(&connect(&proxy.url()).await).await;
    // A wrong password is still one.
    let wrong = proxy.url().replace("sesame", "wrong");
    let refused = one_attempt(LockManager::builder()).connect(&wrong).await;
    assert_eq!(
        backend_error_kind(refused),
        BackendErrorKind::Authentication
    );
}

#[tokio::test]
async fn server_without_resp3_is_refused_where_the_url_demands_it() {
    let server = server_without_hello();
    let url = format!("{}?protocol=3", server.url());
    let refused = one_attempt(LockManager::builder()).connect(&url).await;
    let text = refused.as_ref().unwrap_err().to_string();
    assert_eq!(backend_error_kind(refused), BackendErrorKind::Unsupported);
    for words in [
        "does not speak RESP3",
        "it refuses HELLO",
        "remove `protocol=3`",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(!text.contains("sesame"), "{text}");
}
