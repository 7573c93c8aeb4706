//! Certificates with a usual mistake. The error names the mistake, what to do, and a command that shows it.

use std::process::Command;
use std::time::{Duration, SystemTime};

use lock_core::LockManager;
use lock_core::config::Tls;
use test_support::{Authority, Certificate};

use super::{Secured, assert_locks_work, assert_tls_error};

const BY_NAME: &str = "localhost";
const BY_NUMBER: &str = "127.0.0.1";
const DAY: Duration = Duration::from_secs(24 * 3600);
const PROTOCOLS: [&str; 2] = ["TLSv1.2", "TLSv1.3"];

/// Starts a server with the certificate that this function makes.
fn server_with(make: impl FnOnce(&Authority) -> Certificate) -> Secured {
    let authority = Authority::new();
    let certificate = make(&authority);
    Secured::with(authority, &certificate, false)
}

fn at(secured: &Secured, host: &str) -> String {
    secured.url().replace(BY_NAME, host)
}

/// Checks the words of the error, and that the command in it shows the mistake.
async fn assert_advice(url: &str, words: &[&str], shown: &[&str]) {
    assert_tls_error(url, words).await;
    let error = LockManager::connect(url).await.unwrap_err().to_string();
    let command = error.split('`').find(|part| part.starts_with("openssl "));
    let command = command.unwrap_or_else(|| panic!("no command: {error}"));
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    let output = String::from_utf8_lossy(&output.stdout);
    for text in shown {
        assert!(output.contains(text), "{text}: `{command}` prints {output}");
    }
}

#[tokio::test]
async fn certificate_without_names_is_named() {
    let secured = server_with(|authority| authority.server_with("basicConstraints=CA:FALSE"));
    for (host, entry) in [
        (BY_NAME, "`subjectAltName=DNS:localhost`"),
        (BY_NUMBER, "`subjectAltName=IP:127.0.0.1`"),
    ] {
        let words = [
            "has no subject alternative name",
            "sign another certificate",
            entry,
        ];
        assert_advice(&at(&secured, host), &words, &["Subject:", "localhost"]).await;
    }
}

#[tokio::test]
async fn number_that_is_a_dns_name_of_the_certificate_is_named() {
    let secured = server_with(|authority| authority.server_named(BY_NUMBER));
    let words = [
        "has the IP address 127.0.0.1 as a DNS name",
        "with `subjectAltName=IP:127.0.0.1` instead of `DNS:127.0.0.1`",
    ];
    assert_advice(&at(&secured, BY_NUMBER), &words, &["DNS:127.0.0.1"]).await;
    assert_tls_error(&secured.url(), &["is for another host: 127.0.0.1"]).await;
}

#[tokio::test]
async fn number_of_a_server_whose_certificate_has_host_names_is_named() {
    let secured = server_with(|authority| {
        authority.server_with("subjectAltName=DNS:localhost,DNS:b,DNS:c,DNS:d,email:e@f")
    });
    let url = at(&secured, BY_NUMBER);
    let words = [
        "has host names only: localhost, b, c and 1 more",
        "set one of them as `server_name`",
        "`subjectAltName=IP:127.0.0.1`",
    ];
    assert_advice(&url, &words, &["DNS:localhost"]).await;
    // Both ways out that the error names.
    let locks = LockManager::connect(&secured.url()).await;
    assert_locks_work(&locks.unwrap()).await;
    let builder = LockManager::builder().tls(Tls::new().server_name(BY_NAME));
    assert_locks_work(&builder.connect(&url).await.unwrap()).await;
}

#[tokio::test]
async fn name_of_a_server_whose_certificate_has_numbers_is_named() {
    let secured = server_with(|authority| authority.server_at(BY_NUMBER.parse().unwrap()));
    let words = [
        "has IP addresses only: 127.0.0.1",
        "set one of them as `server_name`",
        "`subjectAltName=DNS:localhost`",
    ];
    assert_advice(&secured.url(), &words, &["IP Address:127.0.0.1"]).await;
    let locks = LockManager::connect(&at(&secured, BY_NUMBER)).await;
    assert_locks_work(&locks.unwrap()).await;
    let builder = LockManager::builder().tls(Tls::new().server_name(BY_NUMBER));
    assert_locks_work(&builder.connect(&secured.url()).await.unwrap()).await;
}

/// `openssl req -x509` makes such a certificate, which is enough for clients that ignore that it is an authority's.
#[tokio::test]
async fn certificate_of_an_authority_is_named() {
    let secured = server_with(Authority::as_server);
    let words = ["is that of an authority", "`basicConstraints=CA:FALSE`"];
    assert_advice(&secured.url(), &words, &["CA:TRUE"]).await;
}

#[tokio::test]
async fn certificate_for_clients_is_named() {
    let secured = server_with(|authority| {
        authority.server_with("subjectAltName=DNS:localhost\nextendedKeyUsage=clientAuth")
    });
    let words = ["is not one for servers", "`extendedKeyUsage=serverAuth`"];
    assert_advice(&secured.url(), &words, &["TLS Web Client Authentication"]).await;
}

#[tokio::test]
async fn certificate_that_is_not_valid_yet_is_named() {
    let now = SystemTime::now();
    let secured = server_with(|authority| authority.server_valid(now + DAY, now + 30 * DAY));
    let words = ["is not valid yet", "check the clock"];
    assert_tls_error(&secured.url(), &words).await;
}

#[tokio::test]
async fn certificate_of_version_1_is_named() {
    let secured = server_with(Authority::version_1);
    let words = [
        "the server's certificate is not X.509 version 3",
        "such as `subjectAltName`",
    ];
    assert_advice(&secured.url(), &words, &["Version: 1 "]).await;

    let secured = Secured::start(true);
    let client = secured.authority.version_1();
    let url = format!("{}&{}", secured.url(), client.parameters());
    let words = ["v1.pem is not X.509 version 3", "sign another one"];
    assert_advice(&url, &words, &["Version: 1 "]).await;
}

/// TLS 1.2 refuses the client in the handshake, and TLS 1.3 in the session.
#[tokio::test]
async fn refused_client_certificate_is_named() {
    let secured = Secured::start(true);
    let expired = secured.authority.client_until(SystemTime::now() - DAY);
    let foreign = Authority::new();
    for protocol in PROTOCOLS {
        secured
            .server
            .cli(&["CONFIG", "SET", "tls-protocols", protocol]);
        for (client, words) in [
            (
                &expired,
                ["CertificateExpired", "renew the client certificate"],
            ),
            (&foreign.client(), ["UnknownCA", "`tls-ca-cert-file`"]),
        ] {
            let url = format!("{}&{}", secured.url(), client.parameters());
            assert_tls_error(&url, &words).await;
        }
        assert_tls_error(&secured.url(), &["`ssl_certfile`"]).await;
    }
}
