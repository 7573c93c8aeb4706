//! C libraries that are preloaded into a child process, to change its view of the system.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::janitor::Scratch;

/// A C library that is built from its source. Linux only.
#[derive(Debug)]
pub struct Shim {
    library: PathBuf,
    _directory: Scratch,
}

impl Shim {
    /// Builds the library.
    ///
    /// # Panics
    ///
    /// Panics if there is no C compiler, or if it does not accept the source.
    #[track_caller]
    pub fn build(source: &str) -> Self {
        assert_eq!(
            std::env::consts::OS,
            "linux",
            "preloading a shim works on Linux only"
        );
        let directory = Scratch::new();
        let library = directory.path().join("shim.so");
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let mut child = Command::new(&compiler)
            .args(["-shared", "-fPIC", "-O2", "-Wall", "-x", "c", "-o"])
            .arg(&library)
            .arg("-")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| {
                panic!(
                    "cannot run `{}` to build a C shim ({e}); \
                     install a C compiler (Debian, Ubuntu: gcc; Fedora: gcc; \
                     Alpine: build-base) or name one in CC",
                    compiler.display()
                )
            });
        let mut input = child.stdin.take().expect("stdin is piped");
        // A compiler that stops reading prints the reason.
        let _ = input.write_all(source.as_bytes());
        drop(input);
        let output = child.wait_with_output().expect("a child can be waited for");
        assert!(
            output.status.success(),
            "the shim does not compile:\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        Self {
            library,
            _directory: directory,
        }
    }

    /// Returns a shim with which a program without unsafe code can fork.
    ///
    /// # Panics
    ///
    /// Panics like [`build`](Self::build).
    #[track_caller]
    pub fn fork() -> Self {
        Self::build(include_str!("../shim/fork.c"))
    }

    /// Returns the environment variable that loads the shim into a child.
    pub fn preload(&self) -> (OsString, OsString) {
        let mut preload = self.library.as_os_str().to_owned();
        if let Some(others) = std::env::var_os("LD_PRELOAD") {
            preload.push(":");
            preload.push(others);
        }
        ("LD_PRELOAD".into(), preload)
    }
}
