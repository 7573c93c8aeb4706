//! Passwords appear in no text.

use std::error::Error;
use std::fmt::Write;
use std::time::{Duration, SystemTime};

use lock_core::config::{Credentials, Endpoint, ManagerConfig};
use lock_core::{LockError, LockManager};
use test_support::fixtures::{AT_ONCE, NAME};
use test_support::{Proxy, RedisServer, ServerOptions};
use tests::acquire_and_release;

use crate::probe::{self, SECRET};

fn texts(error: &LockError) -> String {
    let mut text = format!("{error} {error:?}");
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = write!(text, " {error} {error:?}");
        cause = error.source();
    }
    text
}

/// In `Debug`, in errors and in events. The probe looks at all events of this process.
#[tokio::test]
async fn passwords_never_appear() {
    probe::install();
    let server = ServerOptions::default().password(SECRET).start();
    let mut config = ManagerConfig::default();
    config.url = Some(server.url());
    let endpoint = Endpoint::tcp("127.0.0.1", server.port()).password(SECRET);
    let credentials = Credentials::new("default", SECRET);
    let cloned = credentials.clone();
    let provider = move || {
        let credentials = cloned.clone();
        async move { Ok::<_, LockError>(credentials) }
    };
    let with_provider = LockManager::builder().credentials(provider);
    let mut shown = vec![
        format!("{config:?} {endpoint:?} {credentials:?}"),
        format!("{with_provider:?}"),
    ];
    let builder = LockManager::builder().config(config);
    shown.push(format!("{builder:?}"));
    let connected = [
        builder.build().await,
        LockManager::builder().connect_to(endpoint).await,
    ];
    for locks in connected {
        let locks = locks.unwrap();
        acquire_and_release(&locks).await;
        shown.push(format!("{locks:?} {:?}", locks.lock(NAME)));
    }
    let plain = format!("redis://{}", server.address());
    let locks = with_provider.clone().connect(&plain).await.unwrap();
    let held = locks.lock(NAME).acquire().await.unwrap();
    shown.push(format!("{locks:?} {held:?}"));

    // Servers that refuse the password, and servers that are not there.
    let other = ServerOptions::default().password("another").start();
    let port = other.port();
    let gone = Proxy::in_front_of(&RedisServer::start()).address();
    for url in [
        format!("redis://:{SECRET}@127.0.0.1:{port}"),
        format!("redis://{SECRET}:{SECRET}@127.0.0.1:{port}"),
        format!("redis://:{SECRET}@{gone}"),
        format!("redis://:{SECRET}/@{gone}"),
        format!("redis://:{SECRET}@host:port"),
        format!("redis://:{SECRET}@host/{SECRET}"),
        format!("unix:///nowhere?pass={SECRET}"),
        format!("redi://:{SECRET}@host"),
        SECRET.to_owned(),
    ] {
        let refused = tokio::time::timeout(AT_ONCE * 5, LockManager::connect(&url)).await;
        shown.push(texts(&refused.unwrap().unwrap_err()));
    }
    let url = format!("redis://127.0.0.1:{port}");
    let refused = with_provider.connect(&url).await;
    shown.push(texts(&refused.unwrap_err()));
    for text in &shown {
        assert!(!text.contains(SECRET), "{text}");
    }
    probe::assert_no_violation();
}

/// A server that does not know a command repeats its arguments: an old server, or a proxy.
#[tokio::test]
async fn unknown_commands_do_not_show_the_password() {
    probe::install();
    for command in ["HELLO", "AUTH"] {
        let options = ServerOptions::default().args(["--rename-command", command, ""]);
        let server = options.start();
        let lifetime = Duration::from_secs(2);
        let provider = move || async move {
            let credentials = Credentials::new("default", SECRET);
            Ok::<_, LockError>(credentials.expires_at(SystemTime::now() + lifetime))
        };
        let with_provider = LockManager::builder().credentials(provider);
        let plain = format!("redis://{}", server.address());
        let of_url = LockManager::connect(&format!("redis://:{SECRET}@{}", server.address())).await;
        let of_provider = with_provider.connect(&plain).await;
        if command == "AUTH" {
            // The next login is at 1.6 s.
            tokio::time::sleep(lifetime).await;
        }
        for refused in [of_url.err(), of_provider.err()].into_iter().flatten() {
            assert!(!texts(&refused).contains(SECRET), "{command}: {refused:?}");
        }
    }
    probe::assert_no_violation();
}
