//! The authorities of the operating system, which the environment of a process may name.

use std::path::Path;

use test_support::fixtures::SOON;
use test_support::{Authority, Helper, Scratch, helper};

use super::Secured;

/// Names the file with the certificates of all authorities, instead of those of the system.
const FILE: &str = "SSL_CERT_FILE";
/// As [`FILE`], for a folder of such files. Both may be set.
const FOLDER: &str = "SSL_CERT_DIR";

/// Returns the line that the program says.
fn line_of(program: &Helper) -> String {
    let process = program.spawn();
    process.wait(SOON);
    process.lines().join("\n")
}

fn client(secured: &Secured) -> Helper {
    helper!("lock-client").arg(secured.server.tls_url())
}

#[test]
fn authorities_of_the_system_are_known_without_a_parameter() {
    let secured = Secured::start(false);
    let knowing = client(&secured).env(FILE, secured.authority.ca());
    assert_eq!(line_of(&knowing), "used a lock");
}

/// The authority of a private network is none of the system's.
#[test]
fn authority_that_is_not_the_systems_is_named() {
    let secured = Secured::start(false);
    let plain = client(&secured);
    let other = client(&secured).env(FILE, Authority::new().ca());
    // A machine may have no certificates at all.
    for (program, reason) in [(plain, ""), (other, "does not trust")] {
        let line = line_of(&program);
        for words in ["Tls: ", reason, "name ", "`ssl_ca_certs`"] {
            assert!(line.contains(words), "{words}: {line}");
        }
    }
}

#[test]
fn unreadable_authorities_of_the_system_are_named() {
    let secured = Secured::start(false);
    let folder = Scratch::new();
    let missing = Path::new("/not/there.pem");
    let program = client(&secured)
        .env(FILE, missing)
        .env(FOLDER, folder.path());
    let line = line_of(&program);
    for words in [
        "Tls: ",
        "has no certificates",
        "/not/there.pem",
        "`ssl_ca_certs`",
    ] {
        assert!(line.contains(words), "{words}: {line}");
    }
}
