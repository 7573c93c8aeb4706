//! C libraries that are preloaded into a child, to change what it sees of its system.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::janitor::Scratch;

/// A shim: a C source, built when it is made. Linux only.
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
    /// Where there is no C compiler, or where it does not accept the source.
    #[track_caller]
    pub fn build(source: &str) -> Self {
        assert_eq!(
            std::env::consts::OS,
            "linux",
            "a shim is preloaded into a child, which works on Linux only"
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
                    "a C shim is to be built, and `{}` cannot be run ({e}); \
                     install a C compiler (Debian, Ubuntu: gcc; Fedora: gcc; \
                     Alpine: build-base) or name one in CC",
                    compiler.display()
                )
            });
        let mut input = child.stdin.take().expect("stdin is piped");
        // A compiler that stops reading says why on its own.
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

    /// The variable that a child's environment must hold to be under the shim.
    pub fn preload(&self) -> (OsString, OsString) {
        let mut preload = self.library.as_os_str().to_owned();
        if let Some(others) = std::env::var_os("LD_PRELOAD") {
            preload.push(":");
            preload.push(others);
        }
        ("LD_PRELOAD".into(), preload)
    }
}
