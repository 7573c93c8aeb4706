//! A server that stands in for those of hosting services, for old versions, and for hostile ones.
//!
//! It forwards commands to a real server and alters what its [quirks](Quirk) say, so that locks work as far as the
//! altered replies let them. A client sees one server with one behaviour; the test can change it at any time.
//!
//! Each client has a connection of its own to the real server. Two threads serve it: one reads commands, decides about
//! each, and notes in a queue what becomes of its reply; the other reads replies and takes the notes in order. Pushes
//! pass unchanged, and only those that confirm a subscription have a note.
//!
//! Subscriptions work in RESP3 only, where their messages are pushes.

mod client;
mod quirk;
mod script;

use std::collections::HashMap;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::ports::Port;
use crate::server::RedisServer;

pub use quirk::{Answer, HelloRefusal, Quirk, Target, limits};
pub use script::script_name;

/// A server on its own port. Dropping it cuts all connections.
#[derive(Debug)]
pub struct StandIn {
    ports: [Port; 2],
    server: Upstream,
    shared: Arc<Shared>,
}

/// The real server.
#[derive(Clone, Debug)]
struct Upstream {
    address: SocketAddr,
    url: String,
    password: Option<String>,
}

#[derive(Debug, Default)]
struct Shared(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    quirks: Vec<Quirk>,
    /// The names of the scripts, by the hash that clients know.
    scripts: HashMap<String, String>,
    /// The hashes of what the real server runs instead of these scripts.
    altered: HashMap<String, String>,
    commands: Vec<Vec<String>>,
    clients: Vec<TcpStream>,
    /// The bytes that connections took of [`Answer::Endless`], [`Answer::EndlessItems`] and [`Answer::Giant`].
    streamed: Arc<AtomicU64>,
    closed: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StandIn {
    /// Starts a stand-in in front of a server.
    ///
    /// # Panics
    ///
    /// Panics if no port is free.
    pub fn start(server: &RedisServer, quirks: impl IntoIterator<Item = Quirk>) -> Self {
        let shared = Arc::new(Shared::default());
        shared.lock().quirks = quirks.into_iter().collect();
        let bind = || loop {
            let port = Port::reserve();
            if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port.number())) {
                return (port, listener);
            }
        };
        let (first, second) = (bind(), bind());
        let ports = [first.0, second.0];
        let numbers = [ports[0].number(), ports[1].number()];
        let server = Upstream {
            address: server.address(),
            url: server.url_at((Ipv4Addr::LOCALHOST, numbers[0]).into()),
            password: server.password().map(str::to_owned),
        };
        for listener in [first.1, second.1] {
            let (shared, server) = (Arc::clone(&shared), server.clone());
            thread::spawn(move || {
                while let Ok((client, _)) = listener.accept() {
                    if shared.lock().closed {
                        break;
                    }
                    client::serve(&shared, &server, numbers, client);
                }
            });
        }
        Self {
            ports,
            server,
            shared,
        }
    }

    /// Returns the URL for a client, with the server's password if it has one.
    pub fn url(&self) -> String {
        self.server.url.clone()
    }

    pub(crate) fn url_at(&self, address: SocketAddr) -> String {
        let (own, other) = (self.address().to_string(), address.to_string());
        self.server.url.replace(&own, &other)
    }

    /// Returns the address on which the stand-in listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.ports[0].number()).into()
    }

    /// Replaces the quirks. Replies to commands that have arrived already keep the old ones.
    pub fn set(&self, quirks: impl IntoIterator<Item = Quirk>) {
        self.shared.lock().quirks = quirks.into_iter().collect();
    }

    /// Adds a quirk.
    pub fn add(&self, quirk: Quirk) {
        self.shared.lock().quirks.push(quirk);
    }

    /// Returns how many commands of this kind have arrived.
    pub fn count(&self, target: &Target) -> usize {
        let state = self.shared.lock();
        let commands = state.commands.iter();
        let is_one = |words: &&Vec<String>| target.matches(words, &state.scripts);
        commands.filter(is_one).count()
    }

    /// Returns all commands that have arrived, in that order.
    pub fn commands(&self) -> Vec<Vec<String>> {
        self.shared.lock().commands.clone()
    }

    /// Returns how many clients have connected.
    pub fn accepted(&self) -> usize {
        self.shared.lock().clients.len()
    }

    /// Returns how many bytes of [`Answer::Endless`], [`Answer::EndlessItems`] and [`Answer::Giant`] the connections have
    /// taken. A client has read no more of them: the rest is in the buffers of the system.
    pub fn streamed(&self) -> u64 {
        self.shared.lock().streamed.load(Ordering::Relaxed)
    }

    /// Cuts all connections.
    pub fn cut_all(&self) {
        for client in &self.shared.lock().clients {
            let _ = client.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        for port in &self.ports {
            // Wakes the thread from `accept`.
            let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, port.number()));
        }
        self.cut_all();
    }
}
