//! A real PostgreSQL server for a test.

use std::fs::{self, File, Permissions};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::janitor::{self, Scratch};
use crate::ports::Port;
use crate::signal;
use crate::wait::{eventually_some, holds_within};

/// Bound on a start, of which `initdb` takes the most. A loaded machine needs some seconds.
const START: Duration = Duration::from_secs(60);

/// The environment variable for the folder with `initdb` and `postgres`, for a version of your choice.
const PROGRAMS: &str = "LOCK_TEST_POSTGRES";

const MISSING: &str = "this test needs a PostgreSQL server; install it:\n\
    \x20 Debian, Ubuntu  apt-get install postgresql\n\
    \x20 Fedora          dnf install postgresql-server\n\
    \x20 Alpine          apk add postgresql\n\
    \x20 macOS           brew install postgresql\n\
    or run ./scripts/ensure-postgres, which does it, or name the folder of its programs in \
    LOCK_TEST_POSTGRES";

/// A running PostgreSQL server with an empty database, on a port of its own. Dropping it stops the
/// server and removes its files.
///
/// The superuser is `postgres`, and needs no password from this machine. Data are not flushed to the
/// disk, so that a test does not wait for it.
#[derive(Debug)]
pub struct PostgresServer {
    port: Port,
    child: Child,
    _directory: Scratch,
}

impl PostgresServer {
    /// Starts a server.
    ///
    /// # Panics
    ///
    /// Panics if PostgreSQL is not installed, with the way to install it, or if it does not start, with
    /// its log.
    #[track_caller]
    pub fn start() -> Self {
        let programs = programs().unwrap_or_else(|| panic!("{MISSING}"));
        let directory = Scratch::new();
        let account = Account::for_server(&directory);
        let data = account.create_directory(directory.path());
        let log = directory.path().join("postgres.log");
        let run = |program: &str| {
            let file = File::options().create(true).append(true).open(&log);
            let file = file.expect("the scratch directory is writable");
            let mut command = account.command(&programs.join(program));
            command.arg("-D").arg(&data).current_dir(&data);
            command.stdin(Stdio::null()).stderr(
                file.try_clone()
                    .expect("a file can be shared between streams"),
            );
            command.stdout(file);
            command
        };
        let text = || fs::read_to_string(&log).unwrap_or_default();

        let created = run("initdb")
            .args(["--username=postgres", "--auth=trust", "--no-sync"])
            .args(["--encoding=UTF8", "--locale=C"])
            .status()
            .unwrap_or_else(|e| panic!("cannot start initdb: {e}"));
        assert!(created.success(), "initdb failed:\n{}", text());

        let port = Port::reserve();
        let child = run("postgres")
            .args(["-h", "127.0.0.1", "-p", &port.number().to_string()])
            .args(["-c", "unix_socket_directories=", "-c", "fsync=off"])
            .spawn()
            .unwrap_or_else(|e| panic!("cannot start postgres: {e}"));
        janitor::watch(child.id());
        let server = Self {
            port,
            child,
            _directory: directory,
        };
        // The server's own log, and not a connection: another program may have taken the port.
        let started = eventually_some(START, || {
            let ended = signal::has_ended(server.child.id());
            let log = text();
            let is_ready = log.contains("database system is ready to accept connections");
            (ended || is_ready).then_some(!ended)
        });
        assert!(started, "the server ended at once:\n{}", text());
        server
    }

    /// Returns the address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port.number()).into()
    }

    /// Returns the URL of the database `postgres` for its superuser.
    pub fn url(&self) -> String {
        format!("postgres://postgres@{}/postgres", self.address())
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // The postmaster ends its children. After a kill they would end by themselves, a moment later.
        signal::quit(self.child.id());
        if !holds_within(START, || signal::has_ended(self.child.id())) {
            let _ = self.child.kill();
        }
        janitor::forget(self.child.id());
        let _ = self.child.wait();
    }
}

/// Returns the folder with the programs of the server. Debian has them outside of PATH, one folder for
/// each version.
fn programs() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(PROGRAMS).filter(|named| !named.is_empty()) {
        return Some(named.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let versions = versions.filter_map(|version| Some(version.ok()?.path().join("bin")));
    let mut versions: Vec<PathBuf> = versions.collect();
    versions.sort();
    folders.extend(versions.into_iter().rev());
    folders
        .into_iter()
        .find(|folder| folder.join("initdb").is_file() && folder.join("postgres").is_file())
}

/// The account under which the server runs. PostgreSQL refuses to run as root.
enum Account {
    Own,
    Postgres,
}

impl Account {
    fn for_server(directory: &Scratch) -> Self {
        if !rustix::process::geteuid().is_root() {
            return Self::Own;
        }
        // The other account must pass through the folders of the harness, which only root may list.
        for folder in directory.path().ancestors().take(2) {
            let pass = Permissions::from_mode(0o711);
            fs::set_permissions(folder, pass)
                .unwrap_or_else(|e| panic!("cannot open {}: {e}", folder.display()));
        }
        Self::Postgres
    }

    /// Creates the folder for the data, which belongs to the account.
    fn create_directory(&self, parent: &Path) -> PathBuf {
        let data = parent.join("data");
        fs::create_dir(&data).expect("the scratch directory is writable");
        if let Self::Postgres = self {
            let status = Command::new("chown").arg("postgres").arg(&data).status();
            let status = status.unwrap_or_else(|e| panic!("cannot start chown: {e}"));
            assert!(status.success(), "there is no account `postgres`");
        }
        data
    }

    /// Returns a command that runs the program under the account. The program replaces the command, so
    /// its process is the child.
    fn command(&self, program: &Path) -> Command {
        match self {
            Self::Own => Command::new(program),
            Self::Postgres => {
                let mut command = Command::new("setpriv");
                command.args([
                    "--reuid=postgres",
                    "--regid=postgres",
                    "--clear-groups",
                    "--",
                ]);
                command.arg(program);
                command
            }
        }
    }
}
