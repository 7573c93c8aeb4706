//! A proxy whose network faults the test controls.
//!
//! It uses blocking threads and no async runtime. tokio's timer counts whole milliseconds, but a
//! measurement through the proxy needs delays of half a millisecond. A stalled runtime under test
//! must also not stall the network.

mod link;
mod wire;

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};

use crate::ports::Port;
use crate::server::RedisServer;
use crate::stand_in::StandIn;
use link::{Gate, Link, Mode, Shared, State};

/// How many bytes of what is repeated are written at once.
const ENDLESS: usize = 32 * 1024;

/// The direction in which bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Requests of the client.
    ToServer,
    /// Replies and notifications of the server.
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

/// The data before which a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The request to the server: the server does not execute it.
    Request,
    /// The reply to the client: the server executed the request, and the client cannot know.
    Reply,
}

/// A TCP proxy in front of a server, on its own port. Dropping it cuts all connections.
///
/// Connections are numbered from 0 in the order in which the proxy accepted them.
#[derive(Debug)]
pub struct Proxy {
    ip: Ipv4Addr,
    port: Arc<Port>,
    url: String,
    shared: Arc<Shared>,
    accepting: Mutex<Option<JoinHandle<()>>>,
}

impl Proxy {
    /// Starts a proxy that forwards everything.
    pub fn in_front_of(server: &RedisServer) -> Self {
        Self::start(server.address(), |address| server.url_at(address))
    }

    /// As [`in_front_of`](Self::in_front_of), in front of the port that speaks TLS. While the server is down,
    /// connections are accepted and closed, as a load balancer does.
    ///
    /// # Panics
    ///
    /// Panics if the server has no TLS.
    #[track_caller]
    pub fn in_front_of_tls(server: &RedisServer) -> Self {
        let port = server.tls_port().expect("start the server with TLS");
        Self::start((Ipv4Addr::LOCALHOST, port).into(), |address| {
            format!("rediss://localhost:{}", address.port())
        })
    }

    /// As [`in_front_of`](Self::in_front_of), in front of a stand-in.
    pub fn in_front_of_stand_in(stand_in: &StandIn) -> Self {
        Self::start(stand_in.address(), |address| stand_in.url_at(address))
    }

    /// Starts a proxy in front of a server, on the same port of another address of this machine, such as 127.0.0.2. So
    /// one name can lead to both. Linux only.
    ///
    /// # Panics
    ///
    /// Panics if the address has no such port left.
    #[track_caller]
    #[must_use]
    pub fn beside(&self, ip: Ipv4Addr, server: &RedisServer) -> Self {
        let address = (ip, self.port.number());
        let listener = TcpListener::bind(address)
            .unwrap_or_else(|e| panic!("cannot listen on {ip}, port {}: {e}", address.1));
        let url = server.url_at(address.into());
        Self::listening(
            listener,
            (ip, Arc::clone(&self.port)),
            server.address(),
            url,
        )
    }

    fn start(upstream: SocketAddr, url: impl FnOnce(SocketAddr) -> String) -> Self {
        let (port, listener) = loop {
            let port = Port::reserve();
            if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port.number())) {
                break (port, listener);
            }
        };
        let url = url((Ipv4Addr::LOCALHOST, port.number()).into());
        let at = (Ipv4Addr::LOCALHOST, Arc::new(port));
        Self::listening(listener, at, upstream, url)
    }

    fn listening(
        listener: TcpListener,
        (ip, port): (Ipv4Addr, Arc<Port>),
        upstream: SocketAddr,
        url: String,
    ) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                upstream,
                mode: Mode::Forward,
                delays: [Duration::ZERO; 2],
                armed: None,
                always_lost: None,
                replacements: Vec::new(),
                records: false,
                drip: None,
                endless: None,
                noise: None,
                second: None,
                links: Vec::new(),
            }),
        });
        let proxy = Self {
            ip,
            port,
            url,
            shared,
            accepting: Mutex::new(None),
        };
        proxy.accept_from(listener);
        proxy
    }

    /// Makes new connections lead to another server. Open ones continue.
    pub fn lead_to(&self, server: &RedisServer) {
        self.change(|state| state.upstream = server.address());
    }

    /// Returns the address on which the proxy listens.
    pub fn address(&self) -> SocketAddr {
        (self.ip, self.port.number()).into()
    }

    /// Returns the URL for a client, with the server's password if it has one.
    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// Returns how many connections the proxy has accepted so far.
    pub fn accepted(&self) -> usize {
        self.shared.lock().links.len()
    }

    /// Returns how many connections are open now.
    pub fn open(&self) -> usize {
        self.shared
            .lock()
            .links
            .iter()
            .filter(|link| link.is_open())
            .count()
    }

    /// Delays all bytes that arrive from now on, without changing their order. Only latency is
    /// added: the bytes of a pipeline stay together.
    pub fn delay(&self, direction: Direction, by: Duration) {
        self.shared.lock().delays[direction.index()] = by;
    }

    /// Adds this delay to each round trip, half of it in each direction.
    pub fn delay_round_trip(&self, by: Duration) {
        self.shared.lock().delays = [by / 2, by.saturating_sub(by / 2)];
    }

    /// Cuts all connections; new connections are served as before.
    pub fn cut_all(&self) {
        self.change(|state| state.links.iter_mut().for_each(Link::cut));
    }

    /// Cuts one connection.
    ///
    /// # Panics
    ///
    /// Panics if there was no such connection yet.
    pub fn cut(&self, connection: usize) {
        self.change(|state| state.links[connection].cut());
    }

    /// Sends each byte to the clients after a pause of its own, from now on.
    pub fn drip(&self, pause: Duration) {
        self.change(|state| state.drip = Some(pause));
    }

    /// From now on, clients get this in place of the next reply: `begin`, and then `part` again and again, until they
    /// leave.
    pub fn answer_endlessly(&self, begin: &str, part: &str) {
        let part = part.repeat(1 + ENDLESS / part.len());
        self.change(|state| state.endless = Some((begin.into(), part.into())));
    }

    /// Sends this to clients that subscribe, again and again, as fast as they read. It stands between what the server
    /// sends.
    pub fn flood_subscribers(&self, messages: &str) {
        let messages = messages.repeat(1 + ENDLESS / messages.len());
        self.change(|state| state.noise = Some(Arc::new(messages.into())));
    }

    /// Makes every second connection lead to another server, from now on.
    pub fn alternate_with(&self, second: &RedisServer) {
        self.change(|state| state.second = Some(second.address()));
    }

    /// Arms one cut: at the next request on any connection that contains `pattern`; an empty
    /// pattern matches all requests. A reply is lost only after the server has begun to send it, so
    /// the command was executed.
    pub fn lose_next(&self, what: Lost, pattern: impl AsRef<[u8]>) {
        self.shared.lock().armed = Some((what, pattern.as_ref().to_vec()));
    }

    /// Cuts each connection at a request that contains `pattern`, from now on. The server does not execute it.
    pub fn lose_each(&self, pattern: impl AsRef<[u8]>) {
        self.shared.lock().always_lost = Some(pattern.as_ref().to_vec());
    }

    /// Replaces these bytes in one direction of all connections from now on. The bytes have to arrive
    /// in one piece. Behind the proxy, the server seems to be another one.
    pub fn replace(
        &self,
        direction: Direction,
        bytes: impl AsRef<[u8]>,
        replacement: impl AsRef<[u8]>,
    ) {
        let (bytes, replacement) = (bytes.as_ref().to_vec(), replacement.as_ref().to_vec());
        let mut state = self.shared.lock();
        state.replacements.push((direction, bytes, replacement));
    }

    /// Records, from now on, what each client sends.
    pub fn record(&self) {
        self.shared.lock().records = true;
    }

    /// Returns what the client of one connection has sent since [`record`](Self::record), in order, without what was
    /// lost on the way. [`split_commands`](crate::resp::split_commands) takes it apart.
    ///
    /// # Panics
    ///
    /// Panics if there was no such connection yet.
    pub fn requests(&self, connection: usize) -> Vec<u8> {
        self.shared.lock().links[connection].requests.clone()
    }

    /// Returns whether the cut of [`lose_next`](Self::lose_next) has not happened yet.
    pub fn is_armed(&self) -> bool {
        self.shared.lock().armed.is_some()
    }

    /// Drops all bytes in one direction of one connection, and keeps the connection open.
    ///
    /// Only a cut ends this state. A client that missed one reply would match each later reply to
    /// an earlier request, which no real network causes.
    ///
    /// # Panics
    ///
    /// Panics if there was no such connection yet.
    pub fn mute(&self, connection: usize, direction: Direction) {
        self.change(|state| state.links[connection].gates[direction.index()] = Gate::Mute);
    }

    /// Holds back all bytes in one direction of one connection, until [`resume`](Self::resume).
    ///
    /// # Panics
    ///
    /// Panics if there was no such connection yet.
    pub fn hold(&self, connection: usize, direction: Direction) {
        self.change(|state| {
            let gate = &mut state.links[connection].gates[direction.index()];
            if *gate == Gate::Open {
                *gate = Gate::Held;
            }
        });
    }

    /// Sends, in order, the bytes that were held back on one connection.
    ///
    /// # Panics
    ///
    /// Panics if there was no such connection yet.
    pub fn resume(&self, connection: usize) {
        self.change(|state| state.links[connection].resume());
    }

    /// Drops all bytes from now on. Open connections stay open and silent. New connections are
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

    /// Refuses new connections, as a port without a listener does. Open connections continue:
    /// combine this with [`cut_all`](Self::cut_all) to simulate a stopped server.
    pub fn refuse(&self) {
        let mut accepting = self
            .accepting
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.change(|state| state.mode = Mode::Refuse);
        if let Some(thread) = accepting.take() {
            // Wakes the thread from `accept`; it sees the new mode and closes the port.
            let _ = TcpStream::connect(self.address());
            let _ = thread.join();
        }
    }

    /// Restores a normal network: no delays, no cuts at requests, nothing held back or made up, one server. Cuts silent
    /// connections, for the reason given at [`mute`](Self::mute), and those with an endless reply.
    pub fn forward(&self) {
        self.ensure_listening();
        self.change(|state| {
            state.mode = Mode::Forward;
            state.delays = [Duration::ZERO; 2];
            state.armed = None;
            state.always_lost = None;
            (state.drip, state.endless) = (None, None);
            (state.noise, state.second) = (None, None);
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
            // A process that this one starts has a copy of the socket until it runs its program. To
            // drop ours would leave the port open until then.
            let _ = shutdown(&listener, Shutdown::Both);
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
