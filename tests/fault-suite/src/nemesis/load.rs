//! Nemeses that break nothing and cause extreme load: on the clients, on the queue, and by forged
//! notifications.

use std::sync::mpsc;
use std::thread::{self, sleep};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::{Affected, Context};
use crate::history::SLOTS;
use crate::load::Load;
use crate::worker::LONG_KEYS;
use crate::worker::SHORT_KEYS;

use test_support::Random;
use test_support::{Connection, Reply};

/// Bound on a load. An idle machine needs a tenth of it. The checks judge a late load by the keys
/// that it leaves.
const PATIENCE: Duration = Duration::from_secs(15);

/// Guards that one process drops at the same time.
const GUARDS: usize = 20_000;

/// Callers of all processes that find the server down.
const CALLERS: usize = 5_000;

/// Entries of waiters that do not exist.
const DEAD: usize = 1_000;

impl Context<'_> {
    /// Starts a load in these processes, and calls `meanwhile` until all have completed it.
    fn load(&mut self, slots: &[usize], load: Load, mut meanwhile: impl FnMut(&mut Self)) {
        let begun: Vec<usize> = slots
            .iter()
            .map(|slot| self.environment.crew.loads_done(*slot))
            .collect();
        for slot in slots {
            self.environment.crew.start_load(*slot, load);
        }
        let started = Instant::now();
        let is_done = |context: &Self| {
            let loads_done = slots
                .iter()
                .map(|slot| context.environment.crew.loads_done(*slot));
            loads_done.zip(&begun).all(|(now, before)| now > *before)
        };
        while !is_done(self) && started.elapsed() < PATIENCE {
            meanwhile(self);
            sleep(Duration::from_millis(20));
        }
    }

    pub(super) fn every_slot(&self) -> Vec<usize> {
        (0..self.environment.proxies.len()).collect()
    }
}

/// Runtimes end while their tasks lock and unlock; the manager stays.
pub(super) fn runtimes_dropped(context: &mut Context<'_>) -> Affected {
    let slots = context.random.some(SLOTS as usize, SLOTS as usize);
    let millis = 2_000;
    let cuts = context.random.chance(50);
    context.load(&slots, Load::Runtimes(millis), |context| {
        // In half of the cases the connections end as well.
        if cuts && context.random.chance(5) {
            let slot = *context.random.pick(&slots);
            context.environment.proxies[slot].cut_all();
        }
    });
    Affected::All
}

/// No other holder may lose a lock because of this, and all these locks must soon be free.
pub(super) fn guards_dropped(context: &mut Context<'_>) -> Affected {
    let slot = context.random.below(SLOTS as usize);
    // A typical delay between machines: sequential commands would take minutes.
    let delay = context.random.millis(1, 20);
    context.environment.proxies[slot].delay_round_trip(delay);
    context.load(&[slot], Load::Burst(GUARDS), |_| {});
    let started = Instant::now();
    let is_gone = || {
        let keys = context.admin()?.call(&["KEYS", "lock:burst:*"])?;
        keys.array().is_empty().then_some(())
    };
    while is_gone().is_none() && started.elapsed() < PATIENCE {
        sleep(Duration::from_millis(100));
    }
    context.environment.proxies[slot].forward();
    Affected::All
}

pub(super) fn callers_in_outage(context: &mut Context<'_>) -> Affected {
    let slots = context.every_slot();
    context.environment.server.kill9();
    context.rest(50, 400);
    let down = context.random.millis(400, 1_600);
    let started = Instant::now();
    let mut is_down = true;
    context.load(&slots, Load::Callers(CALLERS / slots.len()), |context| {
        if is_down && started.elapsed() >= down {
            context.environment.server.restart();
            is_down = false;
        }
    });
    if is_down {
        context.environment.server.restart();
    }
    Affected::All
}

/// Every tracing event of the library panics while a network fault causes events.
pub(super) fn subscriber_panics(context: &mut Context<'_>) -> Affected {
    let slots = context.every_slot();
    context.load(&slots, Load::Panics(true), |_| {});
    while context.goes_on() {
        for slot in context.some_slots() {
            context.environment.proxies[slot].cut_all();
        }
        context.rest(20, 300);
        let slot = context.random.below(slots.len());
        context.environment.proxies[slot].black_hole();
        context.rest(300, 1_500);
        context.environment.proxies[slot].forward();
    }
    context.load(&slots, Load::Panics(false), |_| {});
    Affected::All
}

/// Entries of dead waiters are in the queues, before and between the live waiters.
pub(super) fn dead_waiters(context: &mut Context<'_>) -> Affected {
    let keys = [&SHORT_KEYS[..], &LONG_KEYS[..]].concat();
    let mut killed = Vec::new();
    while context.goes_on() {
        for key in &keys {
            let queue = format!("{{lock:{key}}}:q");
            let words = enqueue_dead(context.random, &queue);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            if let Some(mut admin) = context.admin() {
                admin.call(&words);
                // As the library does with a queue that it writes.
                admin.call(&["PEXPIRE", &queue, "60000"]);
            }
        }
        // The waiters have to remove the entries that a release does not remove.
        let slot = context.random.below(SLOTS as usize);
        context.environment.crew.kill(slot);
        killed.push(slot);
        context.rest(200, 800);
        context.environment.crew.spawn(slot);
    }
    Affected::Slots(killed)
}

fn enqueue_dead(random: &mut Random, queue: &str) -> Vec<String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let expires_at = now.expect("the clock is set").as_millis() + 60_000;
    let mut words = vec!["ZADD".to_owned(), queue.to_owned()];
    for _ in 0..DEAD {
        let place = random.below(20);
        let (one, other) = (random.number(), random.number());
        words.push(place.to_string());
        words.push(format!(
            "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x} s 1000 {expires_at} lk1:lock:{one:x} dead:1",
            one >> 32,
            one & 0xffff,
            one >> 20 & 0xfff,
            other & 0xfff,
            other >> 16,
        ));
    }
    words
}

/// Publishes forged notifications as a client that may subscribe and publish, but may not read
/// keys. It sends received messages, changed messages, and random bytes.
pub(super) fn notifications_forged(context: &mut Context<'_>) -> Affected {
    let address = context.environment.server.address();
    let (Ok(mut listener), Ok(mut admin)) = (
        Connection::open(address, None),
        Connection::open(address, None),
    ) else {
        return Affected::All;
    };
    let id = listener
        .call(&["CLIENT", "ID"])
        .map_or(0, |id| id.integer())
        .to_string();
    let _answer = listener.call(&["PSUBSCRIBE", "lk1:*"]);
    let (sender, messages) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            // Runs until the connection is closed below.
            while let Ok(Reply::Array(parts)) = listener.receive() {
                if let [_, _, Reply::Bulk(channel), Reply::Bulk(text)] = parts.as_slice()
                    && !text.is_empty()
                    && sender.send((channel.clone(), text.clone())).is_err()
                {
                    return;
                }
            }
        });
        let mut heard: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        while context.goes_on() {
            heard.extend(messages.try_iter());
            let news = heard.len().saturating_sub(200);
            heard.drain(..news);
            for _ in 0..20.min(heard.len()) {
                let (channel, message) = context.random.pick(&heard).clone();
                let text = forge(context.random, message);
                let words: [&[u8]; 3] = [b"PUBLISH", &channel, &text];
                let _answer = admin.call(&words);
            }
            context.rest(1, 20);
        }
        let _answer = admin.call(&["CLIENT", "KILL", "ID", &id]);
    });
    Affected::All
}

/// Builds a message similar to a received one. It is never a grant that the server could have made.
/// Such a grant needs the owner id of a current waiter, and no message contains one before the
/// server grants the lock.
fn forge(random: &mut Random, mut message: Vec<u8>) -> Vec<u8> {
    let number = |random: &mut Random| {
        let numbers = [0, 1, 1_000, u64::MAX >> 11, u64::MAX >> 1, u64::MAX];
        let number = if random.chance(50) {
            *random.pick(&numbers)
        } else {
            random.number()
        };
        number.to_string().into_bytes()
    };
    match random.below(7) {
        // Replays the message, now or much later.
        0 => {}
        // A grant for the original recipient, as plausible as possible.
        6 => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let now = now.expect("the clock is set").as_micros();
            let words = message.split(|b| *b == b' ');
            let id = String::from_utf8_lossy(words.clone().nth(1).unwrap_or_default());
            let lease = random.pick(&[1_000, 2_000, 3_600_000]);
            message = format!("g {id} {now} {now} {lease}").into_bytes();
        }
        // Changes one of the numbers.
        1 | 2 => {
            let mut words: Vec<Vec<u8>> = message.split(|b| *b == b' ').map(Vec::from).collect();
            let place = random.below(words.len());
            words[place] = number(random);
            message = words.join(&b' ');
        }
        // Flips one bit.
        3 => {
            let at = random.below(message.len());
            message[at] ^= 1 << random.below(8);
        }
        // Keeps the beginning and replaces the rest.
        4 => {
            message.truncate(random.below(message.len()));
            let rest = random.below(40);
            message.extend((0..rest).map(|_| random.number().to_le_bytes()[0]));
        }
        // Random bytes, possibly many.
        _ => {
            let length = if random.chance(5) {
                100_000
            } else {
                random.below(200)
            };
            message = (0..length)
                .map(|_| random.number().to_le_bytes()[0])
                .collect();
        }
    }
    message
}
