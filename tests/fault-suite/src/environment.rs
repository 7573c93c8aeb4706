//! Everything that takes part in one round: a server, the client processes, a proxy for each, and
//! the resource.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::dialect::Dialect;
use lock_testing::Nanos;
use test_support::tls::shown;
use test_support::{
    Authority, Certificate, Connection, FrozenClock, MovableName, Proxy, Random, RedisServer,
    Reply, Resolver, Scratch,
};

use crate::crew::Crew;
use crate::history::{History, LONGEST_TTL, SLOTS};
use crate::leftovers::{ROUNDING, left_behind};
use crate::sampler::Sampler;
use crate::workload::Workload;

/// A server that answers later than this counts as faulty.
pub(crate) const ADMIN_PATIENCE: Duration = Duration::from_secs(2);

/// The validity of a certificate that ends after the round.
pub(crate) const LASTING: Duration = Duration::from_secs(24 * 3600);

/// How the server keeps its data and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServerSetup {
    /// Every write is on disk before the server replies, so that a restart loses nothing.
    Durable,
    /// As durable as above, but the nemeses delete data.
    Forgetful,
    /// Nothing on disk, and the nemesis controls the wall clock.
    Clock,
    /// As durable as above, and clients know it by a name that the nemesis moves.
    Named,
    /// As durable as above, with TLS and certificates of the clients.
    Tls,
}

/// Everything that takes part in a round.
pub struct Environment {
    /// The lock server.
    pub server: RedisServer,
    /// The proxies in front of it, one for each process.
    pub proxies: Vec<Proxy>,
    /// The client processes.
    pub crew: Crew,
    /// Where each process finds the server.
    names: Option<Names>,
    certificates: Option<ClientCertificates>,
    clock: Option<(FrozenClock, AtomicI64)>,
}

/// A name for each process. It leads to the process's proxy, or to the second one at the same port.
pub struct Names {
    /// The names.
    pub names: Vec<MovableName>,
    /// The second proxies.
    pub seconds: Vec<Proxy>,
    resolver: Resolver,
}

impl Names {
    /// The address of the proxies.
    pub const FIRST: Ipv4Addr = Ipv4Addr::LOCALHOST;
    /// The address of the second proxies.
    pub const SECOND: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

    fn new(proxies: &[Proxy], server: &RedisServer) -> Self {
        let resolver = Resolver::build();
        let name = |slot| resolver.name(&format!("slot{slot}"), &[Self::FIRST]);
        Self {
            names: (0..proxies.len()).map(name).collect(),
            seconds: proxies
                .iter()
                .map(|proxy| proxy.beside(Self::SECOND, server))
                .collect(),
            resolver,
        }
    }
}

/// The certificate of all clients, in files that change.
pub struct ClientCertificates {
    authority: Authority,
    folder: Scratch,
}

impl ClientCertificates {
    fn new() -> Self {
        let certificates = Self {
            authority: Authority::new(),
            folder: Scratch::new(),
        };
        certificates.replace(LASTING);
        certificates
    }

    /// Replaces the certificate by one that ends after this time.
    ///
    /// # Panics
    ///
    /// Panics if the files cannot be written.
    pub fn replace(&self, span: Duration) {
        let made = self.authority.client_until(SystemTime::now() + span);
        // Each in one step, for a client that reads them now.
        for (made, file) in [(made.key, "client.key"), (made.certificate, "client.pem")] {
            let new = self.folder.path().join("new");
            let copied = fs::copy(made, &new);
            let replaced = copied.and_then(|_| fs::rename(&new, self.folder.path().join(file)));
            replaced.unwrap_or_else(|e| panic!("cannot replace {file}: {e}"));
        }
    }

    /// Returns what follows the address in a URL.
    fn parameters(&self) -> String {
        let client = Certificate {
            certificate: self.folder.path().join("client.pem"),
            key: self.folder.path().join("client.key"),
        };
        let ca = shown(&self.authority.ca());
        format!("ssl_ca_certs={ca}&{}", client.parameters())
    }
}

impl Environment {
    /// Starts everything, and waits until all processes have connected.
    ///
    /// # Panics
    ///
    /// Panics if one of the processes does not start.
    pub fn start(
        setup: ServerSetup,
        workload: Workload,
        dialect: Dialect,
        worker: &Path,
        mut random: Random,
    ) -> Self {
        let mut options = RedisServer::options();
        let clock = if setup == ServerSetup::Clock {
            let time = SystemTime::now().duration_since(UNIX_EPOCH);
            let time = time.expect("the clock is set").as_micros();
            let clock = FrozenClock::at(u64::try_from(time).expect("the time fits in 64 bits"));
            clock.run_ahead_by(0);
            options = options.clock(&clock);
            Some((clock, AtomicI64::new(0)))
        } else {
            options = options.args(["--appendonly", "yes", "--appendfsync", "always"]);
            None
        };
        let certificates = (setup == ServerSetup::Tls).then(ClientCertificates::new);
        if let Some(ClientCertificates { authority, .. }) = &certificates {
            options = options.tls(authority, &authority.server(), true);
        }
        let server = options.start();
        let proxy = |_| match certificates {
            Some(_) => Proxy::in_front_of_tls(&server),
            None => Proxy::in_front_of(&server),
        };
        let proxies: Vec<_> = (0..SLOTS).map(proxy).collect();
        let names = (setup == ServerSetup::Named).then(|| Names::new(&proxies, &server));
        let urls = proxies
            .iter()
            .enumerate()
            .map(|(slot, proxy)| match (&names, &certificates) {
                (Some(names), _) => names.names[slot].url(proxy.address().port()),
                (_, Some(certificates)) => format!("{}?{}", proxy.url(), certificates.parameters()),
                _ => proxy.url(),
            });
        let variables = names.iter().flat_map(|names| names.resolver.variables());
        let clients = (urls.collect(), variables.collect());
        Self {
            crew: Crew::start(clients, workload, dialect, worker, random.fork()),
            server,
            proxies,
            names,
            certificates,
            clock,
        }
    }

    /// Returns the names by which the clients know the server.
    ///
    /// # Panics
    ///
    /// Panics if they know it by its address.
    pub fn names(&self) -> &Names {
        self.names.as_ref().expect("the setup has names")
    }

    /// Returns the certificates of the clients.
    ///
    /// # Panics
    ///
    /// Panics if the server has no TLS.
    pub fn certificates(&self) -> &ClientCertificates {
        let certificates = self.certificates.as_ref();
        certificates.expect("the setup has certificates")
    }

    /// Moves the server's wall clock by this many milliseconds, relative to its current time.
    ///
    /// # Panics
    ///
    /// Panics if the server uses the machine's clock.
    pub fn move_clock(&self, by_ms: i64) {
        let (clock, offset) = self.clock.as_ref().expect("the setup has a clock");
        let before = offset.fetch_add(by_ms * 1000, Ordering::Relaxed);
        clock.run_ahead_by(before + by_ms * 1000);
    }

    /// Opens a connection that bypasses the proxies. Returns `None` while the server is down or
    /// does not reply.
    pub fn admin(&self) -> Option<Admin> {
        let connection = self.server.connect().ok()?;
        connection.set_patience(ADMIN_PATIENCE).ok()?;
        Some(Admin(connection))
    }

    /// Ends all processes, waits until the longest lease has expired, and builds the record.
    pub fn finish(self, samples: Sampler, ended: Nanos) -> History {
        let mut history = History {
            hung: self.crew.end(),
            samples: samples.end(),
            ..History::default()
        };
        let back = self.clock.as_ref().map_or(0, |(_, offset)| {
            // Keys live longer by the amount that the clock was set back.
            offset.load(Ordering::Relaxed).min(0).unsigned_abs()
        });
        thread::sleep(LONGEST_TTL + ROUNDING + Duration::from_micros(back));
        let left = left_behind(&self.server, self.crew.dialect);
        history.survivors = left.survivors;
        history.unexpiring = left.unexpiring;
        self.crew.read_into(&mut history, ended);
        history
    }
}

/// A connection of the nemesis and of the sampler.
pub struct Admin(Connection);

impl Admin {
    /// Sends a command. Returns `None` if no reply came; an error reply is a reply.
    pub fn call(&mut self, words: &[&str]) -> Option<Reply> {
        self.0.call(words).ok()
    }

    /// Sends a command and does not wait for its reply.
    pub fn send(&mut self, words: &[&str]) {
        let _ = self.0.send(words);
    }
}
