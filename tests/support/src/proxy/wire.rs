//! The threads that forward the bytes of one connection.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::link::{Chunk, Gate, Link, Mode, Shared};
use super::{Direction, Lost};

/// Bound on reaching the server, which is on this machine.
const CONNECT: Duration = Duration::from_secs(5);

/// The largest read. Each lock command is much smaller, so that it arrives in one read.
const CHUNK: usize = 64 * 1024;

/// Accepts a client, and starts the threads that serve it.
pub(super) fn accept(shared: &Arc<Shared>, client: TcpStream) {
    let (mode, upstream) = {
        let state = shared.lock();
        let second = state.second.filter(|_| state.links.len() % 2 == 1);
        (state.mode, second.unwrap_or(state.upstream))
    };
    // Connects without holding the mutex: a frozen server must not block the calls of the test.
    let server = match mode {
        Mode::BlackHole => None,
        Mode::Forward | Mode::Refuse => {
            match TcpStream::connect_timeout(&upstream, CONNECT) {
                Ok(server) => Some(server),
                // Dropping the client closes its connection, as a load balancer without a server
                // does.
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
            // The black hole was closed meanwhile; this client would wait in it for ever.
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
            subscribes: false,
            requests: Vec::new(),
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

/// One direction of one link. One thread reads chunks and records their arrival times; another
/// thread waits and writes. With one thread, a delay would falsify the arrival time of the next
/// chunk.
struct Wire {
    shared: Arc<Shared>,
    index: usize,
    direction: Direction,
    wake: Arc<Condvar>,
}

/// What a wire does next.
enum Next {
    /// These bytes arrived from the other side; none at the end of the stream.
    Chunk(Vec<u8>),
    /// A subscriber gets these messages beside its own.
    Noise(Arc<Vec<u8>>),
    Cut,
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
                // These copies would keep the sockets open.
                link.cut();
            }
        });
    }

    fn deliver(&self, mut to: Option<TcpStream>) {
        loop {
            let bytes = match self.next() {
                Next::Cut => return,
                Next::Noise(noise) => {
                    let written = to.as_mut().map(|to| to.write_all(&noise));
                    if written.is_some_and(|written| written.is_err()) {
                        return self.shared.lock().links[self.index].cut();
                    }
                    continue;
                }
                Next::Chunk(bytes) => bytes,
            };
            if bytes.is_empty() {
                if let Some(to) = &to {
                    let _ = to.shutdown(Shutdown::Write);
                }
                return;
            }
            if !self.may_pass(&bytes) {
                continue;
            }
            let bytes = self.replaced(bytes);
            if let Some(to) = &mut to
                && self.write(to, &bytes).is_err()
            {
                self.shared.lock().links[self.index].cut();
                return;
            }
        }
    }

    /// Writes bytes as fast as the proxy lets them, or an endless reply in their place.
    fn write(&self, to: &mut TcpStream, mut bytes: &[u8]) -> io::Result<()> {
        if self.direction == Direction::ToServer {
            return to.write_all(bytes);
        }
        let endless = {
            let mut state = self.shared.lock();
            let endless = state.endless.clone();
            if endless.is_some() {
                // It must get no other reply.
                state.links[self.index].gates[self.direction.index()] = Gate::Mute;
            }
            endless
        };
        if let Some((begin, part)) = endless {
            to.write_all(&begin)?;
            loop {
                to.write_all(&part)?;
            }
        }
        while let (Some(drip), Some((first, rest))) = (self.drip(), bytes.split_first()) {
            thread::sleep(drip);
            to.write_all(&[*first])?;
            bytes = rest;
        }
        to.write_all(bytes)
    }

    /// Returns the pause before the next byte, unless the link was cut.
    fn drip(&self) -> Option<Duration> {
        let state = self.shared.lock();
        state.drip.filter(|_| !state.links[self.index].cut)
    }

    /// Waits until the next chunk is due and the gate is open, or until there is something else to do.
    fn next(&self) -> Next {
        let mut state = self.shared.lock();
        loop {
            let noise = state.noise.clone();
            let link = &mut state.links[self.index];
            if link.cut {
                return Next::Cut;
            }
            let held = link.gates[self.direction.index()] == Gate::Held;
            let queue = &mut link.queues[self.direction.index()];
            let due_in = queue
                .front()
                .filter(|_| !held)
                .map(|chunk| chunk.due.saturating_duration_since(Instant::now()));
            if due_in == Some(Duration::ZERO)
                && let Some(chunk) = queue.pop_front()
            {
                return Next::Chunk(chunk.bytes);
            }
            if let Some(noise) = noise
                && link.subscribes
                && self.direction == Direction::ToClient
            {
                return Next::Noise(noise);
            }
            state = if let Some(wait) = due_in {
                let woken = self.wake.wait_timeout(state, wait);
                woken.unwrap_or_else(PoisonError::into_inner).0
            } else {
                let woken = self.wake.wait(state);
                woken.unwrap_or_else(PoisonError::into_inner)
            };
        }
    }

    fn replaced(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        let replacements = self.shared.lock().replacements.clone();
        for (direction, pattern, replacement) in replacements {
            let mut from = 0;
            while direction == self.direction
                && let Some(at) = position(&bytes[from..], &pattern)
            {
                let at = from + at;
                bytes.splice(at..at + pattern.len(), replacement.iter().copied());
                from = at + replacement.len();
            }
        }
        bytes
    }

    /// Returns whether these bytes may be written. Cuts the link if a loss is due.
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
                link.subscribes |= contains(bytes, b"SUBSCRIBE\r\n");
                let always_lost = state.always_lost.as_ref();
                if always_lost.is_some_and(|pattern| contains(bytes, pattern)) {
                    link.cut();
                }
                let strikes = state
                    .armed
                    .as_ref()
                    .is_some_and(|(_, p)| contains(bytes, p));
                match state.armed.take_if(|_| strikes) {
                    Some((Lost::Request, _)) => link.cut(),
                    // Marked before the request is written, so that the reply cannot arrive
                    // earlier.
                    Some((Lost::Reply, _)) => link.reply_is_lost = true,
                    None => {}
                }
            }
        }
        let passes = !link.cut;
        // Before the server gets it, so that it is there when the client has the reply.
        if passes && state.records && self.direction == Direction::ToServer {
            link.requests.extend_from_slice(bytes);
        }
        passes
    }
}

fn contains(bytes: &[u8], pattern: &[u8]) -> bool {
    pattern.is_empty() || position(bytes, pattern).is_some()
}

fn position(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    let mut windows = bytes.windows(pattern.len());
    windows.position(|window| window == pattern)
}
