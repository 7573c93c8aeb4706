//! A function of the user provides certificates, which change while the manager runs.

use std::fs;
use std::io;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use lock_core::config::{Certificates, Tls};
use lock_core::error::BackendErrorKind;
use lock_core::telemetry::LockEvent;
use lock_core::{LockManager, LockManagerBuilder};
use test_support::fixtures::SOON;
use test_support::tls::shown;
use test_support::{Authority, Certificate, eventually_async};
use tests::{backend_error_kind, one_attempt};
use topologies::use_when_connected;

use super::{NAME, Secured, kind_of};

/// What the provider does when it is asked.
enum Answer {
    Gives(Certificates),
    Fails,
    /// With other words each time.
    FailsAnew(AtomicUsize),
    Panics,
    /// Blocks until the other end of the second channel is dropped. Sends at the begin of each call.
    Blocks(Sender<()>, Receiver<()>),
}

/// The provider of a manager, and the texts and kinds of what the manager reports.
#[derive(Clone)]
struct Provided {
    answer: Arc<Mutex<Answer>>,
    reports: Arc<Mutex<Vec<String>>>,
}

impl Provided {
    fn new(answer: Answer) -> Self {
        Self {
            answer: Arc::new(Mutex::new(answer)),
            reports: Arc::default(),
        }
    }

    fn set(&self, answer: Answer) {
        *self.answer.lock().unwrap() = answer;
    }

    fn tls(&self) -> Tls {
        let answer = Arc::clone(&self.answer);
        Tls::new().provider(move || {
            assert_eq!(
                lock_core::testing::held_mutexes(),
                0,
                "foreign code under a mutex"
            );
            match &*answer.lock().unwrap() {
                Answer::Gives(certificates) => return Ok(certificates.clone()),
                Answer::Fails => return Err(io::Error::other("the vault is \u{1b}[31msealed")),
                Answer::FailsAnew(times) => {
                    let times = times.fetch_add(1, Ordering::Relaxed);
                    return Err(io::Error::other(format!("request {times} failed")));
                }
                Answer::Panics => {}
                Answer::Blocks(begun, released) => {
                    begun.send(()).unwrap();
                    let _dropped = released.recv();
                    return Ok(Certificates::new());
                }
            }
            // Without the message and the backtrace of `panic!`. To find its symbols takes longer than a handshake may.
            resume_unwind(Box::new("the provider panics"))
        })
    }

    fn builder(&self) -> LockManagerBuilder {
        let reports = Arc::clone(&self.reports);
        let observer = move |event: &LockEvent<'_>| {
            let report = match event {
                LockEvent::CertificatesNotRead { error, .. } => error.to_string(),
                LockEvent::CertificateExpiresSoon { location, .. } => {
                    format!("expires: {location}")
                }
                LockEvent::PanicCaught { source, .. } => format!("panic: {source}"),
                _ => return,
            };
            reports.lock().unwrap().push(report);
        };
        one_attempt(LockManager::builder())
            .tls(self.tls())
            .observer(observer)
    }

    fn reports(&self) -> Vec<String> {
        self.reports.lock().unwrap().clone()
    }

    /// Waits for a report that begins so. A handshake does not wait for it.
    async fn wait_for_report(&self, begin: &str) {
        let is_there = async || self.reports().iter().any(|text| text.starts_with(begin));
        eventually_async(SOON, is_there).await;
    }
}

fn pem(authority: &Authority, client: &Certificate) -> Answer {
    let read = |path| fs::read(path).unwrap();
    let certificates = Certificates::new()
        .ca_pem(read(&authority.ca()))
        .client_pem(read(&client.certificate), read(&client.key));
    assert!(!format!("{certificates:?}").contains("BEGIN"));
    Answer::Gives(certificates)
}

/// A server that needs certificates of its clients, and a manager that gets its own from a provider.
async fn connected() -> (Secured, Provided, LockManager) {
    let secured = Secured::start(true);
    let provided = Provided::new(pem(&secured.authority, &secured.authority.client()));
    let url = secured.server.tls_url();
    let locks = provided.builder().connect(&url).await.unwrap();
    use_when_connected(&locks, NAME).await;
    (secured, provided, locks)
}

async fn reconnect(secured: &Secured, locks: &LockManager) {
    secured.server.restart();
    use_when_connected(locks, NAME).await;
}

/// Authority, server and client change together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newer_certificates_need_no_new_manager() {
    let (secured, provided, locks) = connected().await;
    let (other, used) = (Authority::new(), secured.authority.server());
    let new = other.server();
    for (from, to) in [
        (other.ca(), secured.authority.ca()),
        (new.certificate, used.certificate),
        (new.key, used.key),
    ] {
        fs::copy(from, to).unwrap();
    }
    secured.server.restart();
    let refused = locks
        .lock(NAME)
        .wait(Duration::from_secs(30))
        .acquire()
        .await;
    assert_eq!(backend_error_kind(refused), BackendErrorKind::Tls);
    provided.set(pem(&other, &other.client()));
    use_when_connected(&locks, NAME).await;
    assert_eq!(provided.reports(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provider_that_fails_ends_no_connection() {
    let (secured, provided, locks) = connected().await;
    provided.set(Answer::Fails);
    reconnect(&secured, &locks).await;
    let text = "the provider of certificates failed (the vault is [31msealed)";
    provided.wait_for_report(text).await;
    for answer in [Answer::FailsAnew(AtomicUsize::new(0)), Answer::Panics] {
        provided.set(answer);
        for _ in 0..2 {
            reconnect(&secured, &locks).await;
        }
    }
    provided
        .wait_for_report("panic: certificate_provider")
        .await;
    assert!(locks.stats().panics > 0);
    let reports = provided.reports();
    let failures = reports.iter().filter(|text| !text.starts_with("panic"));
    assert_eq!(failures.count(), 1, "until it succeeds: {reports:?}");

    let unusable = Certificates::new().ca_pem("no PEM");
    provided.set(Answer::Gives(unusable));
    reconnect(&secured, &locks).await;
    let text = "the CA certificates in the PEM of the provider: there is no certificate";
    provided.wait_for_report(text).await;
}

/// As a client of Vault whose server does not answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provider_that_blocks_ends_no_connection() {
    let (secured, provided, locks) = connected().await;
    let (begun, begins) = channel();
    let (release, released) = channel();
    provided.set(Answer::Blocks(begun, released));
    reconnect(&secured, &locks).await;
    begins
        .recv_timeout(SOON)
        .expect("a handshake has asked the provider");
    begins.try_recv().expect_err("one call at a time");
    drop(release);
}

#[tokio::test]
async fn provider_that_fails_ends_the_connect() {
    let secured = Secured::start(true);
    for (answer, words) in [
        (
            Answer::Fails,
            "the provider of certificates failed (the vault is [31msealed)",
        ),
        (Answer::Panics, "the provider of certificates panicked"),
    ] {
        let builder = Provided::new(answer).builder();
        let error = builder
            .connect(&secured.server.tls_url())
            .await
            .unwrap_err();
        assert_eq!(kind_of(&error), BackendErrorKind::Tls, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    // Not before the end of the call.
    let (begun, begins) = channel();
    let (release, released) = channel();
    let provided = Provided::new(Answer::Blocks(begun, released));
    let builder = provided
        .builder()
        .command_timeout(Duration::from_millis(300));
    let error = builder
        .connect(&secured.server.tls_url())
        .await
        .unwrap_err();
    assert_eq!(kind_of(&error), BackendErrorKind::TimedOut, "{error}");
    assert!(
        error.to_string().contains("make its provider faster"),
        "{error}"
    );
    begins.recv().unwrap();
    // Ends the thread that asks.
    drop(release);
}

#[tokio::test]
async fn second_source_beside_a_provider_is_named() {
    let secured = Secured::start(true);
    let client = secured.authority.client();
    let provided = Provided::new(pem(&secured.authority, &client));
    let url = secured.server.tls_url();
    let by_files = format!("{url}?{}", client.parameters());
    let error = provided.builder().connect(&by_files).await.unwrap_err();
    let text = "two client certificates: the URL has one, and its provider has one";
    assert!(error.to_string().contains(text), "{error}");

    // Authorities add up.
    let other = Provided::new(pem(&Authority::new(), &client));
    let with_ca = format!("{url}?ssl_ca_certs={}", shown(&secured.authority.ca()));
    let locks = other.builder().connect(&with_ca).await.unwrap();
    use_when_connected(&locks, NAME).await;
}

#[tokio::test]
async fn provided_certificate_that_expires_soon_is_reported() {
    let secured = Secured::start(true);
    let end = SystemTime::now() + Duration::from_secs(24 * 3600);
    let client = secured.authority.client_until(end);
    let provided = Provided::new(pem(&secured.authority, &client));
    let url = secured.server.tls_url();
    let _locks = provided.builder().connect(&url).await.unwrap();
    assert_eq!(provided.reports(), ["expires: the PEM of the provider"]);
}

#[tokio::test]
async fn pipe_beside_a_provider_is_refused() {
    let secured = Secured::start(false);
    let pipe = secured.server.directory().join("ca.pem");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let url = format!("{}?ssl_ca_certs={}", secured.server.tls_url(), shown(&pipe));
    let words = ["that can be read only once", "name regular files"];
    let provided = Provided::new(Answer::Gives(Certificates::new()));
    let error = provided.builder().connect(&url).await.unwrap_err();
    for word in words {
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
}
