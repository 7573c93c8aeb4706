//! Finds the backend of a URL. Errors never contain the URL, which may hold a password.

use crate::error::{BackendErrorKind, LockError};

/// The backend of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UrlScheme {
    Memory,
    #[cfg(feature = "redis")]
    Redis,
}

/// Schemes that this version does not support yet.
const NOT_YET: [(&str, &str); 8] = [
    ("rediss", "TLS"),
    ("valkeys", "TLS"),
    ("rediss+sentinel", "Sentinel"),
    ("redis+sentinel", "Sentinel"),
    ("redis-sentinel", "Sentinel"),
    ("rediss+cluster", "Redis Cluster"),
    ("redis+cluster", "Redis Cluster"),
    ("redis-cluster", "Redis Cluster"),
];

/// Returns the backend of the URL's scheme, after checking that the rest of the URL is readable.
pub(crate) fn scheme(url: &str) -> Result<UrlScheme, LockError> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(invalid("the lock URL has no scheme"));
    };
    let scheme = scheme.to_ascii_lowercase();
    match scheme.as_str() {
        "memory" if rest.is_empty() => Ok(UrlScheme::Memory),
        "memory" => Err(invalid("locks in memory have no host, path or options")),
        "redis" | "unix" | "redis+unix" => redis(&scheme, rest),
        _ => Err(unknown(&scheme)),
    }
}

#[cfg(feature = "redis")]
fn redis(scheme: &str, rest: &str) -> Result<UrlScheme, LockError> {
    // User and password end at the first of these characters. A host is never followed by `@`.
    let after = rest
        .split_once(['/', '#', '?'])
        .map_or("", |(_, after)| after);
    if scheme == "redis" && after.contains('@') {
        return Err(LockError::advised(
            BackendErrorKind::InvalidUrl,
            "the lock URL holds `/`, `#` or `?` before the `@` that ends user and password",
            "percent-encode them there: `/` is `%2F`, `#` is `%23`, `?` is `%3F`, `@` is `%40`",
        ));
    }
    Ok(UrlScheme::Redis)
}

#[cfg(not(feature = "redis"))]
fn redis(scheme: &str, _rest: &str) -> Result<UrlScheme, LockError> {
    Err(LockError::advised(
        BackendErrorKind::InvalidUrl,
        format!("`{scheme}://` in the lock URL needs the feature `redis` of lock-core"),
        "enable it in Cargo.toml, or use memory://",
    ))
}

fn unknown(scheme: &str) -> LockError {
    let not_yet = NOT_YET.iter().find(|(known, _)| *known == scheme);
    if let Some((scheme, what)) = not_yet {
        let text = format!("`{scheme}://` in the lock URL: {what} is not supported yet");
        return invalid(text);
    }
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
        scheme(url).unwrap_err().to_string()
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
                error.contains("use redis://, unix:// or memory://"),
                "{error}"
            );
        }
    }

    #[test]
    fn unsupported_scheme_names_the_missing_feature() {
        for (scheme, what) in NOT_YET {
            let error = error(&format!("{scheme}://host"));
            assert!(
                error.contains(&format!("{what} is not supported yet")),
                "{error}"
            );
        }
        assert!(error("redsi://host").contains("unknown scheme `redsi`"));
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
            "redis://h/1?x=y",
            "unix:///a@b?pass=c@d",
        ] {
            assert_eq!(scheme(url).unwrap(), UrlScheme::Redis, "{url}");
        }
    }

    #[cfg(not(feature = "redis"))]
    #[test]
    fn build_without_redis_names_the_feature() {
        for url in ["redis://host", "unix:///path"] {
            assert!(error(url).contains("needs the feature `redis`"), "{url}");
        }
    }
}
