//! Servers as hosting services and old versions have them: they leave out a part of what a handshake asks for.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lock_core::LockManager;
use lock_core::dialect::Dialect;
use lock_core::error::BackendErrorKind;
use lock_core::health::PollingReason;
use lock_core::telemetry::LockEvent;
use test_support::fixtures::{AT_ONCE, LONG, NAME, SOON, exists, ms};
use test_support::stand_in::{Answer, HelloRefusal, Quirk, Target, limits};
use test_support::{Direction, Proxy, RedisServer, StandIn, eventually_async, lone_node};
use tests::{
    Trace, acquire_and_release, assert_nothing_left, backend_error_kind, granted, one_attempt,
    start_waiter,
};

use super::connect_with;

fn without_right(command: &'static str) -> Quirk {
    let text = format!("NOPERM User default has no permissions to run the '{command}' command");
    Quirk::Replies(Target::Command(command), Answer::Error(text))
}

fn hello(refusal: HelloRefusal) -> Quirk {
    Quirk::Hello(refusal)
}

/// Each of them leaves one source of the role at least.
fn servers_with_a_role() -> [Vec<Quirk>; 8] {
    let primary = b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n".to_vec();
    let primary = || Quirk::Replies(Target::Command("ROLE"), Answer::Raw(primary.clone()));
    let unknown = Answer::Raw(b"+OK\r\n".to_vec());
    [
        vec![Quirk::Replies(Target::Command("ROLE"), unknown)],
        vec![Quirk::NoRole],
        // Only `INFO` knows that a replica is one, or only `HELLO`.
        vec![primary(), hello(HelloRefusal::Unknown)],
        vec![primary(), without_right("INFO")],
        vec![without_right("ROLE"), without_right("INFO")],
        vec![Quirk::NoRole, Quirk::OldInfo],
        vec![Quirk::NoRole, hello(HelloRefusal::Unknown)],
        vec![
            Quirk::NoRole,
            Quirk::OldInfo,
            hello(HelloRefusal::NoPermission),
        ],
    ]
}

#[tokio::test]
async fn role_is_read_from_what_the_server_answers() {
    let server = RedisServer::start();
    for quirks in servers_with_a_role() {
        let (trace, _collecting) = Trace::begin();
        let stand_in = StandIn::start(&server, quirks.clone());
        let locks = connect_with(LockManager::builder(), &stand_in.url()).await;
        acquire_and_release(&locks).await;
        let warnings = trace.count("a replica cannot be recognized");
        assert_eq!(warnings, 0, "{quirks:?}");
    }
}

#[tokio::test]
async fn replica_is_refused_by_any_source_of_its_role() {
    let server = RedisServer::start();
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    for quirks in servers_with_a_role() {
        let stand_in = StandIn::start(&server, quirks.clone());
        let builder = one_attempt(LockManager::builder());
        let refused = builder.connect(&stand_in.url()).await;
        let kind = backend_error_kind(refused);
        assert_eq!(kind, BackendErrorKind::NotPrimary, "{quirks:?}");
    }
}

#[tokio::test]
async fn server_that_never_tells_its_role_is_used_after_one_warning() {
    let (trace, _collecting) = Trace::begin();
    let server = RedisServer::start();
    let quirks = [
        Quirk::NoRole,
        hello(HelloRefusal::Unknown),
        without_right("INFO"),
    ];
    let stand_in = StandIn::start(&server, quirks);
    let locks = connect_with(LockManager::builder(), &stand_in.url()).await;
    acquire_and_release(&locks).await;
    stand_in.cut_all();
    acquire_and_release(&locks).await;
    let warnings = trace.count("a replica cannot be recognized");
    assert_eq!(warnings, 1, "{}", trace.text());
}

const SET: Target = Target::Command("SET");

/// Sets an expiry that `SET` has since Redis 6.2. Before, each acquire fails.
fn old_set() -> Quirk {
    Quirk::Replies(SET, Answer::Error("ERR syntax error".into()))
}

/// `HELLO` tells the version too. Without both, the server shows at `connect` whether it has what the scripts need.
#[tokio::test]
async fn old_server_that_hides_its_version_is_refused() {
    let server = RedisServer::start();
    let old =
        "%4\r\n+server\r\n+redis\r\n+version\r\n+6.0.16\r\n+proto\r\n:3\r\n+role\r\n+master\r\n";
    let old_hello = Quirk::Replies(Target::Command("HELLO"), Answer::Raw(old.into()));
    let no_version = Quirk::Replies(
        Target::Command("INFO"),
        Answer::Raw(b"$3\r\na:1\r\n".into()),
    );
    let no_hello = || hello(HelloRefusal::Unknown);
    for (quirks, expected) in [
        (
            vec![without_right("INFO"), old_hello.clone()],
            "Redis 6.0.16",
        ),
        (vec![no_version.clone(), old_hello], "Redis 6.0.16"),
        (
            vec![without_right("INFO"), no_hello(), old_set()],
            "does not have SET with PXAT",
        ),
        (
            vec![no_version, no_hello(), old_set()],
            "does not have SET with PXAT",
        ),
    ] {
        let stand_in = StandIn::start(&server, quirks.clone());
        let builder = one_attempt(LockManager::builder());
        let refused = builder.connect(&stand_in.url()).await;
        let text = refused.as_ref().unwrap_err().to_string();
        assert!(text.contains(expected), "{quirks:?}: {text}");
        assert!(text.contains("use Redis 6.2 or later"), "{text}");
        assert_eq!(backend_error_kind(refused), BackendErrorKind::Unsupported);
    }
}

/// A server that tells its version isn't asked. Another one is asked once for each connection, and nothing is written.
#[tokio::test]
async fn server_that_hides_its_version_is_asked_for_the_options_of_set() {
    let server = RedisServer::start();
    let no_hello = || hello(HelloRefusal::Unknown);
    let denied = "NOPERM User default has no permissions to access the 'lock:' key";
    for (quirks, asks) in [
        (vec![], false),
        (vec![no_hello()], false),
        (vec![Quirk::OldInfo], false),
        (vec![without_right("INFO")], false),
        (vec![without_right("INFO"), no_hello()], true),
        (
            vec![
                without_right("INFO"),
                no_hello(),
                Quirk::Replies(SET, Answer::Error(denied.into())),
            ],
            true,
        ),
    ] {
        let stand_in = StandIn::start(&server, quirks.clone());
        let locks = connect_with(LockManager::builder(), &stand_in.url()).await;
        acquire_and_release(&locks).await;
        let connections = stand_in.count(&Target::Command("TIME"));
        let expected = if asks { connections } else { 0 };
        assert_eq!(stand_in.count(&SET), expected, "{quirks:?}");
        assert!(!exists(&server, "lock:"));
    }
}

/// The service hides it, or a proxy does.
#[tokio::test]
async fn lack_of_a_run_id_is_reported_once() {
    let (trace, _collecting) = Trace::begin();
    let server = RedisServer::start();
    let stand_in = StandIn::start(&server, [Quirk::NoRunId]);
    let locks = connect_with(LockManager::builder(), &stand_in.url()).await;
    acquire_and_release(&locks).await;
    stand_in.cut_all();
    acquire_and_release(&locks).await;
    assert!(!locks.ping().await.unwrap().notifies_waiters);
    let reports = trace.count("INFO shows no run_id");
    assert_eq!(reports, 1, "{}", trace.text());
}

/// The event says it once, and `health` for as long as it is so.
#[tokio::test]
async fn health_says_why_waiters_poll() {
    let server = RedisServer::start();
    let unknown = |command| {
        let text = format!("ERR unknown command '{command}'");
        Quirk::Replies(Target::Command(command), Answer::Error(text))
    };
    let at_connect = [
        (vec![], "", None),
        (vec![], "?protocol=2", Some(PollingReason::ProtocolOfUrl)),
        (
            vec![hello(HelloRefusal::Unknown)],
            "",
            Some(PollingReason::NoResp3),
        ),
        (
            vec![without_right("INFO")],
            "",
            Some(PollingReason::InfoDenied),
        ),
        (vec![unknown("INFO")], "", Some(PollingReason::NoRunId)),
        (vec![Quirk::NoRunId], "", Some(PollingReason::NoRunId)),
    ];
    for (quirks, parameters, expected) in at_connect {
        let stand_in = StandIn::start(&server, quirks.clone());
        let url = format!("{}{parameters}", stand_in.url());
        let locks = connect_with(LockManager::builder(), &url).await;
        assert_eq!(locks.health().polling, expected, "{quirks:?}");
        // It isn't remembered longer than it is true.
        stand_in.set([]);
        stand_in.cut_all();
        acquire_and_release(&locks).await;
        let by_protocol = [PollingReason::ProtocolOfUrl, PollingReason::NoResp3];
        let expected = expected.filter(|why| by_protocol.contains(why));
        assert_eq!(locks.health().polling, expected, "{quirks:?}");
    }
    for (quirk, expected) in [
        (
            without_right("SUBSCRIBE"),
            PollingReason::SubscriptionDenied,
        ),
        (unknown("SUBSCRIBE"), PollingReason::SubscriptionRefused),
        (
            Quirk::Replies(Target::Command("SUBSCRIBE"), Answer::Closes),
            PollingReason::Disconnected,
        ),
    ] {
        let stand_in = StandIn::start(&server, [quirk.clone()]);
        let locks = connect_with(LockManager::builder(), &stand_in.url()).await;
        let held = locks.lock(NAME).acquire().await.unwrap();
        assert_eq!(locks.health().polling, None, "{quirk:?}");
        let waiting = tokio::spawn(locks.lock(NAME).wait(LONG).acquire());
        eventually_async(SOON, async || locks.health().polling == Some(expected)).await;
        assert!(!locks.health().is_subscribed);
        stand_in.set([]);
        // A refused subscription is tried again after ten seconds.
        if expected == PollingReason::Disconnected {
            eventually_async(LONG, async || locks.health().is_subscribed).await;
            assert_eq!(locks.health().polling, None, "{quirk:?}");
        }
        held.release().await.unwrap();
        granted(SOON, waiting).await.release().await.unwrap();
    }
    let builder = LockManager::builder().dialect(Dialect::SetnxExpire);
    let locks = connect_with(builder, &server.url()).await;
    assert_eq!(locks.health().polling, Some(PollingReason::Dialect));
    assert_eq!(LockManager::in_memory().health().polling, None);
}

/// Each of two proxies in front of one server tells a run id of its own. Every second connection is refused and made
/// again, so each of the two connections costs two dials.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pair_of_proxies_with_two_run_ids_costs_few_dials() {
    let server = RedisServer::start();
    let stand_in = StandIn::start(&server, [Quirk::TwoRunIds]);
    let reports = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&reports);
    let observer = move |event: &LockEvent<'_>| {
        if matches!(event, LockEvent::ServerRestricted { .. }) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    };
    let builder = LockManager::builder().default_wait(SOON).observer(observer);
    let locks = connect_with(builder, &stand_in.url()).await;
    let ttl = Duration::from_secs(3);
    for dials in [4, 8] {
        let held = locks.lock(NAME).ttl(ttl).acquire().await.unwrap();
        // The worker has a connection of its own.
        let renewals = || stand_in.count(&Target::Script("renew"));
        let before = renewals();
        eventually_async(SOON, async || renewals() > before).await;
        let waiting = start_waiter(&server, locks.lock(NAME).wait(SOON), 1).await;
        eventually_async(SOON, async || locks.ping().await.unwrap().notifies_waiters).await;
        assert!(!held.is_lost());
        held.release().await.unwrap();
        granted(AT_ONCE, waiting).await.release().await.unwrap();
        // A dial of a busy machine may take too long.
        let made = stand_in.accepted();
        assert!(made <= dials + 2, "{made} dials");
        stand_in.cut_all();
    }
    assert_eq!(reports.load(Ordering::Relaxed), 1);
}

/// Before Redis 7, `INFO` takes one section. All of them have the run id, which notifications need.
#[tokio::test]
async fn old_info_brings_notifications() {
    let (trace, _collecting) = Trace::begin();
    let server = RedisServer::start();
    let stand_in = StandIn::start(&server, [Quirk::OldInfo]);
    let locks = connect_with(LockManager::builder(), &stand_in.url()).await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    let waiting = start_waiter(&server, locks.lock(NAME).wait(SOON), 1).await;
    held.release().await.unwrap();
    granted(SOON, waiting).await.release().await.unwrap();
    let pong = locks.ping().await.unwrap();
    assert!(pong.notifies_waiters, "{}", trace.text());
}

#[tokio::test]
async fn each_refusal_of_hello_leads_to_resp2() {
    let server = RedisServer::start();
    for refusal in [
        HelloRefusal::Unknown,
        HelloRefusal::NoPermission,
        HelloRefusal::Text("ERR Protocol version is not supported".into()),
        HelloRefusal::Text("ERR syntax error".into()),
        HelloRefusal::Text("DENIED".into()),
        HelloRefusal::Text("LOADING the proxy has no server yet".into()),
        HelloRefusal::Text("BUSY".into()),
        HelloRefusal::Text("OOM command not allowed".into()),
        HelloRefusal::Text("MISCONF".into()),
        HelloRefusal::Text("CLUSTERDOWN".into()),
        HelloRefusal::Text("MOVED 0 127.0.0.1:1".into()),
        HelloRefusal::Text("NOREPLICAS".into()),
        HelloRefusal::Text("READONLY".into()),
        HelloRefusal::Text("WRONGTYPE".into()),
        HelloRefusal::Text("NOSCRIPT".into()),
        HelloRefusal::Closes,
    ] {
        let (trace, _collecting) = Trace::begin();
        let stand_in = StandIn::start(&server, [hello(refusal.clone())]);
        let locks = connect_with(LockManager::builder(), &stand_in.url()).await;
        acquire_and_release(&locks).await;
        assert!(!locks.ping().await.unwrap().notifies_waiters);
        let warnings = trace.count("connections speak RESP2");
        assert_eq!(warnings, 1, "{refusal:?}: {}", trace.text());
        // Remembered: a later connection does not ask again.
        let asked = stand_in.count(&Target::Command("HELLO"));
        stand_in.cut_all();
        acquire_and_release(&locks).await;
        let now_asked = stand_in.count(&Target::Command("HELLO"));
        assert_eq!(now_asked, asked, "{refusal:?}");
    }
}

/// The server has restarted: another process may speak RESP3.
#[tokio::test]
async fn another_process_is_asked_for_resp3_again() {
    let server = RedisServer::start();
    let stand_in = StandIn::start(&server, [hello(HelloRefusal::Unknown)]);
    let locks = connect_with(LockManager::builder(), &stand_in.url()).await;
    acquire_and_release(&locks).await;
    stand_in.set([]);
    server.restart();
    stand_in.cut_all();
    // The first connection to the new process still speaks RESP2, and sees its run id.
    for _ in 0..2 {
        acquire_and_release(&locks).await;
        stand_in.cut_all();
    }
    acquire_and_release(&locks).await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    let waiting = start_waiter(&server, locks.lock(NAME).wait(SOON), 1).await;
    held.release().await.unwrap();
    granted(SOON, waiting).await.release().await.unwrap();
    // The listener pauses if it has connected before RESP3 was tried again.
    eventually_async(SOON, async || {
        locks.ping().await.is_ok_and(|pong| pong.notifies_waiters)
    })
    .await;
}

/// Returns a manager whose background worker, which gets the notifications, was the first to connect to a new process of
/// the server, still in RESP2. Nothing cuts its connection, and RESP3 may be tried again.
async fn worker_in_resp2() -> (RedisServer, StandIn, LockManager) {
    let server = RedisServer::start();
    let stand_in = StandIn::start(&server, [hello(HelloRefusal::Unknown)]);
    let locks = connect_with(LockManager::builder(), &stand_in.url()).await;
    let before = locks.lock("before").acquire().await.unwrap();
    stand_in.set([]);
    server.restart();
    stand_in.cut_all();
    drop(before);
    eventually_async(SOON, async || locks.health().cleanups_open == 0).await;
    (server, stand_in, locks)
}

#[tokio::test]
async fn connection_in_resp2_is_replaced_when_resp3_may_be_tried() {
    let (server, _stand_in, locks) = worker_in_resp2().await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    let waiting = start_waiter(&server, locks.lock(NAME).wait(SOON), 1).await;
    eventually_async(SOON, async || {
        locks.ping().await.is_ok_and(|pong| pong.notifies_waiters)
    })
    .await;
    held.release().await.unwrap();
    granted(SOON, waiting).await.release().await.unwrap();
}

/// Renewals go over the connection in RESP2, and the server refuses the login of another one.
#[tokio::test]
async fn connection_in_resp2_stays_while_no_other_one_can_be_made() {
    let (server, _stand_in, locks) = worker_in_resp2().await;
    let held = locks.lock(NAME).ttl(ms(600)).acquire().await.unwrap();
    let mut admin = server.connect().unwrap();
    admin
        .call(&["CONFIG", "SET", "requirepass", "sesame"])
        .unwrap();
    let waiting = tokio::spawn(locks.lock(NAME).wait(LONG).acquire());
    eventually_async(SOON, async || locks.health().waiting == 1).await;
    tokio::time::sleep(ms(2000)).await;
    assert!(!held.is_lost(), "{:?}", held.loss_reason());
    held.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    next.release().await.unwrap();
}

#[tokio::test]
async fn wrong_password_is_not_tried_in_resp2() {
    let server = RedisServer::options().password("sesame").start();
    let wordings = [
        None,
        Some("ERR invalid password"),
        Some("ERR invalid username-password pair"),
    ];
    for wording in wordings {
        let refusal = wording.map(|text| hello(HelloRefusal::Text(text.to_owned())));
        let stand_in = StandIn::start(&server, refusal);
        let wrong = stand_in.url().replace("sesame", "wrong");
        let refused = one_attempt(LockManager::builder()).connect(&wrong).await;
        let kind = backend_error_kind(refused);
        assert_eq!(kind, BackendErrorKind::Authentication, "{wording:?}");
        assert_eq!(stand_in.count(&Target::Command("AUTH")), 0);
        assert_eq!(stand_in.count(&Target::Command("HELLO")), 1);
    }
}

#[tokio::test]
async fn refusal_that_repeats_the_password_is_logged_without_it() {
    let (trace, _collecting) = Trace::begin();
    let server = RedisServer::options().password("sesame").start();
    let text = "ERR cannot parse 3 AUTH default sesame".to_owned();
    let stand_in = StandIn::start(&server, [hello(HelloRefusal::Text(text))]);
    let locks = connect_with(LockManager::builder(), &stand_in.url()).await;
    acquire_and_release(&locks).await;
    trace.assert_says("cannot parse 3 AUTH default ***");
    assert_eq!(trace.count("sesame"), 0, "{}", trace.text());
}

/// The limit counts for the login in RESP2, too: it is no wrong password.
#[tokio::test]
async fn limit_at_the_login_is_no_wrong_password() {
    let server = RedisServer::options().password("sesame").start();
    let limited = ["HELLO", "AUTH"].map(|verb| refuses(Target::Command(verb), limits::REQUESTS));
    let stand_in = StandIn::start(&server, limited);
    let builder = one_attempt(LockManager::builder());
    let refused = builder.connect(&stand_in.url()).await;
    let text = refused.as_ref().unwrap_err().to_string();
    assert!(text.contains("max requests limit exceeded"), "{text}");
    assert_eq!(backend_error_kind(refused), BackendErrorKind::Other);
}

fn refuses(command: Target, text: &str) -> Quirk {
    Quirk::Replies(command, Answer::Error(text.to_owned()))
}

const ACQUIRES: Target = Target::Script("acquire");

/// Services word their limits as they like, and many limits are over a moment later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_refusal_is_repeated_until_the_wait_ends() {
    let server = RedisServer::start();
    let stand_in = StandIn::start(&server, []);
    let locks = connect_with(LockManager::builder(), &stand_in.url()).await;
    for text in [limits::REQUESTS, limits::DENIED, limits::CLIENTS] {
        stand_in.set([refuses(ACQUIRES, text)]);
        let sent = stand_in.count(&ACQUIRES);
        let waiting = tokio::spawn(locks.lock(NAME).wait(SOON).acquire());
        eventually_async(SOON, async || stand_in.count(&ACQUIRES) >= sent + 2).await;
        stand_in.set([]);
        granted(SOON, waiting).await.release().await.unwrap();

        stand_in.set([refuses(ACQUIRES, text)]);
        let started = Instant::now();
        let error = locks.lock(NAME).wait(ms(300)).acquire().await.unwrap_err();
        assert!(started.elapsed() >= ms(300), "{text}");
        let cause = error.source().unwrap().to_string();
        let words = text
            .trim_start_matches("ERR ")
            .trim_start_matches("DENIED ");
        assert!(cause.contains(words), "{text}: {cause}");
        assert_eq!(
            backend_error_kind(Err::<(), _>(error)),
            BackendErrorKind::Other
        );
        stand_in.set([]);
        assert_nothing_left(&server, &locks).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn election_goes_on_after_an_unknown_refusal() {
    let server = RedisServer::start();
    let stand_in = StandIn::start(&server, []);
    let locks = connect_with(LockManager::builder(), &stand_in.url()).await;
    stand_in.set([refuses(ACQUIRES, limits::REQUESTS)]);
    let leader = tokio::spawn(locks.lock(NAME).lead(async |_| ()));
    eventually_async(SOON, async || stand_in.count(&ACQUIRES) >= 2).await;
    stand_in.set([]);
    let led = tokio::time::timeout(SOON, leader).await;
    led.expect("the server accepts again").unwrap().unwrap();
}

/// Another attempt would fail in the same way.
#[tokio::test]
async fn refusal_that_lasts_ends_a_wait_at_once() {
    let server = RedisServer::start();
    let stand_in = StandIn::start(&server, []);
    let locks = connect_with(LockManager::builder(), &stand_in.url()).await;
    for (text, kind) in [
        ("ERR syntax error", BackendErrorKind::Unsupported),
        (
            "ERR unknown command 'EVALSHA', with args beginning with: ",
            BackendErrorKind::Unsupported,
        ),
        (
            "ERR wrong number of arguments for 'evalsha' command",
            BackendErrorKind::Unsupported,
        ),
        ("NOPERM no right", BackendErrorKind::Permission),
        (
            "WRONGPASS invalid username-password pair",
            BackendErrorKind::Authentication,
        ),
    ] {
        stand_in.set([refuses(ACQUIRES, text)]);
        let waiting = locks.lock(NAME).wait(LONG).acquire();
        let ended = tokio::time::timeout(SOON, waiting).await;
        let refused = ended.unwrap_or_else(|_| panic!("{text}"));
        assert_eq!(backend_error_kind(refused), kind, "{text}");
        stand_in.set([]);
    }
}

/// What a server sends without a command would be taken for the reply to the next one.
#[tokio::test]
async fn reply_without_a_command_ends_the_login() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let end_of_hello = "modules\r\n*0\r\n";
    let more = format!("{end_of_hello}+OK\r\n");
    proxy.replace(Direction::ToClient, end_of_hello, more);
    let builder = one_attempt(LockManager::builder());
    let url = format!("{}?protocol=3", proxy.url());
    let refused = builder.connect(&url).await;
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("without a command"), "{text}");
}

/// A push would be counted as a reply, and all later replies would be read at the wrong place.
#[tokio::test]
async fn push_during_the_handshake_ends_the_connection() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let role = "*3\r\n$6\r\nmaster\r\n";
    proxy.replace(
        Direction::ToClient,
        role,
        format!(">1\r\n+invalidate\r\n{role}"),
    );
    let builder = one_attempt(LockManager::builder());
    let refused = builder.connect(&proxy.url()).await;
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("without a command"), "{text}");
}

/// It closes connections for another reason, such as their number.
#[tokio::test]
async fn server_that_has_accepted_resp3_is_not_dialed_in_resp2_when_it_closes() {
    let server = RedisServer::start();
    let stand_in = StandIn::start(&server, []);
    let locks = connect_with(LockManager::builder(), &stand_in.url()).await;
    acquire_and_release(&locks).await;
    stand_in.set([hello(HelloRefusal::Closes)]);
    stand_in.cut_all();
    // In RESP2 it would get the lock.
    let down = locks.lock(NAME).wait(ms(300)).acquire().await;
    assert_eq!(backend_error_kind(down), BackendErrorKind::Unreachable);
    stand_in.set([]);
    // Notifications need RESP3. The listener pauses before it connects again.
    eventually_async(SOON, async || {
        locks.ping().await.is_ok_and(|pong| pong.notifies_waiters)
    })
    .await;
}

/// Tokens could go back after a failover if a limit were taken for a node without an epoch.
#[tokio::test]
async fn node_that_does_not_tell_its_epoch_now_is_not_used() {
    let node = lone_node();
    let proxy = Proxy::in_front_of(&node);
    let (info, other) = ("CLUSTER\r\n$4\r\nINFO", "CLUSTER\r\n$4\r\nINFX");
    proxy.replace(Direction::ToServer, info, other);
    let unknown = "-ERR unknown subcommand 'INFX'. Try CLUSTER HELP.";
    let limited = format!("-{}", limits::REQUESTS);
    proxy.replace(Direction::ToClient, unknown, limited);
    let url = proxy.url().replace("redis://", "redis+cluster://");
    let refused = one_attempt(LockManager::builder()).connect(&url).await;
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("cannot read the epoch"), "{text}");
}

/// Neither `INFO` nor `CLUSTER INFO` says that it is a node of a cluster, but it knows who owns the slots.
#[tokio::test]
async fn node_that_only_tells_the_slots_is_used() {
    let (trace, _collecting) = Trace::begin();
    let node = lone_node();
    let proxy = Proxy::in_front_of(&node);
    let (info, other) = ("CLUSTER\r\n$4\r\nINFO", "CLUSTER\r\n$4\r\nINFX");
    proxy.replace(Direction::ToServer, info, other);
    proxy.replace(
        Direction::ToClient,
        "cluster_enabled:1",
        "cluster_enabled:0",
    );
    let url = proxy.url().replace("redis://", "redis+cluster://");
    let locks = connect_with(one_attempt(LockManager::builder()), &url).await;
    acquire_and_release(&locks).await;
    assert_eq!(trace.count("serves the commands of one"), 1);
}
