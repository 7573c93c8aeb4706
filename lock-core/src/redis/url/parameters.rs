//! The parameters of a URL, which follow its `?`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::super::deployment::{Protocol, TlsFiles};
use super::percent::decode;
use super::scheme::{ServerScheme, UrlForm};
use super::{advised, db_number};
use crate::error::LockError;

/// The parameters of all schemes.
const ALL: [&str; 2] = ["protocol", "client_name"];

/// The names of files for TLS, as redis-py has them.
const FILES: [&str; 3] = ["ssl_ca_certs", "ssl_certfile", "ssl_keyfile"];
const SERVER_NAME: &str = "ssl_server_name";

const OF_SOCKETS: [&str; 3] = ["db", "user", "pass"];

const OF_SENTINELS: [&str; 4] = [
    "sentinel_username",
    "sentinel_password",
    "sentinel_tls",
    "sentinelMasterId",
];

/// The longest name of an unknown parameter that an error shows.
const LONGEST_NAME: usize = 30;

/// The parameters of a URL that nobody has taken yet, decoded.
pub(super) struct UrlParameters(BTreeMap<&'static str, String>);

impl UrlParameters {
    pub(super) fn read(query: &str, scheme: ServerScheme) -> Result<Self, LockError> {
        let mut values = BTreeMap::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let Some(name) = known(scheme).find(|known| *known == name) else {
                return Err(unknown(pair, scheme));
            };
            // As in a form, which redis-rs and redis-py read too.
            let value = decode(&value.replace('+', " "), &format!("the parameter `{name}`"))?;
            if values.insert(name, value).is_some() {
                let text = format!("the lock URL has the parameter `{name}` twice");
                return Err(advised(text, "remove one of them"));
            }
        }
        Ok(Self(values))
    }

    pub(super) fn take(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    pub(super) fn db(&mut self) -> Result<Option<i64>, LockError> {
        let Some(db) = self.take("db") else {
            return Ok(None);
        };
        let db = db_number(&db).ok_or_else(|| {
            advised(
                "the parameter `db` of the lock URL is no database number",
                "write a number, such as `?db=0`",
            )
        })?;
        Ok(Some(db))
    }

    pub(super) fn protocol(&mut self) -> Result<Option<Protocol>, LockError> {
        match self.take("protocol").as_deref() {
            None => Ok(None),
            Some("2" | "resp2") => Ok(Some(Protocol::Resp2)),
            Some("3" | "resp3") => Ok(Some(Protocol::Resp3)),
            Some(_) => Err(advised(
                "the parameter `protocol` of the lock URL is no version of the protocol",
                "write `protocol=2` or `protocol=3`",
            )),
        }
    }

    /// Returns the files if the scheme has TLS, also if it names none.
    pub(super) fn tls_files(
        &mut self,
        scheme: ServerScheme,
    ) -> Result<Option<TlsFiles>, LockError> {
        if !scheme.tls {
            return Ok(None);
        }
        let [ca, certificate, key] = FILES.map(|name| self.file(name));
        let server_name = self.take(SERVER_NAME);
        if server_name.as_deref() == Some("") {
            return Err(advised(
                format!("the parameter `{SERVER_NAME}` of the lock URL is empty"),
                "write a host name or an IP address of the servers' certificates, or remove the parameter",
            ));
        }
        let files = TlsFiles {
            ca: ca?,
            certificate: certificate?,
            key: key?,
            server_name,
        };
        let (given, missing) = match (&files.certificate, &files.key) {
            (Some(_), None) => ("ssl_certfile", "ssl_keyfile"),
            (None, Some(_)) => ("ssl_keyfile", "ssl_certfile"),
            _ => return Ok(Some(files)),
        };
        Err(advised(
            format!("the lock URL has the parameter `{given}` without `{missing}`"),
            "a client that shows a certificate needs `ssl_certfile` and `ssl_keyfile`",
        ))
    }

    /// Returns whether the Sentinels are reached by TLS.
    pub(super) fn sentinel_tls(&mut self, scheme: ServerScheme) -> Result<bool, LockError> {
        match self.take("sentinel_tls").as_deref() {
            None => Ok(scheme.tls),
            Some("false") => Ok(false),
            Some("true") if scheme.tls => Ok(true),
            Some("true") => Err(advised(
                "`sentinel_tls=true` in the lock URL needs a scheme with TLS",
                scheme.with_tls(),
            )),
            Some(_) => Err(advised(
                "the parameter `sentinel_tls` of the lock URL is neither true nor false",
                "write `sentinel_tls=true` or `sentinel_tls=false`",
            )),
        }
    }

    fn file(&mut self, name: &str) -> Result<Option<PathBuf>, LockError> {
        match self.take(name) {
            Some(path) if path.is_empty() => Err(invalid_file(name)),
            path => Ok(path.map(PathBuf::from)),
        }
    }
}

/// Returns the names of the parameters that a scheme has.
pub(super) fn known(scheme: ServerScheme) -> impl Iterator<Item = &'static str> {
    let (files, name): (&[_], &[_]) = if scheme.tls {
        (&FILES, &[SERVER_NAME])
    } else {
        (&[], &[])
    };
    let others: &[_] = match scheme.form {
        UrlForm::Server | UrlForm::Cluster | UrlForm::Quorum => &[],
        UrlForm::Socket => &OF_SOCKETS,
        UrlForm::Sentinel | UrlForm::LettuceSentinel => &OF_SENTINELS,
    };
    let db: &[_] = match scheme.form {
        UrlForm::LettuceSentinel => &["db"],
        _ => &[],
    };
    let all = [&ALL, files, name, others, db];
    all.into_iter().flatten().copied()
}

fn unknown(pair: &str, scheme: ServerScheme) -> LockError {
    // Without `=`, it may be the end of a password that nothing follows.
    let name = pair.split_once('=').map_or("", |(name, _)| name);
    if FILES.contains(&name) || name == SERVER_NAME {
        let text = format!("the parameter `{name}` of the lock URL needs TLS");
        return advised(text, scheme.with_tls());
    }
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    let is_name = name.starts_with(|letter: char| letter.is_ascii_alphabetic())
        && name.len() <= LONGEST_NAME
        && name.bytes().all(is_of_name);
    let text = if is_name {
        format!("unknown parameter `{name}` in the lock URL")
    } else {
        "unknown parameter in the lock URL".to_owned()
    };
    advised(text, known_advice(scheme))
}

/// Advises the parameters of [`known`].
pub(super) fn known_advice(scheme: ServerScheme) -> &'static str {
    match (scheme.form, scheme.tls) {
        (UrlForm::Socket, _) => "use `db`, `user`, `pass`, `protocol` or `client_name`",
        (UrlForm::Server | UrlForm::Quorum, false) => {
            "use `protocol` or `client_name`; a database is the path of the URL"
        }
        (UrlForm::Cluster, false) => "use `protocol` or `client_name`",
        (UrlForm::Server | UrlForm::Cluster | UrlForm::Quorum, true) => {
            "use `protocol`, `client_name`, `ssl_ca_certs`, `ssl_certfile`, `ssl_keyfile` or `ssl_server_name`"
        }
        (UrlForm::Sentinel, false) => {
            "use `protocol`, `client_name`, `sentinel_username`, `sentinel_password`, \
             `sentinel_tls` or `sentinelMasterId`"
        }
        (UrlForm::Sentinel, true) => {
            "use `protocol`, `client_name`, `ssl_ca_certs`, `ssl_certfile`, `ssl_keyfile`, \
             `ssl_server_name`, `sentinel_username`, `sentinel_password`, `sentinel_tls` or `sentinelMasterId`"
        }
        (UrlForm::LettuceSentinel, false) => {
            "use `sentinelMasterId`, `db`, `protocol`, `client_name`, `sentinel_username`, \
             `sentinel_password` or `sentinel_tls`"
        }
        (UrlForm::LettuceSentinel, true) => {
            "use `sentinelMasterId`, `db`, `protocol`, `client_name`, `ssl_ca_certs`, \
             `ssl_certfile`, `ssl_keyfile`, `ssl_server_name`, `sentinel_username`, \
             `sentinel_password` or `sentinel_tls`"
        }
    }
}

fn invalid_file(name: &str) -> LockError {
    advised(
        format!("the parameter `{name}` of the lock URL is empty"),
        "write the path of a file in PEM, or remove the parameter",
    )
}
