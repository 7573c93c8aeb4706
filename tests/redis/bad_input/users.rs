//! Users without a password, or without the rights that locks need.

use std::time::Duration;

use lock_core::error::BackendErrorKind;
use test_support::fixtures::{KEY, NAME, SOON};
use test_support::{RedisServer, eventually};
use tests::acquire_and_release;

use super::{assert_at_rest, assert_backend, assert_says, builder, connect, connect_error, errors};

#[tokio::test]
async fn wrong_password_returns_authentication() {
    const ADVICE: &str = "check user and password in the URL";
    let server = RedisServer::options().password("right").start();
    let address = server.address();
    for login in ["", ":wrong@", "default:wrong@", "unknown:right@"] {
        let error = connect_error(&format!("redis://{login}{address}")).await;
        assert_backend(&error, BackendErrorKind::Authentication, ADVICE);
    }
    let locks = connect(&server).await;
    acquire_and_release(&locks).await;
    // The password changes while the manager runs, and its connections are closed.
    server.cli(&["CONFIG", "SET", "requirepass", "changed"]);
    let mut admin = test_support::Connection::open(address, Some("changed")).unwrap();
    admin.call(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
    for error in errors(locks.lock(NAME)).await {
        assert_backend(&error, BackendErrorKind::Authentication, ADVICE);
    }
}

/// Returns a server, and the URL of a user with these rights.
fn with_user(rights: &[&str]) -> (RedisServer, String) {
    let server = RedisServer::start();
    let mut command = vec!["ACL", "SETUSER", "app", "on", ">pass"];
    command.extend(rights);
    assert_eq!(server.cli(&command).error(), None);
    let url = format!("redis://app:pass@{}", server.address());
    (server, url)
}

/// The words of the server for a command of a script, which it does not name.
const IN_SCRIPT: &str = "can't run this command";

/// The error has the user and the words of the server, which say which right is missing.
async fn assert_permission_error(rights: &[&str], words: &str, left: &[&str]) {
    let (server, url) = with_user(rights);
    let locks = builder().connect(&url).await.unwrap();
    for error in errors(locks.lock(NAME)).await {
        let advice = "grant the user this right; `lockctl doctor` names all";
        assert_backend(&error, BackendErrorKind::Permission, advice);
        assert_says(&error, &["rejected the command of the user `app` (", words]);
    }
    assert_at_rest(&server, locks, left).await;
}

#[tokio::test]
async fn user_without_scripts_returns_permission() {
    assert_permission_error(&["~*", "&*", "+@all", "-@scripting"], "'evalsha'", &[]).await;
}

/// Without a password the client does not log in. The text in the place of the user may be a token.
#[tokio::test]
async fn user_of_a_url_without_a_password_is_not_shown() {
    let server = RedisServer::start();
    let locks = builder()
        .connect(&format!("redis://s3cret@{}", server.address()))
        .await
        .unwrap();
    server.cli(&["ACL", "SETUSER", "default", "-evalsha", "-eval"]);
    for error in errors(locks.lock(NAME)).await {
        assert_says(&error, &["the command of the user `default` ("]);
        assert!(!format!("{error} {error:?} {error:#?}").contains("s3cret"));
    }
}

#[tokio::test]
async fn user_without_the_companion_keys_returns_permission() {
    assert_permission_error(&["~lock:*", "&*", "+@all"], "access one of the keys", &[]).await;
}

#[tokio::test]
async fn user_without_the_commands_of_the_scripts_returns_permission() {
    assert_permission_error(&["~*", "&*", "+@all", "-exists"], IN_SCRIPT, &[]).await;
    assert_permission_error(&["~*", "&*", "+@all", "-incr"], IN_SCRIPT, &[]).await;
    // The script writes the counter before the key. A new counter, which would have no expiry, is removed.
    assert_permission_error(&["~*", "&*", "+@all", "-set"], IN_SCRIPT, &[]).await;
}

/// The first lines of the acquire do not read the key.
#[tokio::test]
async fn release_by_a_user_who_may_not_read_the_key_returns_permission() {
    let (server, url) = with_user(&["~*", "&*", "+@all", "-get"]);
    let locks = builder().connect(&url).await.unwrap();
    let ttl = Duration::from_millis(500);
    let guard = locks.lock(NAME).ttl(ttl).acquire().await.unwrap();
    let error = guard.release().await.unwrap_err();
    let advice = "grant the user this right; `lockctl doctor` names all";
    assert_backend(&error, BackendErrorKind::Permission, advice);
    eventually(SOON, || server.cli(&["EXISTS", KEY]).integer() == 0);
}

/// The release deletes the key before anything that can fail.
#[tokio::test]
async fn release_by_a_user_who_lost_a_right_frees_the_lock() {
    let (server, url) = with_user(&["~*", "&*", "+@all"]);
    let locks = builder().connect(&url).await.unwrap();
    let guard = locks.lock(NAME).acquire().await.unwrap();
    server.cli(&["ACL", "SETUSER", "app", "-exists"]);
    let error = guard.release().await.unwrap_err();
    let advice = "grant the user this right; `lockctl doctor` names all";
    assert_backend(&error, BackendErrorKind::Permission, advice);
    assert_eq!(server.cli(&["EXISTS", KEY]).integer(), 0);
}

#[tokio::test]
async fn user_without_rights_returns_permission() {
    let (_server, url) = with_user(&["~*", "+ping"]);
    let error = connect_error(&url).await;
    let advice = "grant the user this right; `lockctl doctor` names all";
    assert_backend(&error, BackendErrorKind::Permission, advice);
}

#[tokio::test]
async fn user_without_select_returns_permission() {
    let (_server, url) = with_user(&["~*", "&*", "+@all", "-select"]);
    let error = connect_error(&format!("{url}/1")).await;
    let advice = "grant the user this right; `lockctl doctor` names all";
    assert_backend(&error, BackendErrorKind::Permission, advice);
}

#[tokio::test]
async fn disabled_user_returns_authentication() {
    let (server, url) = with_user(&["~*", "&*", "+@all"]);
    server.cli(&["ACL", "SETUSER", "app", "off"]);
    let error = connect_error(&url).await;
    let advice = "check user and password in the URL";
    assert_backend(&error, BackendErrorKind::Authentication, advice);
}
