//! Certificates that expire soon are reported three days before, each of them once.

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use lock_core::telemetry::{CertificateOwner, LockEvent};
use lock_core::{LockManager, LockManagerBuilder};
use test_support::fixtures::SOON;
use test_support::{Authority, Certificate, eventually_async};
use tests::one_attempt;
use topologies::use_when_connected;

use super::{NAME, Secured};

const DAY: Duration = Duration::from_secs(24 * 3600);
const NOTICE: Duration = Duration::from_secs(3 * 24 * 3600);
/// Long enough for a manager to connect before.
const LATER: Duration = Duration::from_secs(8);

/// The reports of a manager: who shows the certificate, where it is, and how long it is valid.
#[derive(Clone, Default)]
struct Reports(Arc<Mutex<Vec<(CertificateOwner, String, Duration)>>>);

impl Reports {
    fn builder(&self) -> LockManagerBuilder {
        let reports = Arc::clone(&self.0);
        one_attempt(LockManager::builder()).observer(move |event: &LockEvent<'_>| {
            if let LockEvent::CertificateExpiresSoon {
                owner,
                location,
                remaining,
                ..
            } = event
            {
                let report = (*owner, (*location).to_owned(), *remaining);
                reports.lock().unwrap().push(report);
            }
        })
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Checks the last report.
    fn assert_last(&self, owner: CertificateOwner, location: &str, days: u32) {
        let last = self.0.lock().unwrap().last().cloned().unwrap();
        assert_eq!((last.0, &*last.1), (owner, location));
        let longest = DAY * days;
        let range = longest.saturating_sub(Duration::from_secs(600))..=longest;
        assert!(range.contains(&last.2), "{:?}", last.2);
    }
}

fn in_days(days: u32) -> SystemTime {
    SystemTime::now() + DAY * days
}

/// Opens all connections anew.
async fn reconnect(secured: &Secured, locks: &LockManager) {
    secured.server.restart();
    use_when_connected(locks, NAME).await;
}

fn replace(old: &Certificate, new: &Certificate) {
    fs::copy(&new.certificate, &old.certificate).unwrap();
    fs::copy(&new.key, &old.key).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_certificate_that_expires_soon_is_reported_once() {
    let secured = Secured::start(true);
    let reports = Reports::default();
    let client = secured.authority.client_until(in_days(2));
    let url = format!("{}&{}", secured.url(), client.parameters());
    let locks = reports.builder().connect(&url).await.unwrap();
    let file = client.certificate.display().to_string();
    assert_eq!(reports.count(), 1);
    reports.assert_last(CertificateOwner::Client, &file, 2);
    reconnect(&secured, &locks).await;
    replace(&client, &secured.authority.client_until(in_days(30)));
    reconnect(&secured, &locks).await;
    assert_eq!(reports.count(), 1, "the newer one is not reported");
    replace(&client, &secured.authority.client_until(in_days(1)));
    reconnect(&secured, &locks).await;
    assert_eq!(reports.count(), 2);
    reports.assert_last(CertificateOwner::Client, &file, 1);
}

/// As a server that asks for no certificate would say nothing about it.
#[tokio::test]
async fn expired_client_certificate_is_reported() {
    let secured = Secured::start(false);
    let reports = Reports::default();
    let client = secured.authority.client_until(SystemTime::now() - DAY);
    let url = format!("{}&{}", secured.url(), client.parameters());
    let _locks = reports.builder().connect(&url).await.unwrap();
    let file = client.certificate.display().to_string();
    assert_eq!(reports.count(), 1);
    reports.assert_last(CertificateOwner::Client, &file, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_of_a_server_that_expires_soon_is_reported_once() {
    let authority = Authority::new();
    let certificate = authority.server_valid(SystemTime::now() - 30 * DAY, in_days(2));
    let secured = Secured::with(authority, &certificate, false);
    let reports = Reports::default();
    let locks = reports.builder().connect(&secured.url()).await.unwrap();
    assert_eq!(reports.count(), 1);
    reports.assert_last(CertificateOwner::Server, "localhost", 2);
    reconnect(&secured, &locks).await;
    replace(
        &certificate,
        &secured
            .authority
            .server_valid(SystemTime::now(), in_days(30)),
    );
    reconnect(&secured, &locks).await;
    assert_eq!(reports.count(), 1, "the newer one is not reported");
}

/// The connections stay, so no handshake looks at the certificate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_certificate_is_reported_while_connections_last() {
    let secured = Secured::start(true);
    let client = secured
        .authority
        .client_until(SystemTime::now() + NOTICE + LATER);
    let url = format!("{}&{}", secured.url(), client.parameters());
    let reports = Reports::default();
    let locks = reports.builder().connect(&url).await.unwrap();
    use_when_connected(&locks, NAME).await;
    assert_eq!(reports.count(), 0, "more than three days are left");
    let connections = secured.server.cli(&["CLIENT", "LIST"]);
    let ids = |list: &str| -> Vec<String> {
        let lines = list.lines().filter(|line| line.contains("name=lock:"));
        let ids = lines.filter_map(|line| line.split(' ').next());
        ids.map(ToOwned::to_owned).collect()
    };
    eventually_async(SOON, async || reports.count() > 0).await;
    let file = client.certificate.display().to_string();
    reports.assert_last(CertificateOwner::Client, &file, 3);
    let after = secured.server.cli(&["CLIENT", "LIST"]);
    assert_eq!(ids(connections.text()), ids(after.text()));
}

/// The report of the next one shows that the time of the first one has passed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_certificate_that_was_renewed_meanwhile_is_not_reported() {
    let secured = Secured::start(true);
    let due = SystemTime::now() + LATER;
    let next_due = due + Duration::from_secs(3);
    let [client, next] = [due, next_due].map(|due| secured.authority.client_until(due + NOTICE));
    let url = format!("{}&{}", secured.url(), client.parameters());
    let reports = Reports::default();
    let locks = reports.builder().connect(&url).await.unwrap();
    use_when_connected(&locks, NAME).await;
    assert_eq!(reports.count(), 0, "more than three days are left");
    replace(&client, &next);
    eventually_async(SOON, async || reports.count() > 0).await;
    // `openssl` writes whole seconds.
    assert!(SystemTime::now() + Duration::from_secs(1) > next_due);
    assert_eq!(reports.count(), 1);
}
