//! Whatever a test process leaves behind is cleared away, also when the process is killed.
//!
//! A parent-death signal would be the obvious tool, and has two faults. Linux sends it when the
//! *thread* that forked dies, and each test has a thread of its own, so a server shared by several
//! tests would go with the first. It also needs either unsafe code or a program that only Linux
//! has. So one shell per test process reads orders from a pipe: when the test process ends, however
//! it ends, the kernel closes the pipe, and the shell kills what is still on its list and removes
//! the scratch directory. Orders arrive in the order they were written, hence a process taken off
//! the list before it is reaped can never be mistaken for a later one with the same id.

use std::fs::{self, DirBuilder};
use std::hash::{BuildHasher, Hasher};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Signals are ignored because Ctrl-C reaches the whole process group, and the shell has its work
/// to do after the others are gone.
const SCRIPT: &str = r#"
trap '' HUP INT TERM
pids=
while read -r order pid; do
  case $order in
    watch) pids="$pids $pid" ;;
    forget)
      kept=
      for p in $pids; do [ "$p" = "$pid" ] || kept="$kept $p"; done
      pids=$kept ;;
  esac
done
[ -z "$pids" ] || kill -9 $pids
rm -rf -- "$1"
"#;

struct Janitor {
    orders: Mutex<ChildStdin>,
    root: PathBuf,
    directories: AtomicU32,
}

fn janitor() -> &'static Janitor {
    static JANITOR: OnceLock<Janitor> = OnceLock::new();
    JANITOR.get_or_init(|| {
        // Short, because a Unix socket inside must fit in 108 bytes.
        let name = format!("lock-tests-{}-{:08x}", std::process::id(), random() >> 32);
        let root = std::env::temp_dir().join(name);
        DirBuilder::new()
            .mode(0o700)
            .create(&root)
            .unwrap_or_else(|e| panic!("cannot create {}: {e}", root.display()));
        #[expect(
            clippy::zombie_processes,
            reason = "it outlives this process, which is the point of it"
        )]
        let mut shell = Command::new("sh")
            .args(["-c", SCRIPT, "janitor"])
            .arg(&root)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|e| panic!("the harness needs `sh`: {e}"));
        let orders = shell.stdin.take().expect("stdin is piped");
        Janitor {
            orders: Mutex::new(orders),
            root,
            directories: AtomicU32::new(0),
        }
    })
}

impl Janitor {
    fn order(&self, order: &str, pid: u32) {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        // One write, so that a kill in between cannot leave half an order. A shell that is gone
        // costs the backstop, not the test.
        let _ = orders.write_all(format!("{order} {pid}\n").as_bytes());
    }
}

/// Has the process killed when this one ends.
pub(crate) fn watch(pid: u32) {
    janitor().order("watch", pid);
}

/// Takes the process off the list; to be called before it is reaped.
pub(crate) fn forget(pid: u32) {
    janitor().order("forget", pid);
}

/// A number that differs between processes and calls.
pub(crate) fn random() -> u64 {
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
}

/// A directory that is removed on drop, or with the process.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Creates the directory.
    #[expect(
        clippy::new_without_default,
        reason = "a new directory is no default value"
    )]
    pub fn new() -> Self {
        let janitor = janitor();
        let number = janitor.directories.fetch_add(1, Ordering::Relaxed);
        let path = janitor.root.join(number.to_string());
        fs::create_dir(&path).unwrap_or_else(|e| panic!("cannot create {}: {e}", path.display()));
        // Servers report their directory with links resolved, and we compare.
        let path = path.canonicalize().expect("the directory was just created");
        Self { path }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is in use by a process that just dies is removed by the janitor's last round.
        let _ = fs::remove_dir_all(&self.path);
    }
}
