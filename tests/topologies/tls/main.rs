//! TLS on a real server: certificates that fit, and each way in which they do not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_core::config::{Endpoint, Tls};
use lock_core::error::{BackendErrorKind, InvalidSetting};
use lock_core::{LockError, LockManager};
use test_support::tls::shown;
use test_support::{Authority, Certificate, Proxy, RedisServer, eventually_async};
use tests::{one_attempt, shut_down};
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs, ring};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

mod advice;
mod authorities;
mod expiry;
mod provider;
mod replaced;

const NAME: &str = "order:42";
/// Each acquire has 4 KB: more than the buffers of a socket take.
const BURST: usize = 2_500;

struct Secured {
    authority: Authority,
    server: RedisServer,
}

impl Secured {
    fn start(needs_client: bool) -> Self {
        let authority = Authority::new();
        let certificate = authority.server();
        Self::with(authority, &certificate, needs_client)
    }

    fn with(authority: Authority, certificate: &Certificate, needs_client: bool) -> Self {
        let options = RedisServer::options().tls(&authority, certificate, needs_client);
        Self {
            server: options.start(),
            authority,
        }
    }

    fn ca(&self) -> String {
        format!("ssl_ca_certs={}", shown(&self.authority.ca()))
    }

    fn url(&self) -> String {
        format!("{}?{}", self.server.tls_url(), self.ca())
    }
}

async fn assert_locks_work(locks: &LockManager) {
    let held = locks.lock(NAME).acquire().await.unwrap();
    assert!(locks.lock(NAME).try_acquire().await.unwrap().is_none());
    held.release().await.unwrap();
    shut_down(locks).await;
}

fn kind_of(error: &LockError) -> BackendErrorKind {
    match error {
        LockError::Backend(error) => error.kind(),
        other => panic!("expected a backend error: {other}"),
    }
}

/// Checks that the error of `connect` is one of TLS, comes in time, and has these words.
async fn assert_tls_error(url: &str, words: &[&str]) {
    let began = Instant::now();
    let error = LockManager::connect(url).await.unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(3), "{error}");
    assert_eq!(kind_of(&error), BackendErrorKind::Tls, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
    assert!(!format!("{error:?}{error:#?}").contains("PRIVATE"));
}

#[tokio::test]
async fn server_with_a_known_authority_is_accepted() {
    let secured = Secured::start(false);
    assert_locks_work(&LockManager::connect(&secured.url()).await.unwrap()).await;
    // The same in RESP2.
    let url = format!("{}&protocol=2", secured.url());
    assert_locks_work(&LockManager::connect(&url).await.unwrap()).await;
}

/// A handover needs the subscription.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_is_notified_over_tls() {
    let secured = Secured::start(false);
    let locks = LockManager::connect(&secured.url()).await.unwrap();
    assert!(locks.ping().await.unwrap().notifies_waiters);
    for _ in 0..50 {
        let held = locks.lock(NAME).acquire().await.unwrap();
        let waiter = tokio::spawn(locks.lock(NAME).acquire());
        tokio::task::yield_now().await;
        held.release().await.unwrap();
        waiter.await.unwrap().unwrap().release().await.unwrap();
    }
}

/// The commands are longer than a record of TLS, and the socket does not take them at once, because the
/// server is frozen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn burst_of_commands_waits_for_the_socket() {
    let secured = Secured::start(false);
    let builder = LockManager::builder().command_timeout(Duration::from_secs(20));
    let locks = builder.connect(&secured.url()).await.unwrap();
    locks
        .lock(NAME)
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    secured.server.stop();
    let name = |at: usize| format!("{}:{at}", "n".repeat(900));
    let mut acquiring = tokio::task::JoinSet::new();
    for at in 0..BURST {
        let locks = locks.clone();
        acquiring.spawn(async move { locks.lock(name(at)).acquire().await.unwrap() });
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    secured.server.cont();
    let held = acquiring.join_all().await;
    assert_eq!(held.len(), BURST);
    drop(held);
    shut_down(&locks).await;
}

#[tokio::test]
async fn client_certificate_is_shown_to_the_server() {
    let secured = Secured::start(true);
    let client = secured.authority.client();
    let url = format!("{}&{}", secured.url(), client.parameters());
    assert_locks_work(&LockManager::connect(&url).await.unwrap()).await;

    let read = |path| std::fs::read(path).unwrap();
    let tls = Tls::new()
        .ca_pem(read(&secured.authority.ca()))
        .client_pem(read(&client.certificate), read(&client.key));
    assert!(!format!("{tls:?}").contains("BEGIN"));
    let builder = LockManager::builder().tls(tls.clone());
    let locks = builder.connect(&secured.server.tls_url()).await.unwrap();
    assert_locks_work(&locks).await;

    let port = secured
        .server
        .tls_url()
        .rsplit(':')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    let endpoint = Endpoint::tcp("localhost", port).tls();
    let builder = LockManager::builder().tls(tls);
    assert_locks_work(&builder.connect_to(endpoint).await.unwrap()).await;
}

#[tokio::test]
async fn missing_client_certificate_is_named() {
    let secured = Secured::start(true);
    assert_tls_error(&secured.url(), &["CertificateRequired", "`ssl_certfile`"]).await;
}

#[tokio::test]
async fn unknown_authority_is_named() {
    let secured = Secured::start(false);
    let other = Authority::new();
    let url = format!(
        "{}?ssl_ca_certs={}",
        secured.server.tls_url(),
        shown(&other.ca())
    );
    assert_tls_error(&url, &["does not trust", "`ssl_ca_certs`"]).await;
}

#[tokio::test]
async fn certificate_of_another_host_is_refused_unless_it_is_expected() {
    let authority = Authority::new();
    let certificate = authority.server_named("cache.internal");
    let secured = Secured::with(authority, &certificate, false);
    assert_tls_error(&secured.url(), &["for another host", "`server_name`"]).await;
    let tls = Tls::new().server_name("cache.internal");
    let locks = LockManager::builder()
        .tls(tls)
        .connect(&secured.url())
        .await;
    assert_locks_work(&locks.unwrap()).await;
    let tls = Tls::new().server_name("not a name");
    let error = LockManager::builder()
        .tls(tls)
        .connect(&secured.url())
        .await
        .unwrap_err();
    assert_eq!(kind_of(&error), BackendErrorKind::Tls, "{error}");
}

#[tokio::test]
async fn expired_certificate_is_named() {
    let authority = Authority::new();
    let certificate = authority.expired();
    let secured = Secured::with(authority, &certificate, false);
    assert_tls_error(&secured.url(), &["has expired"]).await;
}

#[tokio::test]
async fn unusable_files_are_named() {
    let secured = Secured::start(false);
    let (client, other) = (secured.authority.client(), secured.authority.server());
    let mixed = Certificate {
        key: other.key,
        ..client.clone()
    };
    let empty = shown(&secured.authority.empty_file());
    let missing = Certificate {
        certificate: "/not/there.pem".into(),
        ..client
    };
    for (parameters, words) in [
        (
            mixed.parameters(),
            ["is not that of the certificate", "server.key"],
        ),
        (missing.parameters(), ["/not/there.pem", "check the path"]),
    ] {
        assert_tls_error(&format!("{}&{parameters}", secured.url()), &words).await;
    }
    let url = format!("{}?ssl_ca_certs={empty}", secured.server.tls_url());
    assert_tls_error(&url, &["empty.pem", "there is no certificate"]).await;
}

/// Neither side of a wrong guess hangs, and the error asks the question.
#[tokio::test]
async fn wrong_guess_about_tls_is_asked_for() {
    let secured = Secured::start(false);
    let plain = secured.server.url().replace("redis://", "rediss://");
    let url = format!("{plain}?{}", secured.ca());
    let error = LockManager::connect(&url).await.unwrap_err();
    assert!(
        error.to_string().contains("does that port speak TLS?"),
        "{error}"
    );
    let url = secured.server.tls_url().replace("rediss://", "redis://");
    let error = LockManager::connect(&url).await.unwrap_err();
    assert!(error.to_string().contains("use rediss://"), "{error}");
    assert_eq!(kind_of(&error), BackendErrorKind::Unreachable);
}

#[tokio::test]
async fn certificates_without_tls_are_refused() {
    let server = RedisServer::start();
    let builder = LockManager::builder().tls(Tls::new());
    let error = builder.connect(&server.url()).await.unwrap_err();
    assert_eq!(kind_of(&error), BackendErrorKind::InvalidUrl);
    assert!(error.to_string().contains("use rediss://"), "{error}");
    // A manager in memory ignores them.
    let memory = LockManager::builder()
        .tls(Tls::new())
        .connect("memory://")
        .await;
    assert_locks_work(&memory.unwrap()).await;
}

#[tokio::test]
async fn configuration_of_rustls_is_taken_as_it_is() {
    let secured = Secured::start(false);
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(secured.authority.ca()).unwrap())
        .unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let tls = Tls::from_rustls_0_23(Arc::new(config));
    let builder = LockManager::builder().tls(tls.clone());
    let locks = builder.connect(&secured.server.tls_url()).await.unwrap();
    assert_locks_work(&locks).await;
    let error = LockManager::builder()
        .tls(tls)
        .connect(&secured.url())
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("two sources of certificates"),
        "{error}"
    );
}

/// No provider of cryptography is installed in this process, and the library installs none. There are two that could
/// be: rustls panics when it has to choose one for the process.
#[tokio::test]
async fn process_without_a_provider_is_left_alone() {
    let found = [ring::default_provider(), aws_lc_rs::default_provider()];
    assert!(found.iter().all(|it| !it.cipher_suites.is_empty()));
    let secured = Secured::start(false);
    assert_locks_work(&LockManager::connect(&secured.url()).await.unwrap()).await;
    let installed = CryptoProvider::get_default();
    assert!(installed.is_none());
}

/// A load balancer without a server accepts connections, and closes them during the handshake of TLS.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_over_tls_waits_out_a_restart_of_the_server() {
    let secured = Secured::start(false);
    let proxy = Proxy::in_front_of_tls(&secured.server);
    let url = format!("{}?{}", proxy.url(), secured.ca());
    let locks = LockManager::connect(&url).await.unwrap();
    let held = locks.lock(NAME).acquire().await.unwrap();
    let waiter = tokio::spawn(locks.lock(NAME).wait(Duration::from_secs(60)).acquire());
    secured.server.kill9();
    eventually_async(Duration::from_secs(30), async || {
        let failed = locks.ping().await.err();
        failed.is_some_and(|error| error.to_string().contains("TLS handshake"))
    })
    .await;
    let error = LockManager::connect(&url).await.unwrap_err();
    assert_eq!(kind_of(&error), BackendErrorKind::Unreachable, "{error}");
    assert!(
        error.to_string().contains("does that port speak TLS?"),
        "{error}"
    );
    assert!(!waiter.is_finished());
    secured.server.restart();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    // The server has no persistence, and forgot the lock.
    let _lost = held.release().await;
    shut_down(&locks).await;
}

/// A Unix socket has no TLS, and a setting without an effect is an error.
#[tokio::test]
async fn tls_over_a_unix_socket_is_refused() {
    let endpoint = Endpoint::unix("/run/redis.sock").tls();
    let building = LockManager::builder().connect_to(endpoint).await;
    let error = building.unwrap_err();
    assert!(
        matches!(&error, LockError::Invalid(InvalidSetting::Manager { setting, .. }) if *setting == "tls"),
        "{error:?}"
    );
    assert!(error.to_string().contains("Unix socket"), "{error}");
}

/// A pipe gives no certificate before another process writes it.
#[tokio::test]
async fn certificates_that_are_not_read_end_the_connect_in_time() {
    let server = RedisServer::start();
    let pipe = server.directory().join("ca.pem");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let url = format!(
        "rediss://{}?ssl_ca_certs={}",
        server.address(),
        pipe.display()
    );
    let builder = LockManager::builder().command_timeout(Duration::from_millis(300));
    let error = builder.connect(&url).await.unwrap_err();
    let LockError::Backend(backend) = &error else {
        panic!("{error:?}");
    };
    assert_eq!(backend.kind(), BackendErrorKind::TimedOut, "{error:?}");
    assert!(error.to_string().contains("certificates"), "{error}");
    // Ends the thread that reads.
    drop(std::fs::OpenOptions::new().write(true).open(&pipe));
}

/// Prints the CPU time of a connection that is made again: the certificates are not read again, and the session
/// is resumed.
#[tokio::test]
#[ignore = "a measurement: run it with --ignored --nocapture, on a quiet machine"]
async fn cpu_time_of_connections_that_are_made_again() {
    const TIMES: u32 = 100;
    let secured = Secured::start(false);
    let begin = one_attempt(LockManager::builder());
    let locks = begin.connect(&secured.url()).await.unwrap();
    let before = cpu_ticks();
    for _ in 0..TIMES {
        secured.server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        eventually_async(Duration::from_secs(10), async || locks.ping().await.is_ok()).await;
    }
    let used = (cpu_ticks() - before) * 10;
    let stats = secured.server.cli(&["INFO", "stats"]).text().to_owned();
    let received = stats
        .lines()
        .find_map(|line| line.strip_prefix("total_connections_received:"));
    let received: u32 = received.unwrap().parse().unwrap();
    assert!(received > TIMES, "{received} connections");
    println!("{TIMES} connections: {used} ms of CPU time, with that of the test");
}

/// Returns the CPU time of this process in hundredths of a second.
fn cpu_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let fields: Vec<_> = fields.split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<u64>().unwrap();
    ticks(11) + ticks(12)
}
