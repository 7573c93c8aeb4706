//! Where the server is, how a connection logs in, and the name under which the server shows it.

use std::sync::Arc;
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisError};

use super::connection::keepalive;
use super::credentials::{CredentialSource, Issued};
use super::errors::error_text;
use super::report::server_address;
use crate::backend::WORKER_THREAD;
use crate::config::ManagerSettings;
use crate::config::endpoint::{Endpoint, EndpointAddress};
use crate::config::server::{ServerPlace, SharedProvider};
use crate::error::{BackendErrorKind, LockError};
use crate::protocol::wire::tidy_label;
use crate::telemetry::{ConnectionKind, Reporter, ServerAddress};

/// The name of the library that `CLIENT LIST` shows, in the form that Redis recommends.
const LIBRARY: &str = "lock-core(redis-rs)";

/// What all connections of a manager have in common.
pub(super) struct Access {
    /// Has no login if there is a source of credentials.
    info: ConnectionInfo,
    /// The address, for error texts.
    pub(super) address: Arc<str>,
    /// The address, for telemetry.
    pub(super) server: Arc<ServerAddress>,
    /// The name of the connections, without their role.
    name: String,
    pub(super) credentials: Option<Arc<CredentialSource>>,
}

/// Returns the kind of a connection for lock commands that opens on this thread.
pub(super) fn kind_of_this_thread() -> ConnectionKind {
    if std::thread::current().name() == Some(WORKER_THREAD) {
        ConnectionKind::Worker
    } else {
        ConnectionKind::Command
    }
}

impl Access {
    pub(super) fn new(
        place: &ServerPlace,
        provider: Option<SharedProvider>,
        settings: &ManagerSettings,
        reporter: &Arc<Reporter>,
    ) -> Result<Self, LockError> {
        let (info, name_in_url) = match place {
            ServerPlace::Url(url) => {
                check_database(url)?;
                let info = url
                    .as_str()
                    .into_connection_info()
                    .map_err(|e| invalid(&e))?;
                (info, client_name_of(url))
            }
            ServerPlace::Endpoint(endpoint) => (of_endpoint(endpoint)?, None),
        };
        let login = info.redis_settings();
        if provider.is_some() && (login.username().is_some() || login.password().is_some()) {
            return Err(LockError::advised(
                BackendErrorKind::InvalidUrl,
                "two sources of credentials: the server's address has a user or a password, and \
                 `credentials` sets a provider",
                "remove one of them",
            ));
        }
        let login = login
            .clone()
            .set_protocol(ProtocolVersion::RESP3)
            .set_lib_name(LIBRARY, env!("CARGO_PKG_VERSION"));
        let info = info
            .set_redis_settings(login)
            // Without it, a command waits for the acknowledgment of the previous one.
            .set_tcp_settings(
                TcpSettings::default()
                    .set_nodelay(true)
                    .set_keepalive(keepalive()),
            );
        let name = match (&settings.client_name, name_in_url) {
            (Some(name), _) => name.to_string(),
            (None, Some(name)) => name,
            (None, None) => format!("lock:{}", settings.label),
        };
        let timeout = settings.command_timeout;
        let credentials =
            provider.map(|provider| CredentialSource::new(provider, timeout, Arc::clone(reporter)));
        Ok(Self {
            address: info.addr().to_string().into(),
            server: Arc::new(server_address(info.addr())),
            name: in_client_name(&name),
            info,
            credentials: credentials.map(Arc::new),
        })
    }

    /// Returns the settings of a connection that opens now. Asks the provider, for at most `limit`.
    pub(super) async fn login(
        &self,
        limit: Duration,
    ) -> Result<(ConnectionInfo, Option<Arc<Issued>>), LockError> {
        let Some(source) = &self.credentials else {
            return Ok((self.info.clone(), None));
        };
        let issued = source.ask(limit).await?;
        let login = self.info.redis_settings().clone();
        let login = login
            .set_username(&issued.user)
            .set_password(&issued.password);
        let info = self.info.clone().set_redis_settings(login);
        Ok((info, Some(issued)))
    }

    /// Returns the name of a connection, as `CLIENT SETNAME` takes it.
    pub(super) fn client_name(&self, kind: ConnectionKind) -> String {
        format!("{}:{}", self.name, kind.as_str())
    }
}

fn invalid(error: &RedisError) -> LockError {
    let text = format!("the lock URL is invalid ({})", error_text(error));
    LockError::backend(BackendErrorKind::InvalidUrl, text)
}

/// Checks the database of a URL. Its text is not shown: it may be a part of a password.
fn check_database(url: &str) -> Result<(), LockError> {
    let Some(url) = redis::parse_redis_url(url) else {
        return Ok(());
    };
    let is_number = |text: &str| text.parse::<u32>().is_ok();
    let (text, advice) = if url.scheme() == "redis" {
        let path = url.path().trim_matches('/');
        if path.is_empty() || is_number(path) {
            return Ok(());
        }
        (
            "the path of the lock URL is no database number",
            "the path of the URL must be a database number such as /0, or empty",
        )
    } else {
        let mut parameters = url.query_pairs();
        let db = parameters.find(|(name, _)| name == "db");
        if db.is_none_or(|(_, db)| is_number(&db)) {
            return Ok(());
        }
        (
            "the parameter `db` of the lock URL is no database number",
            "write a number, such as `?db=0`",
        )
    };
    Err(LockError::advised(
        BackendErrorKind::InvalidUrl,
        text,
        advice,
    ))
}

fn of_endpoint(endpoint: &Endpoint) -> Result<ConnectionInfo, LockError> {
    let address = match &endpoint.address {
        EndpointAddress::Tcp(host, port) => ConnectionAddr::Tcp(host.clone(), *port),
        EndpointAddress::Unix(path) => ConnectionAddr::Unix(path.clone()),
    };
    let info = address.into_connection_info().map_err(|e| invalid(&e))?;
    let mut login = info.redis_settings().clone().set_db(endpoint.db);
    if let Some(user) = &endpoint.user {
        login = login.set_username(user);
    }
    if let Some(password) = &endpoint.password {
        login = login.set_password(password);
    }
    Ok(info.set_redis_settings(login))
}

/// Returns the parameter `client_name` of a URL.
fn client_name_of(url: &str) -> Option<String> {
    let url = redis::parse_redis_url(url)?;
    let mut parameters = url.query_pairs();
    let (_, name) = parameters.find(|(name, _)| name == "client_name")?;
    Some(name.into_owned())
}

/// Replaces the characters that the server does not accept in the name of a connection.
fn in_client_name(name: &str) -> String {
    let visible = |letter: char| match letter {
        '!'..='~' => letter,
        _ => '_',
    };
    tidy_label(name).chars().map(visible).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(place: &ServerPlace, change: fn(&mut ManagerSettings)) -> Access {
        let mut settings = ManagerSettings {
            label: "web 7é".into(),
            ..ManagerSettings::default()
        };
        change(&mut settings);
        Access::new(place, None, &settings, &Arc::default()).unwrap()
    }

    #[test]
    fn name_of_a_connection_is_that_of_the_builder_the_url_or_the_label() {
        let plain = ServerPlace::Url("redis://h".into());
        let named = ServerPlace::Url("redis://h/1?client_name=my%20app".into());
        let unix = ServerPlace::Url("unix:///s?db=1&client_name=x".into());
        let set = |settings: &mut ManagerSettings| settings.client_name = Some("set".into());
        let role = ConnectionKind::Pubsub;
        for (place, change, name) in [
            (&plain, (|_| {}) as fn(&mut _), "lock:web_7_:pubsub"),
            (&named, |_| {}, "my_app:pubsub"),
            (&unix, |_| {}, "x:pubsub"),
            (&named, set, "set:pubsub"),
        ] {
            assert_eq!(access(place, change).client_name(role), name);
        }
    }

    #[test]
    fn endpoint_equals_its_url() {
        let tcp = Endpoint::tcp("h", 7000).db(2).user("u").password("p");
        let unix = Endpoint::unix("/s").password("p").db(1);
        for (endpoint, url) in [
            (tcp, "redis://u:p@h:7000/2"),
            (unix, "unix:///s?db=1&pass=p"),
        ] {
            let [of_endpoint, of_url] = [
                ServerPlace::Endpoint(endpoint),
                ServerPlace::Url(url.into()),
            ]
            .map(|place| access(&place, |_| {}).info);
            assert_eq!(of_endpoint.addr(), of_url.addr());
            let [of_endpoint, of_url] = [of_endpoint, of_url].map(|info| {
                let login = info.redis_settings().clone();
                let text = |text: Option<&str>| text.map(str::to_owned);
                (text(login.username()), text(login.password()), login.db())
            });
            assert_eq!(of_endpoint, of_url);
        }
    }
}
