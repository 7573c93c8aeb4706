//! Certificates for servers and clients, made with the program `openssl`.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::janitor::Scratch;

const MISSING: &str = "the tests of TLS need the program `openssl`; install the package `openssl`, \
    or run ./scripts/test, which does it";

const DAY: Duration = Duration::from_secs(24 * 3600);

/// What `openssl ca` needs to sign any request.
const CONFIGURATION: &str = "[ca]
default_ca = authority
[authority]
certificate = ca.pem
private_key = ca.key
database = index.txt
new_certs_dir = .
rand_serial = yes
unique_subject = no
default_md = sha256
policy = any
[any]
commonName = supplied
";

/// An authority, and certificates that it has signed. Dropping it removes the files.
#[derive(Debug)]
pub struct Authority {
    directory: Scratch,
}

/// A certificate and its key, as files in PEM.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The certificate.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

impl Authority {
    /// Makes an authority, and the certificate of a server on `localhost` and 127.0.0.1.
    ///
    /// # Panics
    ///
    /// Panics if there is no program `openssl`; the message says how to install it.
    pub fn new() -> Self {
        let authority = Self {
            directory: Scratch::new(),
        };
        authority.openssl(&[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-keyout",
            "ca.key",
            "-out",
            "ca.pem",
            "-days",
            "30",
            "-subj",
            "/CN=test authority",
        ]);
        authority.sign("server", "DNS:localhost,IP:127.0.0.1", &["-days", "30"]);
        authority
    }

    /// Returns the file with the authority's own certificate.
    pub fn ca(&self) -> PathBuf {
        self.path("ca.pem")
    }

    /// Returns the certificate of a server on `localhost`.
    pub fn server(&self) -> Certificate {
        self.known("server")
    }

    /// Makes a certificate for a client.
    pub fn client(&self) -> Certificate {
        self.sign("client", "DNS:client", &["-days", "30"])
    }

    /// Makes the certificate of a server that is known by its number only.
    pub fn server_at(&self, ip: IpAddr) -> Certificate {
        self.sign(&ip.to_string(), &format!("IP:{ip}"), &["-days", "30"])
    }

    /// Makes the certificate of a server with another name.
    pub fn server_named(&self, name: &str) -> Certificate {
        self.sign(name, &format!("DNS:{name}"), &["-days", "30"])
    }

    /// Makes the certificate of a server on `localhost` that ended yesterday.
    pub fn expired(&self) -> Certificate {
        let now = SystemTime::now();
        self.server_valid(now - 30 * DAY, now - DAY)
    }

    /// Makes the certificate of a server with these extensions, each in a line, as a configuration of `openssl` has them.
    /// Without one that gives it names, only the common name says `localhost`.
    pub fn server_with(&self, extensions: &str) -> Certificate {
        self.sign_with("localhost", extensions, &["-days", "30"])
    }

    /// Returns the authority's own certificate as that of a server, as `openssl req -x509` alone makes it.
    pub fn as_server(&self) -> Certificate {
        self.known("ca")
    }

    /// Makes a certificate of X.509 version 1, which has no extensions.
    ///
    /// # Panics
    ///
    /// Panics if this `openssl` makes none.
    pub fn version_1(&self) -> Certificate {
        let by_option = "req -x509 -x509v1 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -CA ca.pem \
            -CAkey ca.key -days 30 -subj /CN=localhost -keyout v1.key -out v1.pem";
        // Before OpenSSL 3.2, without the option, a certificate without extensions has version 1.
        if self
            .run(&by_option.split_whitespace().collect::<Vec<_>>())
            .is_err()
        {
            self.request("v1");
            let sign = "x509 -req -in v1.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -out v1.pem";
            self.openssl(&sign.split_whitespace().collect::<Vec<_>>());
        }
        let shown = self
            .run(&["x509", "-in", "v1.pem", "-noout", "-text"])
            .expect("openssl shows it");
        assert!(shown.contains("Version: 1 "), "{shown}");
        self.known("v1")
    }

    /// Makes the certificate of a server on `localhost` with this validity.
    pub fn server_valid(&self, from: SystemTime, until: SystemTime) -> Certificate {
        self.sign_valid("server", "DNS:localhost,IP:127.0.0.1", from, until)
    }

    /// Makes a certificate for a client that is valid for the month before this time.
    pub fn client_until(&self, until: SystemTime) -> Certificate {
        self.sign_valid("client", "DNS:client", until - 30 * DAY, until)
    }

    /// Writes a file that has no certificate.
    pub fn empty_file(&self) -> PathBuf {
        let path = self.path("empty.pem");
        fs::write(&path, "").expect("the scratch directory is writable");
        path
    }

    fn sign(&self, name: &str, names: &str, days: &[&str]) -> Certificate {
        self.sign_with(name, &format!("subjectAltName={names}"), days)
    }

    fn sign_with(&self, name: &str, extensions: &str, days: &[&str]) -> Certificate {
        let file = |ending: &str| format!("{name}.{ending}");
        self.request(name);
        let (request, certificate, added) = (file("csr"), file("pem"), file("ext"));
        fs::write(self.path(&added), format!("{extensions}\n"))
            .expect("the scratch directory is writable");
        let mut arguments = vec![
            "x509",
            "-req",
            "-in",
            &request,
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-out",
            &certificate,
            "-extfile",
            &added,
        ];
        arguments.extend(days);
        self.openssl(&arguments);
        self.known(name)
    }

    /// As [`sign`](Self::sign), to the second: `openssl x509` counts whole days from now on.
    fn sign_valid(
        &self,
        name: &str,
        names: &str,
        from: SystemTime,
        until: SystemTime,
    ) -> Certificate {
        let (from, until) = (asn1_time(from), asn1_time(until));
        let name = format!("{name}-{until}");
        self.request(&name);
        let file = |ending: &str| format!("{name}.{ending}");
        let (request, certificate, added) = (file("csr"), file("pem"), file("ext"));
        let extensions = format!("subjectAltName={names}\n");
        for (file, text) in [
            ("ca.conf", CONFIGURATION),
            ("index.txt", ""),
            (&added, &extensions),
        ] {
            fs::write(self.path(file), text).expect("the scratch directory is writable");
        }
        self.openssl(&[
            "ca",
            "-batch",
            "-notext",
            "-config",
            "ca.conf",
            "-extfile",
            &added,
            "-in",
            &request,
            "-out",
            &certificate,
            "-startdate",
            &from,
            "-enddate",
            &until,
        ]);
        self.known(&name)
    }

    /// Makes a key, and the request of a certificate.
    fn request(&self, name: &str) {
        let (key, request) = (format!("{name}.key"), format!("{name}.csr"));
        self.openssl(&[
            "req",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-keyout",
            &key,
            "-out",
            &request,
            "-subj",
            &format!("/CN={name}"),
        ]);
    }

    fn known(&self, name: &str) -> Certificate {
        Certificate {
            certificate: self.path(&format!("{name}.pem")),
            key: self.path(&format!("{name}.key")),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn openssl(&self, arguments: &[&str]) {
        if let Err(text) = self.run(arguments) {
            panic!("openssl {arguments:?} failed: {text}");
        }
    }

    /// Returns what `openssl` prints, or its complaint.
    fn run(&self, arguments: &[&str]) -> Result<String, String> {
        let run = Command::new("openssl")
            .args(arguments)
            .current_dir(self.directory.path())
            .output()
            .unwrap_or_else(|error| panic!("cannot run `openssl` ({error}): {MISSING}"));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if run.status.success() {
            Ok(text(&run.stdout))
        } else {
            Err(text(&run.stderr))
        }
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Certificate {
    /// Returns the parameters of a URL that name the certificate and its key.
    pub fn parameters(&self) -> String {
        let (certificate, key) = (shown(&self.certificate), shown(&self.key));
        format!("ssl_certfile={certificate}&ssl_keyfile={key}")
    }
}

/// Returns a time as `openssl` reads it: `YYYYMMDDHHMMSSZ`.
fn asn1_time(at: SystemTime) -> String {
    let since = at.duration_since(SystemTime::UNIX_EPOCH);
    let seconds = since.expect("a time after 1970").as_secs();
    let (mut days, second) = (seconds / 86_400, seconds % 86_400);
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!(
        "{year}{month:02}{:02}{hour:02}{minute:02}{second:02}Z",
        days + 1
    )
}

/// Returns a path as a parameter of a URL.
pub fn shown(path: &Path) -> String {
    path.display()
        .to_string()
        .replace('%', "%25")
        .replace('&', "%26")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_openssl_reads_them() {
        for (seconds, text) in [
            (0, "19700101000000Z"),
            (951_782_399, "20000228235959Z"),
            (951_782_400, "20000229000000Z"),
            (1_767_225_599, "20251231235959Z"),
            (4_107_542_399, "21000228235959Z"),
            (4_107_542_400, "21000301000000Z"),
        ] {
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(asn1_time(at), text);
        }
    }
}
