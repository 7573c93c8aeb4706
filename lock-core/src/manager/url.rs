//! Finds what a URL names. Errors never contain the URL, which may hold a password.

use crate::error::{BackendErrorKind, LockError};
#[cfg(feature = "redis")]
use crate::redis::deployment::Deployment;

/// What a URL names.
#[derive(Debug)]
pub(crate) enum Destination {
    Memory,
    #[cfg(feature = "redis")]
    Redis(Box<Deployment>),
}

/// The schemes of Redis.
const OF_REDIS: [&str; 23] = [
    "redis",
    "rediss",
    "valkey",
    "valkeys",
    "unix",
    "redis+unix",
    "valkey+unix",
    "redis+sentinel",
    "rediss+sentinel",
    "redis-sentinel",
    "rediss-sentinel",
    "valkey+sentinel",
    "valkeys+sentinel",
    "redis+cluster",
    "rediss+cluster",
    "redis-cluster",
    "rediss-cluster",
    "valkey+cluster",
    "valkeys+cluster",
    "redis+quorum",
    "rediss+quorum",
    "valkey+quorum",
    "valkeys+quorum",
];

/// Reads a URL of any scheme. Does no IO.
pub(crate) fn read(url: &str) -> Result<Destination, LockError> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(invalid("the lock URL has no scheme"));
    };
    let scheme = scheme.to_ascii_lowercase();
    match scheme.as_str() {
        "memory" if rest.is_empty() => Ok(Destination::Memory),
        "memory" => Err(invalid("locks in memory have no host, path or options")),
        known if OF_REDIS.contains(&known) => redis(known, url),
        unknown => Err(self::unknown(unknown)),
    }
}

#[cfg(feature = "redis")]
fn redis(_scheme: &str, url: &str) -> Result<Destination, LockError> {
    let deployment = crate::redis::url::parse(url)?;
    Ok(Destination::Redis(Box::new(deployment)))
}

#[cfg(not(feature = "redis"))]
fn redis(scheme: &str, _url: &str) -> Result<Destination, LockError> {
    Err(LockError::advised(
        BackendErrorKind::InvalidUrl,
        format!("`{scheme}://` in the lock URL needs the feature `redis` of lock-core"),
        "enable it in Cargo.toml, or use memory://",
    ))
}

fn unknown(scheme: &str) -> LockError {
    // The text before `://` may be a part of a password.
    let is_scheme = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    if scheme.len() <= 20 && !scheme.is_empty() && scheme.bytes().all(is_scheme) {
        invalid(format!("unknown scheme `{scheme}` in the lock URL"))
    } else {
        invalid("the lock URL does not begin with a scheme")
    }
}

fn invalid(text: impl Into<String>) -> LockError {
    LockError::backend(BackendErrorKind::InvalidUrl, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(url: &str) -> String {
        read(url).unwrap_err().to_string()
    }

    #[test]
    fn url_without_scheme_is_never_shown() {
        for url in [
            "user:secret@host://x",
            "secret",
            "",
            "://secret",
            "a b://secret",
        ] {
            let error = error(url);
            assert!(
                !error.contains("secret") && !error.contains("user"),
                "{error}"
            );
            assert!(
                error.contains("redis+cluster://, redis+quorum:// or memory://"),
                "{error}"
            );
        }
    }

    #[test]
    fn unknown_scheme_is_named() {
        for scheme in ["redsi", "redis+sentinels", "memory+redis"] {
            let error = error(&format!("{scheme}://host"));
            let text = format!("unknown scheme `{scheme}`");
            assert!(error.contains(&text), "{error}");
        }
    }

    #[cfg(feature = "redis")]
    #[test]
    fn scheme_of_redis_is_known_in_both_cases() {
        for name in OF_REDIS {
            let rest = match name.split_once(['+', '-']) {
                Some((_, "sentinel")) => "a?sentinelMasterId=m",
                Some((_, "quorum")) => "a,b,c",
                Some((_, "unix")) => "/s",
                _ if name == "unix" => "/s",
                _ => "a",
            };
            for name in [name.to_owned(), name.to_uppercase()] {
                let url = format!("{name}://{rest}");
                let start = url.to_ascii_lowercase();
                let has_tls = start.starts_with("rediss") || start.starts_with("valkeys");
                if has_tls && !cfg!(feature = "__tls") {
                    assert!(error(&url).contains("`tls`"), "{url}");
                } else {
                    assert!(
                        matches!(read(&url).unwrap(), Destination::Redis(_)),
                        "{url}"
                    );
                }
            }
        }
    }

    #[cfg(feature = "redis")]
    #[test]
    fn unencoded_password_gets_encoding_advice() {
        for url in [
            "redis://:pa/ss@h",
            "redis://u:12#x@h:1",
            "redis://:a?b@h/1",
            "redis://:p@ss#x@h",
            "redis://u:p@ss/x@h/1",
        ] {
            assert!(error(url).contains("`/` is `%2F`"), "{url}");
        }
        for url in [
            "redis://u:p%2F@h/1",
            "redis://h",
            "redis://h/1?client_name=y",
            "unix:///a@b?pass=c@d",
        ] {
            assert!(matches!(read(url).unwrap(), Destination::Redis(_)), "{url}");
        }
    }

    #[cfg(not(feature = "redis"))]
    #[test]
    fn build_without_redis_names_the_feature() {
        for scheme in OF_REDIS {
            let url = format!("{scheme}://host");
            assert!(error(&url).contains("needs the feature `redis`"), "{url}");
        }
    }
}
