//! The names under which the server shows the connections.

use std::collections::BTreeSet;

use lock_core::{LockManager, LockManagerBuilder};
use test_support::fixtures::{NAME, SOON, ms};
use test_support::{RedisServer, eventually_async};
use tests::acquire_and_release;

use crate::connect_with;

/// Returns the names of all connections, and the other fields of the first one with a name.
fn client_list(server: &RedisServer) -> (BTreeSet<String>, String) {
    let reply = server.cli(&["CLIENT", "LIST"]);
    let list = reply.text();
    let name = |line: &str| {
        let mut fields = line.split(' ').filter_map(|field| field.split_once('='));
        let (_, name) = fields.find(|(field, _)| *field == "name")?;
        (!name.is_empty()).then(|| name.to_owned())
    };
    let names = list.lines().filter_map(name).collect();
    let first = list.lines().find(|line| name(line).is_some());
    (names, first.unwrap_or_default().to_owned())
}

/// Uses each connection of a manager, and checks their names.
async fn assert_names(builder: LockManagerBuilder, parameters: &str, expected: &str) {
    let server = RedisServer::start();
    let url = format!("{}{parameters}", server.url());
    let locks = connect_with(builder, &url).await;
    acquire_and_release(&locks).await;
    let (names, _) = client_list(&server);
    assert_eq!(names, BTreeSet::from([format!("{expected}:command")]));
    // A waiter subscribes, and the background worker renews, over one connection.
    let request = locks.lock(NAME).ttl(ms(300)).wait(SOON);
    let _held = request.acquire().await.unwrap();
    let all = ["command", "worker"].map(|role| format!("{expected}:{role}"));
    let all = BTreeSet::from(all);
    eventually_async(SOON, async || client_list(&server).0 == all).await;
}

#[tokio::test]
async fn connections_have_the_name_of_the_label_and_their_role() {
    let builder = LockManager::builder().label("web 7");
    assert_names(builder, "", "lock:web_7").await;
}

#[tokio::test]
async fn url_and_builder_name_the_connections() {
    assert_names(
        LockManager::builder(),
        "/0?client_name=check%20out",
        "check_out",
    )
    .await;
    let builder = LockManager::builder().client_name("orders");
    assert_names(builder, "/0?client_name=other", "orders").await;
}

/// Redis 7.2 and later show the library.
#[tokio::test]
async fn server_shows_the_library_if_it_can() {
    let server = RedisServer::start();
    let locks = connect_with(LockManager::builder(), &server.url()).await;
    let (_, connection) = client_list(&server);
    if connection.contains("lib-name=") {
        assert!(
            connection.contains("lib-name=lock-core(redis-rs)"),
            "{connection}"
        );
    }
    acquire_and_release(&locks).await;
}

/// Names are for people only: a user without the right to set them connects all the same.
#[tokio::test]
async fn users_without_the_right_to_set_names_connect() {
    let server = RedisServer::start();
    let rights = ["~*", "&*", "+@all", "-client|setname"];
    let user = [&["ACL", "SETUSER", "app", "on", ">pass"][..], &rights[..]].concat();
    assert_eq!(server.cli(&user).error(), None);
    let url = format!("redis://app:pass@{}", server.address());
    let locks = connect_with(LockManager::builder(), &url).await;
    acquire_and_release(&locks).await;
    assert_eq!(client_list(&server).0, BTreeSet::new());
}
