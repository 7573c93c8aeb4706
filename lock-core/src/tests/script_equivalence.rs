//! The table against the scripts: the same commands and the same clock, on a real server whose
//! clock the test holds, give the same answers, the same pushes and the same keys.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use redis::{Cmd, Value};
use test_support::{FrozenClock, RedisServer};

use crate::backend::redis::reply;
use crate::backend::redis::scripts::{ACQUIRE, RELEASE, RENEW, Script};
use crate::protocol::clock::ServerMs;
use crate::protocol::lock_state::{
    AcquireCommand, AcquireReply, Env, Expiring, KeyValue, LockState, ReleaseCommand,
};
use crate::protocol::owner_id::OwnerId;
use crate::protocol::wire::{Mode, QueueEntry, WireNotification};

/// When the clock of each sequence begins, in microseconds.
const START: u64 = 1_700_000_000_000_000;
const KEYS: [&str; 4] = ["lock:a", "{lock:a}:q", "{lock:a}:f", "{lock:a}:g"];
/// Somebody listens on the first two.
const CHANNELS: [&str; 3] = ["c0", "c1", "silent"];
const OWNERS: usize = 5;

#[derive(Clone, Debug)]
enum Step {
    AcquireCommand {
        who: usize,
        ttl_ms: u64,
        floor_ahead_us: i64,
        not_after_ms: i64,
        wait: Option<Wait>,
        lead_us: u64,
        /// As an earlier or a later copy of the entry would be sent.
        entry_from_history: bool,
    },
    ReleaseCommand {
        who: usize,
        grace_ms: u64,
        min_hold_ms: u64,
        floor_ahead_us: i64,
        lead_us: u64,
    },
    Renew {
        who: usize,
        ttl_ms: u64,
    },
    Clock {
        step_us: i64,
    },
    /// What other clients and operators do.
    Foreign(Foreign),
}

#[derive(Clone, Debug)]
struct Wait {
    mode: Mode,
    channel: usize,
    lease_ms: u64,
    gone_in_ms: i64,
}

#[derive(Clone, Debug)]
enum Foreign {
    SetPx(u64),
    SetWithoutExpiry,
    Persist,
    List,
    Delete,
    LoseCounter,
    SetCounter(u64),
    LoseQueue,
    /// Waiters of other managers come into the queue, all at once.
    Crowd {
        count: usize,
        wait: Wait,
        kind: &'static str,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let who = 0..OWNERS;
    let ttl_ms = prop_oneof![Just(100_u64), Just(1_000), Just(30_000), 100..5_000_u64];
    let floor = prop_oneof![4 => Just(-1_000_000_i64), 1 => -5_000_000..5_000_000_i64];
    let mode = prop_oneof![3 => Just(Mode::Subscribed), 1 => Just(Mode::Polling)];
    let wait = (mode, 0..CHANNELS.len(), 100..2_000_u64, -10..20_000_i64).prop_map(
        |(mode, channel, lease_ms, gone_in_ms)| Wait {
            mode,
            channel,
            lease_ms,
            gone_in_ms,
        },
    );
    let lead = prop_oneof![4 => Just(0_u64), 1 => Just(60_000_000)];
    let not_after = prop_oneof![9 => 0..3_000_i64, 1 => -5..1_i64];
    let acquire = (
        who.clone(),
        ttl_ms.clone(),
        floor.clone(),
        not_after,
        proptest::option::weighted(0.7, wait.clone()),
        lead.clone(),
        any::<bool>(),
    )
        .prop_map(
            |(who, ttl_ms, floor_ahead_us, not_after_ms, wait, lead_us, entry_from_history)| {
                Step::AcquireCommand {
                    who,
                    ttl_ms,
                    floor_ahead_us,
                    not_after_ms,
                    wait,
                    lead_us,
                    entry_from_history,
                }
            },
        );
    let grace = prop_oneof![4 => Just(0_u64), 1 => Just(20)];
    let keep = prop_oneof![3 => Just(0_u64), 1 => 1..3_000_u64];
    let release = (who.clone(), grace, keep, floor, lead).prop_map(
        |(who, grace_ms, min_hold_ms, floor_ahead_us, lead_us)| Step::ReleaseCommand {
            who,
            grace_ms,
            min_hold_ms,
            floor_ahead_us,
            lead_us,
        },
    );
    let renew = (who, ttl_ms.clone()).prop_map(|(who, ttl_ms)| Step::Renew { who, ttl_ms });
    let clock = prop_oneof![
        4 => 0..50_000_i64,
        4 => 0..3_000_000_i64,
        1 => 0..700_000_000_i64,
        1 => 0..90_000_000_000_i64,
        2 => -3_000_000..0_i64,
    ]
    .prop_map(|step_us| Step::Clock { step_us });
    let foreign = prop_oneof![
        ttl_ms.prop_map(Foreign::SetPx),
        Just(Foreign::SetWithoutExpiry),
        Just(Foreign::Persist),
        Just(Foreign::List),
        Just(Foreign::Delete),
        Just(Foreign::Delete),
        Just(Foreign::LoseCounter),
        prop_oneof![Just(9_007_199_254_740_990_u64), 1..9_u64].prop_map(Foreign::SetCounter),
        Just(Foreign::LoseQueue),
    ]
    .prop_map(Step::Foreign);
    // Around the number that one call looks at.
    let count = prop_oneof![3 => 1..4_usize, 1 => 98..103_usize, 1 => 190..210_usize];
    let kind = prop_oneof![3 => Just(""), 1 => Just("r"), 1 => Just("4x2")];
    let crowd = (count, wait, kind)
        .prop_map(|(count, wait, kind)| Step::Foreign(Foreign::Crowd { count, wait, kind }));
    vec(
        prop_oneof![16 => acquire, 10 => release, 4 => renew, 8 => clock, 2 => foreign, 1 => crowd],
        1..30,
    )
}

/// The server on one side.
struct Server {
    clock: FrozenClock,
    connection: redis::Connection,
    subscriber: test_support::Connection,
    _process: RedisServer,
}

impl Server {
    fn start() -> Self {
        let clock = FrozenClock::at(START);
        let process = RedisServer::options().clock(&clock).start();
        let client = redis::Client::open(process.url()).unwrap();
        let connection = client.get_connection().unwrap();
        let mut subscriber = process.connect().unwrap();
        for channel in &CHANNELS[..2] {
            subscriber.call(&["SUBSCRIBE", channel]).unwrap();
        }
        Self {
            clock,
            connection,
            subscriber,
            _process: process,
        }
    }

    fn run(&mut self, script: &Script, keys: &[&str], args: &[String]) -> Value {
        let write = |command: &mut Cmd| {
            command.arg(args);
        };
        script
            .by_text(keys, write)
            .query(&mut self.connection)
            .unwrap()
    }

    fn command(&mut self, words: &[&str]) -> Value {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query(&mut self.connection).unwrap()
    }

    /// Everything that was published until now: an answer to a ping stands behind it.
    fn notifications(&mut self) -> Vec<String> {
        self.subscriber.send(&["PING"]).unwrap();
        let mut notifications = Vec::new();
        loop {
            let reply = self.subscriber.receive().unwrap();
            let parts = reply.array();
            match parts[0].text() {
                "message" => notifications.push(parts[2].text().to_owned()),
                "pong" => return notifications,
                other => panic!("{other}"),
            }
        }
    }

    /// What stands in the keys, and until when: in a form that the table can give too.
    fn state(&mut self) -> Vec<String> {
        let mut state = Vec::new();
        let now_ms = i64::try_from(self.clock.micros() / 1000).unwrap();
        for (key, read) in KEYS.into_iter().zip(["GET", "ZRANGE", "GET", "GET"]) {
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

/// The table on the other side.
#[derive(Default)]
struct Model {
    lock_state: LockState,
    histories: BTreeMap<usize, Vec<QueueEntry>>,
    strangers: usize,
}

impl Model {
    fn state(&mut self, now_us: u64) -> Vec<String> {
        self.lock_state.expire(ServerMs::from_micros(now_us));
        let mut state = Vec::new();
        let line = |key: &str, text: String, expires: Option<ServerMs>| {
            let expires = expires.map(ServerMs::as_u64);
            format!("{key} {text} {expires:?}")
        };
        if let Some(Expiring { value, expires_ms }) = &self.lock_state.key {
            let text = match value {
                KeyValue::Native(owner) => owner.to_string(),
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
        state
    }

    fn entry(&mut self, who: usize, now_ms: u64, wait: &Wait, from_history: bool) -> QueueEntry {
        let history = self.histories.entry(who).or_default();
        if from_history && let Some(last) = history.last() {
            return last.clone();
        }
        let entry = wait.entry(who, now_ms, "");
        history.retain(|old| *old != entry);
        history.push(entry.clone());
        entry
    }
}

impl Wait {
    fn entry(&self, who: usize, now_ms: u64, kind: &str) -> QueueEntry {
        QueueEntry {
            owner_id: owner_id(who),
            mode: self.mode,
            kind: kind.to_owned(),
            lease_ms: self.lease_ms,
            expires_at_ms: ServerMs::new(now_ms.saturating_add_signed(self.gone_in_ms)),
            channel: CHANNELS[self.channel].into(),
            label: format!("w {who}"),
        }
    }
}

/// They differ in their first digits too, by which the head of a queue is told.
fn owner_id(who: usize) -> OwnerId {
    let number = who as u128 + 1;
    OwnerId::from_number(number << 96 | number)
}

/// Runs one step on both sides; the answers as text.
fn step(
    server: &mut Server,
    model: &mut Model,
    step: &Step,
) -> (String, String, Vec<WireNotification>) {
    let micros = server.clock.micros();
    let now_ms = micros / 1000;
    let at = Env {
        now_us: micros,
        has_subscriber: &|channel| channel != CHANNELS[2],
    };
    match step {
        Step::AcquireCommand {
            who,
            ttl_ms,
            floor_ahead_us,
            not_after_ms,
            wait,
            lead_us,
            entry_from_history,
        } => {
            let entry = wait
                .as_ref()
                .map(|wait| model.entry(*who, now_ms, wait, *entry_from_history));
            let earlier = match (&entry, model.histories.get(who)) {
                (Some(_), Some(history)) => history[..history.len() - 1].to_vec(),
                _ => Vec::new(),
            };
            let label = format!("w {who}");
            let ask = AcquireCommand {
                owner_id: owner_id(*who),
                ttl_ms: *ttl_ms,
                floor_us: micros.saturating_add_signed(*floor_ahead_us),
                not_after_ms: ServerMs::new(now_ms.saturating_add_signed(*not_after_ms)),
                label: &label,
                entry: entry.as_ref(),
                lead_us: *lead_us,
                earlier: &earlier,
            };
            let mut args = vec![
                ask.owner_id.to_string(),
                ask.ttl_ms.to_string(),
                ask.floor_us.to_string(),
                ask.not_after_ms.to_string(),
                label.clone(),
                entry.as_ref().map(ToString::to_string).unwrap_or_default(),
                lead_us.to_string(),
                String::new(),
            ];
            args.extend(earlier.iter().map(ToString::to_string));
            let reply = server.run(&ACQUIRE, &KEYS, &args);
            let reply = reply::acquire(reply).unwrap();
            assert_eq!(reply.server_us, micros);
            let (answer, notifications) = model.lock_state.acquire(&ask, &at);
            if let AcquireReply::Busy { .. } = answer {
                // Nobody who was told so stands in the queue.
                model.histories.remove(who);
            }
            (
                format!("{:?}", reply.value),
                format!("{answer:?}"),
                notifications,
            )
        }
        Step::ReleaseCommand {
            who,
            grace_ms,
            min_hold_ms,
            floor_ahead_us,
            lead_us,
        } => {
            let entries = model.histories.remove(who).unwrap_or_default();
            let call = ReleaseCommand {
                owner_id: owner_id(*who),
                floor_us: micros.saturating_add_signed(*floor_ahead_us),
                grace_ms: *grace_ms,
                min_hold_ms: *min_hold_ms,
                lead_us: *lead_us,
                entries: &entries,
            };
            let mut args = vec![
                call.owner_id.to_string(),
                call.floor_us.to_string(),
                grace_ms.to_string(),
                min_hold_ms.to_string(),
                lead_us.to_string(),
                "label".to_owned(),
                String::new(),
            ];
            args.extend(entries.iter().map(ToString::to_string));
            let reply = reply::release(server.run(&RELEASE, &KEYS, &args)).unwrap();
            let (answer, notifications) = model.lock_state.release(&call, &at);
            (
                format!("{:?}", reply.value),
                format!("{answer:?}"),
                notifications,
            )
        }
        Step::Renew { who, ttl_ms } => {
            let args = [owner_id(*who).to_string(), ttl_ms.to_string()];
            let reply = reply::renew(server.run(&RENEW, &KEYS[..1], &args)).unwrap();
            let answer = model.lock_state.renew(owner_id(*who), *ttl_ms, at.now_ms());
            (
                format!("{:?}", reply.value),
                format!("{answer:?}"),
                Vec::new(),
            )
        }
        Step::Clock { step_us } => {
            server.clock.set(micros.saturating_add_signed(*step_us));
            (String::new(), String::new(), Vec::new())
        }
        Step::Foreign(foreign) => {
            interfere(server, model, foreign, now_ms);
            (String::new(), String::new(), Vec::new())
        }
    }
}

fn interfere(server: &mut Server, model: &mut Model, foreign: &Foreign, now_ms: u64) {
    let lock_state = &mut model.lock_state;
    lock_state.expire(ServerMs::new(now_ms));
    let foreign_value = |ends: Option<u64>| {
        Some(Expiring {
            value: KeyValue::Foreign("theirs".into()),
            expires_ms: ends.map(ServerMs::new),
        })
    };
    match foreign {
        Foreign::SetPx(ttl_ms) => {
            server.command(&["SET", KEYS[0], "theirs", "PX", &ttl_ms.to_string()]);
            lock_state.key = foreign_value(Some(now_ms + ttl_ms));
        }
        Foreign::SetWithoutExpiry => {
            server.command(&["SET", KEYS[0], "theirs"]);
            lock_state.key = foreign_value(None);
        }
        Foreign::Persist => {
            server.command(&["PERSIST", KEYS[0]]);
            if let Some(key) = &mut lock_state.key {
                key.expires_ms = None;
            }
        }
        Foreign::List => {
            server.command(&["DEL", KEYS[0]]);
            server.command(&["LPUSH", KEYS[0], "x"]);
            lock_state.key = Some(Expiring {
                value: KeyValue::OtherType("list"),
                expires_ms: None,
            });
        }
        Foreign::Delete => {
            server.command(&["DEL", KEYS[0]]);
            lock_state.key = None;
        }
        Foreign::LoseCounter => {
            server.command(&["DEL", KEYS[2]]);
            lock_state.counter = None;
        }
        Foreign::SetCounter(value) => {
            server.command(&["SET", KEYS[2], &value.to_string()]);
            lock_state.counter = Some(Expiring {
                value: *value,
                expires_ms: None,
            });
        }
        Foreign::LoseQueue => {
            server.command(&["DEL", KEYS[1]]);
            lock_state.queue = None;
        }
        Foreign::Crowd { count, wait, kind } => {
            let queue = lock_state.queue.get_or_insert_with(|| Expiring {
                value: BTreeMap::new(),
                expires_ms: None,
            });
            let last = queue.value.last_key_value().map_or(0, |(score, _)| *score);
            let mut command = vec!["ZADD".to_owned(), KEYS[1].to_owned()];
            for score in last + 1..=last + *count as u64 {
                model.strangers += 1;
                let entry = wait.entry(OWNERS + model.strangers, now_ms, kind);
                command.extend([score.to_string(), entry.to_string()]);
                queue.value.insert(score, entry);
            }
            let words: Vec<&str> = command.iter().map(String::as_str).collect();
            server.command(&words);
        }
    }
}

fn sequence(server: &mut Server, steps: &[Step]) -> Result<(), TestCaseError> {
    server.clock.set(START);
    server.command(&["FLUSHALL"]);
    let mut model = Model::default();
    for (number, one) in steps.iter().enumerate() {
        let (answered, expected, notifications) = step(server, &mut model, one);
        prop_assert_eq!(answered, expected, "step {}: {:?}", number, one);
        let expected: Vec<_> = notifications.iter().map(ToString::to_string).collect();
        let published = server.notifications();
        let audible: Vec<_> = expected
            .iter()
            .filter(|text| published.contains(text) || !silent(&model, text))
            .cloned()
            .collect();
        prop_assert_eq!(published, audible, "pushes of step {}: {:?}", number, one);
        let now_us = server.clock.micros();
        prop_assert_eq!(
            server.state(),
            model.state(now_us),
            "keys after step {}: {:?}",
            number,
            one
        );
    }
    Ok(())
}

/// Whether a push went to the channel that nobody listens on.
fn silent(model: &Model, text: &str) -> bool {
    let Some(notification) = WireNotification::parse(text) else {
        return false;
    };
    model
        .lock_state
        .queue
        .iter()
        .flat_map(|queue| queue.value.values())
        .any(|entry| match notification {
            WireNotification::Grant { owner_id, .. } => {
                entry.owner_id == owner_id && entry.channel == CHANNELS[2]
            }
            WireNotification::Head { to, .. } => {
                entry.owner_id.short() == to && entry.channel == CHANNELS[2]
            }
        })
}

#[test]
fn the_scripts_and_the_table_give_the_same_answers() {
    let sequences = std::env::var("LOCK_DIFFERENTIAL_SEQUENCES")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(2_000);
    let server = RefCell::new(Server::start());
    let config = Config {
        cases: sequences,
        failure_persistence: None,
        max_shrink_time: u32::try_from(Duration::from_secs(60).as_millis()).unwrap_or(u32::MAX),
        ..Config::default()
    };
    TestRunner::new(config)
        .run(&steps(), |steps| sequence(&mut server.borrow_mut(), &steps))
        .unwrap();
}
