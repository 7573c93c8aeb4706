//! A small Redis client, so that the harness sees the exact replies of the server.

use std::fmt::Debug;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Bound on each read and write: long, because it only turns a hang into a failure.
const PATIENCE: Duration = Duration::from_secs(10);

/// A reply of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A status, such as `OK`.
    Status(String),
    /// An error line, such as `WRONGTYPE Operation against ...`.
    Error(String),
    /// A number.
    Integer(i64),
    /// A string of bytes.
    Bulk(Vec<u8>),
    /// No value: a missing key or an aborted transaction.
    Nil,
    /// Several replies.
    Array(Vec<Reply>),
}

impl Reply {
    /// Returns the text of a status or a string.
    ///
    /// # Panics
    ///
    /// Panics on any other reply, and on bytes that are not UTF-8.
    #[track_caller]
    pub fn text(&self) -> &str {
        match self {
            Self::Status(text) => text,
            Self::Bulk(bytes) => std::str::from_utf8(bytes).expect("the reply is UTF-8"),
            other => panic!("the server replied {other:?}, expected a text"),
        }
    }

    /// Returns the number of an integer reply, or of a text that holds a number.
    ///
    /// # Panics
    ///
    /// Panics on any other reply.
    #[track_caller]
    pub fn integer(&self) -> i64 {
        match self {
            Self::Integer(number) => *number,
            other => other
                .text()
                .parse()
                .unwrap_or_else(|_| panic!("the server replied {other:?}, expected a number")),
        }
    }

    /// Returns the replies of an array.
    ///
    /// # Panics
    ///
    /// Panics on any other reply.
    #[track_caller]
    pub fn array(&self) -> &[Reply] {
        match self {
            Self::Array(items) => items,
            other => panic!("the server replied {other:?}, expected an array"),
        }
    }

    /// Returns the value behind a name, in an array of names and values.
    pub fn field(&self, name: &str) -> Option<&str> {
        let Self::Array(flat) = self else {
            return None;
        };
        let mut pairs = flat.chunks_exact(2);
        let pair =
            pairs.find(|pair| matches!(&pair[0], Self::Bulk(it) if it == name.as_bytes()))?;
        Some(pair[1].text())
    }

    /// Returns the line of an error, if this reply is one.
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Error(line) => Some(line),
            _ => None,
        }
    }
}

/// One connection to a server, with RESP2.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// Connects, and authenticates if there is a password.
    ///
    /// # Errors
    ///
    /// Fails if the server does not accept, replies too late, or refuses the password.
    pub fn open(address: SocketAddr, password: Option<&str>) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        let mut connection = Self {
            stream: BufReader::new(stream),
        };
        connection.set_patience(PATIENCE)?;
        if let Some(password) = password
            && let Reply::Error(line) = connection.call(&["AUTH", password])?
        {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, line));
        }
        Ok(connection)
    }

    /// Sets the bound of each later read and write. Defaults to 10 s.
    ///
    /// # Errors
    ///
    /// Fails if the duration is zero.
    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.stream.get_ref().set_read_timeout(Some(patience))?;
        self.stream.get_ref().set_write_timeout(Some(patience))
    }

    /// Sends a command and reads its reply. An error of the server is a reply.
    ///
    /// # Errors
    ///
    /// Fails if the connection fails. The connection is then useless: a reply may still be in
    /// flight.
    pub fn call(&mut self, words: &[impl AsRef<[u8]> + Debug]) -> io::Result<Reply> {
        self.send(words)?;
        self.receive()
    }

    /// Sends a command and does not wait for its reply.
    ///
    /// # Errors
    ///
    /// Fails if the connection fails.
    pub fn send(&mut self, words: &[impl AsRef<[u8]> + Debug]) -> io::Result<()> {
        self.stream.get_mut().write_all(&command_bytes(words))
    }

    /// Reads the next reply.
    ///
    /// # Errors
    ///
    /// Fails if the connection fails or the server does not use RESP2.
    pub fn receive(&mut self) -> io::Result<Reply> {
        let line = self.line()?;
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| garbled(&line))?;
        let number = || rest.parse::<i64>().map_err(|_| garbled(&line));
        Ok(match kind {
            "+" => Reply::Status(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Integer(number()?),
            "$" => match usize::try_from(number()?) {
                Ok(length) => {
                    let mut bytes = vec![0; length + 2];
                    self.stream.read_exact(&mut bytes)?;
                    bytes.truncate(length);
                    Reply::Bulk(bytes)
                }
                Err(_) => Reply::Nil,
            },
            "*" => match usize::try_from(number()?) {
                Ok(length) => Reply::Array(
                    (0..length)
                        .map(|_| self.receive())
                        .collect::<Result<_, _>>()?,
                ),
                Err(_) => Reply::Nil,
            },
            _ => return Err(garbled(&line)),
        })
    }

    pub(crate) fn into_stream(self) -> BufReader<TcpStream> {
        self.stream
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        if !line.ends_with(b"\r\n") {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.truncate(line.len() - 2);
        Ok(String::from_utf8_lossy(&line).into_owned())
    }
}

/// Returns the bytes of a command.
pub fn command_bytes(words: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        let word = word.as_ref();
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Takes the complete commands off the front of what a client has sent, each as its words.
///
/// # Errors
///
/// Fails at bytes that are no array of strings. The inline form is refused, too: no client library uses it.
pub fn split_commands(bytes: &mut Vec<u8>) -> io::Result<Vec<Vec<Vec<u8>>>> {
    let (mut commands, mut taken) = (Vec::new(), 0);
    while let Some((words, length)) = first_command(&bytes[taken..])? {
        commands.push(words);
        taken += length;
    }
    bytes.drain(..taken);
    Ok(commands)
}

/// Returns the words of the first command and its length in bytes; `None` while it is incomplete.
fn first_command(bytes: &[u8]) -> io::Result<Option<(Vec<Vec<u8>>, usize)>> {
    let mut at = 0;
    let header = |at: &mut usize, kind: u8| {
        let rest = &bytes[*at..];
        let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") else {
            return Ok(None);
        };
        let line = String::from_utf8_lossy(&rest[..end]).into_owned();
        let number = line.strip_prefix(char::from(kind));
        let number: usize = number
            .and_then(|number| number.parse().ok())
            .ok_or_else(|| garbled(&line))?;
        *at += end + 2;
        Ok::<_, io::Error>(Some(number))
    };
    let Some(count) = header(&mut at, b'*')? else {
        return Ok(None);
    };
    let mut words = Vec::new();
    for _ in 0..count {
        let Some(length) = header(&mut at, b'$')? else {
            return Ok(None);
        };
        let Some(word) = bytes.get(at..at + length + 2) else {
            return Ok(None);
        };
        words.push(word[..length].to_vec());
        at += length + 2;
    }
    Ok(Some((words, at)))
}

/// Returns the length of the first reply of RESP2 or RESP3; `None` while it is incomplete.
pub(crate) fn frame_length(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(2).position(|pair| pair == b"\r\n")? + 2;
    let number = std::str::from_utf8(&bytes[1..head - 2]).ok();
    let count = number.and_then(|number| number.parse::<usize>().ok());
    let items = match bytes[0] {
        b'$' | b'=' | b'!' => {
            let length = head + count.map_or(0, |count| count + 2);
            return (bytes.len() >= length).then_some(length);
        }
        b'*' | b'~' | b'>' => count.unwrap_or(0),
        b'%' => 2 * count.unwrap_or(0),
        // The attributes stand before the value that they belong to.
        b'|' => 2 * count.unwrap_or(0) + 1,
        _ => 0,
    };
    (0..items).try_fold(head, |at, _| Some(at + frame_length(bytes.get(at..)?)?))
}

fn garbled(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not RESP2: {line:?}"))
}
