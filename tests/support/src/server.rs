//! A real server for a test.

mod options;

use std::fmt::Debug;
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::janitor::{self, Scratch};
use crate::monitor::Monitor;
use crate::ports::Port;
use crate::resp::{Connection, Reply};
use crate::sentinel;
use crate::signal;
use crate::wait::{eventually_some, holds_within};

pub use options::ServerOptions;

/// Bound on a start. A server starts within 20 ms; a loaded machine may need much longer.
const START: Duration = Duration::from_secs(30);

/// The environment variable for a program other than `redis-server`, such as another version or
/// Valkey.
const PROGRAM: &str = "LOCK_TEST_SERVER";

const MISSING: &str = "the tests need a real server; install it:\n\
    \x20 Debian, Ubuntu  apt-get install redis-server\n\
    \x20 Fedora          dnf install redis    (or valkey valkey-compat-redis)\n\
    \x20 Alpine          apk add redis\n\
    \x20 macOS           brew install redis\n\
    or run ./scripts/test, which does it, or name another program in LOCK_TEST_SERVER";

/// A running server, its port and its directory. Dropping it stops the server.
///
/// All methods take `&self`, so that a test may share the server between tasks and threads.
#[derive(Debug)]
pub struct RedisServer {
    options: ServerOptions,
    tls_port: Option<Port>,
    port: Port,
    directory: Scratch,
    child: Mutex<Option<Child>>,
}

#[derive(Clone, Copy)]
enum Ready {
    /// The server executes commands.
    Serving,
    /// The server replies, even if only that it is loading.
    Answering,
}

enum Failure {
    PortTaken,
    Ended(ExitStatus),
}

impl RedisServer {
    /// Starts a server without persistence or password, on its own port.
    ///
    /// # Panics
    ///
    /// Panics like [`ServerOptions::start`].
    #[track_caller]
    pub fn start() -> Self {
        Self::options().start()
    }

    /// Returns options for a server that needs other settings than the defaults.
    pub fn options() -> ServerOptions {
        ServerOptions::default()
    }

    /// Returns the address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port()).into()
    }

    /// Returns the port, which stays the same after a restart.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Returns the URL for a client, with the password if there is one.
    pub fn url(&self) -> String {
        self.url_at(self.address())
    }

    /// Returns the URL with TLS.
    ///
    /// # Panics
    ///
    /// Panics if the options did not include [`ServerOptions::tls`].
    #[track_caller]
    pub fn tls_url(&self) -> String {
        let port = self.tls_port().expect("start the server with TLS");
        format!("rediss://localhost:{port}")
    }

    /// Returns the port that speaks TLS; `None` without [`ServerOptions::tls`].
    pub fn tls_port(&self) -> Option<u16> {
        self.tls_port.as_ref().map(Port::number)
    }

    /// Returns the URL of the Unix socket.
    ///
    /// # Panics
    ///
    /// Panics if the options did not include [`ServerOptions::unix_socket`].
    pub fn unix_url(&self) -> String {
        assert!(
            self.options.unix_socket,
            "start the server with a Unix socket"
        );
        let socket = self.socket();
        match &self.options.password {
            Some(password) => format!("unix://{}?pass={password}", socket.display()),
            None => format!("unix://{}", socket.display()),
        }
    }

    pub(crate) fn password(&self) -> Option<&str> {
        self.options.password.as_deref()
    }

    pub(crate) fn url_at(&self, address: SocketAddr) -> String {
        match &self.options.password {
            Some(password) => format!("redis://:{password}@{address}"),
            None => format!("redis://{address}"),
        }
    }

    /// Returns the working directory, which contains the dump and the append-only files.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the log since the first start.
    pub fn log(&self) -> String {
        let log = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Returns the id of the process.
    ///
    /// # Panics
    ///
    /// Panics if the server is not running.
    #[track_caller]
    pub fn pid(&self) -> u32 {
        let child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        child.as_ref().expect("the server is down").id()
    }

    /// Opens a new, authenticated connection.
    ///
    /// # Errors
    ///
    /// Fails if the server does not accept, or replies too late.
    pub fn connect(&self) -> io::Result<Connection> {
        Connection::open(self.address(), self.options.password.as_deref())
    }

    /// Sends one command over its own connection. An error of the server is a reply.
    ///
    /// # Panics
    ///
    /// Panics if there is no reply.
    #[track_caller]
    pub fn cli(&self, words: &[impl AsRef<[u8]> + Debug]) -> Reply {
        self.connect()
            .and_then(|mut connection| connection.call(words))
            .unwrap_or_else(|e| panic!("the server did not reply to {words:?}: {e}"))
    }

    /// Returns whether the server is older than this version.
    ///
    /// # Panics
    ///
    /// Panics if it doesn't tell its version.
    #[track_caller]
    pub fn is_before(&self, version: (u32, u32)) -> bool {
        let info = self.cli(&["INFO", "server"]);
        let mut lines = info.text().lines();
        let text = lines.find_map(|line| line.strip_prefix("redis_version:"));
        let mut numbers = text.expect("INFO shows the version").split('.');
        let mut next = || numbers.next().and_then(|it| it.parse().ok());
        (next().expect("a number"), next().expect("a number")) < version
    }

    /// Returns what the server has denied its users since its start. Leaves out `CLIENT SETINFO`: the client library
    /// names itself to servers from 7.2 on, and does not need it. Before Redis 7, the log names no subcommands.
    #[track_caller]
    pub fn denied(&self) -> Vec<Reply> {
        let object = if self.is_before((7, 0)) {
            "client"
        } else {
            "client|setinfo"
        };
        let is_needed = |entry: &&Reply| {
            let mut words = entry.array().iter();
            !words.any(|word| matches!(word, Reply::Bulk(text) if text == object.as_bytes()))
        };
        let log = self.cli(&["ACL", "LOG", "128"]);
        log.array().iter().filter(is_needed).cloned().collect()
    }

    /// Records all commands from now on. The recording has begun when this returns.
    ///
    /// # Panics
    ///
    /// Panics if the server does not reply.
    #[track_caller]
    pub fn monitor(&self) -> Monitor {
        Monitor::start(self.address(), self.options.password.clone())
            .unwrap_or_else(|e| panic!("the server did not reply to MONITOR: {e}"))
    }

    /// Kills the server, as a crash would: nothing is saved, and no connection is closed properly.
    ///
    /// Returns when the process has ended. Does nothing if the server is down.
    pub fn kill9(&self) {
        if let Some(mut child) = self.take_child() {
            child
                .kill()
                .expect("a child that was not reaped can be killed");
            janitor::forget(child.id());
            child.wait().expect("a killed child ends");
        }
    }

    /// Shuts the server down: it saves its data as its configuration requires.
    ///
    /// # Panics
    ///
    /// Panics if the server still runs after 30 s.
    #[track_caller]
    pub fn shutdown(&self) {
        if let Some(mut child) = self.take_child() {
            signal::terminate(child.id());
            janitor::forget(child.id());
            let ended = holds_within(START, || signal::has_ended(child.id()));
            if !ended {
                let _ = child.kill();
            }
            child.wait().expect("an ended child can be reaped");
            assert!(
                ended,
                "the server did not end within {START:?}:\n{}",
                self.log()
            );
        }
    }

    /// Freezes the server: the kernel still accepts connections, but the server replies to nothing.
    ///
    /// Returns when the process has stopped.
    #[track_caller]
    pub fn stop(&self) {
        signal::stop(self.pid());
    }

    /// Lets a frozen server continue; it first executes the commands that it received meanwhile.
    #[track_caller]
    pub fn cont(&self) {
        signal::cont(self.pid());
    }

    /// Kills the server if it runs, starts it again with the same port and directory, and waits
    /// until it executes commands.
    ///
    /// # Panics
    ///
    /// Panics if the server does not start; the message contains its log.
    #[track_caller]
    pub fn restart(&self) {
        self.relaunch(Ready::Serving);
    }

    /// Restarts like [`restart`](Self::restart), but returns as soon as the server replies, which
    /// may be that it is still loading.
    ///
    /// # Panics
    ///
    /// Panics if the server does not start; the message contains its log.
    #[track_caller]
    pub fn restart_loading(&self) {
        self.relaunch(Ready::Answering);
    }

    #[track_caller]
    fn relaunch(&self, ready: Ready) {
        self.kill9();
        match self.launch(ready) {
            Ok(()) => {}
            Err(Failure::PortTaken) => panic!("port {} was taken meanwhile", self.port()),
            Err(Failure::Ended(status)) => {
                panic!("the server exited at once ({status}):\n{}", self.log())
            }
        }
    }

    #[track_caller]
    fn launch(&self, ready: Ready) -> Result<(), Failure> {
        let log_before = self.log().len();
        let child = self.spawn();
        janitor::watch(child.id());
        let mut running = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let child = running.insert(child);
        let ended = eventually_some(START, || {
            let ended = signal::has_ended(child.id());
            (ended || self.is(ready)).then_some(ended)
        });
        if !ended {
            return Ok(());
        }
        janitor::forget(child.id());
        let status = child.wait().expect("an ended child can be reaped");
        *running = None;
        let log = self.log();
        if log
            .get(log_before..)
            .unwrap_or(&log)
            .contains("Address already in use")
        {
            return Err(Failure::PortTaken);
        }
        Err(Failure::Ended(status))
    }

    #[track_caller]
    fn spawn(&self) -> Child {
        let options = &self.options;
        let program = options
            .program
            .clone()
            .or_else(|| {
                std::env::var_os(PROGRAM)
                    .filter(|p| !p.is_empty())
                    .map(Into::into)
            })
            .unwrap_or_else(|| "redis-server".into());
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path())
            .expect("the scratch directory is writable");
        let mut command = Command::new(&program);
        if let Some(config) = &options.sentinel {
            let path = self.directory().join("sentinel.conf");
            sentinel::write_config(&path, config);
            command.arg(path).arg("--sentinel");
        }
        command
            .args(["--bind", "127.0.0.1", "--port", &self.port().to_string()])
            .arg("--dir")
            .arg(self.directory())
            .args(["--daemonize", "no"])
            .current_dir(self.directory())
            .envs(
                options
                    .environment
                    .iter()
                    .map(|(name, value)| (name, value)),
            )
            .stdin(Stdio::null())
            .stderr(log.try_clone().expect("a file can be shared"))
            .stdout(log);
        if options.unix_socket {
            command.arg("--unixsocket").arg(self.socket());
        }
        if let Some(password) = &options.password {
            command.args(["--requirepass", password]);
        }
        if options.sentinel.is_none() {
            command.args(["--save", "", "--appendonly", "no"]);
            // A replica begins at once, and does not wait for others.
            command.args(["--repl-diskless-sync-delay", "0"]);
        }
        if let (Some(tls), Some(port)) = (&options.tls, &self.tls_port) {
            let needs_client = if tls.needs_client { "yes" } else { "no" };
            command
                .args(["--tls-port", &port.number().to_string()])
                .args(["--tls-auth-clients", needs_client])
                .arg("--tls-cert-file")
                .arg(&tls.certificate.certificate)
                .arg("--tls-key-file")
                .arg(&tls.certificate.key)
                .arg("--tls-ca-cert-file")
                .arg(&tls.ca);
        }
        command.args(&options.arguments);
        match command.spawn() {
            Ok(child) => child,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                panic!("cannot find `{}`: {MISSING}", program.display())
            }
            Err(e) => panic!("cannot start `{}`: {e}", program.display()),
        }
    }

    /// Returns whether *this* server has got that far. Another program may use the same port while
    /// this server has not yet failed to bind it. The directory distinguishes them.
    fn is(&self, ready: Ready) -> bool {
        let Ok(mut connection) = self.connect() else {
            return false;
        };
        let Ok(pong) = connection.call(&["PING"]) else {
            return false;
        };
        let far_enough = match ready {
            Ready::Serving => pong == Reply::Status("PONG".to_owned()),
            Ready::Answering => true,
        };
        far_enough
            && match connection.call(&["CONFIG", "GET", "dir"]) {
                Ok(Reply::Array(pair)) => pair
                    .get(1)
                    .is_some_and(|directory| Path::new(directory.text()) == self.directory()),
                // An argument of the test disabled the command.
                Ok(Reply::Error(_)) => true,
                _ => false,
            }
    }

    fn take_child(&self) -> Option<Child> {
        self.child
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    fn log_path(&self) -> PathBuf {
        self.directory().join("server.log")
    }

    fn socket(&self) -> PathBuf {
        self.directory().join("redis.sock")
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill9();
    }
}
