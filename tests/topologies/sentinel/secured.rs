//! TLS to the servers, and to the Sentinels or not.

use std::time::Duration;

use lock_core::config::Tls;
use lock_core::error::BackendErrorKind;
use lock_core::{LockManager, LockManagerBuilder};
use test_support::tls::shown;
use test_support::{Authority, SentinelService};
use tests::one_attempt;

use super::{assert_survives_a_failover, backend_error, connect};

/// A plain port does not answer in TLS, so one of the errors takes this time.
const TIMEOUT: Duration = Duration::from_secs(3);

fn start(authority: &Authority) -> SentinelService {
    SentinelService::start_tls(authority, &authority.server())
}

fn ca(authority: &Authority) -> String {
    format!("ssl_ca_certs={}", shown(&authority.ca()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_with_tls_survives_a_failover() {
    let authority = Authority::new();
    let service = start(&authority);
    let url = format!("{}?{}", service.tls_url(), ca(&authority));
    let locks = connect(&url).await;
    assert_survives_a_failover(&service, locks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_with_tls_and_plain_sentinels_survives_a_failover() {
    let authority = Authority::new();
    let service = start(&authority);
    let url = format!("{}&{}", service.url_with_plain_sentinels(), ca(&authority));
    let locks = connect(&format!("{url}&ssl_server_name=localhost")).await;
    assert_survives_a_failover(&service, locks).await;
}

/// A forged reply of such a Sentinel could name any server with a valid certificate.
#[tokio::test]
async fn plain_sentinels_need_the_name_of_the_servers() {
    let authority = Authority::new();
    let service = start(&authority);
    let url = format!("{}&{}", service.url_with_plain_sentinels(), ca(&authority));
    let connect = |builder: LockManagerBuilder, end: &str| {
        let url = format!("{url}{end}");
        async move { builder.connect(&url).await }
    };
    let error = connect(LockManager::builder(), "").await.unwrap_err();
    assert_eq!(backend_error(&error), BackendErrorKind::Tls);
    let text = error.to_string();
    assert!(
        text.contains("forged") && text.contains("`ssl_server_name`"),
        "{text}"
    );

    let named = || LockManager::builder().tls(Tls::new().server_name("localhost"));
    connect(named(), "").await.unwrap();
    let error = connect(named(), "&ssl_server_name=localhost")
        .await
        .unwrap_err();
    assert!(error.to_string().contains("two names"), "{error}");
    // The certificate is for another name.
    let wrong = connect(LockManager::builder(), "&ssl_server_name=other").await;
    let text = wrong.unwrap_err().to_string();
    assert!(text.contains("another host"), "{text}");
}

/// No guess hangs, and each error says what to change.
#[tokio::test]
async fn wrong_guess_about_tls_is_refused() {
    use BackendErrorKind::{NoPrimary, Unreachable};
    let authority = Authority::new();
    let service = start(&authority);
    let (secured, plain, ca) = (service.tls_url(), service.url(), ca(&authority));
    let with_tls = "use rediss+sentinel:// without `sentinel_tls=false`";
    for (url, kind, words) in [
        (
            format!("{secured}?sentinel_tls=false&ssl_server_name=localhost&{ca}"),
            NoPrimary,
            with_tls,
        ),
        (secured.replacen("rediss", "redis", 1), NoPrimary, with_tls),
        (
            format!("{}?{ca}", plain.replacen("redis", "rediss", 1)),
            NoPrimary,
            "add `sentinel_tls=false` and `ssl_server_name`",
        ),
        // The Sentinels reply, and name a port with TLS.
        (plain, Unreachable, "if that port speaks TLS, use rediss"),
    ] {
        let builder = one_attempt(LockManager::builder()).command_timeout(TIMEOUT);
        let refused = builder.connect(&url).await;
        let error = refused.unwrap_err();
        assert_eq!(backend_error(&error), kind, "{url}: {error}");
        assert!(error.to_string().contains(words), "{url}: {error}");
    }
}
