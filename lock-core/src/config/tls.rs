//! The settings of TLS.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use tokio_rustls::rustls::ClientConfig;

/// How a manager checks the servers' certificates, and which certificate it shows to them. For
/// [`LockManagerBuilder::tls`](crate::LockManagerBuilder::tls).
///
/// A URL with `rediss://` alone trusts the authorities of the operating system. Its parameters
/// `ssl_ca_certs`, `ssl_certfile` and `ssl_keyfile` name files, as in redis-py. This type takes the same
/// as bytes, and what a URL has no parameter for.
///
/// ```
/// # use lock_core::{LockManager, Tls};
/// # fn example(ca: &[u8], certificate: &[u8], key: &[u8]) {
/// let tls = Tls::new().ca_pem(ca).client_pem(certificate, key);
/// let builder = LockManager::builder().tls(tls);
/// # }
/// ```
#[derive(Clone, Default)]
#[must_use = "settings have no effect before a builder has them"]
pub struct Tls {
    pub(crate) ca: Vec<PemSource>,
    /// The certificate chain of the client, and its key.
    pub(crate) client: Option<(PemSource, PemSource)>,
    pub(crate) server_name: Option<String>,
    pub(crate) config: Option<Arc<ClientConfig>>,
}

/// Where a text in PEM comes from.
#[derive(Clone)]
pub(crate) enum PemSource {
    Bytes(Arc<[u8]>),
    File(PathBuf),
}

impl Tls {
    /// Trusts the authorities of the operating system, and shows no certificate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts the authorities of these certificates in PEM, and not those of the operating system.
    /// Several calls add up.
    pub fn ca_pem(mut self, pem: impl AsRef<[u8]>) -> Self {
        self.ca.push(PemSource::Bytes(pem.as_ref().into()));
        self
    }

    /// Shows this certificate to the servers, with its chain, and proves it by this key. Both are in
    /// PEM.
    pub fn client_pem(mut self, certificate: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> Self {
        let bytes = |pem: &[u8]| PemSource::Bytes(pem.into());
        self.client = Some((bytes(certificate.as_ref()), bytes(key.as_ref())));
        self
    }

    /// Expects this name in the servers' certificates, instead of the host of each address. For servers
    /// behind a tunnel, and for certificates of a whole deployment. In a URL it is `ssl_server_name`.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// Takes a whole configuration of rustls, for what the other methods do not offer: other
    /// cryptography, a verifier of your own, the file of session keys. It cannot be combined with
    /// certificates of the other methods or of the URL.
    ///
    /// The type is that of rustls 0.23. A later version of this crate may take that of a later rustls,
    /// which is no breaking change in the sense of this crate's version.
    #[doc(hidden)]
    pub fn from_config(config: Arc<ClientConfig>) -> Self {
        Self {
            config: Some(config),
            ..Self::default()
        }
    }
}

/// Shows no key.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("ca", &self.ca)
            .field("client", &self.client.as_ref().map(|(chain, _)| chain))
            .field("server_name", &self.server_name)
            .field("has_config", &self.config.is_some())
            .finish()
    }
}

impl fmt::Debug for PemSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}
