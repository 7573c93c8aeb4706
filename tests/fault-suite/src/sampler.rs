//! Samples of the server's keys while a round runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lock_core::dialect::Dialect;
use lock_testing::{HeldLock, Nanos, nanos};
use test_support::{Connection, Reply};

use crate::dialects;
use crate::environment::ADMIN_PATIENCE;
use crate::environment::Environment;

use crate::clock::now;
use crate::history::{History, KeyState, Sample};
use crate::leftovers::{PREFIX, TOKENS};
use crate::worker::LONG_KEYS;
use crate::worker::SHORT_KEYS;

/// The interval between two samples.
const SAMPLE_EVERY: Duration = Duration::from_millis(40);

/// A thread that samples the server's keys periodically.
pub struct Sampler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Sample>>,
}

impl Sampler {
    /// Starts the thread for the server of a round.
    pub fn start(environment: &Environment) -> Self {
        let address = environment.server.address();
        let dialect = environment.crew.dialect;
        let mut connection = None;
        Self::start_with(move |samples| {
            let open = || {
                let connection = Connection::open(address, None).ok()?;
                connection.set_patience(ADMIN_PATIENCE).ok()?;
                Some(connection)
            };
            let Some(mut open_connection) = connection.take().or_else(open) else {
                return;
            };
            if sample(&mut open_connection, dialect, samples).is_some() {
                connection = Some(open_connection);
            }
        })
    }

    /// Starts the thread. `sample` adds one sample of each key, as far as the servers answer.
    pub(crate) fn start_with(mut sample: impl FnMut(&mut Vec<Sample>) + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut samples = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                thread::sleep(SAMPLE_EVERY);
                sample(&mut samples);
            }
            samples
        });
        Self { stop, thread }
    }

    pub(crate) fn end(self) -> Vec<Sample> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the sampler does not panic")
    }
}

/// The remaining time to live of each key.
const EXPIRIES: &str = "local all = {} \
    for i, key in ipairs(KEYS) do all[i] = redis.call('PTTL', key) end \
    return all";

/// The holder of each key that is a hash, and the token beside it. The second half of the keys are counters.
const FIELDS: &str = "local all = {} \
    for i = 1, #KEYS / 2 do \
      local holder = redis.call('HKEYS', KEYS[i])[1] \
      local token = redis.call('GET', KEYS[i + #KEYS / 2]) \
      all[i] = holder and string.sub(holder, 1, 36) .. ' ' .. (token or '-') \
    end \
    return all";

/// The names of all locks, without the prefix of their keys.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    SHORT_KEYS.into_iter().chain(LONG_KEYS)
}

/// Adds a sample of each key, which are all in one server. Returns `None` if it does not reply.
pub(crate) fn sample(
    connection: &mut Connection,
    dialect: Dialect,
    samples: &mut Vec<Sample>,
) -> Option<()> {
    let keys: Vec<String> = names().map(|name| format!("{PREFIX}{name}")).collect();
    let words = reading(dialect, &keys);
    let from = now();
    let reply = connection.call(&words).ok()?;
    let to = now();
    let Reply::Array(values) = reply else {
        // An error reply says nothing about the locks.
        return Some(());
    };
    let mut expiries = Vec::new();
    if dialects::may_leave_unexpiring(dialect) {
        let mut words = vec!["EVAL".to_owned(), EXPIRIES.to_owned()];
        words.push(keys.len().to_string());
        words.extend(keys);
        if let Reply::Array(reply) = connection.call(&words).ok()? {
            expiries = reply;
        }
    }
    for (number, (name, value)) in names().zip(values).enumerate() {
        let state = match &value {
            Reply::Bulk(_) if expiries.get(number) == Some(&Reply::Integer(-1)) => {
                KeyState::Unexpiring
            }
            value => state_of(value),
        };
        samples.push(Sample {
            from,
            to,
            key: name.to_owned(),
            state,
        });
    }
    Some(())
}

/// Returns the command that reads the values of the locks.
fn reading(dialect: Dialect, keys: &[String]) -> Vec<String> {
    let mut words = match dialect {
        // A fenced lock has the last token of its counter.
        Dialect::Redisson { .. } => {
            let keys = (2 * keys.len()).to_string();
            vec!["EVAL".to_owned(), FIELDS.to_owned(), keys]
        }
        _ => vec!["MGET".to_owned()],
    };
    words.extend(keys.iter().cloned());
    if let Dialect::Redisson { .. } = dialect {
        let counters = keys.iter().map(|key| format!("{TOKENS}{{{key}}}"));
        words.extend(counters);
    }
    words
}

/// Returns the state of the key that has this value.
pub(crate) fn state_of(value: &Reply) -> KeyState {
    let Reply::Bulk(value) = value else {
        return KeyState::Free;
    };
    let value = String::from_utf8_lossy(value);
    let token = value.split(' ').nth(1).and_then(|token| token.parse().ok());
    KeyState::Held { token }
}

/// Returns the total time in which keys had no live holder. The holder had released before, was
/// dead, or never learned that it holds the lock.
pub fn orphaned(history: &History) -> Nanos {
    let mut holds: BTreeMap<(&str, Option<u64>), Vec<&HeldLock>> = BTreeMap::new();
    let all = history.held_locks();
    for hold in &all {
        let same = holds.entry((&hold.key, hold.token)).or_default();
        same.push(hold);
    }
    let mut last: BTreeMap<&str, Nanos> = BTreeMap::new();
    let mut total = 0;
    for sample in &history.samples {
        let step = last
            .insert(&sample.key, sample.to)
            .map_or(0, |last| sample.to.saturating_sub(last));
        let token = match sample.state {
            KeyState::Free | KeyState::Divided => continue,
            KeyState::Held { token } => token,
            KeyState::Unexpiring => None,
        };
        let holds_it = |hold: &&HeldLock| {
            // While a release is in flight the server may not have executed it yet.
            let released = hold.release_done.map(|(at, _)| at).or(hold.released);
            let died = history.deaths.get(&hold.process).copied();
            // Without a token, any held lock of that time may be the matching one.
            let lease_end = hold.valid_until.lease_end();
            let over = lease_end.filter(|_| token.is_none());
            let end = released.into_iter().chain(died).chain(over).min();
            let has_begun = token.is_some() || hold.requested <= sample.to;
            has_begun && end.is_none_or(|end| sample.from <= end)
        };
        let same = holds.get(&(sample.key.as_str(), token));
        if !same.is_some_and(|same| same.iter().any(holds_it)) {
            total += step.min(nanos(SAMPLE_EVERY) * 3);
        }
    }
    total
}
