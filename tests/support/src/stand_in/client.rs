//! The threads of one client.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::quirk::{Answer, HelloRefusal, Quirk};
use super::script::{is_script, old_error, script_name, without_expire_options};
use super::{Shared, Upstream};
use crate::resp::{Connection, command_bytes, frame_length, split_commands};

/// How much is written at once of a reply that a client should not read to its end.
const CHUNK: usize = 64 * 1024;

/// What becomes of the next reply.
enum Note {
    Forward,
    /// Lines of a text that begin so are left out.
    WithoutLine(&'static str),
    Replace(&'static str, &'static str),
    /// Errors get the old form, with this hash of the script.
    OldError(String),
    Drip(Duration),
    /// The confirmations of this many subscriptions, or of their ends, which are pushes in RESP3. An own reply waits for
    /// them: a server answers in the order of the commands.
    Confirmations(usize),
    /// There is no reply of the real server.
    Own(Vec<u8>),
    /// There is no reply of the real server.
    Stream(Stream),
    /// These bytes, and then the reply.
    Behind(Vec<u8>),
    /// Neither this command nor a later one gets a reply.
    Silence,
    Close,
}

/// A reply that a client should not read to its end.
struct Stream {
    head: Vec<u8>,
    part: Vec<u8>,
    /// How many bytes of parts come.
    length: u64,
}

impl Stream {
    fn endless(head: Vec<u8>, part: &[u8]) -> Note {
        Note::Stream(Self {
            head,
            part: part.repeat(CHUNK / part.len()),
            length: u64::MAX,
        })
    }

    /// Counts what the connection takes.
    fn write(&self, client: &mut TcpStream, taken: &AtomicU64) -> io::Result<()> {
        client.write_all(&self.head)?;
        let mut left = self.length;
        while left > 0 {
            let length = usize::try_from(left).unwrap_or(usize::MAX);
            let written = client.write(&self.part[..self.part.len().min(length)])?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            left -= written as u64;
            taken.fetch_add(written as u64, Ordering::Relaxed);
        }
        client.write_all(b"\r\n")
    }
}

impl Note {
    fn error(text: &str) -> Self {
        Self::Own(format!("-{text}\r\n").into_bytes())
    }
}

/// The side of a client to which replies are written.
struct Replies {
    client: TcpStream,
    notes: VecDeque<Note>,
    /// The pause before each byte of a push.
    push_pause: Option<Duration>,
    streamed: Arc<AtomicU64>,
}

impl Replies {
    /// Writes what needs no reply of the real server, as far as it is next.
    fn write_own(&mut self) {
        while let Some(note) = self.notes.front() {
            match note {
                Note::Own(_) | Note::Stream(_) | Note::Close => {}
                _ => return,
            }
            let written = match self.notes.pop_front() {
                Some(Note::Own(bytes)) => self.client.write_all(&bytes).is_ok(),
                Some(Note::Stream(stream)) => {
                    stream.write(&mut self.client, &self.streamed).is_ok()
                }
                _ => false,
            };
            if !written {
                let _ = self.client.shutdown(Shutdown::Both);
                return;
            }
        }
    }

    /// Writes a reply of the real server.
    fn write(&mut self, frame: &[u8]) -> bool {
        if frame[0] == b'>' {
            let written = match self.push_pause {
                Some(pause) => self.drip(frame, pause),
                None => self.client.write_all(frame).is_ok(),
            };
            self.confirmed(frame);
            return written;
        }
        if matches!(self.notes.front(), Some(Note::Silence)) {
            return true;
        }
        let note = self.notes.pop_front().unwrap_or(Note::Forward);
        let written = match note {
            Note::Drip(pause) => self.drip(frame, pause),
            Note::Behind(bytes) => self.client.write_all(&[&bytes, frame].concat()).is_ok(),
            note => self.client.write_all(&altered(&note, frame)).is_ok(),
        };
        self.write_own();
        written
    }

    /// Counts a push that confirms a subscription, or the end of one.
    fn confirmed(&mut self, frame: &[u8]) {
        let kind = frame.split(|byte| *byte == b'\n').nth(2);
        if kind.is_some_and(|kind| kind.ends_with(b"subscribe\r"))
            && let Some(Note::Confirmations(left)) = self.notes.front_mut()
        {
            *left -= 1;
            if *left == 0 {
                self.notes.pop_front();
                self.write_own();
            }
        }
    }

    fn drip(&mut self, frame: &[u8], pause: Duration) -> bool {
        frame.iter().all(|byte| {
            thread::sleep(pause);
            self.client.write_all(&[*byte]).is_ok()
        })
    }
}

/// Serves a client in threads of its own.
pub(super) fn serve(
    shared: &Arc<Shared>,
    server: &Upstream,
    ports: [u16; 2],
    mut client: TcpStream,
) {
    let refusal = shared.lock().quirks.iter().find_map(|quirk| match quirk {
        Quirk::RefusesClients(text) => Some(text.clone()),
        _ => None,
    });
    if let Some(text) = refusal {
        let _ = client.write_all(format!("-{text}\r\n").as_bytes());
        return;
    }
    let (Ok(server_side), Ok(kept), Ok(writing)) = (
        TcpStream::connect(server.address),
        client.try_clone(),
        client.try_clone(),
    ) else {
        return;
    };
    let _ = (client.set_nodelay(true), server_side.set_nodelay(true));
    let (number, streamed) = {
        let mut state = shared.lock();
        state.clients.push(kept);
        (state.clients.len(), Arc::clone(&state.streamed))
    };
    let replies = Arc::new(Mutex::new(Replies {
        client: writing,
        notes: VecDeque::new(),
        push_pause: None,
        streamed,
    }));
    let Ok(from_server) = server_side.try_clone() else {
        return;
    };
    {
        let replies = Arc::clone(&replies);
        thread::spawn(move || read_replies(from_server, &replies));
    }
    let side = Side {
        number,
        shared: Arc::clone(shared),
        server: server.clone(),
        ports,
        to_server: server_side,
        replies,
    };
    thread::spawn(move || side.read_commands(client));
}

fn lock(replies: &Mutex<Replies>) -> std::sync::MutexGuard<'_, Replies> {
    replies.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read_replies(mut from_server: TcpStream, replies: &Mutex<Replies>) {
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 64 * 1024]);
    loop {
        while let Some(length) = frame_length(&bytes) {
            let frame: Vec<u8> = bytes.drain(..length).collect();
            if !lock(replies).write(&frame) {
                let _ = from_server.shutdown(Shutdown::Both);
                return;
            }
        }
        let Ok(length @ 1..) = from_server.read(&mut buffer) else {
            let _ = lock(replies).client.shutdown(Shutdown::Both);
            return;
        };
        bytes.extend_from_slice(&buffer[..length]);
    }
}

/// The side of a client from which commands come.
struct Side {
    /// How many clients there were when this one came, with itself.
    number: usize,
    shared: Arc<Shared>,
    server: Upstream,
    ports: [u16; 2],
    to_server: TcpStream,
    replies: Arc<Mutex<Replies>>,
}

impl Side {
    fn read_commands(mut self, mut client: TcpStream) {
        let (mut bytes, mut buffer) = (Vec::new(), vec![0; 64 * 1024]);
        while let Ok(length @ 1..) = client.read(&mut buffer) {
            bytes.extend_from_slice(&buffer[..length]);
            let Ok(commands) = split_commands(&mut bytes) else {
                break;
            };
            for words in commands {
                self.on_command(words);
            }
        }
        let _ = self.to_server.shutdown(Shutdown::Both);
    }

    fn on_command(&mut self, words: Vec<Vec<u8>>) {
        let texts: Vec<_> = words
            .iter()
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect();
        let verb = texts
            .first()
            .map(|it| it.to_uppercase())
            .unwrap_or_default();
        let (quirks, answer) = {
            let mut state = self.shared.lock();
            state.commands.push(texts.clone());
            let answer = state.quirks.iter().rev().find_map(|quirk| match quirk {
                Quirk::Replies(target, answer) if target.matches(&texts, &state.scripts) => {
                    Some(answer.clone())
                }
                _ => None,
            });
            (state.quirks.clone(), answer)
        };
        let note = match answer {
            Some(answer) => of_answer(answer),
            None => self
                .of_quirks(&quirks, &verb, &texts)
                .unwrap_or(Note::Forward),
        };
        let is_own = matches!(
            note,
            Note::Own(_) | Note::Stream(_) | Note::Close | Note::Silence
        );
        // Answered by a push for each channel.
        let is_subscription = verb.ends_with("SUBSCRIBE");
        let mut replies = lock(&self.replies);
        match note {
            Note::Drip(pause) if is_subscription => replies.push_pause = Some(pause),
            Note::Behind(bytes) if is_subscription => drop(replies.client.write_all(&bytes)),
            note if is_own || !is_subscription => {
                replies.notes.push_back(note);
                replies.write_own();
            }
            _ => {}
        }
        if is_subscription && !is_own {
            let channels = words.len().saturating_sub(1).max(1);
            replies.notes.push_back(Note::Confirmations(channels));
        }
        drop(replies);
        if !is_own {
            let words = if quirks.contains(&Quirk::OwnerCommands) {
                as_script(&verb, words)
            } else if quirks.contains(&Quirk::NoExpireOptions) {
                self.as_altered(&verb, words)
            } else {
                words
            };
            let _ = self.to_server.write_all(&command_bytes(&words));
            if is_subscription && !verb.contains("UNSUBSCRIBE") && quirks.contains(&Quirk::Flood) {
                self.flood(&texts[1]);
            }
        }
    }

    /// What the quirks say about a command that is not answered otherwise.
    fn of_quirks(&mut self, quirks: &[Quirk], verb: &str, words: &[String]) -> Option<Note> {
        self.learn_script(verb, words);
        quirks.iter().find_map(|quirk| match (quirk, verb) {
            (Quirk::NoRole, "ROLE") => Some(Note::error(
                "ERR unknown command 'ROLE', with args beginning with: ",
            )),
            (Quirk::OldInfo, "INFO") if words.len() > 2 => Some(Note::error("ERR syntax error")),
            (Quirk::TwoRunIds, "INFO") if self.number.is_multiple_of(2) => {
                Some(Note::Replace("run_id:", "run_id:other-"))
            }
            (Quirk::NoRunId, "INFO") => Some(Note::WithoutLine("run_id:")),
            (Quirk::ClusterDisabledInInfo, "INFO") => {
                Some(Note::Replace("cluster_enabled:1", "cluster_enabled:0"))
            }
            (Quirk::Hello(refusal), "HELLO") => Some(match refusal {
                HelloRefusal::Unknown => Note::error(&format!(
                    "ERR unknown command 'HELLO', with args beginning with: '{}' ",
                    words.get(1).map_or("", |it| it)
                )),
                HelloRefusal::NoPermission => Note::error(
                    "NOPERM User default has no permissions to run the 'hello' command",
                ),
                HelloRefusal::Text(text) => Note::error(text),
                HelloRefusal::Closes => Note::Close,
            }),
            (Quirk::ServerlessCluster, "CLUSTER") if words[1].eq_ignore_ascii_case("SLOTS") => {
                Some(Note::Own(self.slots()))
            }
            (Quirk::PlainScriptsOnly, "EVAL" | "SCRIPT")
                if words.iter().any(|word| word.starts_with("#!")) =>
            {
                Some(Note::error(
                    "ERR Error compiling script (new function): user_script:1: unexpected symbol near '#'",
                ))
            }
            (Quirk::OldScriptErrors, "EVALSHA" | "EVAL") => {
                let hash = if verb == "EVAL" { "0" } else { &words[1] };
                Some(Note::OldError(hash.to_owned()))
            }
            (Quirk::NoExpireOptions, "EXPIRE" | "PEXPIRE" | "EXPIREAT" | "PEXPIREAT")
                if words.len() > 3 =>
            {
                Some(Note::error(&format!(
                    "ERR wrong number of arguments for '{}' command",
                    verb.to_lowercase()
                )))
            }
            (Quirk::OwnerCommands, "COMMAND") => {
                let known = "*1\r\n$5\r\ndelex\r\n".repeat(words.len() - 2);
                Some(Note::Own(format!("*{}\r\n{known}", words.len() - 2).into_bytes()))
            }
            _ => None,
        })
    }

    /// Learns the name of a script.
    fn learn_script(&mut self, verb: &str, words: &[String]) {
        let text = match verb {
            "EVAL" => words.get(1),
            "SCRIPT" if words[1].eq_ignore_ascii_case("LOAD") => words.get(2),
            _ => None,
        };
        let Some(text) = text.filter(|text| is_script(text.as_bytes())) else {
            return;
        };
        let hash = hash_of(&self.server, text);
        let altered = hash_of(&self.server, &without_expire_options(text));
        let mut state = self.shared.lock();
        state.scripts.insert(hash.clone(), script_name(text));
        state.altered.insert(hash, altered);
    }

    /// Returns the command with what the real server runs instead of its script.
    fn as_altered(&self, verb: &str, mut words: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        match verb {
            "EVAL" => {
                let text = String::from_utf8_lossy(&words[1]);
                words[1] = without_expire_options(&text).into_bytes();
            }
            "EVALSHA" => {
                let state = self.shared.lock();
                let hash = String::from_utf8_lossy(&words[1]);
                if let Some(altered) = state.altered.get(&*hash) {
                    words[1] = altered.clone().into_bytes();
                }
            }
            _ => {}
        }
        words
    }

    /// Sends messages to a subscriber until it leaves.
    fn flood(&self, channel: &str) {
        let mut message = b">3\r\n$7\r\nmessage\r\n".to_vec();
        message.extend_from_slice(format!("${}\r\n{channel}\r\n", channel.len()).as_bytes());
        message.extend_from_slice(b"$5\r\nnoise\r\n");
        let replies = Arc::clone(&self.replies);
        let messages = message.repeat(100);
        thread::spawn(move || while lock(&replies).client.write_all(&messages).is_ok() {});
    }

    fn slots(&self) -> Vec<u8> {
        let node = |port: u16, id: char| {
            let id = id.to_string().repeat(40);
            format!("*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$40\r\n{id}\r\n")
        };
        let nodes = node(self.ports[0], 'a') + &node(self.ports[1], 'b');
        format!("*1\r\n*4\r\n:0\r\n:16383\r\n{nodes}").into_bytes()
    }
}

/// Returns the hash of a script. The real server knows the script from then on.
fn hash_of(server: &Upstream, text: &str) -> String {
    let connection = Connection::open(server.address, server.password.as_deref());
    let reply = connection.and_then(|mut it| it.call(&["SCRIPT", "LOAD", text]));
    reply.map_or_else(
        |_| String::new(),
        |reply| match reply.error() {
            Some(_) => String::new(),
            None => reply.text().to_owned(),
        },
    )
}

/// Turns `DELEX` and `SET` with `IFEQ` into scripts, for a real server that does not have them.
fn as_script(verb: &str, words: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    if verb == "DELEX" && words.len() == 4 {
        let script = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
            return redis.call('DEL', KEYS[1]) end return 0";
        return eval(script, &words[1], [words[3].clone()]);
    }
    let condition = words.iter().position(|it| it.eq_ignore_ascii_case(b"IFEQ"));
    let Some(at) = condition.filter(|_| verb == "SET") else {
        return words;
    };
    let script = "local expected = table.remove(ARGV, 1) \
        if redis.call('GET', KEYS[1]) ~= expected then return false end \
        return redis.call('SET', KEYS[1], unpack(ARGV))";
    let others = words.iter().enumerate().skip(2);
    let others = others.filter(|(index, _)| *index != at && *index != at + 1);
    let others = others.map(|(_, word)| word.clone());
    eval(
        script,
        &words[1],
        [words[at + 1].clone()].into_iter().chain(others),
    )
}

fn eval(script: &str, key: &[u8], args: impl IntoIterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    let mut words = vec![b"EVAL".to_vec(), script.into(), b"1".to_vec(), key.to_vec()];
    words.extend(args);
    words
}

fn of_answer(answer: Answer) -> Note {
    match answer {
        Answer::Error(text) => Note::error(&text),
        Answer::Raw(bytes) => Note::Own(bytes),
        Answer::Silence => Note::Silence,
        Answer::Closes => Note::Close,
        Answer::Endless => Stream::endless(b"+".to_vec(), b"without an end"),
        Answer::EndlessItems(count) => Stream::endless(format!("*{count}\r\n").into(), b":1\r\n"),
        Answer::Dripping(pause) => Note::Drip(pause),
        Answer::Behind(bytes) => Note::Behind(bytes),
        Answer::Malformed => Note::Own(b"?what\r\n".to_vec()),
        Answer::Nested(depth) => Note::Own([&b"*1\r\n".repeat(depth)[..], b":1\r\n"].concat()),
        Answer::Giant(length) => Note::Stream(Stream {
            head: format!("${length}\r\n").into(),
            part: vec![b'x'; CHUNK],
            length,
        }),
    }
}

/// The reply of the real server as the client gets it.
fn altered(note: &Note, frame: &[u8]) -> Vec<u8> {
    let edited = |edit: &dyn Fn(&str) -> String| {
        let head = frame
            .iter()
            .position(|byte| *byte == b'\n')
            .map_or(0, |at| at + 1);
        if !matches!(frame[0], b'$' | b'=') || head == frame.len() {
            return frame.to_vec();
        }
        let text = edit(&String::from_utf8_lossy(&frame[head..frame.len() - 2]));
        format!("{}{}\r\n{text}\r\n", char::from(frame[0]), text.len()).into_bytes()
    };
    match note {
        Note::WithoutLine(begin) => edited(&|text| {
            let lines = text.split_inclusive("\r\n");
            lines.filter(|line| !line.starts_with(begin)).collect()
        }),
        Note::Replace(old, new) => edited(&|text| text.replace(old, new)),
        Note::OldError(hash) if frame[0] == b'-' => {
            let line = String::from_utf8_lossy(&frame[1..frame.len() - 2]);
            let old = old_error(&line, hash);
            old.map_or_else(|| frame.to_vec(), |it| format!("-{it}\r\n").into_bytes())
        }
        _ => frame.to_vec(),
    }
}
