//! Certificates for servers and clients, made with the program `openssl`.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::janitor::Scratch;

const MISSING: &str = "the tests of TLS need the program `openssl`; install the package `openssl`, \
    or run ./scripts/test, which does it";

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
        self.sign("expired", "DNS:localhost,IP:127.0.0.1", &["-days", "-1"])
    }

    /// Writes a file that has no certificate.
    pub fn empty_file(&self) -> PathBuf {
        let path = self.path("empty.pem");
        fs::write(&path, "").expect("the scratch directory is writable");
        path
    }

    fn sign(&self, name: &str, names: &str, days: &[&str]) -> Certificate {
        let file = |ending: &str| format!("{name}.{ending}");
        let (key, request) = (file("key"), file("csr"));
        let (extensions, certificate) = (file("ext"), file("pem"));
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
        fs::write(self.path(&extensions), format!("subjectAltName={names}\n"))
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
            &extensions,
        ];
        arguments.extend(days);
        self.openssl(&arguments);
        self.known(name)
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
        let run = Command::new("openssl")
            .args(arguments)
            .current_dir(self.directory.path())
            .output()
            .unwrap_or_else(|error| panic!("cannot run `openssl` ({error}): {MISSING}"));
        let text = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success(), "openssl {arguments:?} failed: {text}");
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

/// Returns a path as a parameter of a URL.
pub fn shown(path: &Path) -> String {
    path.display()
        .to_string()
        .replace('%', "%25")
        .replace('&', "%26")
}
