//! Says why a handshake or a session failed, and what to do.
//!
//! Most failures come from a certificate that was made by hand. So the errors name the usual mistakes, and the
//! command that shows the certificate.

use std::borrow::Cow;
use std::fmt::{self, Display};
use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{AlertDescription, CertificateError, Error as TlsError, OtherError};

use super::tls_error;
use crate::error::{BackendErrorKind, LockError};
use lock_protocol::wire::tidy;

/// What happened, and what to do.
type Failure = (Cow<'static, str>, Cow<'static, str>);

/// The most names of a certificate that an error shows. A hosting service may put hundreds into one.
const SHOWN_NAMES: usize = 3;
/// The longest host name that DNS allows.
const MAX_NAME: usize = 253;
const NO_TLS: &str = "does that port speak TLS? Without TLS, use redis:// instead of rediss://";
const OTHER_HOST: &str = "the server's certificate is for another host";
const OTHER_NAME: &str =
    "use a host name of the certificate, or set `server_name`, or `ssl_server_name` in the URL";

/// rustls passes these two errors of its verifier on as errors of any type, which show the name of their variant.
const CA_AS_SERVER: &str = "CaUsedAsEndEntity";
const OTHER_VERSION: &str = "UnsupportedCertVersion";

/// The server of a handshake.
pub(super) struct Peer<'a> {
    /// The host of its address.
    pub(super) host: &'a str,
    /// The name that its certificate must have.
    pub(super) name: &'a ServerName<'static>,
    pub(super) address: Option<SocketAddr>,
}

impl Peer<'_> {
    /// Returns the error of a handshake, which TLS or the socket has caused.
    pub(super) fn error(&self, error: &io::Error) -> LockError {
        let host = self.host;
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        let Some(inner) = inner else {
            // A server that restarts, or has too many clients, closes the connection too. So waiters try again.
            let kind = match error.kind() {
                io::ErrorKind::TimedOut => BackendErrorKind::TimedOut,
                _ => BackendErrorKind::Unreachable,
            };
            let text = format!("the TLS handshake with {host} failed ({error})");
            return LockError::advised(kind, text, NO_TLS);
        };
        let (reason, advice) = match inner {
            TlsError::InvalidCertificate(error) => self.refused(error),
            TlsError::InvalidMessage(_) => ("the reply is not that of TLS".into(), NO_TLS.into()),
            TlsError::AlertReceived(alert) => {
                let advice = advice_on(*alert).unwrap_or(
                    "check that the port speaks TLS, and whether the server wants a certificate of this client \
                     (`ssl_certfile` and `ssl_keyfile`)",
                );
                (inner.to_string().into(), advice.into())
            }
            other => {
                let advice = "check that the port speaks TLS, and the certificates of the server and of this client";
                (other.to_string().into(), advice.into())
            }
        };
        tls_error(
            format!("the TLS handshake with {host} failed ({reason})"),
            advice,
        )
    }

    /// Says why this client refuses the server's certificate.
    fn refused(&self, error: &CertificateError) -> Failure {
        use CertificateError as E;
        let (reason, advice) = match error {
            // Of two authorities with one name, this client knows the other one.
            E::UnknownIssuer | E::BadSignature => (
                "an authority that this client does not trust has signed the server's certificate",
                "name the authority's certificate by `ssl_ca_certs`",
            ),
            E::NotValidForNameContext { presented, .. } => return self.misnamed(presented),
            E::NotValidForName => (OTHER_HOST, OTHER_NAME),
            E::Expired | E::ExpiredContext { .. } => (
                "the server's certificate has expired",
                "renew the server's certificate, and check the clock of this machine",
            ),
            E::NotValidYet | E::NotValidYetContext { .. } => (
                "the server's certificate is not valid yet",
                "check the clock of this machine, and from when the certificate is valid",
            ),
            E::InvalidPurpose | E::InvalidPurposeContext { .. } => {
                return self.unfit(
                    "the server's certificate is not one for servers",
                    "with `extendedKeyUsage=serverAuth`",
                );
            }
            E::Other(other) if shows(other, CA_AS_SERVER) => {
                return self.unfit(
                    "the server's certificate is that of an authority",
                    "with this authority, and with `basicConstraints=CA:FALSE`",
                );
            }
            E::Other(other) if shows(other, OTHER_VERSION) => {
                return self.unfit(
                    "the server's certificate is not X.509 version 3",
                    "with extensions such as `subjectAltName`, which make it version 3",
                );
            }
            other => {
                let reason = TlsError::from(other.clone()).to_string();
                return self.unfit(reason, "that rustls accepts");
            }
        };
        (reason.into(), advice.into())
    }

    /// Says why none of the names in the server's certificate fits.
    fn misnamed(&self, presented: &[String]) -> Failure {
        let names = Names::new(presented);
        let (entry, ip) = match self.name {
            ServerName::IpAddress(ip) => {
                let ip = IpAddr::from(*ip);
                (format!("IP:{ip}"), Some(ip))
            }
            name => (format!("DNS:{}", name.to_str()), None),
        };
        if presented.is_empty() {
            let reason = "the server's certificate has no subject alternative name, and its common name does not count";
            return self.unfit(reason, &format!("with `subjectAltName={entry}`"));
        }
        if let Some(ip) = ip.filter(|ip| names.hosts.iter().any(|host| host.parse() == Ok(*ip))) {
            let reason = format!("the server's certificate has the IP address {ip} as a DNS name");
            return self.unfit(
                reason,
                &format!("with `subjectAltName={entry}` instead of `DNS:{ip}`"),
            );
        }
        let (reason, names) = match ip {
            Some(_) if names.ips.is_empty() && !names.hosts.is_empty() => {
                ("the server's certificate has host names only", names.hosts)
            }
            None if names.hosts.is_empty() && !names.ips.is_empty() => {
                ("the server's certificate has IP addresses only", names.ips)
            }
            _ => {
                let names = [names.hosts, names.ips].concat();
                let reason = format!("{OTHER_HOST}{}", listed(&names));
                return (reason.into(), OTHER_NAME.into());
            }
        };
        let advice = format!(
            "use one of them as the host, set one of them as `server_name` (`ssl_server_name` in the URL), or \
             sign another certificate for the server with `subjectAltName={entry}`; {self}"
        );
        (format!("{reason}{}", listed(&names)).into(), advice.into())
    }

    /// Says which certificate the server needs.
    fn unfit(&self, reason: impl Into<Cow<'static, str>>, needed: &str) -> Failure {
        let advice = format!("sign another certificate for the server {needed}; {self}");
        (reason.into(), advice.into())
    }
}

/// Writes which command shows the server's certificate. Its arguments are safe in a shell, even if another server has
/// announced the host.
impl Display for Peer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`openssl s_client -connect ")?;
        match self.address {
            Some(address) => write!(f, "{address}")?,
            None => f.write_str("HOST:PORT")?,
        }
        if let ServerName::DnsName(name) = self.name {
            write!(f, " -servername {}", name.as_ref())?;
        }
        f.write_str(" </dev/null | openssl x509 -noout -text` shows the present one")
    }
}

/// The names in a certificate.
#[derive(Debug, Default, PartialEq, Eq)]
struct Names {
    hosts: Vec<String>,
    ips: Vec<String>,
}

impl Names {
    /// Reads the names in the form in which rustls shows them. They are foreign text.
    fn new(presented: &[String]) -> Self {
        let mut names = Self::default();
        for name in presented {
            let within = |begin: &str, end: &str| {
                let name = name.strip_prefix(begin)?.strip_suffix(end)?;
                Some(tidy(name, MAX_NAME))
            };
            names.hosts.extend(within("DnsName(\"", "\")"));
            names.ips.extend(within("IpAddress(", ")"));
        }
        names
    }
}

/// Returns whether rustls refuses a certificate because it is not X.509 version 3.
pub(super) fn is_other_version(error: &TlsError) -> bool {
    match error {
        TlsError::InvalidCertificate(CertificateError::Other(other)) => shows(other, OTHER_VERSION),
        _ => false,
    }
}

fn shows(error: &OtherError, variant: &str) -> bool {
    error.to_string() == variant
}

/// Returns the first of these names, behind a colon.
fn listed(names: &[String]) -> String {
    let shown = names[..names.len().min(SHOWN_NAMES)].join(", ");
    match names.len() {
        0 => String::new(),
        count if count > SHOWN_NAMES => format!(": {shown} and {} more", count - SHOWN_NAMES),
        _ => format!(": {shown}"),
    }
}

/// Returns the error of a session that broke, if TLS is the reason.
pub(in crate::redis) fn session_error(
    address: impl Display,
    error: &io::Error,
) -> Option<LockError> {
    let inner = error.get_ref()?.downcast_ref::<TlsError>()?;
    let advice = match inner {
        TlsError::AlertReceived(alert) => advice_on(*alert),
        _ => None,
    };
    let text = format!("the lock server at {address} ended the TLS session ({inner})");
    Some(tls_error(
        text,
        advice.unwrap_or("check the certificates of the server and of this client"),
    ))
}

/// Says what to do when a server refuses this client with an alert: with TLS 1.3 in the session, before that in the
/// handshake.
fn advice_on(alert: AlertDescription) -> Option<&'static str> {
    match alert {
        AlertDescription::CertificateRequired => {
            Some("name a client certificate and its key by `ssl_certfile` and `ssl_keyfile`")
        }
        AlertDescription::CertificateExpired => {
            Some("renew the client certificate, and check the clocks of both machines")
        }
        AlertDescription::UnknownCA => Some(
            "give a client certificate of an authority that the server trusts (`tls-ca-cert-file` of redis.conf)",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_certificate_are_read_and_tidied() {
        let presented = [
            "DnsName(\"a.example\")",
            "DnsName(\"b\u{1b}[31m\n\u{202e}.example\")",
            "IpAddress(10.0.0.7)",
            "UniformResourceIdentifier(\"x\")",
            "DnsName(\"",
        ];
        let names = Names::new(&presented.map(str::to_owned));
        let hosts = ["a.example", "b[31m.example"].map(str::to_owned);
        assert_eq!(names.hosts, hosts);
        assert_eq!(names.ips, ["10.0.0.7"]);
    }

    #[test]
    fn many_names_are_counted() {
        let names = |count: usize| (0..count).map(|at| at.to_string()).collect::<Vec<_>>();
        for (count, text) in [
            (0, ""),
            (1, ": 0"),
            (3, ": 0, 1, 2"),
            (303, ": 0, 1, 2 and 300 more"),
        ] {
            assert_eq!(listed(&names(count)), text);
        }
    }
}
