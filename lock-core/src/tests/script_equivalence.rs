//! Compares the lock state machine with the Lua scripts. Given the same commands and the same clock,
//! both have to give the same replies, the same notifications and the same keys. The scripts run on a
//! real server whose clock the test controls.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use lock_protocol::clock::ServerMs;
use lock_protocol::codec::native::{parse_acquire, parse_release, parse_renewal};
use lock_protocol::codec::operators::{parse_force, parse_inspect, seen_argument};
use lock_protocol::inspection::{INSPECTED_MEMBERS, INSPECTED_WAITERS, ReadTime, SeenKey};
use lock_protocol::kind::Kind;
use lock_protocol::lock_state::{
    AcquireCommand, AcquireReply, Env, Expiring, ForceCommand, ForceMode, KeyValue, Purpose,
    ReleaseCommand, RenewCommand, RenewReply,
};
use lock_protocol::resp::{Replies, Reply};
use lock_protocol::scripts::{ACQUIRE, FORCE_RELEASE, INSPECT, RELEASE, RENEW, ScriptForm};
use lock_protocol::wire::WireNotification;

mod grants;
mod invariants;
mod sides;
mod steps;

use self::sides::{Model, Server, owner_id};
use self::steps::{Foreign, Seen, Step, Wait, steps};

/// The start of the clock in each sequence, in microseconds.
const START: u64 = 1_700_000_000_000_000;
const KEYS: [&str; 5] = [
    "lock:a",
    "{lock:a}:q",
    "{lock:a}:f",
    "{lock:a}:g",
    "{lock:a}:h",
];
/// The first two channels have a subscriber.
const CHANNELS: [&str; 3] = ["c0", "c1", "silent"];
const OWNERS: usize = 5;

/// Returns the text of a reply that is one string.
fn text_of(reply: &redis::Value) -> Option<&[u8]> {
    match reply {
        redis::Value::BulkString(text) => Some(text),
        _ => None,
    }
}

/// Returns a reply of numbers and strings as the server has sent it.
fn bytes_of(reply: &redis::Value) -> Vec<u8> {
    match reply {
        redis::Value::Int(number) => format!(":{number}\r\n").into_bytes(),
        redis::Value::BulkString(text) => {
            let head = format!("${}\r\n", text.len()).into_bytes();
            [&head, &text[..], b"\r\n"].concat()
        }
        redis::Value::Array(parts) => {
            let head = format!("*{}\r\n", parts.len()).into_bytes();
            parts
                .iter()
                .fold(head, |all, part| [all, bytes_of(part)].concat())
        }
        other => panic!("{other:?}"),
    }
}

fn first(bytes: &[u8]) -> Reply<'_> {
    Replies::new(bytes).next().unwrap()
}

/// Runs one step on both sides, and returns the replies as text.
#[expect(clippy::too_many_lines, reason = "one arm for each kind of step")]
fn step(
    server: &mut Server,
    model: &mut Model,
    step: &Step,
) -> (String, String, Vec<WireNotification>) {
    let micros = server.clock.micros();
    let now_ms = micros / 1000;
    let env = Env {
        now_us: micros,
        has_subscriber: &|channel| channel != CHANNELS[2],
    };
    match step {
        Step::Acquire {
            who,
            ttl_ms,
            floor_ahead_us,
            not_after_ms,
            wait,
            lead_us,
            entry_from_history,
            names_earlier,
            max_queue,
            kind,
            purpose,
        } => {
            let entry = wait
                .as_ref()
                .map(|wait| model.entry(*who, now_ms, wait, *kind, *entry_from_history));
            let earlier = match (&entry, model.histories.get(who)) {
                (Some(_), Some(history)) if *names_earlier => history[..history.len() - 1].to_vec(),
                _ => Vec::new(),
            };
            let label = format!("w {who}");
            let command = AcquireCommand {
                owner_id: owner_id(*who),
                ttl_ms: *ttl_ms,
                floor_us: micros.saturating_add_signed(*floor_ahead_us),
                not_after_ms: ServerMs::new(now_ms.saturating_add_signed(*not_after_ms)),
                label: &label,
                entry: entry.as_ref(),
                lead_us: *lead_us,
                kind: *kind,
                purpose: *purpose,
                earlier: &earlier,
                max_queue: *max_queue,
            };
            let mut args = vec![
                command.owner_id.to_string(),
                command.ttl_ms.to_string(),
                command.floor_us.to_string(),
                command.not_after_ms.to_string(),
                label.clone(),
                entry.as_ref().map(ToString::to_string).unwrap_or_default(),
                lead_us.to_string(),
                match purpose {
                    Purpose::Acquire => kind.wire().to_string(),
                    Purpose::Downgrade => ">r".to_owned(),
                    Purpose::Exchange(from) => format!(">{from}"),
                },
            ];
            // The client leaves out the last arguments that have their defaults.
            let is_exchange = matches!(purpose, Purpose::Exchange(_));
            let is_limited = max_queue.is_some();
            if earlier.is_empty()
                && *lead_us == 0
                && !kind.is_shared()
                && !is_exchange
                && !is_limited
            {
                args.truncate(if entry.is_some() { 6 } else { 5 });
            }
            args.extend(max_queue.map(|most| format!("max {most}")));
            args.extend(earlier.iter().map(ToString::to_string));
            let reply = server.run(ACQUIRE.of(server.is_sharded), &KEYS, &args);
            let (reply, server_us) = parse_acquire(text_of(&reply)).unwrap();
            assert_eq!(server_us, micros);
            let (expected, notifications) = model.lock_state.acquire(&command, &env);
            let is_refused = match expected {
                AcquireReply::Full { .. } => true,
                AcquireReply::More => max_queue.is_some(),
                _ => false,
            };
            model.refused = is_refused.then(|| owner_id(*who).short());
            if let AcquireReply::Busy { .. } = expected {
                // An owner that got this reply has no entry in the queue.
                model.histories.remove(who);
            }
            (format!("{reply:?}"), format!("{expected:?}"), notifications)
        }
        Step::Release {
            who,
            grace_ms,
            min_hold_ms,
            done_ms,
            floor_ahead_us,
            lead_us,
            kind,
        } => {
            let label = format!("w {who}");
            let entries = model.histories.remove(who).unwrap_or_default();
            let command = ReleaseCommand {
                owner_id: owner_id(*who),
                floor_us: micros.saturating_add_signed(*floor_ahead_us),
                grace_ms: *grace_ms,
                min_hold_ms: *min_hold_ms,
                done_ms: *done_ms,
                lead_us: *lead_us,
                label: &label,
                kind: *kind,
                entries: &entries,
            };
            let mut args = vec![
                command.owner_id.to_string(),
                command.floor_us.to_string(),
                grace_ms.to_string(),
                lead_us.to_string(),
                match done_ms {
                    0 => min_hold_ms.to_string(),
                    period_ms => format!("done {period_ms}"),
                },
                label.clone(),
                kind.wire().to_string(),
            ];
            args.extend(entries.iter().map(ToString::to_string));
            // A plain release leaves out what follows, and gets no time when there is no queue.
            let keeps = *min_hold_ms > 0 || *done_ms > 0;
            let is_plain = entries.is_empty() && !keeps && !kind.is_shared();
            if is_plain {
                args.truncate(if *lead_us == 0 { 3 } else { 4 });
            }
            let reply = server.run(RELEASE.of(server.is_sharded), &KEYS, &args);
            let (reply, server_us) = parse_release(text_of(&reply)).unwrap();
            let may_omit_time = is_plain && model.lock_state.queue.is_none();
            assert!(server_us == Some(micros) || may_omit_time && server_us.is_none());
            let (expected, notifications) = model.lock_state.release(&command, &env);
            (format!("{reply:?}"), format!("{expected:?}"), notifications)
        }
        Step::Renew { who, ttl_ms, kind } => {
            let label = format!("w {who}");
            let mut args = vec![owner_id(*who).to_string(), ttl_ms.to_string()];
            let mut keys = vec![KEYS[0]];
            if kind.is_shared() {
                args.extend([String::new(), label.clone(), kind.wire().to_string()]);
                keys.push(KEYS[4]);
            }
            let reply = server.run(&RENEW, &keys, &args);
            let (reply, found_value, _) = parse_renewal(text_of(&reply)).unwrap();
            let command = RenewCommand {
                owner_id: owner_id(*who),
                ttl_ms: *ttl_ms,
                label: &label,
                kind: *kind,
            };
            let expected = model.lock_state.renew(&command, env.now_ms());
            let refused = expected == RenewReply::NotOwner;
            let found = refused.then(|| model.found(env.now_ms())).flatten();
            (
                format!("{:?}", (reply, found_value)),
                format!("{:?}", (expected, found)),
                Vec::new(),
            )
        }
        Step::ForceRelease {
            mode,
            token,
            seen,
            floor_ahead_us,
        } => {
            let token = token.then(|| model.token()).flatten();
            let seen = seen.and_then(|seen| model.seen(seen, env.now_ms()));
            let command = ForceCommand {
                mode: *mode,
                floor_us: micros.saturating_add_signed(*floor_ahead_us),
                lead_us: 0,
                label: "revoked by ops",
                token,
                seen: seen.as_ref(),
                longest_ms: u64::MAX,
            };
            let mode = match mode {
                ForceMode::Revoke => "revoke",
                ForceMode::Now => "now",
                ForceMode::Grant => "grant",
            };
            let token = token.map_or_else(String::new, |token| token.to_string());
            let floor = command.floor_us.to_string();
            let seen = seen_argument(seen.as_ref());
            let seen = String::from_utf8(seen).expect("the model has only text");
            let args = [mode, &floor, "0", command.label, &token, "", &seen].map(str::to_owned);
            let reply = server.run(FORCE_RELEASE.of(server.is_sharded), &KEYS, &args);
            let (reply, server_us) = parse_force(first(&bytes_of(&reply)), "string").unwrap();
            assert_eq!(server_us, micros);
            let (expected, notifications) = model.lock_state.force_release(&command, &env);
            (format!("{reply:?}"), format!("{expected:?}"), notifications)
        }
        Step::Inspect => {
            let (waiters, members) = (INSPECTED_WAITERS, INSPECTED_MEMBERS);
            let args = [waiters.to_string(), "digest".into(), members.to_string()];
            let keys = [KEYS[0], KEYS[1], KEYS[4]];
            let reply = server.run(&INSPECT, &keys, &args);
            let (reply, _) = parse_inspect(first(&bytes_of(&reply))).unwrap();
            let expected = model.lock_state.inspect(ReadTime::of_server(micros));
            model.inspected = Some(SeenKey::of(&expected.content));
            (format!("{reply:?}"), format!("{expected:?}"), Vec::new())
        }
        Step::ClockToEnd { number, offset_us } => {
            let ends = model.lock_state.holders.iter();
            let ends = ends.flat_map(|holders| holders.value.values());
            let mut ends: Vec<u64> = ends.map(|end| end.as_u64()).collect();
            ends.sort_unstable();
            if let Some(end) = ends.get(*number) {
                server.clock.set(end * 1000 + offset_us);
            }
            (String::new(), String::new(), Vec::new())
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
        Foreign::UnknownGroup(ttl_ms) => {
            let text = "lks:z 1 2 w";
            server.command(&["SET", KEYS[0], text, "PX", &ttl_ms.to_string()]);
            lock_state.key = Some(Expiring {
                value: KeyValue::Foreign(text.into()),
                expires_ms: Some(ServerMs::new(now_ms + ttl_ms)),
            });
        }
        Foreign::LoseHolders => {
            server.command(&["DEL", KEYS[4]]);
            lock_state.holders = None;
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
        let before = model.lock_state.clone();
        let (answered, expected, notifications) = step(server, &mut model, one);
        prop_assert_eq!(answered, expected, "step {}: {:?}", number, one);
        let expected: Vec<_> = notifications.iter().map(ToString::to_string).collect();
        let published = server.notifications();
        let audible: Vec<_> = expected
            .iter()
            .filter(|text| published.contains(text) || !silent(&model, text))
            .cloned()
            .collect();
        prop_assert_eq!(
            published,
            audible,
            "notifications of step {}: {:?}",
            number,
            one
        );
        let now_us = server.clock.micros();
        prop_assert_eq!(
            server.state(),
            model.state(now_us),
            "keys after step {}: {:?}",
            number,
            one
        );
        let now = ServerMs::from_micros(now_us);
        invariants::check(&before, one, &notifications, &model.lock_state, now)?;
    }
    Ok(())
}

/// Whether a notification went to the channel without a subscriber.
fn silent(model: &Model, text: &str) -> bool {
    let Some(notification) = WireNotification::parse(text) else {
        return false;
    };
    if let WireNotification::Head { to, .. } = notification
        && model.refused == Some(to)
    {
        return true;
    }
    model
        .lock_state
        .queue
        .iter()
        .flat_map(|queue| queue.value.values())
        .any(|entry| match notification {
            WireNotification::Grant { owner_id, .. } => {
                entry.owner_id == owner_id && *entry.channel == *CHANNELS[2]
            }
            WireNotification::Head { to, .. } => {
                entry.owner_id.short() == to && *entry.channel == *CHANNELS[2]
            }
        })
}

#[test]
fn scripts_and_lock_state_give_the_same_replies() {
    let sequences = std::env::var("LOCK_EQUIVALENCE_SEQUENCES")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(2_000);
    compare(Server::start(), sequences);
}

/// On a server with 32 bits, `%d` cannot print a time or a token.
#[test]
fn scripts_need_no_long_of_64_bits() {
    let mut server = Server::start();
    server.prelude = LONG_OF_32_BITS.to_owned();
    compare(server, 200);
}

/// Some services refuse a script that uses a key which the client has not declared.
#[test]
fn scripts_use_only_declared_keys() {
    let mut server = Server::start();
    server.prelude = DECLARED_KEYS_ONLY.to_owned();
    compare(server, 500);
}

/// For servers that refuse the first line of a script, and may not know the options of Redis 7.
#[test]
fn plain_form_gives_the_same_replies() {
    let mut server = Server::start();
    server.form = ScriptForm::Plain;
    compare(server, 200);
}

/// For the nodes of a cluster.
#[test]
fn sharded_form_gives_the_same_replies() {
    compare(Server::start_sharded(), 200);
}

/// What `redis.pcall` hands back after an error differs between engines: it may raise, or return a string, or a table of
/// another form.
#[test]
fn scripts_do_not_rely_on_the_form_of_pcall() {
    for on_error in [
        "error(reply)",
        "return reply.err",
        "return {error = reply.err}",
    ] {
        let mut server = Server::start();
        server.prelude = test_support::lua_of_another_engine(on_error);
        compare(server, 100);
    }
}

const DECLARED_KEYS_ONLY: &str = r"
local redis = (function(own)
  local declared = {}
  for _, key in ipairs(KEYS) do
    declared[key] = true
  end
  local without_keys = {TIME = true, PUBLISH = true, SPUBLISH = true, PUBSUB = true}
  local only_keys = {EXISTS = true, DEL = true, UNLINK = true}
  local function checked(command, ...)
    local words = {...}
    for at = 1, without_keys[command] and 0 or only_keys[command] and #words or 1 do
      if not declared[words[at]] then
        error(command .. ' uses the undeclared key ' .. tostring(words[at]))
      end
    end
  end
  local function call(...)
    checked(...)
    return own.call(...)
  end
  local function pcall(...)
    checked(...)
    return own.pcall(...)
  end
  return setmetatable({call = call, pcall = pcall}, {__index = own})
end)(redis)
";

const LONG_OF_32_BITS: &str = r"
local string = (function(string)
  local own = {}
  for name, value in pairs(string) do
    own[name] = value
  end
  own.format = function(form, ...)
    local numbers, at = {...}, 0
    for kind in string.gmatch(form, '%%[%d.]*(%a)') do
      at = at + 1
      if kind == 'd' and math.abs(tonumber(numbers[at])) >= 2147483648 then
        error('a long of 32 bits cannot hold ' .. numbers[at])
      end
    end
    return string.format(form, ...)
  end
  return own
end)(string)
";

fn compare(server: Server, sequences: u32) {
    let server = RefCell::new(server);
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
