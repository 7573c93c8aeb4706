//! The server restarts with another certificate.

use std::fs;
use std::time::Duration;

use lock_core::{BackendErrorKind, LockManager};
use test_support::fixtures::SOON;
use test_support::{Authority, Certificate};
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
