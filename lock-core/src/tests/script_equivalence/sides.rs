//! The two sides of the comparison: the scripts on a server, and the lock state machine.

use super::*;
use std::collections::BTreeMap;

use redis::Value;
use test_support::{FrozenClock, RedisServer};

use lock_protocol::clock::ServerMs;
use lock_protocol::fencing_token::FencingToken;
use lock_protocol::inspection::{KeyContent, SeenKey};
use lock_protocol::lock_state::{Expiring, KeyValue, LockState};
use lock_protocol::owner_id::{OwnerId, ShortId};
use lock_protocol::scripts::{Script, ScriptForm};
use lock_protocol::wire::{EntryKind, QueueEntry};

/// The server with the scripts.
pub(super) struct Server {
    pub(super) clock: FrozenClock,
    pub(super) connection: redis::Connection,
    pub(super) subscriber: test_support::Connection,
    /// Lua lines that run before each script.
    pub(super) prelude: String,
    pub(super) form: ScriptForm,
    pub(super) is_sharded: bool,
    pub(super) _process: RedisServer,
}

impl Server {
    pub(super) fn start() -> Self {
        Self::with_notifications(false)
    }

    /// Starts a server whose waiters listen as a cluster's waiters do.
    pub(super) fn start_sharded() -> Self {
        Self::with_notifications(true)
    }

    fn with_notifications(is_sharded: bool) -> Self {
        let clock = FrozenClock::at(START);
        let process = RedisServer::options().clock(&clock).start();
        let client = redis::Client::open(process.url()).unwrap();
        let connection = client.get_connection().unwrap();
        let mut subscriber = process.connect().unwrap();
        let subscribe = if is_sharded {
            "SSUBSCRIBE"
        } else {
            "SUBSCRIBE"
        };
        for channel in &CHANNELS[..2] {
            subscriber.call(&[subscribe, channel]).unwrap();
        }
        Self {
            clock,
            connection,
            subscriber,
            prelude: String::new(),
            form: ScriptForm::Flagged,
            is_sharded,
            _process: process,
        }
    }

    pub(super) fn run(&mut self, script: &Script, keys: &[&str], args: &[String]) -> Value {
        // The first line names the language.
        let (first, rest) = script.text(self.form).split_once('\n').unwrap();
        let source = [first, "\n", &self.prelude, rest].concat();
        let mut command = redis::cmd("EVAL");
        command.arg(source).arg(keys.len()).arg(keys).arg(args);
        command.query(&mut self.connection).unwrap()
    }

    pub(super) fn command(&mut self, words: &[&str]) -> Value {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query(&mut self.connection).unwrap()
    }

    /// Returns all notifications until now. They arrive before the reply to the ping.
    pub(super) fn notifications(&mut self) -> Vec<String> {
        self.subscriber.send(&["PING"]).unwrap();
        let mut notifications = Vec::new();
        loop {
            let reply = self.subscriber.receive().unwrap();
            let parts = reply.array();
            match parts[0].text() {
                "message" | "smessage" => {
                    notifications.extend(parts[2].text().lines().map(str::to_owned));
                }
                "pong" => return notifications,
                other => panic!("{other}"),
            }
        }
    }

    /// Returns the values and expiries of the keys as text, in the same form as [`Model::state`].
    pub(super) fn state(&mut self) -> Vec<String> {
        let mut state = Vec::new();
        let now_ms = i64::try_from(self.clock.micros() / 1000).unwrap();
        for (key, read) in KEYS
            .into_iter()
            .zip(["GET", "ZRANGE", "GET", "GET", "ZRANGE"])
        {
            let mut command = redis::cmd(read);
            command.arg(key);
            if read == "ZRANGE" {
                command.arg(0).arg(-1).arg("WITHSCORES");
            }
            let value: Result<Value, _> = command.query(&mut self.connection);
            let text = match value {
                Ok(Value::Nil) => continue,
                Ok(Value::Array(parts)) if parts.is_empty() => continue,
                Ok(Value::BulkString(text)) => String::from_utf8(text).unwrap(),
                Ok(Value::Array(parts)) => {
                    let parts: Vec<String> = redis::from_redis_value(Value::Array(parts)).unwrap();
                    parts.join("|")
                }
                Ok(other) => panic!("{other:?}"),
                Err(_) => "other type".into(),
            };
            let pttl: i64 = redis::cmd("PTTL")
                .arg(key)
                .query(&mut self.connection)
                .unwrap();
            let expires = (pttl >= 0).then_some(now_ms + pttl);
            state.push(format!("{key} {text} {expires:?}"));
        }
        state
    }
}

/// The lock state machine.
#[derive(Default)]
pub(super) struct Model {
    pub(super) lock_state: LockState,
    pub(super) histories: BTreeMap<usize, Vec<QueueEntry>>,
    pub(super) strangers: usize,
    /// The caller that the last acquire refused. A message to it may have had no reader.
    pub(super) refused: Option<ShortId>,
    /// What the last inspection found in the key.
    pub(super) inspected: Option<SeenKey>,
}

impl Model {
    pub(super) fn state(&mut self, now_us: u64) -> Vec<String> {
        self.lock_state.expire(ServerMs::from_micros(now_us));
        let mut state = Vec::new();
        let line = |key: &str, text: String, expires: Option<ServerMs>| {
            let expires = expires.map(ServerMs::as_u64);
            format!("{key} {text} {expires:?}")
        };
        if let Some(Expiring { value, expires_ms }) = &self.lock_state.key {
            let text = match value {
                KeyValue::Native(owner) => owner.to_string(),
                KeyValue::Shared(group) => group.to_string(),
                KeyValue::Foreign(text) => text.clone(),
                KeyValue::OtherType(_) => "other type".into(),
            };
            state.push(line(KEYS[0], text, *expires_ms));
        }
        if let Some(Expiring { value, expires_ms }) = &self.lock_state.queue {
            let pairs: Vec<_> = value
                .iter()
                .map(|(score, entry)| format!("{entry}|{score}"))
                .collect();
            state.push(line(KEYS[1], pairs.join("|"), *expires_ms));
        }
        if let Some(Expiring { value, expires_ms }) = &self.lock_state.counter {
            state.push(line(KEYS[2], value.to_string(), *expires_ms));
        }
        if let Some(Expiring { expires_ms, .. }) = &self.lock_state.grace {
            state.push(line(KEYS[3], String::new(), *expires_ms));
        }
        if let Some(Expiring { value, expires_ms }) = &self.lock_state.holders {
            // As a zset sorts them: by score, then by text.
            let mut pairs: Vec<_> = value
                .iter()
                .map(|(member, end)| (end.as_u64(), member.to_string()))
                .collect();
            pairs.sort_unstable();
            let pairs: Vec<_> = pairs
                .into_iter()
                .map(|(end, member)| format!("{member}|{end}"))
                .collect();
            state.push(line(KEYS[4], pairs.join("|"), *expires_ms));
        }
        state
    }

    /// Returns what a refused renewal finds in the key.
    pub(super) fn found(&self, now_ms: ServerMs) -> Option<String> {
        match self.lock_state.content(now_ms) {
            KeyContent::Free => None,
            KeyContent::Text(found) => Some(found.holder.value),
            KeyContent::OtherType { kind, .. } => Some(kind),
        }
    }

    /// Returns what an operator has seen in the key.
    pub(super) fn seen(&self, seen: Seen, now_ms: ServerMs) -> Option<SeenKey> {
        match seen {
            Seen::Now => Some(SeenKey::of(&self.lock_state.content(now_ms))),
            Seen::Before => self.inspected.clone(),
            Seen::Free => Some(SeenKey::Free),
            Seen::Foreign => Some(SeenKey::Text(b"of another client".into())),
        }
    }

    /// Returns the token of the last grant. The lock may have another holder, or none.
    pub(super) fn token(&self) -> Option<FencingToken> {
        let counter = self.lock_state.counter.as_ref();
        counter.map(|counter| FencingToken::new(counter.value))
    }

    pub(super) fn entry(
        &mut self,
        who: usize,
        now_ms: u64,
        wait: &Wait,
        kind: Kind,
        from_history: bool,
    ) -> QueueEntry {
        let history = self.histories.entry(who).or_default();
        if from_history
            && let Some(last) = history.last()
            && last.kind == EntryKind::Known(kind)
        {
            return last.clone();
        }
        let entry = wait.entry(who, now_ms, &kind.wire().to_string());
        history.retain(|old| *old != entry);
        history.push(entry.clone());
        entry
    }
}

impl Wait {
    pub(super) fn entry(&self, who: usize, now_ms: u64, kind: &str) -> QueueEntry {
        QueueEntry {
            owner_id: owner_id(who),
            mode: self.mode,
            kind: EntryKind::parse(kind),
            lease_ms: self.lease_ms,
            expires_at_ms: ServerMs::new(now_ms.saturating_add_signed(self.expires_in_ms)),
            channel: CHANNELS[self.channel].into(),
            label: format!("w {who}").into(),
        }
    }
}

/// The ids also differ in their first digits, which a head-of-queue notification carries.
pub(super) fn owner_id(who: usize) -> OwnerId {
    let number = who as u128 + 1;
    OwnerId::from_number(number << 96 | number)
}
