//! What the locks protect: two counters for each, in the memory of the runner, reached over a
//! local socket.
//!
//! The fenced one refuses every token that is lower than one it has seen, on reads too: an old
//! write could otherwise land between the new holder's read and its write. The unfenced one takes
//! everything, as most resources do.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt};

use crate::event::now;
use crate::history::{Access, AccessKind};

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
}

/// The resource. It serves for as long as its process lives.
#[derive(Debug)]
pub struct Resource {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Resource {
    /// Serves on a free port of this machine.
    ///
    /// # Panics
    ///
    /// When there is no free port.
    pub fn start() -> Self {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port of this machine is free");
        let address = listener.local_addr().expect("it is bound");
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

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// All that was done to it, in order.
    pub fn accesses(&self) -> Vec<Access> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.accesses.clone()
    }
}

impl Drop for Resource {
    fn drop(&mut self) {
        // Wakes the thread that accepts; it finds the state gone.
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

/// What stands for the token of a lock that has none.
const NO_TOKEN: &str = "-";

/// `r KEY TOKEN WORKER HOLD` or `w KEY TOKEN WORKER HOLD FENCED UNFENCED`; answered by
/// `ok FENCED UNFENCED` or `stale HIGHEST`.
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
    let kind = if verb == "w" {
        let (fenced, unfenced) = (number()?, number()?);
        counters.unfenced = unfenced;
        if is_stale {
            AccessKind::StaleWrite { unfenced }
        } else {
            counters.fenced = fenced;
            AccessKind::Write { fenced, unfenced }
        }
    } else if is_stale {
        AccessKind::StaleRead
    } else {
        AccessKind::Read
    };
    let answer = if is_stale {
        format!("stale {}", counters.highest.unwrap_or_default())
    } else {
        format!("ok {} {}", counters.fenced, counters.unfenced)
    };
    state.accesses.push(Access {
        at: now(),
        key: key.to_owned(),
        worker,
        hold,
        token,
        kind,
    });
    Some(answer)
}

/// What a counter said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The values as they are now.
    Values {
        /// Of the fenced counter.
        fenced: u64,
        /// Of the unfenced one.
        unfenced: u64,
    },
    /// The token is too old.
    Stale,
}

/// Under which lock the resource is used.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// The lock.
    pub key: &'static str,
    /// The number of its acquisition in this process.
    pub hold: u64,
    /// Its token, where it has one.
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
    /// A client that connects when it is used.
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
    /// When the runner is gone.
    pub async fn read(&mut self, pass: Pass) -> io::Result<Answer> {
        let line = format!("r {}\n", self.shown(pass));
        self.request(&line).await
    }

    /// Writes both counters.
    ///
    /// # Errors
    ///
    /// When the runner is gone.
    pub async fn write(&mut self, pass: Pass, fenced: u64, unfenced: u64) -> io::Result<Answer> {
        let line = format!("w {} {fenced} {unfenced}\n", self.shown(pass));
        self.request(&line).await
    }

    fn shown(&self, pass: Pass) -> String {
        let Pass { key, hold, token } = pass;
        let token = token.map_or_else(|| NO_TOKEN.to_owned(), |token| token.to_string());
        format!("{key} {token} {} {hold}", self.worker)
    }

    async fn request(&mut self, line: &str) -> io::Result<Answer> {
        // Taken out while it is in use: after a drop in between, the answer to the last question
        // is still on its way, and the next needs another connection.
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
