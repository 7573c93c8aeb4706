//! A network that misbehaves on command.
//!
//! Blocking threads and no async runtime: tokio's timer counts whole milliseconds, while a
//! measurement through the proxy needs delays of half of one; and the network must not share its
//! fate with the runtime under test.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::ports::Port;
use crate::server::RedisServer;

/// Bound on reaching the server, which is on this machine.
const CONNECT: Duration = Duration::from_secs(5);

/// The most that is read at once. Each lock command fits many times, so that it arrives whole.
const CHUNK: usize = 64 * 1024;

/// Which way bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Requests.
    ToServer,
    /// Replies and pushes.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Forward,
    BlackHole,
    Refuse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    Open,
    Held,
    Mute,
}

/// One client's connection, and ours to the server.
#[derive(Debug)]
struct Link {
    client: TcpStream,
    /// None in a black hole.
    server: Option<TcpStream>,
    gates: [Gate; 2],
    queues: [VecDeque<Chunk>; 2],
    /// One for each direction, so that a chunk wakes only the thread that has to deliver it.
    wake: [Arc<Condvar>; 2],
    /// How many of the two directions still run.
    running: u8,
    reply_is_lost: bool,
    cut: bool,
}

#[derive(Debug)]
struct Chunk {
    due: Instant,
    /// Empty at the end of the stream.
    bytes: Vec<u8>,
}

impl Link {
    fn cut(&mut self) {
        self.cut = true;
        let _ = self.client.shutdown(Shutdown::Both);
        if let Some(server) = &self.server {
            let _ = server.shutdown(Shutdown::Both);
        }
        self.notify();
    }

    fn resume(&mut self) {
        for gate in &mut self.gates {
            if *gate == Gate::Held {
                *gate = Gate::Open;
            }
        }
        self.notify();
    }

    fn notify(&self) {
        self.wake.iter().for_each(|wake| wake.notify_one());
    }

    fn is_open(&self) -> bool {
        !self.cut && self.running > 0
    }
}

#[derive(Debug)]
struct State {
    mode: Mode,
    delays: [Duration; 2],
    armed: Option<(Lost, Vec<u8>)>,
    /// By order of acceptance; never shortened, so that an index stays valid.
    links: Vec<Link>,
}

#[derive(Debug)]
struct Shared {
    upstream: SocketAddr,
    state: Mutex<State>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
    /// for the answer to an earlier question, which no real network does to it.
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

    /// Lets go, in order, what was held back on one connection.
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

    /// Refuses new connections, as a port where nobody listens does. Open ones live on: combine
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
                accept(&shared, client);
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

/// Takes a client on, and starts the threads that serve it.
fn accept(shared: &Arc<Shared>, client: TcpStream) {
    let mode = shared.lock().mode;
    // Connected outside the lock: a frozen server must not freeze the test's own calls.
    let server = match mode {
        Mode::BlackHole => None,
        Mode::Forward | Mode::Refuse => {
            match TcpStream::connect_timeout(&shared.upstream, CONNECT) {
                Ok(server) => Some(server),
                // Dropping the client closes it, which is what a balancer without a server does.
                Err(_) => return,
            }
        }
    };
    let (Ok(()), Ok(to_client), Ok(to_server)) = (
        client.set_nodelay(true),
        client.try_clone(),
        server.as_ref().map(TcpStream::try_clone).transpose(),
    ) else {
        return;
    };
    if let Some(server) = &server {
        let _ = server.set_nodelay(true);
    }

    let wake = [Arc::new(Condvar::new()), Arc::new(Condvar::new())];
    let index;
    {
        let mut state = shared.lock();
        if server.is_none() && state.mode != Mode::BlackHole {
            // The hole was closed meanwhile; this client would wait in it for ever.
            return;
        }
        index = state.links.len();
        let gates = match state.mode {
            Mode::BlackHole => [Gate::Mute; 2],
            Mode::Forward | Mode::Refuse => [Gate::Open; 2],
        };
        state.links.push(Link {
            client: to_client,
            server: to_server,
            gates,
            queues: [VecDeque::new(), VecDeque::new()],
            wake: wake.clone(),
            running: if server.is_some() { 2 } else { 1 },
            reply_is_lost: false,
            cut: false,
        });
    }
    let wire = |direction: Direction, from, to| {
        let wire = Wire {
            shared: Arc::clone(shared),
            index,
            direction,
            wake: Arc::clone(&wake[direction.index()]),
        };
        wire.start(from, to);
    };
    match server {
        None => wire(Direction::ToServer, client, None),
        Some(server) => {
            let (Ok(from_server), Ok(into_client)) = (server.try_clone(), client.try_clone())
            else {
                shared.lock().links[index].cut();
                return;
            };
            wire(Direction::ToServer, client, Some(server));
            wire(Direction::ToClient, from_server, Some(into_client));
        }
    }
}

/// One direction of one link: a thread that reads and stamps, and a thread that waits and writes.
/// Two, because a delay must not keep what comes next from being stamped when it arrives.
struct Wire {
    shared: Arc<Shared>,
    index: usize,
    direction: Direction,
    wake: Arc<Condvar>,
}

impl Wire {
    fn start(self, mut from: TcpStream, to: Option<TcpStream>) {
        let (shared, wake) = (Arc::clone(&self.shared), Arc::clone(&self.wake));
        let (index, direction) = (self.index, self.direction);
        thread::spawn(move || {
            let mut buffer = vec![0; CHUNK];
            loop {
                let length = from.read(&mut buffer).unwrap_or(0);
                let mut state = shared.lock();
                let due = Instant::now() + state.delays[direction.index()];
                state.links[index].queues[direction.index()].push_back(Chunk {
                    due,
                    bytes: buffer[..length].to_vec(),
                });
                drop(state);
                wake.notify_one();
                if length == 0 {
                    break;
                }
            }
        });
        thread::spawn(move || {
            self.deliver(to);
            let mut state = self.shared.lock();
            let link = &mut state.links[self.index];
            link.running -= 1;
            if link.running == 0 {
                // The copies in here would keep the sockets open.
                link.cut();
            }
        });
    }

    fn deliver(&self, mut to: Option<TcpStream>) {
        while let Some(bytes) = self.next() {
            if bytes.is_empty() {
                if let Some(to) = &to {
                    let _ = to.shutdown(Shutdown::Write);
                }
                return;
            }
            if !self.may_pass(&bytes) {
                continue;
            }
            if let Some(to) = &mut to
                && to.write_all(&bytes).is_err()
            {
                self.shared.lock().links[self.index].cut();
                return;
            }
        }
    }

    /// Waits for the next chunk to fall due at an open gate. None after a cut.
    fn next(&self) -> Option<Vec<u8>> {
        let mut state = self.shared.lock();
        loop {
            let link = &mut state.links[self.index];
            if link.cut {
                return None;
            }
            let held = link.gates[self.direction.index()] == Gate::Held;
            let queue = &mut link.queues[self.direction.index()];
            let due_in = queue
                .front()
                .filter(|_| !held)
                .map(|chunk| chunk.due.saturating_duration_since(Instant::now()));
            state = match due_in {
                Some(Duration::ZERO) => return queue.pop_front().map(|chunk| chunk.bytes),
                Some(wait) => {
                    let woken = self.wake.wait_timeout(state, wait);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let woken = self.wake.wait(state);
                    woken.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }

    /// Whether these bytes are to be written. Cuts the link where a loss is due.
    fn may_pass(&self, bytes: &[u8]) -> bool {
        let mut state = self.shared.lock();
        let state = &mut *state;
        let link = &mut state.links[self.index];
        if link.cut || link.gates[self.direction.index()] == Gate::Mute {
            return false;
        }
        match self.direction {
            Direction::ToClient => {
                if link.reply_is_lost {
                    link.cut();
                }
            }
            Direction::ToServer => {
                let strikes = state
                    .armed
                    .as_ref()
                    .is_some_and(|(_, p)| contains(bytes, p));
                match state.armed.take_if(|_| strikes) {
                    Some((Lost::Request, _)) => link.cut(),
                    // Marked before the request is written, so that no reply can be faster.
                    Some((Lost::Reply, _)) => link.reply_is_lost = true,
                    None => {}
                }
            }
        }
        !link.cut
    }
}

fn contains(bytes: &[u8], pattern: &[u8]) -> bool {
    pattern.is_empty() || bytes.windows(pattern.len()).any(|window| window == pattern)
}
