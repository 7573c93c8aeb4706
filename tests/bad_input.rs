//! Whatever is wrong is said: by a typed error whose message tells what to do, in time, and
//! without a trace in the server.

use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use lock_core::{
    BackendErrorKind, InvalidNameReason, LockError, LockManager, LockManagerBuilder, LockRequest,
    Renew,
};
use test_support::{
    Helper, Proxy, RedisServer, Reply, ServerOptions, eventually, eventually_async,
};

/// Bound on conditions that say nothing about speed.
const SOON: Duration = Duration::from_secs(10);

/// Shorter than the default, so that a server which says nothing costs little, and far longer
/// than an answer takes.
const COMMAND_TIMEOUT: Duration = Duration::from_millis(500);

/// A wait on either side of the command timeout.
const WAITS: [Duration; 2] = [Duration::from_millis(400), Duration::from_millis(800)];

/// How much later than its wait, or than the command timeout, an error may come.
const OVERTIME: Duration = Duration::from_millis(250);

const NAME: &str = "bad";
const KEY: &str = "lock:bad";
const QUEUE: &str = "{lock:bad}:q";
const COUNTER: &str = "{lock:bad}:f";

fn builder() -> LockManagerBuilder {
    LockManager::builder().command_timeout(COMMAND_TIMEOUT)
}

async fn connect(server: &RedisServer) -> LockManager {
    builder().connect(&server.url()).await.unwrap()
}

/// What connecting says.
async fn connect_error(url: &str) -> LockError {
    let asked = Instant::now();
    let error = builder().connect(url).await.unwrap_err();
    let took = asked.elapsed();
    assert!(took <= COMMAND_TIMEOUT + OVERTIME, "{url}: {took:?}");
    error
}

/// What a request says, in every way that it can be made.
async fn errors(request: LockRequest) -> Vec<LockError> {
    let mut errors = Vec::new();
    let mut in_time = |asked: Instant, limit: Duration, error: LockError| {
        let took = asked.elapsed();
        assert!(took <= limit + OVERTIME, "{took:?}: {error}");
        errors.push(error);
    };
    let asked = Instant::now();
    let error = request.clone().acquire().await.unwrap_err();
    in_time(asked, COMMAND_TIMEOUT, error);
    let asked = Instant::now();
    let error = request.clone().try_acquire().await.unwrap_err();
    in_time(asked, COMMAND_TIMEOUT, error);
    let asked = Instant::now();
    let body = async |_: &_| panic!("the body runs without the lock");
    let error = request.clone().run::<()>(body).await.unwrap_err();
    in_time(asked, COMMAND_TIMEOUT, error);
    for wait in WAITS {
        let asked = Instant::now();
        let error = request.clone().wait(wait).acquire().await.unwrap_err();
        in_time(asked, wait, error);
    }
    errors
}

/// The message holds each of these words: what is wrong, and what to do.
#[track_caller]
fn assert_says(error: &LockError, words: &[&str]) {
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "`{word}` is missing: {text}");
    }
    assert!(!error.is_contended(), "refused is not busy: {text}");
    // It goes to logs and terminals.
    assert!(!text.contains(char::is_control), "{text:?}");
}

#[track_caller]
fn assert_backend(error: &LockError, kind: BackendErrorKind, advice: &str) {
    match error {
        LockError::Backend(cause) => assert_eq!(cause.kind(), kind, "{error}: {cause:?}"),
        other => panic!("it should be {kind:?}: {other}"),
    }
    assert_says(error, &[advice]);
}

/// All keys of the server, in order.
fn keys(server: &RedisServer) -> Vec<String> {
    let keys = server.cli(&["KEYS", "*"]);
    let texts = keys.array().iter().map(Reply::text);
    let mut keys: Vec<_> = texts.map(ToOwned::to_owned).collect();
    keys.sort_unstable();
    keys
}

/// Nothing that failed is still tried, or held.
async fn assert_at_rest(server: &RedisServer, locks: LockManager, left: &[&str]) {
    let ended = tokio::time::timeout(COMMAND_TIMEOUT * 2, locks.shutdown()).await;
    ended.expect("there is nothing to release").unwrap();
    assert_eq!(keys(server), left);
}

mod arguments {
    use super::*;

    /// The server never hears of it.
    async fn refused_unseen(request: impl Fn(&LockManager) -> LockRequest) -> LockError {
        let server = RedisServer::start();
        let locks = connect(&server).await;
        let monitor = server.monitor();
        let mut all = errors(request(&locks)).await;
        all.extend(errors(request(&LockManager::in_memory())).await);
        assert_eq!(monitor.stop().from_clients().count(), 0);
        assert_at_rest(&server, locks, &[]).await;
        let last = all.pop().unwrap();
        assert!(all.iter().all(|e| e.to_string() == last.to_string()));
        last
    }

    async fn name_fault(name: &str, fault: InvalidNameReason, words: &[&str]) {
        let error = refused_unseen(|locks| locks.lock(name)).await;
        let LockError::InvalidName { fault: said, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(*said, fault);
        assert_says(&error, words);
        assert!(error.to_string().len() < 300, "it repeats the whole name");
    }

    #[tokio::test]
    async fn an_empty_name() {
        name_fault("", InvalidNameReason::Empty, &["empty", "give"]).await;
    }

    #[tokio::test]
    async fn names_that_are_too_long() {
        let advice = ["1024 bytes", "digest"];
        name_fault(&"x".repeat(1025), InvalidNameReason::TooLong, &advice).await;
        name_fault(&"é".repeat(513), InvalidNameReason::TooLong, &advice).await;
        name_fault(&"x".repeat(1 << 20), InvalidNameReason::TooLong, &advice).await;
    }

    #[tokio::test]
    async fn names_with_stray_braces() {
        for name in ["{", "}", "a{}", "{a}{b}", "{a{b}}", "}a{", "{a", "a}"] {
            name_fault(
                name,
                InvalidNameReason::Braces,
                &["hash tag", "{user1}:cart"],
            )
            .await;
        }
    }

    #[tokio::test]
    async fn names_of_companion_keys() {
        for name in ["{a}:q", "x{a}y:f", "{a}:g"] {
            name_fault(name, InvalidNameReason::Companion, &["may not end in"]).await;
        }
    }

    #[tokio::test]
    async fn a_prefix_with_a_brace() {
        let server = RedisServer::start();
        let locks = builder().prefix("shop{1}:").connect(&server.url()).await;
        let locks = locks.unwrap();
        for error in errors(locks.lock(NAME)).await {
            assert_says(&error, &["prefix", "put the hash tag into the name"]);
        }
        assert_at_rest(&server, locks, &[]).await;
    }

    #[tokio::test]
    async fn ttls_out_of_range() {
        const DAY: Duration = Duration::from_secs(24 * 60 * 60);
        for ttl in [
            Duration::ZERO,
            Duration::from_nanos(1),
            Duration::from_millis(99),
            Duration::from_nanos(99_999_999),
            DAY + Duration::from_nanos(1),
            Duration::MAX,
        ] {
            let error = refused_unseen(|locks| locks.lock(NAME).ttl(ttl)).await;
            assert!(matches!(error, LockError::InvalidTtl { ttl: said } if said == ttl));
            assert_says(&error, &["at least 100 ms", "at most 24 h"]);
            let connected = builder().default_ttl(ttl).connect("memory://").await;
            let error = connected.unwrap_err();
            assert!(matches!(error, LockError::InvalidTtl { .. }), "{error}");
            for error in errors(builder().default_ttl(ttl).in_memory().lock(NAME)).await {
                assert!(matches!(error, LockError::InvalidTtl { .. }), "{error}");
            }
        }
        let locks = LockManager::in_memory();
        for ttl in [Duration::from_millis(100), DAY] {
            let got = locks.lock(NAME).ttl(ttl).acquire().await;
            got.unwrap().release().await.unwrap();
        }
    }

    #[tokio::test]
    async fn renewal_intervals_out_of_range() {
        for every in [
            Duration::ZERO,
            Duration::from_millis(9),
            Duration::from_secs(16),
            Duration::MAX,
        ] {
            let error = refused_unseen(|locks| locks.lock(NAME).renew(Renew::Every(every))).await;
            assert!(matches!(error, LockError::InvalidRenewal { .. }), "{error}");
            assert_says(&error, &["at least 10 ms", "at most half of the ttl"]);
        }
    }

    #[tokio::test]
    async fn a_wait_of_zero() {
        let server = RedisServer::start();
        for locks in [connect(&server).await, LockManager::in_memory()] {
            let request = locks.lock(NAME).wait(Duration::ZERO);
            let error = request.clone().acquire().await.unwrap_err();
            assert!(matches!(error, LockError::InvalidWait), "{error}");
            assert_says(&error, &["longer than zero", "leave it out"]);
            let error = request.try_acquire().await.unwrap_err();
            assert!(matches!(error, LockError::InvalidWait), "{error}");
        }
        assert_eq!(keys(&server), Vec::<String>::new());
    }

    #[tokio::test]
    async fn the_longest_wait_works() {
        let server = RedisServer::start();
        for locks in [connect(&server).await, LockManager::in_memory()] {
            let request = locks.lock(NAME).wait(Duration::MAX);
            let held = request.clone().acquire().await.unwrap();
            let waiting = tokio::spawn(request.acquire());
            tokio::task::yield_now().await;
            assert!(!waiting.is_finished());
            held.release().await.unwrap();
            let got = tokio::time::timeout(SOON, waiting).await;
            got.unwrap().unwrap().unwrap().release().await.unwrap();
        }
    }

    #[tokio::test]
    async fn the_longest_command_timeout_works() {
        let server = RedisServer::start();
        let builder = LockManager::builder().command_timeout(Duration::MAX);
        let locks = builder.connect(&server.url()).await.unwrap();
        let held = locks.lock(NAME).acquire().await.unwrap();
        held.renew().await.unwrap();
        held.release().await.unwrap();
        drop(locks.lock(NAME).wait(SOON).acquire().await.unwrap());
        assert_at_rest(&server, locks, &[COUNTER]).await;
    }
}

mod keys_of_others {
    use super::*;

    /// The key is named, what it holds, and what to do; and it stays as it is.
    async fn foreign(setup: &[&[&str]], found: &str) {
        let server = RedisServer::start();
        for command in setup {
            assert_eq!(server.cli(command).error(), None, "{command:?}");
        }
        let before: Vec<_> = keys(&server);
        let dump = |key: &String| server.cli(&["DUMP", key]);
        let dumps: Vec<_> = before.iter().map(dump).collect();
        let locks = connect(&server).await;
        for error in errors(locks.lock(NAME)).await {
            assert!(matches!(error, LockError::ForeignKey { .. }), "{error}");
            assert_says(&error, &[KEY, found, "another name or prefix"]);
        }
        let left: Vec<_> = before.iter().map(String::as_str).collect();
        assert_at_rest(&server, locks, &left).await;
        assert_eq!(before.iter().map(dump).collect::<Vec<_>>(), dumps);
    }

    #[tokio::test]
    async fn a_list() {
        foreign(&[&["RPUSH", KEY, "x"]], "a list").await;
    }

    #[tokio::test]
    async fn other_types() {
        foreign(&[&["HSET", KEY, "f", "v"]], "a hash").await;
        foreign(&[&["SADD", KEY, "x"]], "a set").await;
        foreign(&[&["ZADD", KEY, "1", "x"]], "a zset").await;
        foreign(&[&["XADD", KEY, "*", "f", "v"]], "a stream").await;
        let expires: [&[&str]; 2] = [&["RPUSH", KEY, "x"], &["EXPIRE", KEY, "60"]];
        foreign(&expires, "a list").await;
    }

    /// Later than at once: a client that writes SETNX and EXPIRE is given the time for it.
    #[tokio::test]
    async fn a_string_without_expiry() {
        foreign(&[&["SET", KEY, "settings"]], "`settings` without an expiry").await;
        foreign(&[&["SET", KEY, ""]], "without an expiry").await;
        foreign(&[&["SET", KEY, "\u{1b}[31m\0"]], "without an expiry").await;
        let server = RedisServer::start();
        server.cli(&["SET", KEY, "settings"]);
        let locks = connect(&server).await;
        let asked = Instant::now();
        let error = locks.lock(NAME).try_acquire().await.unwrap_err();
        let took = asked.elapsed();
        assert!(matches!(error, LockError::ForeignKey { .. }), "{error}");
        assert!(took >= Duration::from_millis(200), "{took:?}");
        assert!(took < Duration::from_millis(450), "{took:?}");
    }

    #[tokio::test]
    async fn a_queue_of_another_type() {
        foreign(&[&["SET", QUEUE, "x"]], "companion").await;
        foreign(&[&["RPUSH", QUEUE, "x"]], "companion").await;
    }

    #[tokio::test]
    async fn a_counter_of_another_type() {
        foreign(&[&["RPUSH", COUNTER, "x"]], "companion").await;
        foreign(&[&["SET", COUNTER, "x"]], "companion").await;
    }

    /// What breaks while the lock is held is reported by the release, and the key is free.
    #[tokio::test]
    async fn companions_that_break_while_the_lock_is_held() {
        let server = RedisServer::start();
        let locks = connect(&server).await;
        let held = locks.lock(NAME).acquire().await.unwrap();
        server.cli(&["SET", QUEUE, "x"]);
        let error = held.release().await.unwrap_err();
        assert!(matches!(error, LockError::ForeignKey { .. }), "{error}");
        assert_at_rest(&server, locks, &[COUNTER, QUEUE]).await;

        let server = RedisServer::start();
        let locks = connect(&server).await;
        let held = locks.lock(NAME).acquire().await.unwrap();
        let waiting = tokio::spawn(locks.lock(NAME).wait(SOON).acquire());
        eventually_async(SOON, async || server.cli(&["ZCARD", QUEUE]).integer() == 1).await;
        server.cli(&["DEL", COUNTER]);
        server.cli(&["RPUSH", COUNTER, "x"]);
        drop(held);
        let error = tokio::time::timeout(SOON, waiting).await;
        let error = error.unwrap().unwrap().unwrap_err();
        assert!(matches!(error, LockError::ForeignKey { .. }), "{error}");
        assert_at_rest(&server, locks, &[COUNTER]).await;
    }
}

mod servers {
    use super::*;

    #[tokio::test]
    async fn wrong_urls() {
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
            "redis://localhost:6379/locks",
            "redis://[::1",
            "unix://",
            "ключ",
        ] {
            let error = connect_error(url).await;
            let advice = "use redis://, unix:// or memory://";
            assert_backend(&error, BackendErrorKind::InvalidUrl, advice);
        }
    }

    /// An error that is logged must not tell the password to whoever reads the log.
    #[tokio::test]
    async fn no_error_repeats_the_password() {
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
    async fn no_server() {
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
        let nowhere = server.directory().join("nobody.sock");
        let error = connect_error(&format!("unix://{}", nowhere.display())).await;
        assert_backend(&error, BackendErrorKind::Unreachable, advice);
    }

    /// For what is only settled when the server is back: it is given up with the ttl.
    const SHORT: Duration = Duration::from_secs(1);

    async fn assert_usable_again(server: &RedisServer, locks: &LockManager) {
        let got = locks.lock("other").wait(SOON).acquire().await;
        got.unwrap().release().await.unwrap();
        let ended = tokio::time::timeout(SOON, locks.shutdown()).await;
        ended.expect("what was left is settled").unwrap();
        let left = keys(server);
        assert!(left.iter().all(|key| key.ends_with(":f")), "{left:?}");
    }

    #[tokio::test]
    async fn a_server_that_does_not_answer_any_more() {
        let server = RedisServer::start();
        let proxy = Proxy::in_front_of(&server);
        let locks = builder().connect(&proxy.url()).await.unwrap();
        locks
            .lock(NAME)
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        proxy.black_hole();
        let advice = "check the server's load and the network";
        let error = connect_error(&proxy.url()).await;
        assert_backend(&error, BackendErrorKind::TimedOut, advice);
        for error in errors(locks.lock(NAME).ttl(SHORT)).await {
            assert_backend(&error, BackendErrorKind::TimedOut, advice);
        }
        proxy.forward();
        assert_usable_again(&server, &locks).await;
    }

    /// Its kernel accepts connections and takes all commands; it executes them when it wakes up.
    #[tokio::test]
    async fn a_frozen_server() {
        let server = RedisServer::start();
        let locks = connect(&server).await;
        locks
            .lock(NAME)
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        server.stop();
        let advice = "check the server's load and the network";
        let error = connect_error(&server.url()).await;
        assert_backend(&error, BackendErrorKind::TimedOut, advice);
        for error in errors(locks.lock(NAME).ttl(SHORT)).await {
            assert_backend(&error, BackendErrorKind::TimedOut, advice);
        }
        server.cont();
        assert_usable_again(&server, &locks).await;
    }

    /// Nobody would connect to a web server on purpose.
    #[tokio::test]
    async fn another_kind_of_server() {
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
                    || error.to_string().contains("use Redis 7.0"),
                "{error}"
            );
        }
    }

    #[tokio::test]
    async fn passwords() {
        const ADVICE: &str = "check user and password in the URL";
        let server = RedisServer::options().password("right").start();
        let address = server.address();
        for login in ["", ":wrong@", "default:wrong@", "nobody:right@"] {
            let error = connect_error(&format!("redis://{login}{address}")).await;
            assert_backend(&error, BackendErrorKind::Authentication, ADVICE);
        }
        let locks = connect(&server).await;
        locks
            .lock(NAME)
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        // It is changed while the manager lives, and its connections are gone.
        server.cli(&["CONFIG", "SET", "requirepass", "changed"]);
        let mut admin = tests::Connection::open(address, Some("changed")).unwrap();
        admin.call(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
        for error in errors(locks.lock(NAME)).await {
            assert_backend(&error, BackendErrorKind::Authentication, ADVICE);
        }
    }

    /// A user with these rights, logged in.
    fn with_user(rights: &[&str]) -> (RedisServer, String) {
        let server = RedisServer::start();
        let mut command = vec!["ACL", "SETUSER", "app", "on", ">pass"];
        command.extend(rights);
        assert_eq!(server.cli(&command).error(), None);
        let url = format!("redis://app:pass@{}", server.address());
        (server, url)
    }

    async fn not_permitted(rights: &[&str], left: &[&str]) {
        let (server, url) = with_user(rights);
        let locks = builder().connect(&url).await.unwrap();
        for error in errors(locks.lock(NAME)).await {
            let advice = "grant the user the commands and keys";
            assert_backend(&error, BackendErrorKind::Permission, advice);
        }
        assert_at_rest(&server, locks, left).await;
    }

    #[tokio::test]
    async fn a_user_without_scripts() {
        not_permitted(&["~*", "&*", "+@all", "-@scripting"], &[]).await;
    }

    #[tokio::test]
    async fn a_user_without_the_companion_keys() {
        not_permitted(&["~lock:*", "&*", "+@all"], &[]).await;
    }

    #[tokio::test]
    async fn a_user_without_the_commands_inside_the_scripts() {
        not_permitted(&["~*", "&*", "+@all", "-get"], &[]).await;
        not_permitted(&["~*", "&*", "+@all", "-incr"], &[]).await;
        // The counter goes before the key.
        not_permitted(&["~*", "&*", "+@all", "-set"], &[COUNTER]).await;
    }

    #[tokio::test]
    async fn a_user_who_may_do_nothing() {
        let (_server, url) = with_user(&["~*", "+ping"]);
        let error = connect_error(&url).await;
        let advice = "grant the user the commands and keys";
        assert_backend(&error, BackendErrorKind::Permission, advice);
    }

    #[tokio::test]
    async fn a_user_who_is_switched_off() {
        let (server, url) = with_user(&["~*", "&*", "+@all"]);
        server.cli(&["ACL", "SETUSER", "app", "off"]);
        let error = connect_error(&url).await;
        let advice = "check user and password in the URL";
        assert_backend(&error, BackendErrorKind::Authentication, advice);
    }

    #[tokio::test]
    async fn too_many_clients() {
        let server = RedisServer::start();
        let mut admin = server.connect().unwrap();
        admin.call(&["CONFIG", "SET", "maxclients", "1"]).unwrap();
        let error = connect_error(&server.url()).await;
        // The server says why and hangs up before it is asked anything, so that the reason is
        // not always heard.
        let LockError::Backend(cause) = &error else {
            panic!("{error}");
        };
        let kinds = [
            BackendErrorKind::TooManyClients,
            BackendErrorKind::Unreachable,
        ];
        assert!(kinds.contains(&cause.kind()), "{error:?}");
        assert_says(&error, &["clients"]);
    }

    #[tokio::test]
    async fn a_replica() {
        let server = RedisServer::start();
        let locks = connect(&server).await;
        server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
        let error = connect_error(&server.url()).await;
        assert_backend(
            &error,
            BackendErrorKind::NotPrimary,
            "connect to the primary",
        );
        for error in errors(locks.lock(NAME)).await {
            assert_backend(
                &error,
                BackendErrorKind::NotPrimary,
                "connect to the primary",
            );
        }
        server.cli(&["REPLICAOF", "NO", "ONE"]);
        assert_usable_again(&server, &locks).await;
    }

    /// Reads work, and so do renewals and releases.
    #[tokio::test]
    async fn no_memory() {
        let server = RedisServer::start();
        let locks = connect(&server).await;
        let held = locks.lock("held").acquire().await.unwrap();
        server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
        for error in errors(locks.lock(NAME)).await {
            let advice = "raise the server's maxmemory";
            assert_backend(&error, BackendErrorKind::OutOfMemory, advice);
        }
        held.renew().await.unwrap();
        held.release().await.unwrap();
        assert_at_rest(&server, locks, &["{lock:held}:f"]).await;
    }

    #[tokio::test]
    async fn no_replicas() {
        let server = RedisServer::start();
        let locks = connect(&server).await;
        server.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
        for error in errors(locks.lock(NAME).ttl(SHORT)).await {
            let advice = "min-replicas-to-write";
            assert_backend(&error, BackendErrorKind::NoReplicas, advice);
        }
        server.cli(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
        assert_usable_again(&server, &locks).await;
    }

    /// Somebody's endless script; ending it is not our business.
    #[tokio::test]
    async fn a_busy_server() {
        let server = RedisServer::start();
        let locks = connect(&server).await;
        server.cli(&["CONFIG", "SET", "busy-reply-threshold", "20"]);
        let mut endless = server.connect().unwrap();
        endless.send(&["EVAL", "while true do end", "0"]).unwrap();
        eventually(SOON, || {
            let answer = server.cli(&["PING"]);
            answer.error().is_some_and(|said| said.starts_with("BUSY"))
        });
        for error in errors(locks.lock(NAME).ttl(SHORT)).await {
            assert_backend(&error, BackendErrorKind::ScriptBusy, "a long script");
        }
        let killed = server.cli(&["SCRIPT", "KILL"]);
        assert_eq!(killed.text(), "OK", "somebody else ended it");
        assert_usable_again(&server, &locks).await;
    }

    /// The word the server has for it, and no other: the options of a test server are in order.
    #[tokio::test]
    async fn a_database_that_is_not_there() {
        let server = ServerOptions::default().args(["--databases", "2"]).start();
        let error = connect_error(&format!("{}/9", server.url())).await;
        assert!(matches!(error, LockError::Backend(_)), "{error:?}");
        assert_says(&error, &["cannot connect to the lock server"]);
    }
}

mod configuration {
    use super::*;

    /// The attribute's answer in a process with this DISTRIBUTED_LOCK_URL, or none.
    fn ask(url: Option<&str>) -> String {
        let worker = env!("CARGO_BIN_EXE_lock-worker");
        let without = Helper::new("env")
            .arg("-u")
            .arg("DISTRIBUTED_LOCK_URL")
            .arg(worker);
        let asking = match url {
            None => without.arg("ask"),
            Some(url) => Helper::new(worker)
                .env("DISTRIBUTED_LOCK_URL", url)
                .arg("ask"),
        };
        let process = asking.spawn();
        assert!(process.wait(SOON).success());
        let answer = process.records().pop().expect("it said something");
        answer["error"].as_str().unwrap_or("done").to_owned()
    }

    #[test]
    fn neither_a_manager_nor_a_url() {
        let said = ask(None);
        assert!(said.contains("LockManager::connect(url)"), "{said}");
        assert!(said.contains("install_global()"), "{said}");
        assert!(said.contains("DISTRIBUTED_LOCK_URL"), "{said}");
    }

    #[test]
    fn the_url_of_the_environment() {
        let server = RedisServer::start();
        assert_eq!(ask(Some(&server.url())), "done");
        assert_eq!(keys(&server), ["{lock:asked}:f"]);
        let said = ask(Some("nonsense"));
        assert!(said.contains("redis://"), "{said}");
        let said = ask(Some(""));
        assert!(said.contains("redis://"), "{said}");
    }
}
