//! `doctor` of servers with TLS, and the ends of certificates.

use std::time::{Duration, SystemTime};

use test_support::{Authority, Certificate, RedisServer};

use crate::doctor::{ALL, Findings};
use crate::program::Lockctl;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn start(authority: &Authority, certificate: &Certificate, needs_client: bool) -> RedisServer {
    let options = RedisServer::options().args(["--appendonly", "yes"]);
    options.tls(authority, certificate, needs_client).start()
}

fn url(server: &RedisServer, authority: &Authority, client: Option<&Certificate>) -> String {
    let ca = test_support::tls::shown(&authority.ca());
    let client = client.map(|it| format!("&{}", it.parameters()));
    let client = client.unwrap_or_default();
    format!("{}?ssl_ca_certs={ca}{client}", server.tls_url())
}

#[test]
fn server_with_tls_passes_each_check() {
    let authority = Authority::new();
    let server = start(&authority, &authority.server(), true);
    let client = authority.client();
    let findings = Findings::of(&url(&server, &authority, Some(&client)), &["--strict"]);
    let mut all = ALL.to_vec();
    all.extend(["certificate", "client_certificate"]);
    all.sort_unstable();
    assert_eq!(findings.ids("ok"), all, "{:#?}", findings.checks);
    assert_eq!((findings.code, findings.text("tls")), (0, "TLS"));
    let location = client.certificate.display().to_string();
    let address = server.tls_url().replace("rediss://", "");
    for (id, location) in [("certificate", address), ("client_certificate", location)] {
        let text = findings.text(id);
        assert!(
            text.starts_with(&format!("{location}: valid until 20")),
            "{text}"
        );
        assert!(text.ends_with("Z, for 29 days"), "{text}");
    }
}

#[test]
fn certificates_that_end_soon_are_warned_about() {
    let authority = Authority::new();
    let now = SystemTime::now();
    let server = start(
        &authority,
        &authority.server_valid(now - 30 * DAY, now + 2 * DAY),
        true,
    );
    let client = authority.client_until(now + DAY / 2);
    let findings = Findings::of(&url(&server, &authority, Some(&client)), &[]);
    assert_eq!(findings.ids("warn"), ["certificate", "client_certificate"]);
    assert!(findings.text("certificate").ends_with("Z, for 47 h"));
    assert!(findings.text("client_certificate").ends_with("Z, for 11 h"));
    assert_eq!(findings.code, 0, "{:#?}", findings.checks);
}

/// As with any other command.
#[test]
fn certificate_that_cannot_be_checked_is_the_error_of_the_library() {
    let authority = Authority::new();
    let server = start(&authority, &authority.expired(), false);
    let run = |command: &str| {
        let lockctl = Lockctl::new(&[command]);
        let lockctl = lockctl.env("DISTRIBUTED_LOCK_URL", url(&server, &authority, None));
        let outcome = lockctl.run();
        (outcome.code, outcome.stderr)
    };
    let (code, stderr) = run("doctor");
    assert_eq!(code, Some(78), "{stderr}");
    assert!(stderr.contains("expired"), "{stderr}");
    assert_eq!(run("list"), (code, stderr));
}
