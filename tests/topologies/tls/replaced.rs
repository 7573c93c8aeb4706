//! Certificates of servers, clients and authorities are replaced while the manager runs.

use std::fs;
#[cfg(unix)]
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

use lock_core::LockManager;
use lock_core::error::BackendErrorKind;
use test_support::fixtures::{SOON, current_thread_runtime, multi_thread_runtime};
use test_support::tls::shown;
use test_support::{Authority, Certificate, eventually_async};
use tests::{backend_error_kind, one_attempt};
use topologies::use_when_connected;

use super::{NAME, Secured};

/// Longer than the test waits.
const WAIT: Duration = Duration::from_secs(600);

/// Restarts the server with another certificate.
fn restart_with(secured: &Secured, new: &Certificate) {
    let used = secured.authority.server();
    for (from, to) in [(&new.certificate, &used.certificate), (&new.key, &used.key)] {
        fs::copy(from, to).unwrap();
    }
    secured.server.restart();
}

async fn connect(secured: &Secured) -> LockManager {
    let builder = one_attempt(LockManager::builder());
    builder.connect(&secured.url()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_of_the_same_authority_is_accepted_at_the_next_connection() {
    let secured = Secured::start(false);
    let locks = connect(&secured).await;
    use_when_connected(&locks, NAME).await;
    restart_with(&secured, &secured.authority.server_named("localhost"));
    use_when_connected(&locks, NAME).await;
}

/// A caller that waits gets the error at once: waiting does not cure it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_of_another_authority_ends_the_waits() {
    let secured = Secured::start(false);
    let locks = connect(&secured).await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    let waiting = tokio::spawn(locks.lock(NAME).wait(WAIT).acquire());
    restart_with(&secured, &Authority::new().server());
    let later = tokio::spawn(locks.lock(NAME).wait(WAIT).acquire());
    for waiter in [waiting, later] {
        let ended = tokio::time::timeout(SOON, waiter).await;
        let refused = ended
            .expect("no wait for a server of another authority")
            .unwrap();
        let text = refused.as_ref().unwrap_err().to_string();
        assert_eq!(backend_error_kind(refused), BackendErrorKind::Tls);
        assert!(text.contains("does not trust"), "{text}");
    }
    // The server has forgotten the lock, and this manager cannot know.
    drop(held);
    restart_with(&secured, &secured.authority.server_named("localhost"));
    use_when_connected(&locks, NAME).await;
}

/// A server that needs certificates of its clients, and copies of the files that a manager names.
struct Replaced {
    secured: Secured,
    other: Authority,
    trusted: PathBuf,
    client: Certificate,
}

impl Replaced {
    fn start() -> Self {
        let secured = Secured::start(true);
        let client = secured.authority.client();
        let trusted = client.certificate.with_file_name("trusted.pem");
        fs::copy(secured.authority.ca(), &trusted).unwrap();
        Self {
            other: Authority::new(),
            secured,
            trusted,
            client,
        }
    }

    async fn connect(&self) -> LockManager {
        let (ca, client) = (shown(&self.trusted), self.client.parameters());
        let url = self.secured.server.tls_url();
        let url = format!("{url}?ssl_ca_certs={ca}&{client}");
        let builder = one_attempt(LockManager::builder());
        let locks = builder.connect(&url).await.unwrap();
        use_when_connected(&locks, NAME).await;
        locks
    }

    /// Restarts the server, which then accepts only clients of the other authority.
    fn accept_other_clients(&self) {
        fs::copy(self.other.ca(), self.secured.authority.ca()).unwrap();
        self.secured.server.restart();
    }

    fn renew(&self) {
        let new = self.other.client();
        fs::copy(&new.certificate, &self.client.certificate).unwrap();
        fs::copy(&new.key, &self.client.key).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewed_client_certificate_needs_no_new_manager() {
    let replaced = Replaced::start();
    let locks = replaced.connect().await;
    replaced.accept_other_clients();
    let refused = locks.lock(NAME).wait(SOON).acquire().await;
    assert_eq!(backend_error_kind(refused), BackendErrorKind::Tls);
    replaced.renew();
    use_when_connected(&locks, NAME).await;
}

/// A program that renews certificates writes two files, one after the other. In between, those that were read before
/// still work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_whose_key_is_not_there_yet_is_not_used() {
    let replaced = Replaced::start();
    let locks = replaced.connect().await;
    let new = replaced.other.client();
    fs::copy(&new.certificate, &replaced.client.certificate).unwrap();
    replaced.secured.server.restart();
    use_when_connected(&locks, NAME).await;
}

/// All connections begin anew at the same moment, on several runtimes. A refused handshake would end a wait.
#[test]
fn waits_go_on_while_a_certificate_is_renewed() {
    let replaced = Replaced::start();
    let runtime = multi_thread_runtime(2);
    let locks = runtime.block_on(replaced.connect());
    replaced.secured.server.kill9();
    let waiting: Vec<_> = (0..8)
        .map(|number| {
            let request = locks.lock(format!("{NAME}:{number}")).wait(WAIT);
            std::thread::spawn(move || {
                current_thread_runtime()
                    .block_on(async { request.acquire().await?.release().await })
            })
        })
        .collect();
    runtime.block_on(eventually_async(SOON, async || locks.health().waiting == 8));
    replaced.renew();
    replaced.accept_other_clients();
    for waiter in waiting {
        waiter.join().unwrap().unwrap();
    }
}

/// As a mounted secret of Kubernetes is replaced: its files are links, and the link on the way gets another target.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replaced_authority_needs_no_new_manager() {
    let secured = Secured::start(false);
    let [trusted, next] =
        ["trusted.pem", "next.pem"].map(|name| secured.authority.ca().with_file_name(name));
    symlink(secured.authority.ca(), &trusted).unwrap();
    let url = secured.server.tls_url();
    let url = format!("{url}?ssl_ca_certs={}", shown(&trusted));
    let builder = one_attempt(LockManager::builder());
    let locks = builder.connect(&url).await.unwrap();
    use_when_connected(&locks, NAME).await;
    let other = Authority::new();
    restart_with(&secured, &other.server());
    let refused = locks.lock(NAME).wait(SOON).acquire().await;
    assert_eq!(backend_error_kind(refused), BackendErrorKind::Tls);
    symlink(other.ca(), &next).unwrap();
    fs::rename(&next, &trusted).unwrap();
    use_when_connected(&locks, NAME).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_files_end_no_connection() {
    let replaced = Replaced::start();
    let locks = replaced.connect().await;
    let reconnected = async || {
        replaced.secured.server.restart();
        use_when_connected(&locks, NAME).await;
    };
    fs::write(&replaced.trusted, "").unwrap();
    reconnected().await;
    fs::remove_file(&replaced.client.key).unwrap();
    reconnected().await;
    fs::remove_file(&replaced.trusted).unwrap();
    fs::create_dir(&replaced.trusted).unwrap();
    reconnected().await;
}
