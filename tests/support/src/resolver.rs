//! Names that lead where a test wants.

use std::ffi::OsString;
use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode};

use crate::janitor::Scratch;
use crate::preload::Shim;

/// The folder that the shim reads.
const FOLDER: &str = "LOCK_TEST_NAMES";

/// A name below `locks.test`, in a test that [`run_under_resolver`] runs, or of a [`Resolver`].
#[derive(Debug)]
pub struct MovableName {
    name: String,
    folder: PathBuf,
}

impl MovableName {
    /// Makes a name that leads to these addresses. Each test needs names of its own.
    ///
    /// # Panics
    ///
    /// Panics in a process without the resolver.
    #[track_caller]
    pub fn new(name: &str, addresses: &[Ipv4Addr]) -> Self {
        let folder = std::env::var_os(FOLDER).expect("`run_under_resolver` runs this test");
        Self::within(folder.into(), name, addresses)
    }

    fn within(folder: PathBuf, name: &str, addresses: &[Ipv4Addr]) -> Self {
        let name = Self {
            name: format!("{name}.locks.test"),
            folder,
        };
        name.lead_to(addresses);
        name
    }

    /// Makes the next lookups find these addresses.
    pub fn lead_to(&self, addresses: &[Ipv4Addr]) {
        let lines: Vec<_> = addresses.iter().map(Ipv4Addr::to_string).collect();
        // In one step, for a lookup that reads it now.
        let new = self.folder.join(format!("{}.new", self.name));
        let written = fs::write(&new, lines.join("\n"));
        let replaced = written.and_then(|()| fs::rename(&new, self.folder.join(&self.name)));
        replaced.unwrap_or_else(|e| panic!("cannot write {}: {e}", new.display()));
    }

    /// Makes the next lookups fail.
    pub fn forget(&self) {
        let _ = fs::remove_file(self.folder.join(&self.name));
    }

    /// Returns the URL of a server on this port.
    pub fn url(&self, port: u16) -> String {
        format!("redis://{}:{port}", self.name)
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.name
    }
}

/// A resolver that the test controls, for programs that it starts. Linux only.
#[derive(Debug)]
pub struct Resolver {
    shim: Shim,
    folder: Scratch,
}

impl Resolver {
    /// Builds the resolver.
    ///
    /// # Panics
    ///
    /// Panics without a C compiler.
    #[track_caller]
    pub fn build() -> Self {
        Self {
            shim: Shim::build(include_str!("../shim/resolver.c")),
            folder: Scratch::new(),
        }
    }

    /// Makes a name that leads to these addresses.
    pub fn name(&self, name: &str, addresses: &[Ipv4Addr]) -> MovableName {
        MovableName::within(self.folder.path().to_owned(), name, addresses)
    }

    /// Returns the variables of a program that uses this resolver.
    pub fn variables(&self) -> [(OsString, OsString); 2] {
        let folder = self.folder.path().as_os_str().to_owned();
        [self.shim.preload(), (FOLDER.into(), folder)]
    }
}

/// A resolver that never answers, for programs that a test starts. Linux only.
#[derive(Debug)]
pub struct SilentResolver(Resolver);

impl SilentResolver {
    /// The name whose lookups never end.
    pub const NAME: &str = "silent.locks.test";

    /// Builds the resolver.
    ///
    /// # Panics
    ///
    /// Panics without a C compiler.
    #[track_caller]
    pub fn build() -> Self {
        let resolver = Resolver::build();
        // The shim reads a file. A pipe that no program writes to opens for no reader.
        let pipe = resolver.folder.path().join(Self::NAME);
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, mode, 0).expect("the folder is ours");
        Self(resolver)
    }

    /// Returns the variables of a program that uses this resolver.
    pub fn variables(&self) -> [(OsString, OsString); 2] {
        self.0.variables()
    }
}

/// Runs the ignored tests of a module of the calling test program, in a process whose resolver they control. Linux only.
///
/// # Panics
///
/// Panics if one of them fails, or if there are none.
#[track_caller]
pub fn run_under_resolver(module: &str) {
    let resolver = Resolver::build();
    let program = std::env::current_exe().expect("the system knows the path of the program");
    let output = Command::new(program)
        .args([module, "--ignored"])
        .envs(resolver.variables())
        .output()
        .expect("this program can run once more");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && !printed.contains("\nrunning 0 tests\n"),
        "{printed}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
