//! What a manager reports: a warning about a setting of the servers, and errors without passwords.

use std::error::Error;

use lock_core::LockManager;
use test_support::SentinelService;
use tests::{Trace, one_attempt};
use topologies::connect;

#[tokio::test]
async fn primary_that_writes_without_replicas_is_reported_once() {
    let (trace, _collecting) = Trace::begin();
    let service = SentinelService::start();
    let locks = connect(&service.url()).await;
    assert_eq!(trace.count("min-replicas-to-write"), 1, "{}", trace.text());
    trace.assert_says("a primary that is cut off from its replicas still grants locks");
    let held = locks.lock("other").acquire().await.unwrap();
    held.release().await.unwrap();
    assert_eq!(trace.count("min-replicas-to-write"), 1, "{}", trace.text());
}

#[tokio::test]
async fn primary_that_needs_a_replica_to_write_is_not_reported() {
    let (trace, _collecting) = Trace::begin();
    let setting = ["--min-replicas-to-write", "1"];
    let service = SentinelService::start_with(|_, options| options.args(setting));
    let locks = connect(&service.url()).await;
    let held = locks.lock("other").acquire().await.unwrap();
    held.release().await.unwrap();
    assert_eq!(trace.count("min-replicas-to-write"), 0, "{}", trace.text());
}

/// Returns all texts of an error: what users see, and what a program may print.
fn texts_of(error: &dyn Error) -> String {
    let mut texts = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        texts.extend([format!("{error}\n{error:?}\n{error:#?}\n")]);
        next = error.source();
    }
    texts
}

#[tokio::test]
async fn password_of_the_sentinels_is_in_no_error_and_no_event() {
    const PASSWORD: &str = "sesame-opens";
    let (trace, _collecting) = Trace::begin();
    let service = SentinelService::start();
    let [first, second, third] = service.sentinels() else {
        panic!("there are three");
    };
    let user = ["ACL", "SETUSER", "watcher", "on", ">another", "+@all"];
    first.cli(&user);
    let server = service.servers()[0].address();
    second.kill9();
    third.stop();
    let login = format!("sentinel_username=watcher&sentinel_password={PASSWORD}");
    for url in [
        // It is wrong.
        format!("redis+sentinel://{}/mymaster?{login}", first.address()),
        // The Sentinel refuses the connection, and does not reply.
        format!("redis+sentinel://{}/mymaster?{login}", second.address()),
        format!("redis+sentinel://{}/mymaster?{login}", third.address()),
        // It is no Sentinel.
        format!("redis+sentinel://{server}/mymaster?{login}"),
        // The URL is wrong.
        format!("redis+sentinel://{}?{login}", first.address()),
        format!("redis+sentinel://{}/mymaster?{login}&no=1", first.address()),
        format!("redis+sentinel://{}/mymaster?{login}%", first.address()),
        format!("redis://{server}?{login}"),
    ] {
        let error = one_attempt(LockManager::builder()).connect(&url).await;
        let texts = texts_of(&error.unwrap_err());
        assert!(!texts.contains(PASSWORD), "{url}: {texts}");
    }
    assert_eq!(trace.count(PASSWORD), 0, "{}", trace.text());
    third.cont();
}
