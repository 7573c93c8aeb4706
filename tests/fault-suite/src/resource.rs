//! The resource that the locks protect: two counters for each part of each lock. They are in the memory
//! of the runner and are reached over a local socket. Most workloads use one part. The writers of the
//! workload `rw` write two, and its readers compare them. Each lock also has a balance, for transfers.
//!
//! The fenced counter refuses every token that is lower than the highest token it has seen. It
//! refuses reads too: otherwise an old write could arrive between the new holder's read and its
//! write. The unfenced counter accepts everything, as most resources do.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use lock_testing::{Access, AccessKind, Nanos};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};

use crate::clock::now;

/// The number of parts of a lock's resource.
const PARTS: usize = 2;

/// The balance of each lock at the beginning: enough for all transfers of a round.
pub const FIRST_BALANCE: u64 = 1 << 40;

#[derive(Debug, Default)]
struct Counters {
    fenced: u64,
    unfenced: u64,
}

#[derive(Debug)]
struct Protected {
    highest: Option<u64>,
    parts: [Counters; PARTS],
    balance: u64,
}

impl Default for Protected {
    fn default() -> Self {
        Self {
            highest: None,
            parts: <[Counters; PARTS]>::default(),
            balance: FIRST_BALANCE,
        }
    }
}

#[derive(Debug, Default)]
struct State {
    protected: BTreeMap<String, Protected>,
    accesses: Vec<Access>,
    unfenced_accesses: Vec<Access>,
    postings: Vec<Posting>,
}

/// One side of a transfer: a change of one balance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Posting {
    /// When the resource received it.
    pub at: Nanos,
    /// The lock.
    pub key: String,
    /// The process of the client.
    pub process: u32,
    /// The number of the acquisition of this lock.
    pub acquisition: u64,
    /// The number that both sides of a transfer have.
    pub transfer: u64,
    /// The balance that the client had read.
    pub before: u64,
    /// The balance that the client wrote.
    pub after: u64,
    /// Whether the resource accepted it.
    pub is_accepted: bool,
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

    /// Returns all changes of balances, in order.
    pub fn postings(&self) -> Vec<Posting> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.postings.clone()
    }

    /// Returns the current balances.
    pub fn balances(&self) -> BTreeMap<String, u64> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let balances = state.protected.iter();
        balances
            .map(|(key, of)| (key.clone(), of.balance))
            .collect()
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

/// Parses a request, of which all begin with `VERB KEY TOKEN WORKER HOLD`:
///
/// - `r .. PART` reads both counters of a part, and `w .. PART FENCED UNFENCED` writes them;
/// - `b ..` reads the balance, and `t .. TRANSFER BEFORE AFTER` writes it.
///
/// Replies `ok FENCED UNFENCED`, `ok BALANCE 0` or `stale HIGHEST`.
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
    let state = &mut *state;
    let protected = state.protected.entry(key.to_owned()).or_default();
    let is_stale = token < protected.highest;
    protected.highest = protected.highest.max(token);
    let highest = protected.highest.unwrap_or_default();
    let values = match verb {
        "b" => (protected.balance, 0),
        "t" => {
            let (transfer, before, after) = (number()?, number()?, number()?);
            if !is_stale {
                protected.balance = after;
            }
            state.postings.push(Posting {
                at: now(),
                key: key.to_owned(),
                process: worker,
                acquisition: hold,
                transfer,
                before,
                after,
                is_accepted: !is_stale,
            });
            (protected.balance, 0)
        }
        _ => {
            let part = number()?;
            let counters = protected.parts.get_mut(usize::try_from(part).ok()?)?;
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
            let access = |kind| {
                let mut access = Access::new(now(), key, worker, hold, token, kind);
                access.resource = part;
                access
            };
            state.accesses.push(access(kind));
            state.unfenced_accesses.push(access(unfenced_kind));
            (counters.fenced, counters.unfenced)
        }
    };
    Some(if is_stale {
        format!("stale {highest}")
    } else {
        format!("ok {} {}", values.0, values.1)
    })
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
    /// The part of the resource.
    pub part: u64,
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
        let line = format!("r {} {}\n", self.shown(pass), pass.part);
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
        let (shown, part) = (self.shown(pass), pass.part);
        let line = format!("w {shown} {part} {fenced} {unfenced}\n");
        self.request(&line).await
    }

    /// Reads the balance. Returns `None` if the token is too old.
    ///
    /// # Errors
    ///
    /// Fails if the runner has ended.
    pub async fn balance(&mut self, pass: Pass<'_>) -> io::Result<Option<u64>> {
        let line = format!("b {}\n", self.shown(pass));
        let answer = self.request(&line).await?;
        Ok(match answer {
            Answer::Values { fenced, .. } => Some(fenced),
            Answer::Stale => None,
        })
    }

    /// Writes the balance, as one side of a transfer.
    ///
    /// # Errors
    ///
    /// Fails if the runner has ended.
    pub async fn post(
        &mut self,
        pass: Pass<'_>,
        transfer: u64,
        before: u64,
        after: u64,
    ) -> io::Result<Answer> {
        let line = format!("t {} {transfer} {before} {after}\n", self.shown(pass));
        self.request(&line).await
    }

    fn shown(&self, pass: Pass<'_>) -> String {
        let Pass {
            key, hold, token, ..
        } = pass;
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
