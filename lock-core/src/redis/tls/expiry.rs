//! Reports certificates that expire soon, each of them once.
//!
//! | Certificate | Looked at |
//! |---|---|
//! | the client's | before each handshake, and when three days are left: connections may last until it has expired |
//! | the server's | after each handshake. In between, the client can't know whether the server has a newer one |

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use tokio_rustls::rustls::client::verify_server_cert_signed_by_trust_anchor;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{CertificateError, Error as TlsError, RootCertStore};

use crate::sync::Mutex;

/// How long before its end a certificate is reported. Long enough for a weekend.
pub(super) const NOTICE: Duration = Duration::from_secs(3 * 24 * 3600);
/// The most certificates that are remembered as reported: as many as a cluster may have nodes.
const MAX_REPORTED: usize = 1_000;

/// A certificate, and when it ends.
pub(super) struct Certificate<'a> {
    der: CertificateDer<'a>,
    ends: SystemTime,
}

impl<'a> Certificate<'a> {
    /// Returns `None` for a certificate that rustls can't read.
    pub(super) fn new(der: CertificateDer<'a>) -> Option<Self> {
        let ends = not_after(&der)?;
        Some(Self { der, ends })
    }

    /// Returns how long it is still valid.
    fn left(&self, now: SystemTime) -> Duration {
        self.ends.duration_since(now).unwrap_or_default()
    }
}

/// The certificates that were reported.
#[derive(Default)]
pub(super) struct Reported(Mutex<VecDeque<CertificateDer<'static>>>);

impl Reported {
    /// Returns after which time the certificate has to be reported; `None` if it was.
    pub(super) fn due_in(
        &self,
        certificate: &Certificate<'_>,
        now: SystemTime,
    ) -> Option<Duration> {
        let is_reported = self.0.lock().contains(&certificate.der);
        let due = certificate.left(now).saturating_sub(NOTICE);
        (!is_reported).then_some(due)
    }

    /// Returns how long the certificate is still valid if it has to be reported now. The caller reports it.
    pub(super) fn take(&self, certificate: &Certificate<'_>, now: SystemTime) -> Option<Duration> {
        let left = certificate.left(now);
        if left > NOTICE {
            return None;
        }
        let mut reported = self.0.lock();
        if reported.contains(&certificate.der) {
            return None;
        }
        if reported.len() == MAX_REPORTED {
            reported.pop_front();
        }
        reported.push_back(certificate.der.clone().into_owned());
        Some(left)
    }
}

/// Returns when a certificate ends.
///
/// rustls has no method for it, but its verifier names the end of a certificate that has expired. It looks at the
/// validity before it looks for an authority, so at the end of all time each certificate has expired, whoever signed it.
/// A parser of our own would have to withstand what servers send.
fn not_after(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    let parsed = ParsedCertificate::try_from(certificate).ok()?;
    let end_of_time = UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX));
    let no_authorities = RootCertStore::empty();
    let refused =
        verify_server_cert_signed_by_trust_anchor(&parsed, &no_authorities, &[], end_of_time, &[]);
    match refused {
        Err(TlsError::InvalidCertificate(CertificateError::ExpiredContext {
            not_after, ..
        })) => SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(not_after.as_secs())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use test_support::Authority;
    use tokio_rustls::rustls::pki_types::pem::PemObject;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn read(path: &Path) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(path).unwrap()
    }

    #[test]
    fn end_of_any_certificate_is_read() {
        let authority = Authority::new();
        let month = SystemTime::now() + 30 * 24 * HOUR;
        let for_clients = authority.server_with("extendedKeyUsage=clientAuth");
        for file in [
            authority.ca(),
            authority.server().certificate,
            for_clients.certificate,
        ] {
            let ends = not_after(&read(&file)).unwrap();
            let range = month - HOUR..month + HOUR;
            assert!(range.contains(&ends), "{}: {ends:?}", file.display());
        }
        let past = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        assert_eq!(
            not_after(&read(&authority.client_until(past).certificate)),
            Some(past)
        );
        // RFC 5280 has this year for certificates that do not end.
        let never = SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_799);
        let certificate =
            Certificate::new(read(&authority.client_until(never).certificate)).unwrap();
        assert_eq!(certificate.ends, never);
        assert_eq!(
            Reported::default().take(&certificate, SystemTime::now()),
            None
        );
    }

    #[test]
    fn broken_certificates_have_no_end() {
        let authority = Authority::new();
        let der = read(&authority.server().certificate);
        for length in 0..der.len() {
            assert_eq!(
                not_after(&CertificateDer::from(&der[..length])),
                None,
                "{length}"
            );
        }
        for at in 0..der.len() {
            let mut broken = der.to_vec();
            broken[at] ^= 0xff;
            // The end may be unharmed, or be another time.
            let _any = not_after(&CertificateDer::from(broken));
        }
        let old = read(&authority.version_1().certificate);
        assert_eq!(not_after(&old), None);
    }

    #[test]
    fn certificate_is_taken_once_and_in_time() {
        let der = |byte: u8| CertificateDer::from(vec![byte]);
        let now = SystemTime::now();
        let ending = |byte: u8, left: Duration| Certificate {
            der: der(byte),
            ends: now + left,
        };
        let reported = Reported::default();
        let (soon, later) = (ending(1, HOUR), ending(2, NOTICE + HOUR));
        assert_eq!(reported.due_in(&soon, now), Some(Duration::ZERO));
        assert_eq!(reported.due_in(&later, now), Some(HOUR));
        assert_eq!(reported.take(&soon, now), Some(HOUR));
        assert_eq!(reported.take(&soon, now), None);
        assert_eq!(reported.due_in(&soon, now), None);
        assert_eq!(reported.take(&later, now), None);
        assert_eq!(reported.take(&later, now + HOUR), Some(NOTICE));
        let expired = ending(3, Duration::ZERO);
        assert_eq!(reported.take(&expired, now + HOUR), Some(Duration::ZERO));
    }

    #[test]
    fn only_so_many_certificates_are_remembered() {
        let now = SystemTime::now();
        let reported = Reported::default();
        for number in 0..=MAX_REPORTED {
            let der = CertificateDer::from(number.to_le_bytes().to_vec());
            let certificate = Certificate { der, ends: now };
            assert!(reported.take(&certificate, now).is_some());
        }
        assert_eq!(reported.0.lock().len(), MAX_REPORTED);
    }
}
