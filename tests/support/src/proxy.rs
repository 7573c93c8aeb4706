//! A network that misbehaves on command.
//!
//! Blocking threads and no async runtime: tokio's timer counts whole milliseconds, while a
//! measurement through the proxy needs delays of half of one; and the network must not share its
//! fate with the runtime under test.

mod link;
mod wire;

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::ports::Port;
use crate::server::RedisServer;
use link::{Gate, Link, Mode, Shared, State};

/// Which way bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Requests.
    ToServer,
    /// Replies and notifications.
    ToClient,
}

impl Direction {
    fn index(self) -> usize {
        match self {
            Self::ToServer => 0,
            Self::ToClient => 1,
        }
    }
}

/// What a connection is cut before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The request reaches the server: nothing happened.
    Request,
    /// The reply reaches the client: it happened, and the client cannot know.
    Reply,
}

/// A TCP proxy in front of a server, on a port of its own. Dropping it cuts everything.
///
/// Connections are numbered from 0 in the order in which they were accepted.
#[derive(Debug)]
pub struct Proxy {
    port: Port,
    url: String,
    shared: Arc<Shared>,
    accepting: Mutex<Option<JoinHandle<()>>>,
}

impl Proxy {
    /// Starts a proxy that forwards at once.
    pub fn in_front_of(server: &RedisServer) -> Self {
        let shared = Arc::new(Shared {
            upstream: server.address(),
            state: Mutex::new(State {
                mode: Mode::Forward,
                delays: [Duration::ZERO; 2],
                armed: None,
                links: Vec::new(),
            }),
        });
        let (port, listener) = loop {
            let port = Port::reserve();
            if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port.number())) {
                break (port, listener);
            }
        };
        let url = server.url_at((Ipv4Addr::LOCALHOST, port.number()).into());
        let proxy = Self {
            port,
            url,
            shared,
            accepting: Mutex::new(None),
        };
        proxy.accept_from(listener);
        proxy
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port.number()).into()
    }

    /// The URL for a client, with the server's password where there is one.
    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// How many connections were accepted so far.
    pub fn accepted(&self) -> usize {
        self.shared.lock().links.len()
    }

    /// How many connections are open now.
    pub fn open(&self) -> usize {
        self.shared
            .lock()
            .links
            .iter()
            .filter(|link| link.is_open())
            .count()
    }

    /// Delays all bytes that arrive from now on, without changing their order. Latency only: the
    /// bytes of a pipeline travel together.
    pub fn delay(&self, direction: Direction, by: Duration) {
        self.shared.lock().delays[direction.index()] = by;
    }

    /// Adds this much to each round trip, half of it in each direction.
    pub fn delay_round_trip(&self, by: Duration) {
        self.shared.lock().delays = [by / 2, by.saturating_sub(by / 2)];
    }

    /// Cuts every connection; new ones are served as before.
    pub fn cut_all(&self) {
        self.change(|state| state.links.iter_mut().for_each(Link::cut));
    }

    /// Cuts one connection.
    ///
    /// # Panics
    ///
    /// If there was no such connection yet.
    pub fn cut(&self, connection: usize) {
        self.change(|state| state.links[connection].cut());
    }

    /// Arms a cut, once: at the next request, on whichever connection, that contains `pattern`
    /// (an empty one is in all). A lost reply is lost only after the server has begun to answer, so
    /// that the command was executed.
    pub fn lose_next(&self, what: Lost, pattern: impl AsRef<[u8]>) {
        self.shared.lock().armed = Some((what, pattern.as_ref().to_vec()));
    }

    /// Whether the cut of [`lose_next`](Self::lose_next) still waits for its request.
    pub fn is_armed(&self) -> bool {
        self.shared.lock().armed.is_some()
    }

    /// Swallows what travels in one direction of one connection, and keeps it open.
    ///
    /// There is no way back but a cut: a client that missed one answer would take each later one
    /// for the answer to an earlier request, which no real network does to it.
    ///
    /// # Panics
    ///
    /// If there was no such connection yet.
    pub fn mute(&self, connection: usize, direction: Direction) {
        self.change(|state| state.links[connection].gates[direction.index()] = Gate::Mute);
    }

    /// Holds back what travels in one direction of one connection, until
    /// [`resume`](Self::resume).
    ///
    /// # Panics
    ///
    /// If there was no such connection yet.
    pub fn hold(&self, connection: usize, direction: Direction) {
        self.change(|state| {
            let gate = &mut state.links[connection].gates[direction.index()];
            if *gate == Gate::Open {
                *gate = Gate::Held;
            }
        });
    }

    /// Sends, in order, what was held back on one connection.
    ///
    /// # Panics
    ///
    /// If there was no such connection yet.
    pub fn resume(&self, connection: usize) {
        self.change(|state| state.links[connection].resume());
    }

    /// Swallows everything from now on: open connections stay open and mute, new ones are
    /// accepted and never reach the server.
    pub fn black_hole(&self) {
        self.ensure_listening();
        self.change(|state| {
            state.mode = Mode::BlackHole;
            for link in &mut state.links {
                link.gates = [Gate::Mute; 2];
            }
        });
    }

    /// Refuses new connections, as a port without a listener does. Open ones live on: combine
    /// with [`cut_all`](Self::cut_all) for a server that is gone.
    pub fn refuse(&self) {
        let mut accepting = self
            .accepting
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.change(|state| state.mode = Mode::Refuse);
        if let Some(thread) = accepting.take() {
            // Wakes the thread out of `accept`; it sees the mode and gives the port up.
            let _ = TcpStream::connect(self.address());
            let _ = thread.join();
        }
    }

    /// Back to an honest network: no delays, nothing armed, nothing held back. Connections that
    /// were mute are cut, for the reason given at [`mute`](Self::mute).
    pub fn forward(&self) {
        self.ensure_listening();
        self.change(|state| {
            state.mode = Mode::Forward;
            state.delays = [Duration::ZERO; 2];
            state.armed = None;
            for link in &mut state.links {
                if link.gates.contains(&Gate::Mute) {
                    link.cut();
                }
                link.resume();
            }
        });
    }

    fn change(&self, by: impl FnOnce(&mut State)) {
        let mut state = self.shared.lock();
        by(&mut state);
        state.links.iter().for_each(Link::notify);
    }

    fn ensure_listening(&self) {
        if self.shared.lock().mode == Mode::Refuse {
            let listener = TcpListener::bind(self.address())
                .unwrap_or_else(|e| panic!("the proxy's port was taken meanwhile: {e}"));
            self.shared.lock().mode = Mode::Forward;
            self.accept_from(listener);
        }
    }

    fn accept_from(&self, listener: TcpListener) {
        let shared = Arc::clone(&self.shared);
        let thread = thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                if shared.lock().mode == Mode::Refuse {
                    break;
                }
                wire::accept(&shared, client);
            }
        });
        *self
            .accepting
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(thread);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.refuse();
        self.cut_all();
    }
}
