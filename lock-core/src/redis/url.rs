//! Reads the URL of the lock servers. Errors never show the URL, which may hold a password.

use std::path::PathBuf;

use super::deployment::{Deployment, Login, NodeAddress, Protocol, Sentinels, TlsFiles, Topology};
use crate::error::{BackendErrorKind, LockError};

mod hosts;
mod parameters;
mod percent;
mod scheme;

#[cfg(test)]
mod tests;

use parameters::UrlParameters;
use percent::decode;
use scheme::{ServerScheme, UrlForm};

/// The port of a Redis server.
const SERVER_PORT: u16 = 6379;

/// The port of a Sentinel.
const SENTINEL_PORT: u16 = 26379;

/// The fewest servers of a quorum: two of them are more than half of it.
const FEWEST_SERVERS: usize = 3;

/// Reads a URL with one of the schemes of Redis. Does no IO.
pub(crate) fn parse(url: &str) -> Result<Deployment, LockError> {
    // The end of a line in a file or a variable.
    let url = url.trim_end_matches(|letter: char| letter <= ' ');
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(invalid("the lock URL has no scheme"));
    };
    let scheme = scheme.to_ascii_lowercase();
    let Some(scheme) = ServerScheme::of(&scheme) else {
        return Err(invalid("the lock URL has no scheme of a Redis server"));
    };
    scheme.check_feature()?;
    let parts = UrlParts::split(scheme, rest)?;
    match scheme.form {
        UrlForm::Socket => socket(scheme, &parts),
        UrlForm::Server => server(scheme, &parts),
        UrlForm::Sentinel | UrlForm::LettuceSentinel => sentinel(scheme, &parts),
        UrlForm::Cluster => cluster(scheme, &parts),
        UrlForm::Quorum => quorum(scheme, &parts),
    }
}

/// The parts of a URL after its scheme, as they are written.
struct UrlParts<'a> {
    user_and_password: &'a str,
    hosts: &'a str,
    /// Begins with `/`, or is empty.
    path: &'a str,
    query: &'a str,
}

impl<'a> UrlParts<'a> {
    fn split(scheme: ServerScheme, rest: &'a str) -> Result<Self, LockError> {
        // User and password end at the first of these characters. A host is never followed by `@`.
        let end = rest.find(['/', '#', '?']).unwrap_or(rest.len());
        if scheme.form != UrlForm::Socket && rest[end..].contains('@') {
            return Err(advised(
                "the lock URL holds `/`, `#` or `?` before the `@` that ends user and password",
                "percent-encode them there: `/` is `%2F`, `#` is `%23`, `?` is `%3F`, `@` is `%40`",
            ));
        }
        let (authority, rest) = rest.split_at(end);
        let (rest, fragment) = match rest.split_once('#') {
            Some((rest, fragment)) => (rest, Some(fragment)),
            None => (rest, None),
        };
        if let Some(fragment) = fragment {
            return Err(scheme.refuse_fragment(fragment));
        }
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (user_and_password, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        if scheme.has_list() && user_and_password.contains('@') {
            return Err(advised(
                "the lock URL has more than one `@` before its path",
                "write user and password once, before the first host, and `@` in them as `%40`",
            ));
        }
        Ok(Self {
            user_and_password,
            hosts,
            path,
            query,
        })
    }

    /// The user and the password before the hosts. Empty ones are none.
    fn login(&self, db: i64, protocol: Option<Protocol>) -> Result<Login, LockError> {
        let (user, password) = self
            .user_and_password
            .split_once(':')
            .unwrap_or((self.user_and_password, ""));
        Ok(Login {
            user: text(decode(user, "the user")?),
            password: text(decode(password, "the password")?),
            db,
            protocol,
        })
    }
}

fn socket(scheme: ServerScheme, parts: &UrlParts<'_>) -> Result<Deployment, LockError> {
    let path = decode(parts.path, "the path")?;
    let is_here = parts.hosts.is_empty() || parts.hosts.eq_ignore_ascii_case("localhost");
    if !is_here || !parts.user_and_password.is_empty() {
        return Err(advised(
            "the lock URL of a Unix socket has a host",
            "write three slashes before the path, such as unix:///run/redis.sock, and user and \
             password as `?user=` and `&pass=`",
        ));
    }
    if path.trim_matches('/').is_empty() {
        return Err(invalid("the lock URL names no path of a Unix socket"));
    }
    let mut parameters = UrlParameters::read(parts.query, scheme)?;
    let login = Login {
        user: parameters.take("user").and_then(text),
        password: parameters.take("pass").and_then(text),
        db: parameters.db()?.unwrap_or(0),
        protocol: parameters.protocol()?,
    };
    Ok(Deployment {
        topology: Topology::Standalone(NodeAddress::Unix(PathBuf::from(path))),
        login,
        tls: None,
        client_name: parameters.take("client_name").and_then(text),
    })
}

fn server(scheme: ServerScheme, parts: &UrlParts<'_>) -> Result<Deployment, LockError> {
    if parts.hosts.contains(',') {
        let text = "the lock URL has several hosts, but its scheme is for one server";
        return Err(advised(text, scheme.schemes_of_lists()));
    }
    let node = hosts::one(parts.hosts, SERVER_PORT)?;
    let db = db_of_path(parts.path)?;
    let (shared, _) = shared(scheme, parts, db)?;
    Ok(shared.at(Topology::Standalone(node)))
}

fn sentinel(scheme: ServerScheme, parts: &UrlParts<'_>) -> Result<Deployment, LockError> {
    let addresses = hosts::list(parts.hosts, SENTINEL_PORT)?;
    let (shared, mut parameters) = shared(scheme, parts, 0)?;
    let path = parts.path.strip_prefix('/').unwrap_or_default();
    let (service, db) = match parameters.take("sentinelMasterId") {
        Some(service) => (service, db_of_path(path)?),
        None if scheme.form == UrlForm::LettuceSentinel => (String::new(), 0),
        None => {
            let (service, db) = path.split_once('/').unwrap_or((path, ""));
            (decode(service, "the service")?, db_of_path(db)?)
        }
    };
    if service.is_empty() {
        return Err(advised(
            "the lock URL names no service of the Sentinels",
            scheme.how_to_name_a_service(),
        ));
    }
    let db = match parameters.db()? {
        Some(_) if !path.is_empty() => {
            return Err(advised(
                "the lock URL has a database in its path and in `db`",
                "remove one of them",
            ));
        }
        Some(of_parameter) => of_parameter,
        None => db,
    };
    let sentinels = Sentinels {
        addresses,
        service,
        login: Login {
            user: parameters.take("sentinel_username").and_then(text),
            password: parameters.take("sentinel_password").and_then(text),
            db: 0,
            protocol: shared.login.protocol,
        },
        tls: parameters.sentinel_tls(scheme)?,
    };
    let mut deployment = shared.at(Topology::Sentinel(sentinels));
    deployment.login.db = db;
    Ok(deployment)
}

fn cluster(scheme: ServerScheme, parts: &UrlParts<'_>) -> Result<Deployment, LockError> {
    let nodes = hosts::list(parts.hosts, SERVER_PORT)?;
    if db_of_path(parts.path)? != 0 {
        return Err(advised(
            "the lock URL names a database, but a Redis Cluster has database 0 only",
            "remove the path of the URL",
        ));
    }
    let (shared, _) = shared(scheme, parts, 0)?;
    Ok(shared.at(Topology::Cluster(nodes)))
}

fn quorum(scheme: ServerScheme, parts: &UrlParts<'_>) -> Result<Deployment, LockError> {
    let servers = hosts::list(parts.hosts, SERVER_PORT)?;
    check_servers(&servers)?;
    let db = db_of_path(parts.path)?;
    let (shared, _) = shared(scheme, parts, db)?;
    let servers = servers
        .into_iter()
        .map(|node| shared.clone().at(Topology::Standalone(node)))
        .collect();
    Ok(shared.at(Topology::Quorum(servers)))
}

/// Reads the URLs of the servers of a quorum, each with its own login.
pub(crate) fn parse_quorum(urls: &[String]) -> Result<Deployment, LockError> {
    let mut servers = Vec::with_capacity(urls.len());
    let mut addresses = Vec::with_capacity(urls.len());
    for (at, url) in urls.iter().enumerate() {
        let deployment = parse(url)?;
        let Topology::Standalone(address) = &deployment.topology else {
            return Err(advised(
                format!("URL {} of the quorum does not name a single server", at + 1),
                "name single servers: redis:// or rediss://",
            ));
        };
        addresses.push(address.clone());
        servers.push(deployment);
    }
    check_servers(&addresses)?;
    Ok(Deployment {
        topology: Topology::Quorum(servers),
        login: Login::default(),
        tls: None,
        client_name: None,
    })
}

fn check_servers(servers: &[NodeAddress]) -> Result<(), LockError> {
    if servers.len() < FEWEST_SERVERS {
        return Err(advised(
            format!(
                "{} of the servers of a quorum are named, which needs at least {FEWEST_SERVERS}",
                servers.len()
            ),
            "name at least 3 independent servers, or use redis:// for one server",
        ));
    }
    // By their positions in the list, because a text without `@` may be a part of a password.
    if let Some((first, second)) = hosts::repeated(servers) {
        return Err(advised(
            format!("hosts {first} and {second} of the quorum are the same server"),
            "name different servers: each of them counts once in the quorum",
        ));
    }
    Ok(())
}

/// What all servers of a URL have in common.
#[derive(Clone)]
struct SharedAccess {
    login: Login,
    tls: Option<TlsFiles>,
    client_name: Option<String>,
}

impl SharedAccess {
    fn at(self, topology: Topology) -> Deployment {
        Deployment {
            topology,
            login: self.login,
            tls: self.tls,
            client_name: self.client_name,
        }
    }
}

/// Reads user and password, and the parameters that all TCP schemes have. Returns the others too.
fn shared(
    scheme: ServerScheme,
    parts: &UrlParts<'_>,
    db: i64,
) -> Result<(SharedAccess, UrlParameters), LockError> {
    let mut parameters = UrlParameters::read(parts.query, scheme)?;
    let shared = SharedAccess {
        login: parts.login(db, parameters.protocol()?)?,
        tls: parameters.tls_files(scheme)?,
        client_name: parameters.take("client_name").and_then(text),
    };
    Ok((shared, parameters))
}

/// Reads the database of a path. Its text is not shown: it may be a part of a password.
fn db_of_path(path: &str) -> Result<i64, LockError> {
    match path.trim_matches('/') {
        "" => Ok(0),
        db => db_number(db).ok_or_else(|| {
            advised(
                "the path of the lock URL is no database number",
                "the path of the URL must be a database number such as /0, or empty",
            )
        }),
    }
}

/// Reads the number of a database. Signs and spaces are no part of one.
fn db_number(text: &str) -> Option<i64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = is_number.then(|| text.parse::<u32>().ok()).flatten()?;
    Some(number.into())
}

/// Returns a text that is not empty.
fn text(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn invalid(text: impl Into<String>) -> LockError {
    LockError::backend(BackendErrorKind::InvalidUrl, text)
}

fn advised(text: impl Into<String>, advice: &'static str) -> LockError {
    LockError::advised(BackendErrorKind::InvalidUrl, text, advice)
}
