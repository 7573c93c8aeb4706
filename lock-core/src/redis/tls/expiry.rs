//! Reports certificates that expire soon, each of them once.
//!
//! | Certificate | Looked at |
//! |---|---|
//! | the client's | before each handshake, and when it is due: connections may last until it has expired |
//! | the server's | after each handshake. In between, the client can't know whether the server has a newer one |

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use tokio_rustls::rustls::client::verify_server_cert_signed_by_trust_anchor;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{CertificateError, Error as TlsError, RootCertStore};

use crate::sync::Mutex;

/// How long before its end a certificate is reported. Long enough for a weekend. One that is valid for a short time is
/// reported when a third of it is left.
pub(super) const NOTICE: Duration = Duration::from_secs(3 * 24 * 3600);
/// The most certificates that are remembered as reported: as many as a cluster may have nodes.
const MAX_REPORTED: usize = 1_000;

/// A certificate, and when it ends.
#[derive(Clone)]
pub(in crate::redis) struct Certificate<'a> {
    der: CertificateDer<'a>,
    pub(in crate::redis) ends: SystemTime,
    /// How long before its end it is reported.
    pub(in crate::redis) notice: Duration,
}

impl<'a> Certificate<'a> {
    /// Returns `None` for a certificate that rustls can't read.
    pub(super) fn new(der: CertificateDer<'a>) -> Option<Self> {
        let ends = not_after(&der)?;
        let valid_for = not_before(&der).and_then(|begins| ends.duration_since(begins).ok());
        let notice = valid_for.map_or(NOTICE, |valid_for| NOTICE.min(valid_for / 3));
        Some(Self { der, ends, notice })
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
        let due = certificate.left(now).saturating_sub(certificate.notice);
        (!is_reported).then_some(due)
    }

    /// Returns how long the certificate is still valid if it has to be reported now. The caller reports it.
    pub(super) fn take(&self, certificate: &Certificate<'_>, now: SystemTime) -> Option<Duration> {
        let left = certificate.left(now);
        if left > certificate.notice {
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
    match refused_at(certificate, u64::MAX)? {
        CertificateError::ExpiredContext { not_after, .. } => time_of(not_after),
        _ => None,
    }
}

/// Returns when the validity of a certificate begins, which the verifier names at the beginning of all time.
fn not_before(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    match refused_at(certificate, 0)? {
        CertificateError::NotValidYetContext { not_before, .. } => time_of(not_before),
        _ => None,
    }
}

fn refused_at(certificate: &CertificateDer<'_>, seconds: u64) -> Option<CertificateError> {
    let parsed = ParsedCertificate::try_from(certificate).ok()?;
    let time = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
    let no_authorities = RootCertStore::empty();
    match verify_server_cert_signed_by_trust_anchor(&parsed, &no_authorities, &[], time, &[]) {
        Err(TlsError::InvalidCertificate(error)) => Some(error),
        _ => None,
    }
}

fn time_of(time: UnixTime) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(time.as_secs()))
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
    fn certificate_of_a_short_time_is_reported_when_a_third_of_it_is_left() {
        let authority = Authority::new();
        let now = SystemTime::now();
        for (days, notice) in [(1, 8 * HOUR), (6, 48 * HOUR), (90, NOTICE)] {
            let file = authority.server_valid(now, now + days * 24 * HOUR);
            let found = Certificate::new(read(&file.certificate)).unwrap().notice;
            // A certificate has whole seconds.
            let difference = found.abs_diff(notice);
            assert!(difference <= Duration::from_secs(1), "{days}: {found:?}");
        }
    }

    #[test]
    fn certificate_is_taken_once_and_in_time() {
        let der = |byte: u8| CertificateDer::from(vec![byte]);
        let now = SystemTime::now();
        let ending = |byte: u8, left: Duration| Certificate {
            der: der(byte),
            ends: now + left,
            notice: NOTICE,
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
            let certificate = Certificate {
                der,
                ends: now,
                notice: NOTICE,
            };
            assert!(reported.take(&certificate, now).is_some());
        }
        assert_eq!(reported.0.lock().len(), MAX_REPORTED);
    }
}
