//! The resource that the locks protect: two counters for each lock. They are in the memory of the
//! runner and are reached over a local socket.
//!
//! The fenced counter refuses every token that is lower than the highest token it has seen. It
//! refuses reads too: otherwise an old write could arrive between the new holder's read and its
//! write. The unfenced counter accepts everything, as most resources do.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use lock_testing::{Access, AccessKind};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};

use crate::clock::now;

#[derive(Debug, Default)]
struct Counters {
    highest: Option<u64>,
    fenced: u64,
    unfenced: u64,
}

#[derive(Debug, Default)]
struct State {
    counters: BTreeMap<String, Counters>,
    accesses: Vec<Access>,
    unfenced_accesses: Vec<Access>,
}

/// The resource. It serves as long as its process lives.
#[derive(Debug)]
pub struct Resource {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Resource {
    /// Starts to serve on a free port of this machine.
    ///
    /// # Panics
    ///
    /// Panics if no port is free.
    pub fn start() -> Self {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port of this machine is free");
        let address = listener.local_addr().expect("the listener is bound");
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::downgrade(&state);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Some(state)) = (client, shared.upgrade()) else {
                    break;
                };
                thread::spawn(move || serve(&client, &state));
            }
        });
        Self { address, state }
    }

    /// Returns the address on which the resource listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns all accesses to the fenced counters, in order.
    pub fn accesses(&self) -> Vec<Access> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.accesses.clone()
    }

    /// Returns all accesses to the unfenced counters, in order.
    pub fn unfenced_accesses(&self) -> Vec<Access> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.unfenced_accesses.clone()
    }
}

impl Drop for Resource {
    fn drop(&mut self) {
        // Wake the accepting thread, so that it finds the state dropped.
        self.state = Arc::default();
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(client: &TcpStream, state: &Mutex<State>) {
    let _ = client.set_nodelay(true);
    for line in BufReader::new(client).lines() {
        let Ok(line) = line else { return };
        let mut answer = answer(state, &line).unwrap_or_else(|| "what?".to_owned());
        answer.push('\n');
        let mut client = client;
        if client.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// Replaces the token of a lock without tokens.
const NO_TOKEN: &str = "-";

/// Parses `r KEY TOKEN WORKER HOLD` or `w KEY TOKEN WORKER HOLD FENCED UNFENCED`. Replies `ok
/// FENCED UNFENCED` or `stale HIGHEST`.
fn answer(state: &Mutex<State>, line: &str) -> Option<String> {
    let mut words = line.split(' ');
    let (verb, key) = (words.next()?, words.next()?);
    let token = match words.next()? {
        NO_TOKEN => None,
        token => Some(token.parse().ok()?),
    };
    let mut number = || words.next()?.parse::<u64>().ok();
    let (worker, hold) = (u32::try_from(number()?).ok()?, number()?);
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    let counters = state.counters.entry(key.to_owned()).or_default();
    let is_stale = token < counters.highest;
    counters.highest = counters.highest.max(token);
    let (mut kind, mut unfenced_kind) = (AccessKind::Read, AccessKind::Read);
    if verb == "w" {
        let (fenced, unfenced) = (number()?, number()?);
        counters.unfenced = unfenced;
        unfenced_kind = AccessKind::Write { value: unfenced };
        kind = AccessKind::Write { value: fenced };
        if is_stale {
            kind = AccessKind::RefusedWrite;
        } else {
            counters.fenced = fenced;
        }
    } else if is_stale {
        kind = AccessKind::RefusedRead;
    }
    let answer = if is_stale {
        format!("stale {}", counters.highest.unwrap_or_default())
    } else {
        format!("ok {} {}", counters.fenced, counters.unfenced)
    };
    let access = |kind| Access::new(now(), key, worker, hold, token, kind);
    state.accesses.push(access(kind));
    state.unfenced_accesses.push(access(unfenced_kind));
    Some(answer)
}

/// The reply of the resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The current values.
    Values {
        /// The value of the fenced counter.
        fenced: u64,
        /// The value of the unfenced counter.
        unfenced: u64,
    },
    /// The token is too old.
    Stale,
}

/// The held lock under which the resource is used.
#[derive(Clone, Copy, Debug)]
pub struct Pass<'a> {
    /// The lock.
    pub key: &'a str,
    /// The number of the acquisition within this process.
    pub hold: u64,
    /// The fencing token, where the lock has one.
    pub token: Option<u64>,
}

/// A client of the resource.
#[derive(Debug)]
pub struct Client {
    address: SocketAddr,
    worker: u32,
    stream: Option<tokio::io::BufReader<tokio::net::TcpStream>>,
}

impl Client {
    /// Creates a client that connects at its first use.
    pub fn new(address: SocketAddr, worker: u32) -> Self {
        Self {
            address,
            worker,
            stream: None,
        }
    }

    /// Reads both counters.
    ///
    /// # Errors
    ///
    /// Fails if the runner has ended.
    pub async fn read(&mut self, pass: Pass<'_>) -> io::Result<Answer> {
        let line = format!("r {}\n", self.shown(pass));
        self.request(&line).await
    }

    /// Writes both counters.
    ///
    /// # Errors
    ///
    /// Fails if the runner has ended.
    pub async fn write(
        &mut self,
        pass: Pass<'_>,
        fenced: u64,
        unfenced: u64,
    ) -> io::Result<Answer> {
        let line = format!("w {} {fenced} {unfenced}\n", self.shown(pass));
        self.request(&line).await
    }

    fn shown(&self, pass: Pass<'_>) -> String {
        let Pass { key, hold, token } = pass;
        let token = token.map_or_else(|| NO_TOKEN.to_owned(), |token| token.to_string());
        format!("{key} {token} {} {hold}", self.worker)
    }

    async fn request(&mut self, line: &str) -> io::Result<Answer> {
        // The connection is taken out while it is in use. After a drop in between, the reply to the
        // last request is still in flight, and the next request needs a new connection.
        let mut stream = if let Some(stream) = self.stream.take() {
            stream
        } else {
            let stream = tokio::net::TcpStream::connect(self.address).await?;
            stream.set_nodelay(true)?;
            tokio::io::BufReader::new(stream)
        };
        stream.write_all(line.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_line(&mut answer).await?;
        self.stream = Some(stream);
        let mut words = answer.split_whitespace();
        let verdict = words.next();
        let mut number = || words.next()?.parse().ok();
        match (verdict, number(), number()) {
            (Some("ok"), Some(fenced), Some(unfenced)) => Ok(Answer::Values { fenced, unfenced }),
            (Some("stale"), Some(_), None) => Ok(Answer::Stale),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, answer)),
        }
    }
}
