//! The server of a manager, before it is connected.

#[cfg(all(feature = "redis", not(feature = "__tls")))]
use std::convert::Infallible as TlsSettings;
use std::fmt;
#[cfg(feature = "redis")]
use std::sync::Arc;

#[cfg(feature = "redis")]
use super::credentials::CredentialProvider;
#[cfg(feature = "redis")]
use super::endpoint::Endpoint;
use super::manager_config::without_password;
#[cfg(feature = "__tls")]
use super::tls::Tls as TlsSettings;

/// The server of a builder.
#[derive(Clone, Default)]
pub(crate) struct ServerSettings {
    pub(crate) url: Option<String>,
    #[cfg(feature = "redis")]
    pub(crate) endpoint: Option<Endpoint>,
    #[cfg(feature = "redis")]
    pub(crate) credentials: Option<SharedProvider>,
    #[cfg(feature = "redis")]
    pub(crate) security: Security,
}

/// The settings of TLS, if the builder has some.
#[cfg(feature = "redis")]
pub(crate) type Security = Option<TlsSettings>;

/// Where the server is.
#[cfg(feature = "redis")]
pub(crate) enum ServerPlace {
    Url(String),
    Endpoint(Endpoint),
    /// The servers of a quorum, by their URLs.
    Quorum(Vec<String>),
}

/// A provider of user and password. It is foreign code.
#[cfg(feature = "redis")]
#[derive(Clone)]
pub(crate) struct SharedProvider(pub(crate) Arc<dyn CredentialProvider>);

/// Does not show passwords, and nothing of the provider.
impl fmt::Debug for ServerSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ServerSettings");
        shown.field("url", &self.url.as_deref().map(without_password));
        #[cfg(feature = "redis")]
        shown
            .field("endpoint", &self.endpoint)
            .field("has_credential_provider", &self.credentials.is_some())
            .field("tls", &self.security);
        shown.finish()
    }
}
