//! Cleans up the processes and files of a test process, even if the test process is killed.
//!
//! A parent-death signal is the usual tool, but it has two faults. Linux sends it when the *thread*
//! that forked dies. Each test has its own thread, so a server that several tests share would end
//! with the first test. The signal also needs either unsafe code or a program that exists only on
//! Linux. Therefore each test process starts one shell, which reads orders from a pipe. When the
//! test process ends in any way, the kernel closes the pipe. Then the shell kills the processes
//! that are still on its list and removes the scratch directory. Orders arrive in the order in
//! which they were written. A process is taken off the list before it is reaped, so the shell
//! cannot kill a later process with the same id.

use std::fs::{self, DirBuilder};
use std::hash::{BuildHasher, Hasher};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Signals are ignored because Ctrl-C reaches the whole process group, and the shell has to clean
/// up after the other processes have ended.
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
rm -rf -- "$@"
"#;

/// A file system in memory. It may forbid to run programs.
const IN_MEMORY: &str = "/dev/shm";
/// How many bytes it must have: some containers have few.
const IN_MEMORY_BYTES: u64 = 512 << 20;

struct Janitor {
    orders: Mutex<ChildStdin>,
    root: PathBuf,
    /// The same folder where there is no file system in memory.
    root_in_memory: PathBuf,
    directories: AtomicU32,
}

fn janitor() -> &'static Janitor {
    static JANITOR: OnceLock<Janitor> = OnceLock::new();
    JANITOR.get_or_init(|| {
        // Short, because the path of a Unix socket inside must fit in 108 bytes.
        let name = format!("lock-tests-{}-{:08x}", std::process::id(), random() >> 32);
        let create = |parent: &Path| {
            let root = parent.join(&name);
            let created = DirBuilder::new().mode(0o700).create(&root);
            created.map(|()| root)
        };
        let parent = std::env::temp_dir();
        let root = create(&parent)
            .unwrap_or_else(|e| panic!("cannot create a folder in {}: {e}", parent.display()));
        let in_memory = Path::new(IN_MEMORY);
        let root_in_memory = has_room(in_memory).then(|| create(in_memory));
        let root_in_memory = root_in_memory
            .and_then(Result::ok)
            .unwrap_or_else(|| root.clone());
        #[expect(
            clippy::zombie_processes,
            reason = "the shell must outlive this process"
        )]
        let mut shell = Command::new("sh")
            .args(["-c", SCRIPT, "janitor"])
            .args([&root, &root_in_memory])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|e| panic!("the harness needs `sh`: {e}"));
        let orders = shell.stdin.take().expect("stdin is piped");
        Janitor {
            orders: Mutex::new(orders),
            root,
            root_in_memory,
            directories: AtomicU32::new(0),
        }
    })
}

fn has_room(file_system: &Path) -> bool {
    rustix::fs::statvfs(file_system).is_ok_and(|it| it.f_bavail * it.f_frsize >= IN_MEMORY_BYTES)
}

impl Janitor {
    fn order(&self, order: &str, pid: u32) {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        // One write, so that a kill in between cannot leave half an order. If the shell has ended,
        // only the cleanup after a kill is lost; the test does not fail.
        let _ = orders.write_all(format!("{order} {pid}\n").as_bytes());
    }
}

/// Puts the process on the list, so that it is killed when this process ends.
pub(crate) fn watch(pid: u32) {
    janitor().order("watch", pid);
}

/// Takes the process off the list. Call this before the process is reaped.
pub(crate) fn forget(pid: u32) {
    janitor().order("forget", pid);
}

/// Returns a number that differs between processes and calls.
pub(crate) fn random() -> u64 {
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
}

/// A directory that is removed on drop, or when the process ends.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Creates the directory.
    #[expect(
        clippy::new_without_default,
        reason = "a new directory is not a default value"
    )]
    pub fn new() -> Self {
        Self::inside(&janitor().root)
    }

    /// Creates the directory in memory, where the system can. Servers write and sync small files there, which a disk
    /// that is busy with the output of a build may delay by seconds.
    pub(crate) fn in_memory() -> Self {
        Self::inside(&janitor().root_in_memory)
    }

    fn inside(root: &Path) -> Self {
        let number = janitor().directories.fetch_add(1, Ordering::Relaxed);
        let path = root.join(number.to_string());
        fs::create_dir(&path).unwrap_or_else(|e| panic!("cannot create {}: {e}", path.display()));
        // Servers report their directory with symbolic links resolved, and tests compare the paths.
        let path = path.canonicalize().expect("the directory was just created");
        Self { path }
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Files that a dying process still uses are removed by the janitor at the end.
        let _ = fs::remove_dir_all(&self.path);
    }
}
