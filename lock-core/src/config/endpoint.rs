//! The address of a server, in types of this library.

use std::fmt;
use std::path::PathBuf;

/// The address of a server and the login, for
/// [`LockManagerBuilder::connect_to`](crate::LockManagerBuilder::connect_to). Use it when there is no URL,
/// for example because another part of the program has parsed it.
///
/// It has no types of a client library. The [guide](crate::guide::configuration) converts a
/// `redis::Client`.
///
/// ```no_run
/// # use lock_core::config::Endpoint;
/// # use lock_core::{LockError, LockManager};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let endpoint = Endpoint::tcp("redis.internal", 6379).db(2).user("app").password("secret");
/// let locks = LockManager::builder().connect_to(endpoint).await?;
/// # drop(locks);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
#[must_use = "an endpoint has no effect before a builder connects to it"]
pub struct Endpoint {
    pub(crate) address: EndpointAddress,
    pub(crate) db: i64,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) tls: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EndpointAddress {
    Tcp(String, u16),
    Unix(PathBuf),
}

impl Endpoint {
    /// A server over TCP. The host is a name or an IP address, without brackets.
    pub fn tcp(host: impl Into<String>, port: u16) -> Self {
        Self::at(EndpointAddress::Tcp(host.into(), port))
    }

    /// A server on a Unix socket.
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self::at(EndpointAddress::Unix(path.into()))
    }

    fn at(address: EndpointAddress) -> Self {
        Self {
            address,
            db: 0,
            user: None,
            password: None,
            tls: false,
        }
    }

    /// Sets the number of the database. Defaults to 0.
    pub fn db(mut self, db: i64) -> Self {
        self.db = db;
        self
    }

    /// Sets the user. Defaults to the server's default user.
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Sets the password. Defaults to none.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Reaches the server by TLS. [`LockManagerBuilder::tls`](crate::LockManagerBuilder::tls) sets the
    /// certificates. With a Unix socket, `connect_to` returns
    /// [`LockError::Invalid`](crate::LockError::Invalid). Without this call, the connection has no TLS.
    #[cfg(feature = "__tls")]
    #[cfg_attr(docsrs, doc(cfg(any(feature = "tls", feature = "tls-aws-lc"))))]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }
}

/// Does not show the password.
impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("address", &self.address)
            .field("db", &self.db)
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| "***"))
            .field("tls", &self.tls)
            .finish()
    }
}
