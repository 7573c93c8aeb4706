//! URLs that are refused, and what their errors say.

use super::super::parameters::{known, known_advice};
use super::super::scheme::{ServerScheme, UrlForm};
use super::{TLS, parse};
use crate::error::{BackendErrorKind, LockError};

const DEFAULT_ADVICE: &str = "redis+cluster://, redis+quorum:// or memory://";

#[track_caller]
fn error(url: &str) -> String {
    let error = match parse(url) {
        Ok(deployment) => panic!("{url}: {deployment:?}"),
        Err(error) => error,
    };
    let LockError::Backend(backend) = &error else {
        panic!("{url}: {error:?}");
    };
    assert_eq!(backend.kind(), BackendErrorKind::InvalidUrl, "{url}");
    error.to_string()
}

#[track_caller]
fn check(url: &str, words: &[&str]) {
    // Without the feature, the scheme is the first problem.
    if url.starts_with("rediss") && !TLS {
        return;
    }
    let error = error(url);
    for word in words {
        assert!(error.contains(word), "{url}: {error}");
    }
    assert!(!error.contains("secret"), "{url}: {error}");
}

#[test]
fn several_hosts_need_a_scheme_for_several() {
    let schemes = ["redis+cluster://", "redis+sentinel://", "redis+quorum://"];
    for url in ["redis://a,b", "valkey://:secret@a:1,b/2", "redis://a,"] {
        check(url, &schemes);
    }
    check("rediss://a,b", &["rediss+cluster://"]);
}

#[test]
fn sentinel_without_service_is_refused() {
    for url in [
        "redis+sentinel://host",
        "redis+sentinel://host/",
        "redis+sentinel://host//2",
        "redis+sentinel://host?sentinelMasterId=",
    ] {
        check(url, &["names no service", "redis+sentinel://host/mymaster"]);
    }
    for url in ["redis-sentinel://host", "redis-sentinel://host/mymaster"] {
        check(url, &["names no service", "?sentinelMasterId=mymaster"]);
    }
    check(
        "rediss+sentinel://host",
        &["rediss+sentinel://host/mymaster"],
    );
}

#[test]
fn database_of_a_cluster_other_than_0_is_refused() {
    for url in ["redis+cluster://a,b/1", "redis-cluster://a/16"] {
        check(url, &["a Redis Cluster has database 0 only"]);
    }
}

#[test]
fn quorum_of_fewer_than_3_servers_is_refused() {
    check("redis+quorum://a", &["1 of the servers", "at least 3"]);
    check("redis+quorum://a,b/0", &["2 of the servers", "at least 3"]);
}

/// A quorum of URLs, one for each server.
#[test]
fn quorum_of_urls_takes_single_servers_only() {
    let error = |urls: [&str; 3]| {
        let urls = urls.map(str::to_owned);
        let error = crate::redis::url::parse_quorum(&urls).unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(!text.contains("s3cret"), "{text}");
        text
    };
    let text = error(["redis://a", "redis+cluster://:s3cret@b", "redis://c"]);
    assert!(text.contains("URL 2 of the quorum"), "{text}");
    let text = error([
        "redis://:s3cret@a",
        "redis://b",
        "redis://u:s3cret@a:6379/1",
    ]);
    assert!(text.contains("hosts 1 and 3"), "{text}");
    let text = error(["redis://a", "redis://b", "http://c"]);
    assert!(text.contains("no scheme of a Redis server"), "{text}");
}

#[test]
fn server_that_is_twice_in_a_quorum_is_refused() {
    for url in [
        "redis+quorum://a,b,A:6379",
        "redis+quorum://[::1]:1,b,[0:0::1]:1",
        "redis+quorum://a:1,b,a:1/2",
    ] {
        check(url, &["hosts 1 and 3 of the quorum are the same server"]);
    }
}

#[test]
fn insecure_tls_is_refused() {
    let words = ["`#insecure`", "ssl_ca_certs"];
    for url in ["redis://h#insecure", "rediss://h/0#insecure"] {
        check(url, &words);
    }
}

#[test]
fn fragment_is_refused() {
    for url in [
        "redis://h#secret",
        "redis+sentinel://h/m#",
        "unix:///s?pass=a#secret",
    ] {
        check(url, &["`#`", "`%23`", "ssl_ca_certs"]);
    }
    check("redis-sentinel://h#secret", &["sentinelMasterId"]);
}

#[test]
fn tls_without_its_feature_is_refused() {
    if TLS {
        return;
    }
    for (url, text, advice) in [
        (
            "rediss://user:secret@h",
            "`rediss://` in the lock URL needs the feature `tls` or `tls-aws-lc` of lock-core",
            "enable it in Cargo.toml, or use redis://",
        ),
        (
            "rediss+sentinel://user:secret@h",
            "TLS in the lock URL needs the feature `tls` or `tls-aws-lc` of lock-core",
            "enable it in Cargo.toml",
        ),
        (
            "valkeys+cluster://user:secret@h",
            "TLS and a cluster in the lock URL need the features `tls` (or `tls-aws-lc`) and `cluster`",
            "enable both in Cargo.toml",
        ),
        (
            "rediss+quorum://user:secret@h",
            "TLS and a quorum in the lock URL need the features `tls` (or `tls-aws-lc`) and `quorum`",
            "enable both in Cargo.toml",
        ),
    ] {
        let error = error(url);
        assert!(error.contains(text), "{error}");
        assert!(error.contains(advice), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
}

#[test]
fn certificates_need_a_scheme_with_tls() {
    for name in ["ssl_ca_certs", "ssl_certfile", "ssl_keyfile"] {
        for (url, advice) in [
            ("redis://h", "use rediss://"),
            ("unix:///s", "use rediss://"),
            ("redis+sentinel://h/m", "use rediss+sentinel://"),
            ("redis-sentinel://h", "use rediss-sentinel://"),
            ("valkey+cluster://h", "use rediss+cluster://"),
            ("redis+quorum://a,b,c", "use rediss+quorum://"),
        ] {
            check(&format!("{url}?{name}=/secret"), &[name, advice]);
        }
    }
    check(
        "redis+sentinel://h/m?sentinel_tls=true",
        &["use rediss+sentinel://"],
    );
}

#[test]
fn certificate_and_key_need_each_other() {
    check(
        "rediss://h?ssl_certfile=/secret",
        &["`ssl_certfile` without `ssl_keyfile`"],
    );
    check(
        "rediss://h?ssl_keyfile=/secret",
        &["`ssl_keyfile` without `ssl_certfile`"],
    );
    check(
        "rediss://h?ssl_ca_certs=",
        &["`ssl_ca_certs` of the lock URL is empty"],
    );
}

#[test]
fn unknown_parameter_is_named_with_the_known_ones() {
    for (url, advice) in [
        ("redis://h", "use `protocol` or `client_name`"),
        ("redis+cluster://h/0", "use `protocol` or `client_name`"),
        ("redis+quorum://a,b,c", "use `protocol` or `client_name`"),
        ("unix:///s", "use `db`, `user`, `pass`"),
        ("redis+sentinel://h/m", "or `sentinelMasterId`"),
        ("redis-sentinel://h", "use `sentinelMasterId`, `db`"),
        ("rediss://h", "`ssl_ca_certs`"),
    ] {
        let unknown = "unknown parameter `timeout` in the lock URL";
        check(&format!("{url}?timeout=secret"), &[unknown, advice]);
        for name in ["se=cret", "%73ecret", "secret!", "1secret", "ключ"] {
            let url = format!("{url}?{}", name.replace("se=", "!secret="));
            check(&url, &["unknown parameter in the lock URL", advice]);
        }
    }
    check("redis+sentinel://h/m?db=1", &["unknown parameter `db`"]);
    check("redis://h?db=1", &["a database is the path of the URL"]);
    let long = "s".repeat(31);
    assert!(!error(&format!("redis://h?{long}=1")).contains(&long));
}

#[test]
fn advice_names_all_known_parameters() {
    for form in [
        UrlForm::Server,
        UrlForm::Socket,
        UrlForm::Sentinel,
        UrlForm::LettuceSentinel,
        UrlForm::Cluster,
        UrlForm::Quorum,
    ] {
        for tls in [false, true] {
            if tls && form == UrlForm::Socket {
                continue;
            }
            let scheme = ServerScheme { form, tls };
            let advice = known_advice(scheme);
            assert_eq!(
                advice.matches('`').count(),
                2 * known(scheme).count(),
                "{advice}"
            );
            for name in known(scheme) {
                assert!(advice.contains(&format!("`{name}`")), "{advice}");
            }
        }
    }
}

#[test]
fn parameter_that_is_given_twice_is_refused() {
    for (url, name) in [
        ("redis://h?protocol=2&protocol=2", "protocol"),
        ("unix:///s?pass=secret&db=1&pass=secret", "pass"),
    ] {
        let text = format!("has the parameter `{name}` twice");
        check(url, &[&text]);
    }
    check(
        "redis-sentinel://h/1?sentinelMasterId=m&db=1",
        &["a database in its path and in `db`"],
    );
}

#[test]
fn value_of_a_parameter_that_is_unreadable_is_refused() {
    for (url, advice) in [
        ("redis://h?protocol=4secret", "write `protocol=2`"),
        ("redis://h?protocol", "write `protocol=2`"),
        ("unix:///s?db=secret", "such as `?db=0`"),
        ("unix:///s?db=", "such as `?db=0`"),
        ("unix:///s?db=-1", "such as `?db=0`"),
        (
            "redis+sentinel://h/m?sentinel_tls=secret",
            "write `sentinel_tls=true`",
        ),
    ] {
        check(url, &["of the lock URL is n", advice]);
    }
}

#[test]
fn port_that_is_no_port_is_refused() {
    let text = "a port in the lock URL is no number from 1 to 65535";
    for port in ["65536", "99999", "0", "port", "+1", "-1", "secret", "1_"] {
        check(&format!("redis://h:{port}/0"), &[text, DEFAULT_ADVICE]);
        check(&format!("redis+cluster://a,b:{port}"), &[text]);
        check(&format!("redis+sentinel://[::1]:{port}/m"), &[text]);
    }
    // A password without its host.
    check("redis://user:secret", &[text]);
}

#[test]
fn wildcard_address_is_refused() {
    for url in ["redis://0.0.0.0:6379", "redis+cluster://a,0.0.0.0"] {
        check(url, &["`0.0.0.0`", "such as 127.0.0.1"]);
    }
    check("redis://:secret@[::]/0", &["`::`"]);
}

#[test]
fn host_that_is_no_host_is_refused() {
    for (url, text) in [
        ("redis://", "lacks a host"),
        ("redis:///1", "lacks a host"),
        ("redis://:6379", "lacks a host"),
        ("redis://user:secret@", "lacks a host"),
        ("redis+cluster://a,,b", "lacks a host"),
        ("redis+quorum://a,b,c,", "lacks a host"),
        ("redis://[::1", "a `[` in the lock URL has no `]`"),
        ("redis://[secret]", "no IPv6 address"),
        ("redis://[fe80::1%25eth0]", "no IPv6 address"),
        ("redis://[::1]secret", "is not followed by a port"),
        ("redis://se cret", "a character that no host name has"),
        ("redis://ключ", "a character that no host name has"),
        ("redis://a%20b", "a character that no host name has"),
    ] {
        check(url, &[text, DEFAULT_ADVICE]);
    }
    for url in ["redis://::1", "redis://fe80::1:6379", "redis://u:secret:1"] {
        check(url, &["more than one `:`", "redis://[::1]:6379"]);
    }
}

#[test]
fn user_and_password_that_are_not_encoded_are_refused() {
    for url in [
        "redis://:sec/secret@h",
        "redis://u:12#secret@h:1",
        "valkey://:secret?b@h/1",
        "redis://:p@ss#secret@h",
        "redis+sentinel://:a/secret@h/m",
        "redis+quorum://:a?secret@a,b,c",
    ] {
        check(url, &["before the `@`", "`/` is `%2F`"]);
    }
    for url in [
        "redis+cluster://u:secret@a,u:secret@b",
        "redis+quorum://:p@secret@a,b,c",
    ] {
        check(url, &["more than one `@`", "`%40`"]);
    }
}

#[test]
fn percent_encoding_that_is_unreadable_is_refused() {
    for (url, what) in [
        ("redis://sec%ret:p@h", "the user"),
        ("redis://u:secret%@h", "the password"),
        ("redis+cluster://u:secret%4@h", "the password"),
        ("redis+sentinel://h/secret%zz", "the service"),
        (
            "redis://h?client_name=secret%é1",
            "the parameter `client_name`",
        ),
        ("unix:///secret%x", "the path"),
    ] {
        check(url, &[what, "`%` without two hex", "`%` as `%25`"]);
        let url = url.replace('%', "%FF%");
        check(&url.replace("%FF%", "%FF%20%"), &[what]);
    }
    for (url, what) in [
        ("redis://%FF@h", "the user"),
        ("redis://:secret%C3@h", "the password"),
        ("redis+sentinel://h/%FF", "the service"),
        ("unix:///s?pass=secret%FF", "the parameter `pass`"),
        ("unix:///secret%FF", "the path"),
    ] {
        check(url, &[what, "is not UTF-8"]);
    }
}

#[test]
fn path_that_is_no_database_is_refused() {
    for path in [
        "locks",
        "-1",
        "+1",
        "1/2",
        "99999999999999999999",
        "4294967296",
    ] {
        for url in [
            "redis://h/",
            "redis+quorum://a,b,c/",
            "redis+sentinel://h/m/",
        ] {
            check(
                &format!("{url}{path}"),
                &[
                    "the path of the lock URL is no database number",
                    "must be a database number such as /0, or empty",
                ],
            );
        }
    }
    check("redis://u:secret@h/secret", &["no database number"]);
    check("redis+cluster://h/secret", &["no database number"]);
}

#[test]
fn socket_without_path_is_refused() {
    for url in [
        "unix://",
        "unix:///",
        "redis+unix://localhost",
        "unix://?db=1",
    ] {
        check(url, &["names no path of a Unix socket"]);
    }
    for url in [
        "unix://run/secret",
        "unix://u:secret@/s",
        "unix://u:secret@localhost/s",
    ] {
        check(url, &["has a host", "unix:///run/redis.sock"]);
    }
}

#[test]
fn text_that_is_no_url_is_refused() {
    for url in [
        "",
        "secret",
        "redis:/h",
        "://secret",
        "http://secret",
        "memory://",
    ] {
        check(url, &["the lock URL has no scheme", DEFAULT_ADVICE]);
    }
}
