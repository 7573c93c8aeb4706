//! The options of a server.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Mutex;

use super::{Failure, Ready, RedisServer};
use crate::bus::ClusterBus;
use crate::clock::FrozenClock;
use crate::janitor::Scratch;
use crate::ports::Port;
use crate::tls::{Authority, Certificate};

/// The number of ports that are tried. Only programs outside of these tests can take a reserved
/// port.
const PORTS: u32 = 10;

/// The options with which a server is started.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    pub(super) program: Option<PathBuf>,
    pub(super) arguments: Vec<OsString>,
    pub(super) environment: Vec<(OsString, OsString)>,
    pub(super) password: Option<String>,
    pub(super) unix_socket: bool,
    pub(super) sentinel: Option<String>,
    pub(super) tls: Option<TlsFiles>,
}

/// The files of a server that listens with TLS too.
#[derive(Clone, Debug)]
pub(super) struct TlsFiles {
    pub(super) certificate: Certificate,
    pub(super) ca: PathBuf,
    pub(super) needs_client: bool,
}

impl ServerOptions {
    /// Sets the program to run. Defaults to the environment's `LOCK_TEST_SERVER`, else
    /// `redis-server`.
    #[must_use]
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = Some(program.into());
        self
    }

    /// Adds an argument. Later arguments override earlier ones, so `["--appendonly", "yes"]`
    /// enables persistence. Defaults to none.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Adds several arguments, like [`arg`](Self::arg).
    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Adds a variable to the server's environment. Defaults to none.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Sets the password of the server. It may contain only letters and digits, because it becomes
    /// part of a URL. Defaults to none.
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

    /// Sets the server's wall clock. Defaults to the machine's.
    #[must_use]
    pub fn clock(mut self, clock: &FrozenClock) -> Self {
        self.environment.extend(clock.environment());
        self
    }

    /// Sets the connections to the other nodes of its cluster. Defaults to those of the machine.
    #[must_use]
    pub fn bus(mut self, bus: &ClusterBus) -> Self {
        self.environment.extend(bus.environment());
        self
    }

    /// Lets the server listen on a Unix socket too. Defaults to TCP alone.
    #[must_use]
    pub fn unix_socket(mut self) -> Self {
        self.unix_socket = true;
        self
    }

    /// Makes the server a Sentinel with this configuration. Defaults to a server with keys.
    #[must_use]
    pub fn sentinel(mut self, config: String) -> Self {
        self.sentinel = Some(config);
        self
    }

    /// Lets the server listen with TLS too, on a port of its own. Clients need a certificate of the same
    /// authority if `needs_client` is set. Defaults to no TLS.
    #[must_use]
    pub fn tls(mut self, authority: &Authority, server: &Certificate, needs_client: bool) -> Self {
        self.tls = Some(TlsFiles {
            certificate: server.clone(),
            ca: authority.ca(),
            needs_client,
        });
        self
    }

    /// Starts the server and waits until it replies.
    ///
    /// # Panics
    ///
    /// Panics if the program is missing (the message says how to install it), if the server exits
    /// at once (the message contains its log), or if it does not reply within 30 s.
    #[track_caller]
    pub fn start(self) -> RedisServer {
        let tls_port = self.tls.is_some().then(Port::reserve);
        let mut server = RedisServer {
            options: self,
            tls_port,
            port: Port::reserve(),
            directory: Scratch::in_memory(),
            child: Mutex::new(None),
        };
        for _ in 0..PORTS {
            match server.launch(Ready::Serving) {
                Ok(()) => return server,
                Err(Failure::PortTaken) => server.port = Port::reserve(),
                Err(Failure::Ended(status)) => {
                    panic!("the server exited at once ({status}):\n{}", server.log())
                }
            }
        }
        panic!("{PORTS} ports in a row were taken by other programs");
    }
}
