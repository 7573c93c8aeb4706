//! The settings of TLS.

use std::error::Error;
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
/// # use lock_core::LockManager;
/// # use lock_core::config::Tls;
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
    pub(crate) provider: Option<Arc<Provide>>,
    pub(crate) server_name: Option<String>,
    pub(crate) config: Option<Arc<ClientConfig>>,
}

/// The user's function that returns certificates.
pub(crate) type Provide =
    dyn Fn() -> Result<Certificates, Box<dyn Error + Send + Sync>> + Send + Sync;

/// Where a text in PEM comes from.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum PemSource {
    Bytes(Arc<[u8]>),
    Provided(Arc<[u8]>),
    File(PathBuf),
}

/// Certificates and a key in PEM, as the function of [`Tls::provider`] returns them.
///
/// `Debug` does not show the key.
#[derive(Clone, Default, PartialEq, Eq)]
#[must_use = "certificates have no effect before a provider returns them"]
pub struct Certificates {
    pub(crate) ca: Vec<PemSource>,
    pub(crate) client: Option<(PemSource, PemSource)>,
}

impl Certificates {
    /// Has no certificate. The manager trusts the authorities that [`Tls`] and the URL name, or else the operating
    /// system's.
    pub fn new() -> Self {
        Self::default()
    }

    /// As [`Tls::ca_pem`].
    pub fn ca_pem(mut self, pem: impl AsRef<[u8]>) -> Self {
        self.ca.push(PemSource::Provided(pem.as_ref().into()));
        self
    }

    /// As [`Tls::client_pem`].
    pub fn client_pem(mut self, certificate: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> Self {
        let bytes = |pem: &[u8]| PemSource::Provided(pem.into());
        self.client = Some((bytes(certificate.as_ref()), bytes(key.as_ref())));
        self
    }
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

    /// Asks this function for certificates that change while the program runs, such as Vault or SPIFFE issues. The
    /// manager asks it when it connects and before each handshake. New connections use its newest certificates;
    /// existing connections stay as they are.
    ///
    /// Its authorities add to what the other methods and the URL name. A client certificate may come from one
    /// source only. The URL may not name files that can be read only once, such as pipes.
    ///
    /// When the function fails, `connect` fails with [`BackendErrorKind::Tls`](crate::error::BackendErrorKind::Tls). Later,
    /// connections use the certificates from before, and the manager logs the first failure until the function succeeds
    /// again, as [`lock.certificates_not_read`](crate::guide::telemetry). The same is true for certificates that can't be used,
    /// and for a panic, which the library catches and counts in [`LockStats`](crate::health::LockStats).
    ///
    /// The function may block: it runs on a thread of its own. A handshake waits at most 250 ms for it, and then uses the
    /// certificates from before, while `connect` waits up to the command timeout. Only one call runs at a time. It is
    /// called often, so it keeps its own cache if a call is expensive. Defaults to none.
    ///
    /// ```
    /// # use lock_core::LockManager;
    /// # use lock_core::config::{Certificates, Tls};
    /// # fn newest_certificate() -> std::io::Result<(Vec<u8>, Vec<u8>)> { Ok(Default::default()) }
    /// let tls = Tls::new().provider(|| {
    ///     let (certificate, key) = newest_certificate()?;
    ///     Ok::<_, std::io::Error>(Certificates::new().client_pem(certificate, key))
    /// });
    /// let builder = LockManager::builder().tls(tls);
    /// ```
    pub fn provider<E>(
        mut self,
        provider: impl Fn() -> Result<Certificates, E> + Send + Sync + 'static,
    ) -> Self
    where
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        self.provider = Some(Arc::new(move || provider().map_err(Into::into)));
        self
    }

    /// Expects this name in the servers' certificates, instead of the host of each address. For servers
    /// behind a tunnel, and for certificates of a whole deployment. In a URL it is `ssl_server_name`.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// Takes a whole configuration of rustls 0.23, for what the other methods don't offer: other cryptography, other
    /// versions of TLS, a verifier of your own, the file of session keys.
    ///
    /// It can't be combined with certificates of the other methods or of the URL: `connect` returns a
    /// [`LockError::Backend`](crate::LockError::Backend) of the kind [`Tls`](crate::error::BackendErrorKind::Tls) then.
    /// [`server_name`](Self::server_name) still works.
    ///
    /// The name has the version of rustls because the configuration is its type: a later version of rustls gets a method
    /// of its own.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use lock_core::LockManager;
    /// # use lock_core::config::Tls;
    /// # use tokio_rustls::rustls;
    /// # fn example(
    /// #     provider: Arc<rustls::crypto::CryptoProvider>,
    /// #     roots: rustls::RootCertStore,
    /// # ) -> Result<(), rustls::Error> {
    /// let config = rustls::ClientConfig::builder_with_provider(provider)
    ///     .with_protocol_versions(&[&rustls::version::TLS13])?
    ///     .with_root_certificates(roots)
    ///     .with_no_client_auth();
    /// let tls = Tls::from_rustls_0_23(Arc::new(config));
    /// let builder = LockManager::builder().tls(tls);
    /// # drop(builder);
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_rustls_0_23(config: Arc<ClientConfig>) -> Self {
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
            .field("has_provider", &self.provider.is_some())
            .field("server_name", &self.server_name)
            .field("has_config", &self.config.is_some())
            .finish()
    }
}

/// Shows no key.
impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates")
            .field("ca", &self.ca)
            .field("client", &self.client.as_ref().map(|(chain, _)| chain))
            .finish()
    }
}

impl fmt::Debug for PemSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) | Self::Provided(bytes) => write!(f, "{} bytes", bytes.len()),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}
