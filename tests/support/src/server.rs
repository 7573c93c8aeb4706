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
use crate::signal;
use crate::wait::{eventually_some, holds_within};

pub use options::ServerOptions;

/// Bound on a start. A server is there within 20 ms; a loaded machine may need many times that.
const START: Duration = Duration::from_secs(30);

/// Names the program to run in place of `redis-server`, such as another version or Valkey.
const PROGRAM: &str = "LOCK_TEST_SERVER";

const MISSING: &str = "the tests run against a real server and cannot go without one; install it:\n\
    \x20 Debian, Ubuntu  apt-get install redis-server\n\
    \x20 Fedora          dnf install redis    (or valkey valkey-compat-redis)\n\
    \x20 Alpine          apk add redis\n\
    \x20 macOS           brew install redis\n\
    or run ./scripts/test, which does it, or name another program in LOCK_TEST_SERVER";

/// A running server, its port and its directory. Dropping it ends the server.
///
/// Everything is on `&self`, so that a test may share it between tasks and threads.
#[derive(Debug)]
pub struct RedisServer {
    options: ServerOptions,
    port: Port,
    directory: Scratch,
    child: Mutex<Option<Child>>,
}

#[derive(Clone, Copy)]
enum Ready {
    /// It executes commands.
    Serving,
    /// It answers at all, if only that it is loading.
    Answering,
}

enum Failure {
    PortTaken,
    Ended(ExitStatus),
}

impl RedisServer {
    /// Starts a server without persistence or password, on a port of its own.
    ///
    /// # Panics
    ///
    /// As [`ServerOptions::start`].
    #[track_caller]
    pub fn start() -> Self {
        Self::options().start()
    }

    /// Options for a server that needs more than the defaults.
    pub fn options() -> ServerOptions {
        ServerOptions::default()
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port()).into()
    }

    /// The port it listens on, which stays the same over a restart.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The URL for a client, with the password where there is one.
    pub fn url(&self) -> String {
        self.url_at(self.address())
    }

    /// The URL of the Unix socket.
    ///
    /// # Panics
    ///
    /// If [`ServerOptions::unix_socket`] was not asked for.
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

    pub(crate) fn url_at(&self, address: SocketAddr) -> String {
        match &self.options.password {
            Some(password) => format!("redis://:{password}@{address}"),
            None => format!("redis://{address}"),
        }
    }

    /// Its working directory, where a dump or an append-only file would be.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Its log since the first start.
    pub fn log(&self) -> String {
        let log = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// The id of its process.
    ///
    /// # Panics
    ///
    /// If it is not running.
    #[track_caller]
    pub fn pid(&self) -> u32 {
        let child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        child.as_ref().expect("the server is down").id()
    }

    /// A new connection, already authenticated.
    ///
    /// # Errors
    ///
    /// When the server does not accept, or answers too late.
    pub fn connect(&self) -> io::Result<Connection> {
        Connection::open(self.address(), self.options.password.as_deref())
    }

    /// Sends one command over a connection of its own. An error of the server is an answer.
    ///
    /// # Panics
    ///
    /// When there is no answer.
    #[track_caller]
    pub fn cli(&self, words: &[impl AsRef<[u8]> + Debug]) -> Reply {
        self.connect()
            .and_then(|mut connection| connection.call(words))
            .unwrap_or_else(|e| panic!("{words:?} had no answer from the server: {e}"))
    }

    /// Records all commands from now on. When this returns, the server is recording.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[track_caller]
    pub fn monitor(&self) -> Monitor {
        Monitor::start(self.address(), self.options.password.clone())
            .unwrap_or_else(|e| panic!("MONITOR had no answer from the server: {e}"))
    }

    /// Kills the server as a crash would: nothing is saved, no connection is closed properly.
    ///
    /// Returns when the process is gone. Does nothing to a server that is down.
    pub fn kill9(&self) {
        if let Some(mut child) = self.take_child() {
            child
                .kill()
                .expect("a child that was not reaped can be killed");
            janitor::forget(child.id());
            child.wait().expect("a killed child ends");
        }
    }

    /// Shuts the server down: it saves what its configuration says.
    ///
    /// # Panics
    ///
    /// When it is still there after 30 s.
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

    /// Freezes the server: connections are still accepted by the kernel, nothing is answered.
    ///
    /// Returns when it stands still.
    #[track_caller]
    pub fn stop(&self) {
        signal::stop(self.pid());
    }

    /// Lets a frozen server run on; it executes first what was sent to it meanwhile.
    #[track_caller]
    pub fn cont(&self) {
        signal::cont(self.pid());
    }

    /// Kills the server if it runs, starts it again on the same port and directory, and waits
    /// until it executes commands.
    ///
    /// # Panics
    ///
    /// When it does not come up; the message holds its log.
    #[track_caller]
    pub fn restart(&self) {
        self.relaunch(Ready::Serving);
    }

    /// As [`restart`](Self::restart), but returns as soon as the server answers anything, which
    /// may be that it is still loading.
    ///
    /// # Panics
    ///
    /// When it does not come up; the message holds its log.
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
                panic!("the server ended at once ({status}):\n{}", self.log())
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
        command
            .args(["--bind", "127.0.0.1", "--port", &self.port().to_string()])
            .arg("--dir")
            .arg(self.directory())
            .args(["--daemonize", "no", "--save", "", "--appendonly", "no"])
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
        command.args(&options.arguments);
        match command.spawn() {
            Ok(child) => child,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                panic!("cannot find `{}`: {MISSING}", program.display())
            }
            Err(e) => panic!("cannot start `{}`: {e}", program.display()),
        }
    }

    /// Whether *this* server is that far. Another program on the same port may answer as well
    /// while ours still finds out that it cannot bind; its directory tells them apart.
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
                // Switched off by an argument of the test.
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
