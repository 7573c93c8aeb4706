//! TLS: reads certificates, and begins sessions.
//!
//! Certificates expire, and programs that renew them replace the files, or give newer ones to the user's provider. So
//! each handshake looks at the files and asks the provider first, and reads what has changed. Until all of it can be read
//! and fits together, handshakes use what was read before. `expiry` reports certificates that were not renewed in time.

use std::borrow::Cow;
use std::fs::Metadata;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::CryptoProvider;
#[cfg(feature = "tls-aws-lc")]
use tokio_rustls::rustls::crypto::aws_lc_rs as cryptography;
#[cfg(not(feature = "tls-aws-lc"))]
use tokio_rustls::rustls::crypto::ring as cryptography;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

pub(super) use self::expiry::Certificate;
use self::expiry::Reported;
use self::failure::Peer;
use super::deployment::TlsFiles;
use crate::config::tls::{Certificates, PemSource, Tls};
use crate::error::{BackendErrorKind, LockError};
use crate::sync::Mutex;
use crate::telemetry::{CertificateOwner, LockEvent, PanicSource, Reporter};
use lock_protocol::codec::MAX_ERROR_TEXT;
use lock_protocol::wire::tidy;

mod expiry;
mod failure;
pub(super) mod session;

pub(super) use failure::session_error;

/// What errors call the certificates and the key.
const CA: &str = "the CA certificates";
const CERTIFICATE: &str = "the client certificate";
const KEY: &str = "the client key";

/// How long a handshake waits for a look at files and provider. Files may be on a network that is down.
const LOOKING: Duration = Duration::from_millis(250);

/// The pause between two looks at the end of the client certificate, unless it has to be reported earlier. The
/// system's clock may be set.
const BETWEEN_LOOKS: Duration = Duration::from_secs(3600);
/// A timer may wake a little before the time by the system's clock.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);

/// Begins TLS sessions. All connections of a manager share one, so that sessions are resumed.
pub(super) struct TlsClient {
    tls: Tls,
    files: TlsFiles,
    server_name: Option<ServerName<'static>>,
    current: Mutex<Current>,
    /// The turn of the handshake that looks at files and provider. No other one waits longer for it than [`LOOKING`].
    looking: Arc<tokio::sync::Mutex<()>>,
    /// There is something to look at.
    can_change: bool,
    /// The certificates that expire soon.
    expiring: Reported,
    reporter: Arc<Reporter>,
}

struct Current {
    config: Arc<ClientConfig>,
    /// The certificate that the client shows to servers.
    client: Option<Arc<ClientCertificate>>,
    read: Read,
    /// The last failure that was reported since then.
    reported: Option<Failed>,
}

/// What was reported.
#[derive(PartialEq, Eq)]
enum Failed {
    /// The provider, whose words may differ each time.
    Provider,
    /// Something else, with this text.
    Other(String),
}

/// What was read of the sources that may change.
#[derive(Default, PartialEq, Eq)]
struct Read {
    /// The files. Empty if they can't be read twice.
    files: Vec<Version>,
    provided: Option<Certificates>,
}

struct ClientCertificate {
    certificate: Certificate<'static>,
    /// The file or other source that has it.
    location: String,
}

/// Differs between two contents of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Version {
    modified: Option<SystemTime>,
    len: u64,
    /// The number of the file, and the time of its last change: another file may have the same time of modification.
    #[cfg(unix)]
    unix: (u64, i64, i64),
}

impl From<Metadata> for Version {
    fn from(file: Metadata) -> Self {
        #[cfg(unix)]
        use std::os::unix::fs::MetadataExt;
        Self {
            modified: file.modified().ok(),
            len: file.len(),
            #[cfg(unix)]
            unix: (file.ino(), file.ctime(), file.ctime_nsec()),
        }
    }
}

impl TlsClient {
    /// Reads the certificates. Blocks for the time of reading files.
    pub(super) fn new(
        tls: Tls,
        files: TlsFiles,
        reporter: Arc<Reporter>,
    ) -> Result<Self, LockError> {
        let name = match (&tls.server_name, &files.server_name) {
            (Some(_), Some(_)) => {
                return Err(tls_error(
                    "two names for the servers' certificates: `server_name` of `Tls`, and `ssl_server_name` of the URL",
                    "remove one of them",
                ));
            }
            (name, of_url) => name.as_deref().or(of_url.as_deref()),
        };
        let server_name = name.map(server_name).transpose()?;
        // Before the files are read: what changes meanwhile is read again.
        let versions = versions(&files);
        let provided = ask(&tls, &reporter)?;
        if matches!(versions, Ok(None)) && provided.is_some() {
            return Err(tls_error(
                "a provider of certificates, and a file that can be read only once, such as a pipe",
                "name regular files, or return all certificates from the provider",
            ));
        }
        let (config, client) = match &tls.config {
            Some(config) => {
                let has_pem = !tls.ca.is_empty() || tls.client.is_some();
                if has_pem || provided.is_some() || files.names_files() {
                    return Err(tls_error(
                        "two sources of certificates: a configuration of rustls, and PEM",
                        "remove one of them",
                    ));
                }
                (Arc::clone(config), None)
            }
            None => client_config(&tls, &files, provided.as_ref())?,
        };
        let read = Read {
            files: versions?.unwrap_or_default(),
            provided,
        };
        let current = Current {
            config,
            client,
            read,
            reported: None,
        };
        Ok(Self {
            tls,
            files,
            server_name,
            can_change: current.read != Read::default(),
            current: Mutex::new(current),
            looking: Arc::default(),
            expiring: Reported::default(),
            reporter,
        })
    }

    /// Returns whether the servers' certificates have one name, whatever the address of the server.
    pub(super) fn fixes_name(&self) -> bool {
        self.server_name.is_some()
    }

    /// Returns the configuration of a handshake that begins now, for [`connect`](Self::connect).
    pub(super) async fn config(self: &Arc<Self>) -> Arc<ClientConfig> {
        if self.can_change {
            let _elapsed = tokio::time::timeout(LOOKING, self.look()).await;
        }
        self.report_client_certificate();
        Arc::clone(&self.current.lock().config)
    }

    /// Begins a session with the server of this host.
    pub(super) async fn connect(
        &self,
        config: Arc<ClientConfig>,
        host: &str,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, LockError> {
        let name = match &self.server_name {
            Some(name) => name.clone(),
            None => server_name(host)?,
        };
        let peer = Peer {
            host,
            name: &name,
            address: stream.peer_addr().ok(),
        };
        let connector = TlsConnector::from(config);
        let connected = connector.connect(name.clone(), stream).await;
        let stream = connected.map_err(|error| peer.error(&error))?;
        let certificate = certificate_of(&stream);
        self.report(CertificateOwner::Server, certificate.as_ref(), host);
        Ok(stream)
    }

    /// Returns the certificate that the client shows to servers, and the file or other source that has it.
    #[cfg(feature = "__doctor")]
    pub(super) fn client_certificate(&self) -> Option<(Certificate<'static>, String)> {
        let client = self.current.lock().client.clone()?;
        Some((client.certificate.clone(), client.location.clone()))
    }

    /// Reports the client certificate in time, for as long as it is polled. Connections may last until it has expired.
    pub(super) async fn watch_client_certificate(self: &Arc<Self>) {
        loop {
            let due_in = self.client_certificate_due_in();
            let pause = due_in.unwrap_or(BETWEEN_LOOKS);
            tokio::time::sleep(pause.clamp(SHORTEST_PAUSE, BETWEEN_LOOKS)).await;
            if self.client_certificate_due_in() == Some(Duration::ZERO) {
                // The file or the provider may have a newer one, which no handshake has needed yet.
                self.config().await;
            }
        }
    }

    fn client_certificate_due_in(&self) -> Option<Duration> {
        let client = self.current.lock().client.clone()?;
        self.expiring.due_in(&client.certificate, SystemTime::now())
    }

    fn report_client_certificate(&self) {
        let client = self.current.lock().client.clone();
        if let Some(client) = client {
            let certificate = Some(&client.certificate);
            self.report(CertificateOwner::Client, certificate, &client.location);
        }
    }

    /// Reports a certificate that expires soon, once.
    fn report(
        &self,
        owner: CertificateOwner,
        certificate: Option<&Certificate<'_>>,
        location: &str,
    ) {
        let due = certificate.and_then(|it| self.expiring.take(it, SystemTime::now()));
        if let Some(remaining) = due {
            self.reporter.emit(&LockEvent::CertificateExpiresSoon {
                owner,
                location,
                remaining,
            });
        }
    }

    /// Looks at the files and asks the provider. Reads what has changed, and reports why it can't be used.
    ///
    /// # Cancel safety
    /// Continues for other handshakes.
    async fn look(self: &Arc<Self>) {
        let turn = Arc::clone(&self.looking).lock_owned().await;
        let (looked, is_over) = oneshot::channel::<()>();
        let client = Arc::clone(self);
        // A thread of its own, because the drop of a runtime would wait for a blocking task.
        let thread = std::thread::Builder::new().name("lock-certificates".into());
        let started = thread.spawn(move || {
            let failure = client.take_changes();
            drop(turn);
            drop(looked);
            if let Some(error) = failure {
                let event = LockEvent::CertificatesNotRead { error: &error };
                client.reporter.emit(&event);
            }
        });
        if started.is_ok() {
            let _dropped = is_over.await;
        }
    }

    /// Blocks. Returns an error that was not reported yet.
    fn take_changes(&self) -> Option<LockError> {
        let (failed, error) = match ask(&self.tls, &self.reporter) {
            Err(error) => (Failed::Provider, error),
            Ok(provided) => match self.read_if_changed(provided) {
                Ok(None) => {
                    self.current.lock().reported = None;
                    return None;
                }
                Ok(Some(new)) => {
                    // Dropped outside of the mutex.
                    let _replaced = std::mem::replace(&mut *self.current.lock(), new);
                    return None;
                }
                Err(error) => (Failed::Other(error.to_string()), error),
            },
        };
        let mut current = self.current.lock();
        let is_news = current.reported.as_ref() != Some(&failed);
        current.reported = Some(failed);
        drop(current);
        is_news.then_some(error)
    }

    fn read_if_changed(
        &self,
        provided: Option<Certificates>,
    ) -> Result<Option<Current>, LockError> {
        let Some(files) = versions(&self.files)? else {
            return Err(tls_error(
                "one of the files of certificates was replaced by something else, such as a pipe or a folder",
                "put a regular file there",
            ));
        };
        let read = Read { files, provided };
        if read == self.current.lock().read {
            return Ok(None);
        }
        let (config, client) = client_config(&self.tls, &self.files, read.provided.as_ref())?;
        Ok(Some(Current {
            config,
            client,
            read,
            reported: None,
        }))
    }
}

/// Returns the certificate that a server has shown; `None` if rustls can't read it.
pub(super) fn certificate_of(stream: &TlsStream<TcpStream>) -> Option<Certificate<'static>> {
    let (_, session) = stream.get_ref();
    let leaf = session.peer_certificates()?.first()?;
    Certificate::new(leaf.clone().into_owned())
}

/// Asks the user's provider, if there is one. It is foreign code, and so is its error.
fn ask(tls: &Tls, reporter: &Reporter) -> Result<Option<Certificates>, LockError> {
    let Some(function) = &tls.provider else {
        return Ok(None);
    };
    let asking = || function().map_err(|error| tidy(&error.to_string(), MAX_ERROR_TEXT));
    let text = match reporter.guarded(PanicSource::Certificates, asking) {
        Some(Ok(provided)) => return Ok(Some(provided)),
        Some(Err(reason)) => format!("the provider of certificates failed ({reason})"),
        None => "the provider of certificates panicked".to_owned(),
    };
    let advice = "see what it says; each new connection asks it again";
    Err(tls_error(text, advice))
}

/// Returns the versions of the files; `None` if one of them can be read only once, as a pipe.
fn versions(files: &TlsFiles) -> Result<Option<Vec<Version>>, LockError> {
    let mut versions = Vec::new();
    for (what, path) in [
        (CA, &files.ca),
        (CERTIFICATE, &files.certificate),
        (KEY, &files.key),
    ] {
        let Some(path) = path else { continue };
        let file = std::fs::metadata(path).map_err(|error| unreadable(what, path, &error))?;
        if !file.is_file() {
            return Ok(None);
        }
        versions.push(file.into());
    }
    Ok(Some(versions))
}

fn unreadable(what: &str, path: &Path, error: &io::Error) -> LockError {
    tls_error(
        format!(
            "{what} in {} cannot be read ({})",
            path.display(),
            error.kind()
        ),
        "check the path, and the rights of the file",
    )
}

fn server_name(host: &str) -> Result<ServerName<'static>, LockError> {
    ServerName::try_from(host.to_owned()).map_err(|_| {
        tls_error(
            format!("`{host}` is no name that a certificate can have"),
            "set `server_name`, or `ssl_server_name` in the URL, to a host name or an IP address of the certificate",
        )
    })
}

/// Returns the cryptography of this crate's features, and not that of the process: it may be missing, or there
/// may be two of them.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(cryptography::default_provider())
}

/// What handshakes use, and the client certificate in it, if its end can be read.
type Made = (Arc<ClientConfig>, Option<Arc<ClientCertificate>>);

fn client_config(
    tls: &Tls,
    files: &TlsFiles,
    provided: Option<&Certificates>,
) -> Result<Made, LockError> {
    let roots = roots(tls, files, provided)?;
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| tls_error(format!("TLS cannot begin ({error})"), "see the cause"))?
        .with_root_certificates(roots);
    let url_files = files.certificate.as_ref().zip(files.key.as_ref());
    let of_url = url_files.map(|(certificate, key)| {
        (
            PemSource::File(certificate.clone()),
            PemSource::File(key.clone()),
        )
    });
    let sources = [
        ("the URL", of_url),
        ("`Tls`", tls.client.clone()),
        ("its provider", provided.and_then(|it| it.client.clone())),
    ];
    let mut sources = sources
        .into_iter()
        .filter_map(|(name, client)| Some((name, client?)));
    let Some((name, (certificate, key))) = sources.next() else {
        return Ok((Arc::new(builder.with_no_client_auth()), None));
    };
    if let Some((other, _)) = sources.next() {
        return Err(tls_error(
            format!("two client certificates: {name} has one, and {other} has one"),
            "remove one of them",
        ));
    }
    let chain = certificates(&certificate, CERTIFICATE)?;
    let private_key = private_key(&key)?;
    let leaf = chain.first().cloned();
    let client = leaf.and_then(Certificate::new).map(|leaf| {
        Arc::new(ClientCertificate {
            certificate: leaf,
            location: shown(&certificate),
        })
    });
    let config = builder
        .with_client_auth_cert(chain, private_key)
        .map_err(|error| {
            let file = match &certificate {
                PemSource::Bytes(_) | PemSource::Provided(_) => "client.pem".into(),
                PemSource::File(path) => path.to_string_lossy(),
            };
            let quoted = file.replace('\'', r"'\''");
            let shows = format!("`openssl x509 -in '{quoted}' -noout -text` shows it");
            let (certificate, key) = (shown(&certificate), shown(&key));
            match error {
                error if failure::is_other_version(&error) => tls_error(
                    format!("the certificate in {certificate} is not X.509 version 3"),
                    format!(
                        "sign another one with extensions such as `subjectAltName`, which make it version 3; {shows}"
                    ),
                ),
                rustls::Error::InconsistentKeys(_) => tls_error(
                    format!("the key in {key} is not that of the certificate in {certificate}"),
                    "give the certificate and the key that were made together",
                ),
                error => tls_error(
                    format!("the certificate in {certificate} cannot be used ({error})"),
                    format!("give an X.509 certificate of version 3, and its key; {shows}"),
                ),
            }
        })?;
    Ok((Arc::new(config), client))
}

/// Returns the authorities that this manager trusts.
fn roots(
    tls: &Tls,
    files: &TlsFiles,
    provided: Option<&Certificates>,
) -> Result<RootCertStore, LockError> {
    let mut roots = RootCertStore::empty();
    let of_url = files.ca.iter().cloned().map(PemSource::File);
    let of_provider = provided.iter().flat_map(|it| it.ca.iter().cloned());
    let sources = tls.ca.iter().cloned().chain(of_url).chain(of_provider);
    let sources: Vec<_> = sources.collect();
    for source in &sources {
        for certificate in certificates(source, CA)? {
            roots.add(certificate).map_err(|error| {
                let text = format!("a certificate in {} is invalid ({error})", shown(source));
                tls_error(text, "give the certificates of the authorities in PEM")
            })?;
        }
    }
    if !sources.is_empty() {
        return Ok(roots);
    }
    let native = rustls_native_certs::load_native_certs();
    // One unreadable file of many does not matter.
    let (added, _ignored) = roots.add_parsable_certificates(native.certs);
    if added == 0 {
        let error = native.errors.first();
        let reason = error.map_or_else(String::new, |error| format!(" ({error})"));
        return Err(tls_error(
            format!("the operating system has no certificates of authorities{reason}"),
            "install them (package `ca-certificates`), or name yours by `ssl_ca_certs`",
        ));
    }
    Ok(roots)
}

/// Reads at least one certificate.
fn certificates(source: &PemSource, what: &str) -> Result<Vec<CertificateDer<'static>>, LockError> {
    let pem = read(source, what)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(tls_error(
            format!("{what} in {}: there is no certificate", shown(source)),
            "give a file in PEM, with the lines BEGIN CERTIFICATE and END CERTIFICATE",
        )),
        Err(error) => Err(tls_error(
            format!("{what} in {} cannot be read ({error})", shown(source)),
            "give a file in PEM",
        )),
    }
}

fn private_key(source: &PemSource) -> Result<PrivateKeyDer<'static>, LockError> {
    let pem = read(source, KEY)?;
    PrivateKeyDer::from_pem_slice(&pem).map_err(|error| {
        tls_error(
            format!(
                "the client key in {} cannot be read ({error})",
                shown(source)
            ),
            "give an unencrypted private key in PEM",
        )
    })
}

fn read(source: &PemSource, what: &str) -> Result<Arc<[u8]>, LockError> {
    match source {
        PemSource::Bytes(bytes) | PemSource::Provided(bytes) => Ok(Arc::clone(bytes)),
        PemSource::File(path) => {
            let bytes = std::fs::read(path).map_err(|error| unreadable(what, path, &error))?;
            Ok(bytes.into())
        }
    }
}

fn shown(source: &PemSource) -> String {
    match source {
        PemSource::Bytes(_) => "the PEM of `Tls`".to_owned(),
        PemSource::Provided(_) => "the PEM of the provider".to_owned(),
        PemSource::File(path) => path.display().to_string(),
    }
}

fn tls_error(text: impl Into<String>, advice: impl Into<Cow<'static, str>>) -> LockError {
    LockError::advised(BackendErrorKind::Tls, text, advice)
}

#[cfg(test)]
mod tests {
    use tokio_rustls::rustls::NamedGroup;

    use super::*;

    /// Of the two providers, only aws-lc-rs has ML-KEM.
    #[test]
    fn cryptography_is_that_of_the_feature() {
        let provider = provider();
        let mut groups = provider.kx_groups.iter();
        let has_ml_kem = groups.any(|group| group.name() == NamedGroup::X25519MLKEM768);
        assert_eq!(has_ml_kem, cfg!(feature = "tls-aws-lc"));
        assert!(
            CryptoProvider::get_default().is_none(),
            "the process has none"
        );
    }
}
