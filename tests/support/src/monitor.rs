//! Records the commands of a server with MONITOR.

use std::io::{self, BufRead, BufReader};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::janitor;
use crate::resp::{Connection, Reply};

/// Bound on the wait for the end mark, which takes one round trip.
const END_MARK: Duration = Duration::from_secs(10);

/// An active recording.
#[derive(Debug)]
pub struct Monitor {
    address: SocketAddr,
    password: Option<String>,
    stream: TcpStream,
    lines: Receiver<String>,
    reader: Option<JoinHandle<()>>,
}

impl Monitor {
    pub(crate) fn start(address: SocketAddr, password: Option<String>) -> io::Result<Self> {
        let mut connection = Connection::open(address, password.as_deref())?;
        if let Reply::Error(line) = connection.call(&["MONITOR"])? {
            return Err(io::Error::other(line));
        }
        let reader = connection.into_stream();
        let stream = reader.get_ref().try_clone()?;
        // A server without commands is no failure.
        stream.set_read_timeout(None)?;
        let (sender, lines) = mpsc::channel();
        let reader = thread::spawn(move || {
            let mut reader: BufReader<TcpStream> = reader;
            let mut line = Vec::new();
            while matches!(reader.read_until(b'\n', &mut line), Ok(1..)) {
                if sender
                    .send(String::from_utf8_lossy(&line).trim_end().to_owned())
                    .is_err()
                {
                    break;
                }
                line.clear();
            }
        });
        Ok(Self {
            address,
            password,
            stream,
            lines,
            reader: Some(reader),
        })
    }

    /// Ends the recording. It holds every command that the server executed before this call. If the
    /// server is down, it holds the commands that the server reported until then.
    ///
    /// # Panics
    ///
    /// Panics if the server is up and does not report within 10 s.
    #[track_caller]
    pub fn stop(self) -> Recording {
        // The server reports in the order of execution, so all earlier commands have arrived when
        // the mark arrives.
        let mark = format!("end-of-recording-{:016x}", janitor::random());
        let marked = Connection::open(self.address, self.password.as_deref())
            .and_then(|mut connection| connection.call(&["ECHO", &mark]))
            .is_ok();
        let started = Instant::now();
        let mut commands = Vec::new();
        loop {
            match self
                .lines
                .recv_timeout(END_MARK.saturating_sub(started.elapsed()))
            {
                Ok(line) if line.contains(&mark) => {
                    // The connection that sent the mark may have sent AUTH first.
                    if let Some(end) = Command::parse(&line) {
                        commands.retain(|command: &Command| command.source != end.source);
                    }
                    break;
                }
                Ok(line) => commands.extend(Command::parse(&line)),
                Err(RecvTimeoutError::Timeout) if marked => {
                    panic!("MONITOR did not report within {END_MARK:?}")
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        Recording { commands }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

/// The commands that a server executed, in order.
#[derive(Clone, Debug)]
pub struct Recording {
    commands: Vec<Command>,
}

impl Recording {
    /// Returns all commands, including those of scripts.
    pub fn all(&self) -> &[Command] {
        &self.commands
    }

    /// Returns the commands that clients sent: those that cost a round trip.
    pub fn from_clients(&self) -> impl Iterator<Item = &Command> {
        self.commands
            .iter()
            .filter(|command| !command.is_from_script())
    }

    /// Returns how many client commands contain `word`, such as the name of a lock.
    pub fn client_commands_about(&self, word: &str) -> usize {
        self.from_clients()
            .filter(|command| command.words.iter().any(|w| w.contains(word)))
            .count()
    }
}

/// One command of a [`Recording`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The address of the client, or `lua`.
    pub source: String,
    /// The number of the database.
    pub database: u32,
    /// The name of the command and its arguments; bytes that are not UTF-8 are replaced.
    pub words: Vec<String>,
}

impl Command {
    /// Returns the name in capitals.
    pub fn name(&self) -> String {
        self.words
            .first()
            .map(|name| name.to_uppercase())
            .unwrap_or_default()
    }

    /// Returns whether a script issued the command.
    pub fn is_from_script(&self) -> bool {
        self.source == "lua"
    }

    /// Parses `+1700000000.123456 [0 127.0.0.1:50000] "SET" "key" "value"`.
    fn parse(line: &str) -> Option<Self> {
        let (_, rest) = line.split_once(" [")?;
        let (origin, words) = rest.split_once("] ")?;
        let (database, source) = origin.split_once(' ')?;
        Some(Self {
            source: source.to_owned(),
            database: database.parse().ok()?,
            words: parse_words(words.as_bytes()),
        })
    }
}

/// Removes the server's quoting.
fn parse_words(line: &[u8]) -> Vec<String> {
    let mut words = Vec::new();
    let mut bytes = line.iter().copied();
    while let Some(byte) = bytes.next() {
        if byte != b'"' {
            continue;
        }
        let mut word = Vec::new();
        while let Some(byte) = bytes.next() {
            word.push(match byte {
                b'"' => break,
                b'\\' => match bytes.next() {
                    Some(b'n') => b'\n',
                    Some(b'r') => b'\r',
                    Some(b't') => b'\t',
                    Some(b'a') => 0x07,
                    Some(b'b') => 0x08,
                    Some(b'x') => {
                        let digits = [bytes.next(), bytes.next()];
                        digits.into_iter().flatten().fold(0, |value: u8, digit| {
                            let digit = char::from(digit).to_digit(16).unwrap_or(0);
                            value << 4 | u8::try_from(digit).unwrap_or(0)
                        })
                    }
                    Some(other) => other,
                    None => break,
                },
                other => other,
            });
        }
        words.push(String::from_utf8_lossy(&word).into_owned());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::Command;

    #[test]
    fn parse_removes_the_quoting() {
        let line = r#"+17.5 [3 127.0.0.1:50000] "set" "a \"b\"\\" "\x00\r\n""#;
        let command = Command::parse(line).unwrap();
        assert_eq!(command.database, 3);
        assert_eq!(command.source, "127.0.0.1:50000");
        assert_eq!(command.name(), "SET");
        assert_eq!(command.words[1..], ["a \"b\"\\", "\0\r\n"]);
    }

    #[test]
    fn parse_distinguishes_scripts_from_clients() {
        assert!(
            Command::parse(r#"+17.5 [0 lua] "get" "k""#)
                .unwrap()
                .is_from_script()
        );
        assert!(
            !Command::parse(r#"+17.5 [0 [::1]:6379] "lua""#)
                .unwrap()
                .is_from_script()
        );
        assert_eq!(Command::parse("OK"), None);
    }
}
