//! Records the commands that clients send, and writes them without what is random or depends on the time.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use test_support::fixtures::SOON;
use test_support::resp::{command_bytes, split_commands};
use test_support::{Proxy, RedisServer, StandIn, eventually_async, stand_in};

/// Whether a step sends the same commands in the same order each time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// It does.
    Exact,
    /// A timer decides how often a command is sent, or several tasks send them. Each distinct command is written once,
    /// and they are sorted.
    Any,
    /// As `Any`, and more than one connection may send a command, or not.
    Merged,
}

type Words = Vec<Vec<u8>>;

/// The commands of all clients that connect through a proxy.
pub(crate) struct Recorder {
    pub(crate) server: RedisServer,
    _stand_in: Option<StandIn>,
    pub(crate) proxy: Proxy,
    /// Knows the hash of each script, and is no part of the recording.
    hasher: RedisServer,
    /// The names of the scripts that were seen, by hash.
    scripts: BTreeMap<String, String>,
    /// How many commands of each connection are written already.
    written: Vec<usize>,
    ids: Vec<String>,
    /// What was subscribed to and left. A waiter doesn't wait for that, so no step has it for certain.
    subscriptions: BTreeSet<String>,
    /// What connections to the nodes of a cluster ask from time to time.
    checks: BTreeSet<String>,
    in_cluster: bool,
    text: String,
}

impl Recorder {
    /// The clients connect through the stand-in, if there is one.
    pub(crate) fn start(server: RedisServer, stand_in: Option<StandIn>, heading: &str) -> Self {
        let proxy = match &stand_in {
            Some(stand_in) => Proxy::in_front_of_stand_in(stand_in),
            None => Proxy::in_front_of(&server),
        };
        proxy.record();
        Self {
            server,
            _stand_in: stand_in,
            proxy,
            hasher: RedisServer::start(),
            scripts: BTreeMap::new(),
            written: Vec::new(),
            ids: Vec::new(),
            subscriptions: BTreeSet::new(),
            checks: BTreeSet::new(),
            in_cluster: heading.contains("Cluster"),
            text: format!("{heading}\n"),
        }
    }

    /// Returns what was recorded.
    pub(crate) fn into_text(self) -> String {
        self.text
    }

    /// Begins a section. Owner ids are numbered from 1 in each.
    pub(crate) fn section(&mut self, title: &str) {
        self.ids.clear();
        let _ = write!(self.text, "\n## {title}\n");
    }

    /// Writes that there is nothing to record.
    pub(crate) fn note(&mut self, text: &str) {
        let _ = writeln!(self.text, "({text})");
    }

    /// Waits until clients have sent this many commands that were not written yet and for which `is_expected` holds.
    pub(crate) async fn wait_for(&self, count: usize, is_expected: impl Fn(&[String]) -> bool) {
        let found = |connection: usize| {
            let written = self.written.get(connection).copied().unwrap_or(0);
            let commands = self.commands(connection);
            let new = commands.iter().skip(written);
            new.filter(|words| is_expected(&texts(words))).count()
        };
        eventually_async(SOON, async || {
            (0..self.proxy.accepted()).map(found).sum::<usize>() >= count
        })
        .await;
    }

    /// As [`wait_for`](Self::wait_for) for one command, which may be written already.
    pub(crate) async fn wait_for_any(&self, is_expected: impl Fn(&[String]) -> bool) {
        let is_sent = |connection: usize| {
            let commands = self.commands(connection);
            commands.iter().any(|words| is_expected(&texts(words)))
        };
        eventually_async(SOON, async || (0..self.proxy.accepted()).any(is_sent)).await;
    }

    /// Writes what was sent since the last step, under a title.
    pub(crate) fn step(&mut self, title: &str, order: Order) {
        let _ = writeln!(self.text, "# {title}");
        let mut connections: Vec<(String, Vec<Words>)> = Vec::new();
        for connection in 0..self.proxy.accepted() {
            let commands = self.commands(connection);
            // A connection that is not ready belongs to a later step.
            let Some(kind) = kind_of(&commands) else {
                continue;
            };
            self.written
                .resize(self.written.len().max(connection + 1), 0);
            let from = std::mem::replace(&mut self.written[connection], commands.len());
            let mut new = commands[from..].to_vec();
            let greeting = commands.iter().take_while(|words| !is_name(words)).count();
            let mut at = from;
            new.retain(|words| {
                at += 1;
                at <= greeting || !self.is_check(&kind, words)
            });
            // A heartbeat depends on the time only.
            new.retain(|words| *words != [b"PING"] && !self.is_subscription(&kind, words));
            if !new.is_empty() && !is_unrecorded(&kind) {
                connections.push((kind, new));
            }
        }
        for (_, commands) in &connections {
            for words in commands {
                self.learn(words);
            }
        }
        // In this order whatever task came first.
        connections.sort_by_key(|(kind, commands)| {
            let masked = commands.iter().map(|words| self.masked(words));
            (kind.clone(), masked.collect::<Vec<_>>())
        });
        let mut lines: Vec<(String, Words)> = Vec::new();
        for (kind, mut commands) in connections {
            if order != Order::Exact {
                commands.sort_by_key(|words| self.masked(words));
            }
            lines.extend(commands.into_iter().map(|words| (kind.clone(), words)));
        }
        if order == Order::Merged {
            lines.sort_by_cached_key(|(_, words)| self.masked(words));
        }
        let mut seen = Vec::new();
        for (kind, words) in lines {
            let line = match order {
                Order::Merged => self.line(&words),
                _ => format!("{kind}: {}", self.line(&words)),
            };
            if order == Order::Exact || !seen.contains(&line) {
                let _ = writeln!(self.text, "{line}");
                seen.push(line);
            }
        }
        if seen.is_empty() {
            self.note("nothing");
        }
    }

    /// Keeps the subscriptions for the end, each channel of them.
    fn is_subscription(&mut self, kind: &str, words: &Words) -> bool {
        let is_one = words[0].ends_with(b"SUBSCRIBE");
        for channel in words[1..].iter().filter(|_| is_one) {
            let line = self.masked(&vec![words[0].clone(), channel.clone()]);
            self.subscriptions.insert(format!("{kind}: {line}"));
        }
        is_one
    }

    /// Keeps for the end what each connection to a node of a cluster asks from time to time.
    fn is_check(&mut self, kind: &str, words: &Words) -> bool {
        let text = texts(words).join(" ");
        let checks = [
            "ROLE",
            "TIME",
            "CLUSTER INFO",
            "CLUSTER MYID",
            "CLUSTER SLOTS",
        ];
        let is_one = self.in_cluster && checks.contains(&&*text);
        if is_one && kind == "own:command" {
            self.checks.insert(text);
        }
        is_one
    }

    /// Writes the subscriptions: those to the channel of a manager, and of those to channels of keys the ones that
    /// contain `certain`. A waiter whose lock is free at once may have none. Of the commands that leave a channel, it
    /// writes those that the caller has waited for.
    pub(crate) fn end(&mut self, certain: &str, left: &[&str]) {
        self.section("channels of waiters");
        for line in std::mem::take(&mut self.subscriptions) {
            let is_certain = !line.contains("redisson_lock__channel") || line.contains(certain);
            let verb = line.split(' ').nth(1).unwrap_or_default();
            if is_certain && (!verb.contains("UNSUB") || left.contains(&verb)) {
                let _ = writeln!(self.text, "{line}");
            }
        }
        if self.in_cluster {
            self.section("what is asked from time to time");
            for line in std::mem::take(&mut self.checks) {
                let _ = writeln!(self.text, "{line}");
            }
        }
    }

    /// The complete commands of one connection. Their bytes are those that Redis documents: nothing but their words
    /// has to be compared.
    #[track_caller]
    fn commands(&self, connection: usize) -> Vec<Words> {
        let bytes = self.proxy.requests(connection);
        let mut rest = bytes.clone();
        let commands = split_commands(&mut rest).expect("a client sends RESP");
        let encoded: Vec<u8> = commands.iter().flat_map(|it| command_bytes(it)).collect();
        assert!(bytes.starts_with(&encoded), "the command has an odd form");
        commands
    }

    /// Learns the hash of a script from its text.
    fn learn(&mut self, words: &Words) {
        for word in words.iter().filter(|word| is_script(word)) {
            let load = [b"SCRIPT".to_vec(), b"LOAD".to_vec(), word.clone()];
            let hash = self.hasher.cli(&load).text().to_owned();
            self.scripts.insert(hash, script_name(word));
        }
    }

    /// The command, with one mark for all ids.
    fn masked(&self, words: &Words) -> String {
        self.normal(words, &mut |_| "<id>".to_owned())
    }

    fn line(&mut self, words: &Words) -> String {
        let mut ids = std::mem::take(&mut self.ids);
        let line = self.normal(words, &mut |id| {
            let known = ids.iter().position(|known| known == id);
            let number = known.unwrap_or_else(|| {
                ids.push(id.to_owned());
                ids.len() - 1
            });
            format!("<id {}>", number + 1)
        });
        self.ids = ids;
        line
    }

    fn normal(&self, words: &Words, id: &mut dyn FnMut(&str) -> String) -> String {
        let is_version = words.iter().any(|word| word == b"LIB-VER");
        let words = words.iter().enumerate().map(|(at, word)| {
            if is_version && at == words.len() - 1 {
                return "<version>".to_owned();
            }
            if is_script(word) {
                return format!("<text of {}>", script_name(word));
            }
            let text = word.escape_ascii().to_string();
            if let Some(name) = self.scripts.get(&text) {
                return format!("<hash of {name}>");
            }
            let text = normal_text(&text, id);
            if is_digest(&text) {
                return "<digest>".to_owned();
            }
            if text.is_empty() || text.contains([' ', '"']) {
                format!("\"{text}\"")
            } else {
                text
            }
        });
        words.collect::<Vec<_>>().join(" ")
    }
}

fn texts(words: &Words) -> Vec<String> {
    let texts = words.iter().map(|it| String::from_utf8_lossy(it));
    texts.map(Cow::into_owned).collect()
}

/// What a connection is for, as it names itself.
fn kind_of(commands: &[Words]) -> Option<String> {
    let named = commands.iter().find(|words| is_name(words))?;
    Some(String::from_utf8_lossy(&named[2]).into_owned())
}

fn is_name(words: &Words) -> bool {
    words.len() == 3 && words[1] == b"SETNAME"
}

/// In a cluster the background worker of each manager connects when it gets to it. That of one is recorded.
fn is_unrecorded(kind: &str) -> bool {
    kind.starts_with("other:") || kind.ends_with(":worker") && kind != "own:worker"
}

fn is_script(word: &[u8]) -> bool {
    word.starts_with(b"#!lua") || word.starts_with(b"-- ")
}

fn script_name(text: &[u8]) -> String {
    stand_in::script_name(&String::from_utf8_lossy(text))
}

/// Replaces ids and times.
fn normal_text(text: &str, id: &mut dyn FnMut(&str) -> String) -> String {
    let mut normal = String::new();
    let mut rest = text;
    let mut before = ' ';
    while let Some(next) = rest.chars().next() {
        let digits = rest.len()
            - rest
                .trim_start_matches(|it: char| it.is_ascii_digit())
                .len();
        if let Some(uuid) = rest.get(..36).filter(|text| is_uuid(text)) {
            normal.push_str(&id(uuid));
            rest = &rest[36..];
        } else if digits > 0 && !before.is_ascii_alphanumeric() {
            let (number, after) = rest.split_at(digits);
            normal.push_str(match digits {
                13 => "<ms>",
                16 => "<us>",
                _ if (800_000..=900_000).contains(&number.parse().unwrap_or(0_u64)) => {
                    "<rest of min_hold>"
                }
                _ => number,
            });
            rest = after;
        } else {
            normal.push(next);
            rest = &rest[next.len_utf8()..];
        }
        before = normal.chars().next_back().unwrap_or(' ');
    }
    normal
}

/// That of a value, which the server makes. The zeros are the hash of no script.
fn is_digest(text: &str) -> bool {
    let is_hexadecimal = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.len() == 40 && text.bytes().all(is_hexadecimal) && text.contains(|it| it != '0')
}

fn is_uuid(text: &str) -> bool {
    text.bytes().enumerate().all(|(at, byte)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
    })
}
