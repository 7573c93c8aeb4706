//! Finds the URL of a server of which only the address is known.

use std::fmt::Write as _;

use lock_core::LockError;
use lock_core::doctor::{Connection, Part, Reply, Server, Servers, Topology};
use lock_core::error::BackendErrorKind;

use super::check::Check;
use super::connection::{greeting, info};
use crate::args::GlobalArgs;
use crate::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::page::Line;

/// How many hosts a URL names: enough to begin while some are down.
const HOSTS: usize = 3;

/// An address, and how its server is reached.
pub(super) struct Address {
    /// `user:password@`, or empty.
    login: String,
    host: String,
    /// Begins with `?`, or is empty.
    parameters: String,
    tls: bool,
    kind: Kind,
}

enum Kind {
    Server,
    Cluster,
    /// With the name of its service.
    Sentinel(String),
}

impl Address {
    /// Tries the address with TLS and without it, and asks the server what it is.
    pub(super) async fn find(text: &str, global: &GlobalArgs) -> Result<Self, Failure> {
        if text.contains("://") {
            let text = "the address has a scheme; pass a URL as --url, or in DISTRIBUTED_LOCK_URL";
            return Err(Failure::new(Exit::Usage, "usage", text));
        }
        let (rest, parameters) = match text.split_once('?') {
            Some((rest, parameters)) => (rest, format!("?{parameters}")),
            None => (text, String::new()),
        };
        let (login, host) = match rest.rsplit_once('@') {
            Some((login, host)) => (format!("{login}@"), host),
            None => (String::new(), rest),
        };
        let mut address = Self {
            login,
            host: host.to_owned(),
            parameters,
            tls: true,
            kind: Kind::Server,
        };
        let plain = address.plain();
        // Whether the server speaks TLS is not known yet, so the plain way goes without the password.
        let probe = Self {
            login: String::new(),
            ..address.plain()
        };
        let (secured, probed) = (address.url(), probe.url());
        let (secured, probed) = tokio::join!(open(&secured, global), open(&probed, global));
        let (secured, mut probed) = (secured?, probed?);
        let mut connection = match secured {
            Ok(connection) => connection,
            Err(secured) => {
                let speaks_plain = probed.as_ref().err().is_none_or(wants_login);
                if speaks_plain && !plain.login.is_empty() {
                    probed = open(&plain.url(), global).await?;
                }
                match probed {
                    Ok(connection) => {
                        address = plain;
                        connection
                    }
                    Err(plain) => return Err(address.failure(global, &secured, &plain)),
                }
            }
        };
        address.kind = address.kind_of(&mut connection).await?;
        Ok(address)
    }

    /// The same without TLS, and so without its parameters.
    fn plain(&self) -> Self {
        let parameters = self.parameters.trim_start_matches('?').split('&');
        let parameters: Vec<_> = parameters
            .filter(|it| !it.is_empty() && !it.starts_with("ssl_"))
            .collect();
        let parameters = parameters.join("&");
        Self {
            login: self.login.clone(),
            host: self.host.clone(),
            parameters: if parameters.is_empty() {
                parameters
            } else {
                format!("?{parameters}")
            },
            tls: false,
            kind: Kind::Server,
        }
    }

    /// Returns the URL for `doctor` itself.
    pub(super) fn url(&self) -> String {
        self.url_of(&self.login, &self.host)
    }

    fn url_of(&self, login: &str, hosts: &str) -> String {
        let tls = if self.tls { "s" } else { "" };
        let (kind, path) = match &self.kind {
            Kind::Server => ("", String::new()),
            Kind::Cluster => ("+cluster", String::new()),
            Kind::Sentinel(service) => ("+sentinel", format!("/{}", encoded(service))),
        };
        format!("redis{tls}{kind}://{login}{hosts}{path}{}", self.parameters)
    }

    /// Says which URL services should use. It names several servers, if there are several at which a client can begin.
    pub(super) fn check(&self, found: &Servers, global: &GlobalArgs) -> Check {
        let begins = match found.topology {
            Topology::Cluster => Part::Primary,
            _ => Part::Sentinel,
        };
        let others = found.servers.iter().filter(|server| server.part == begins);
        let others = others
            .map(Server::address)
            .filter(|other| *other != self.host);
        let mut hosts = vec![self.host.clone()];
        // The addresses of a URL are used as they are.
        if global.address_map.is_none() {
            hosts.extend(others);
        }
        hosts.truncate(HOSTS);
        let login = if self.login.is_empty() {
            ""
        } else {
            "USER:PASSWORD@"
        };
        let url = self.url_of(login, &hosts.join(","));
        Check::ok("url", format!("use {url}"))
    }

    async fn kind_of(&self, connection: &mut Connection) -> Result<Kind, Failure> {
        let known = match info(connection).await {
            Ok(info) => info,
            // Every user may run HELLO.
            Err(_) => greeting(connection).await,
        };
        let mode = known.text("redis_mode").unwrap_or_default();
        if mode == "cluster" || known.text("cluster_enabled") == Some("1") {
            return Ok(Kind::Cluster);
        }
        if mode != "sentinel" {
            return Ok(Kind::Server);
        }
        let reply = connection.ask(&["SENTINEL", "MASTERS"]).await;
        let reply =
            reply.map_err(|error| self.without_service(&format!("it names none ({error})")))?;
        let mut services: Vec<_> = reply.items().iter().filter_map(service).collect();
        services.truncate(20);
        match services.as_slice() {
            [service] => Ok(Kind::Sentinel((*service).to_owned())),
            [] => Err(self.without_service("it watches none")),
            several => Err(self.without_service(&format!("it watches {}", several.join(", ")))),
        }
    }

    fn without_service(&self, why: &str) -> Failure {
        let mut named = self.plain();
        (named.tls, named.kind) = (self.tls, Kind::Sentinel("SERVICE".to_owned()));
        let url = named.url_of("", &self.host);
        let text = format!(
            "{} is a Sentinel, and its service is not clear: {why}; name one in the URL, as {url}",
            self.host
        );
        Failure::new(Exit::Config, "configuration", text)
    }

    /// Says how the address failed. A server that wants a password has shown whether it speaks TLS.
    fn failure(&self, global: &GlobalArgs, secured: &LockError, plain: &LockError) -> Failure {
        let failed = |error| connect::failure(global, error);
        let with = |failure: Failure, hint: String| {
            let text = format!("{}; {hint}", failure.text);
            Failure {
                text: Line::new(&text),
                ..failure
            }
        };
        for (error, tls) in [(secured, true), (plain, false)] {
            if wants_login(error) {
                let mut known = self.plain();
                known.tls = tls;
                let url = known.url_of("USER:PASSWORD@", &self.host);
                return with(failed(error), format!("use {url}"));
            }
        }
        if shows_tls(secured) {
            let url = self.url_of("", &self.host);
            return with(failed(secured), format!("the server speaks TLS: use {url}"));
        }
        let secured = failed(secured).text;
        with(failed(plain), format!("with TLS: {secured}"))
    }
}

/// Connects to a server. The inner error says why the connection failed.
async fn open(url: &str, global: &GlobalArgs) -> Result<Result<Connection, LockError>, Failure> {
    let found = connect::builder(url, global)?.servers(url).await;
    let found = match found {
        Ok(found) => found,
        Err(error) if is_of_arguments(&error) => return Err(connect::failure(global, &error)),
        Err(error) => return Ok(Err(error)),
    };
    match found.servers.first() {
        Some(server) => Ok(server.open().await),
        None => Ok(Err(LockError::NotConfigured)),
    }
}

/// Whether the address can't be tried at all.
fn is_of_arguments(error: &LockError) -> bool {
    match error {
        LockError::Backend(error) => error.kind() == BackendErrorKind::InvalidUrl,
        _ => true,
    }
}

fn kind(error: &LockError) -> Option<BackendErrorKind> {
    match error {
        LockError::Backend(error) => Some(error.kind()),
        _ => None,
    }
}

/// Whether an error of the way with TLS shows that the server speaks it. A server without TLS may reply to a handshake.
fn shows_tls(error: &LockError) -> bool {
    kind(error) == Some(BackendErrorKind::Tls)
        && !error.to_string().contains("the reply is not that of TLS")
}

fn wants_login(error: &LockError) -> bool {
    use BackendErrorKind::{Authentication, Permission};
    kind(error).is_some_and(|kind| matches!(kind, Authentication | Permission))
}

/// Returns the name in the fields of a service.
fn service(fields: &Reply) -> Option<&str> {
    let mut pairs = fields.items().chunks(2);
    let name = pairs.find(|pair| pair[0].text() == Some("name"))?;
    name.get(1)?.text()
}

/// Encodes the name of a service for the path of a URL.
fn encoded(service: &str) -> String {
    let mut text = String::new();
    for byte in service.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            text.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(parameters: &str, kind: Kind) -> Address {
        Address {
            login: "me:secret@".to_owned(),
            host: "h:1".to_owned(),
            parameters: parameters.to_owned(),
            tls: true,
            kind,
        }
    }

    #[test]
    fn url_has_the_scheme_of_what_was_found() {
        let parameters = "?ssl_ca_certs=/ca.pem&protocol=2";
        let found = address(parameters, Kind::Server);
        assert_eq!(found.url(), format!("rediss://me:secret@h:1{parameters}"));
        assert_eq!(found.plain().url(), "redis://me:secret@h:1?protocol=2");
        let only_tls = address("?ssl_server_name=x", Kind::Server);
        assert_eq!(only_tls.plain().url(), "redis://me:secret@h:1");
        let cluster = address("", Kind::Cluster);
        assert_eq!(cluster.url(), "rediss+cluster://me:secret@h:1");
        let sentinel = address(parameters, Kind::Sentinel("my master".to_owned()));
        let expected = format!("rediss+sentinel://me:secret@h:1/my%20master{parameters}");
        assert_eq!(sentinel.url(), expected);
    }
}
