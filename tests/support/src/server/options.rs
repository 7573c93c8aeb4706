//! How a server is started.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Mutex;

use super::{Failure, Ready, RedisServer};
use crate::clock::FrozenClock;
use crate::janitor::Scratch;
use crate::ports::Port;

/// How often another port is tried. Only programs outside of these tests can take one away.
const PORTS: u32 = 10;

/// How a server is to be started.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    pub(super) program: Option<PathBuf>,
    pub(super) arguments: Vec<OsString>,
    pub(super) environment: Vec<(OsString, OsString)>,
    pub(super) password: Option<String>,
    pub(super) unix_socket: bool,
}

impl ServerOptions {
    /// The program to run. Defaults to the environment's `LOCK_TEST_SERVER`, else `redis-server`.
    #[must_use]
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = Some(program.into());
        self
    }

    /// One more argument. Later ones override, so that `["--appendonly", "yes"]` switches
    /// persistence on. Defaults to none.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// More arguments, as by [`arg`](Self::arg).
    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// A variable of the server's environment, beside those of the test. Defaults to none.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// The password clients must give; letters and digits only, since it becomes part of a URL.
    /// Defaults to none.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        let password = password.into();
        assert!(
            password.bytes().all(|b| b.is_ascii_alphanumeric()),
            "a test password is letters and digits"
        );
        self.password = Some(password);
        self
    }

    /// The wall clock the server reads. Defaults to the machine's.
    #[must_use]
    pub fn clock(mut self, clock: &FrozenClock) -> Self {
        self.environment.extend(clock.environment());
        self
    }

    /// Has the server listen on a Unix socket too. Defaults to TCP alone.
    #[must_use]
    pub fn unix_socket(mut self) -> Self {
        self.unix_socket = true;
        self
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Panics
    ///
    /// When there is no server to start (the message says how to install one), when it ends at
    /// once (the message holds its log), or when it does not answer within 30 s.
    #[track_caller]
    pub fn start(self) -> RedisServer {
        let mut server = RedisServer {
            options: self,
            port: Port::reserve(),
            directory: Scratch::new(),
            child: Mutex::new(None),
        };
        for _ in 0..PORTS {
            match server.launch(Ready::Serving) {
                Ok(()) => return server,
                Err(Failure::PortTaken) => server.port = Port::reserve(),
                Err(Failure::Ended(status)) => {
                    panic!("the server ended at once ({status}):\n{}", server.log())
                }
            }
        }
        panic!("{PORTS} ports in a row were taken by other programs");
    }
}
