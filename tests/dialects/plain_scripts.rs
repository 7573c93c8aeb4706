//! A server that refuses the first line of the scripts gets them without it.

use lock_core::LockManager;
use lock_core::dialect::Dialect;
use lock_core::error::BackendErrorKind;
use test_support::fixtures::{KEY, NAME, SOON, exists, ms, time_to_expiry};
use test_support::stand_in::Quirk;
use test_support::{Direction, Proxy, RedisServer, StandIn};
use tests::{
    SET_NX_PX, SET_NX_PX_AUTO, WATCH_MULTI, backend_error_kind, one_attempt, supported_dialects,
};

use super::{connect_in, refusal};

/// Each of them loads scripts.
const SCRIPTED: [Dialect; 5] = [
    Dialect::Native,
    Dialect::SetnxExpire,
    Dialect::DeadlineGetset,
    Dialect::LuaSetnxExpire,
    SET_NX_PX,
];

/// Returns a proxy behind which the server knows no language of this name: it replies
/// `ERR Could not find scripting engine`.
fn refusing(server: &RedisServer) -> Proxy {
    let proxy = Proxy::in_front_of(server);
    proxy.replace(Direction::ToServer, "#!lua", "#!old");
    proxy
}

/// Behind the proxy, the server has this version. The text keeps its length, which the server has sent before it.
fn seem(proxy: &Proxy, version: &str) {
    let seeming = format!("redis_version:{version}");
    for (major, minor) in (6..=9).flat_map(|major| (0..=9).map(move |minor| (major, minor))) {
        let version = format!("redis_version:{major}.{minor}");
        proxy.replace(Direction::ToClient, version, &seeming);
    }
}

async fn uses_a_lock(locks: &LockManager, server: &RedisServer, dialect: Dialect) {
    let held = locks.lock(NAME).min_hold(ms(200)).acquire().await.unwrap();
    assert!(refusal(locks).await.is_contended(), "{dialect}");
    held.renew().await.unwrap();
    assert!(time_to_expiry(server, KEY) > SOON, "{dialect}");
    held.release().await.unwrap();
    // On a busy machine the key has expired already.
    let left = server.cli(&["PTTL", KEY]).integer();
    assert!(left == -2 || (0..=400).contains(&left), "{dialect}: {left}");
    let next = locks.lock(NAME).wait(SOON).acquire().await.unwrap();
    next.release().await.unwrap();
    assert!(!exists(server, KEY), "{dialect}");
}

#[tokio::test]
async fn refused_first_line_is_left_out() {
    for dialect in SCRIPTED {
        let server = RedisServer::start();
        let proxy = refusing(&server);
        let locks = connect_in(dialect, &proxy.url()).await;
        let monitor = server.monitor();
        uses_a_lock(&locks, &server, dialect).await;
        let recording = monitor.stop();
        let by_text = recording
            .from_clients()
            .any(|command| command.name() == "EVAL");
        assert!(
            !by_text,
            "{dialect}: the hashes are those of the loaded texts"
        );
        // A script that the server has forgotten is sent again, also without the line.
        server.cli(&["SCRIPT", "FLUSH"]);
        uses_a_lock(&locks, &server, dialect).await;
        // A script that the handshake does not load.
        let held = locks.lock(NAME).acquire().await.unwrap();
        locks.admin().inspect(NAME).await.unwrap();
        held.release().await.unwrap();
    }
}

#[tokio::test]
async fn auto_also_leaves_the_line_out() {
    let server = RedisServer::start();
    let proxy = refusing(&server);
    let locks = connect_in(SET_NX_PX_AUTO, &proxy.url()).await;
    uses_a_lock(&locks, &server, SET_NX_PX_AUTO).await;
}

/// Such a server counts as supported.
#[tokio::test]
async fn older_server_that_loads_plain_scripts_is_accepted() {
    for dialect in SCRIPTED {
        let server = RedisServer::start();
        let proxy = refusing(&server);
        seem(&proxy, "6.2");
        let locks = connect_in(dialect, &proxy.url()).await;
        uses_a_lock(&locks, &server, dialect).await;
    }
}

/// Such a server has no `PEXPIRE` with `LT`, in a script or in a transaction.
#[tokio::test]
async fn older_server_needs_no_options_of_pexpire() {
    for dialect in supported_dialects() {
        let server = RedisServer::start();
        let quirks = [
            Quirk::PlainScriptsOnly,
            Quirk::OldScriptErrors,
            Quirk::NoExpireOptions,
        ];
        let stand_in = StandIn::start(&server, quirks);
        let locks = connect_in(dialect, &stand_in.url()).await;
        let held = locks.lock(NAME).min_hold(ms(500)).acquire().await.unwrap();
        held.renew().await.unwrap();
        held.release().await.unwrap();
        // On a busy machine the key has expired already. A key with a deadline outlasts it by 100 ms.
        let left = server.cli(&["PTTL", KEY]).integer();
        assert!(left == -2 || (0..=600).contains(&left), "{dialect}: {left}");
    }
}

/// The dialect needs no scripts, or the user may not load them. They are then sent as the version needs them, also those
/// of operators.
#[tokio::test]
async fn older_server_that_has_loaded_no_script_gets_plain_ones() {
    for (dialect, rights) in [(WATCH_MULTI, "+@all"), (Dialect::Native, "-script")] {
        let server = RedisServer::start();
        server.cli(&["ACL", "SETUSER", "default", rights]);
        let proxy = refusing(&server);
        seem(&proxy, "6.2");
        let locks = connect_in(dialect, &proxy.url()).await;
        let held = locks.lock(NAME).acquire().await.unwrap();
        assert!(
            locks
                .admin()
                .inspect(NAME)
                .await
                .unwrap()
                .holder()
                .is_some(),
            "{dialect}"
        );
        held.renew().await.unwrap();
        held.release().await.unwrap();
        assert!(!exists(&server, KEY), "{dialect}");
    }
}

/// A service that is compatible with Redis may tell an old version.
#[tokio::test]
async fn older_version_that_accepts_the_first_line_gets_it() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    seem(&proxy, "6.2");
    for dialect in SCRIPTED {
        uses_a_lock(&connect_in(dialect, &proxy.url()).await, &server, dialect).await;
    }
}

/// It loads the scripts, but `SET` has no `PXAT` there, and each acquire fails.
#[tokio::test]
async fn server_before_redis_6_2_is_refused() {
    for (version, dialect) in [
        ("5.0", Dialect::Native),
        ("6.0", Dialect::Native),
        ("6.0", SET_NX_PX),
    ] {
        let server = RedisServer::start();
        let proxy = refusing(&server);
        seem(&proxy, version);
        let builder = one_attempt(LockManager::builder()).dialect(dialect);
        let refused = builder.connect(&proxy.url()).await;
        let text = refused.as_ref().unwrap_err().to_string();
        assert_eq!(backend_error_kind(refused), BackendErrorKind::Unsupported);
        for words in [&*format!("is Redis {version}."), "Redis 6.2 or later"] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}

/// For example a proxy, or a service whose `INFO` has other fields.
#[tokio::test]
async fn server_that_hides_its_version_is_accepted() {
    for plain in [false, true] {
        let server = RedisServer::start();
        let proxy = if plain {
            refusing(&server)
        } else {
            Proxy::in_front_of(&server)
        };
        proxy.replace(Direction::ToClient, "redis_version:", "proxy_version:");
        let locks = connect_in(Dialect::Native, &proxy.url()).await;
        uses_a_lock(&locks, &server, Dialect::Native).await;
    }
}

/// A user who may not load scripts sends each with its first line, as before.
#[tokio::test]
async fn denied_loading_does_not_change_the_scripts() {
    let server = RedisServer::start();
    let user = [
        "ACL", "SETUSER", "app", "on", ">pass", "~*", "&*", "+@all", "-script",
    ];
    assert_eq!(server.cli(&user).text(), "OK");
    let monitor = server.monitor();
    let url = format!("redis://app:pass@{}", server.address());
    let locks = connect_in(Dialect::Native, &url).await;
    uses_a_lock(&locks, &server, Dialect::Native).await;
    let recording = monitor.stop();
    let mut texts = recording
        .from_clients()
        .filter(|command| command.name() == "EVAL");
    // Redis 6.2 would not accept it.
    let has_first_line = !server.is_before((7, 0));
    assert!(texts.all(|it| it.words[1].starts_with("#!lua") == has_first_line));
}

/// Two active replicas grant one lock to two clients.
#[tokio::test]
async fn active_replica_is_refused() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    proxy.replace(
        Direction::ToClient,
        "$6\r\nmaster\r\n",
        "$14\r\nactive-replica\r\n",
    );
    let refused = one_attempt(LockManager::builder())
        .connect(&proxy.url())
        .await;
    let text = refused.as_ref().unwrap_err().to_string();
    assert!(text.contains("active replica"), "{text}");
    assert_eq!(backend_error_kind(refused), BackendErrorKind::Unsupported);
}

/// Without its flags, a script still runs while the memory is full: only a command that needs memory is
/// refused, unless the script has written before.
#[tokio::test]
async fn server_without_memory_renews_and_releases_by_plain_scripts() {
    for dialect in [Dialect::Native, SET_NX_PX] {
        let server = RedisServer::start();
        let proxy = refusing(&server);
        let locks = connect_in(dialect, &proxy.url()).await;
        let held = locks.lock(NAME).acquire().await.unwrap();
        server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
        held.renew().await.unwrap();
        held.release().await.unwrap();
        assert!(!exists(&server, KEY), "{dialect}");
        assert_eq!(
            backend_error_kind(locks.lock(NAME).acquire().await),
            BackendErrorKind::OutOfMemory
        );
    }
}
