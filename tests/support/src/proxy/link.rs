//! The connections through a proxy, and the settings of each.

use std::collections::VecDeque;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Direction, Lost};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Forward,
    BlackHole,
    Refuse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    Open,
    Held,
    Mute,
}

/// The connection of one client, and the proxy's connection to the server.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) client: TcpStream,
    /// `None` in a black hole.
    pub(super) server: Option<TcpStream>,
    pub(super) gates: [Gate; 2],
    pub(super) queues: [VecDeque<Chunk>; 2],
    /// One for each direction, so that a chunk wakes only the thread that delivers it.
    pub(super) wake: [Arc<Condvar>; 2],
    /// The number of directions that still run.
    pub(super) running: u8,
    pub(super) reply_is_lost: bool,
    pub(super) cut: bool,
    /// The client subscribes to a channel.
    pub(super) subscribes: bool,
    /// What the client has sent since the recording began.
    pub(super) requests: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) due: Instant,
    /// Empty at the end of the stream.
    pub(super) bytes: Vec<u8>,
}

impl Link {
    pub(super) fn cut(&mut self) {
        self.cut = true;
        let _ = self.client.shutdown(Shutdown::Both);
        if let Some(server) = &self.server {
            let _ = server.shutdown(Shutdown::Both);
        }
        self.notify();
    }

    pub(super) fn resume(&mut self) {
        for gate in &mut self.gates {
            if *gate == Gate::Held {
                *gate = Gate::Open;
            }
        }
        self.notify();
    }

    pub(super) fn notify(&self) {
        self.wake.iter().for_each(|wake| wake.notify_one());
    }

    pub(super) fn is_open(&self) -> bool {
        !self.cut && self.running > 0
    }
}

#[derive(Debug)]
pub(super) struct State {
    /// Where new connections lead.
    pub(super) upstream: SocketAddr,
    pub(super) mode: Mode,
    pub(super) delays: [Duration; 2],
    pub(super) armed: Option<(Lost, Vec<u8>)>,
    /// Requests that contain this never arrive.
    pub(super) always_lost: Option<Vec<u8>>,
    /// What to replace, and by what.
    pub(super) replacements: Vec<(Direction, Vec<u8>, Vec<u8>)>,
    pub(super) records: bool,
    /// The pause before each byte to a client.
    pub(super) drip: Option<Duration>,
    /// The beginning of an endless reply, and what comes again and again.
    pub(super) endless: Option<(Vec<u8>, Vec<u8>)>,
    /// What subscribers get without a pause.
    pub(super) noise: Option<Arc<Vec<u8>>>,
    /// Where every second connection leads.
    pub(super) second: Option<SocketAddr>,
    /// In the order of acceptance; never shortened, so that an index stays valid.
    pub(super) links: Vec<Link>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
