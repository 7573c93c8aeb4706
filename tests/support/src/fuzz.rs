//! Calls a function with inputs that are nearly right, and with some that are not.
//!
//! Inputs come from examples. They are changed again and again, and one that leads to a new outcome becomes an example
//! itself, so that later ones get further. No compiler support is needed. A run of the tests takes a fixed number of
//! inputs from a fixed seed; `./scripts/fuzz` takes as many as fit into the time.

use std::collections::HashSet;
use std::env;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::random::Random;

/// For how long each function is called, in seconds. Without it, [`SHORT`] inputs are enough.
const SECONDS: &str = "LOCK_FUZZ_SECONDS";
/// The seed of such a run, to repeat it.
const SEED: &str = "LOCK_FUZZ_SEED";
/// The name of the only function to call.
const ONLY: &str = "LOCK_FUZZ_ONLY";

/// The inputs of a run of the tests.
const SHORT: u64 = 3_000;

/// Examples that are kept. Each of them had a new outcome.
const EXAMPLES: usize = 4_000;

/// The length beyond which an input seldom grows.
const USUAL_LENGTH: usize = 2_000;

/// More than the longest line, and than a reply to a command of a lock may have.
const LONG_RUN: usize = 70_000;

/// Bytes that mean something to one of the parsers.
const BYTES: &[u8] = b"\r\n\t \0\xff\x1b:;,.-+*$!=%~>|_(#/?@&[]{}019axg";

/// Numbers at which something overflows.
const NUMBERS: [&str; 19] = [
    "0",
    "1",
    "-1",
    "-2",
    "16",
    "255",
    "16383",
    "16384",
    "65535",
    "65536",
    "2147483648",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999999",
];

/// Calls `target` with changed copies of the examples. What it returns is the outcome; it panics if the input shows a
/// fault. `words` are parts that inputs may have.
///
/// # Panics
///
/// Panics with the panic of `target`, after it has printed the input.
pub fn fuzz<T: Hash>(
    name: &str,
    examples: &[impl AsRef<[u8]>],
    words: &[&str],
    mut target: impl FnMut(&[u8]) -> T,
) {
    if env::var(ONLY).is_ok_and(|only| only != name) {
        return;
    }
    let variable = |name: &str| env::var(name).ok()?.parse::<u64>().ok();
    let seconds = variable(SECONDS);
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = since_1970.map_or(0, |time| time.as_secs());
    let seed = variable(SEED).unwrap_or(if seconds.is_some() { now } else { 1 });
    let mut inputs = Inputs {
        random: Random::new(seed),
        examples: examples.iter().map(|it| it.as_ref().to_vec()).collect(),
        words,
    };
    let mut outcomes = HashSet::new();
    let (began, mut executions) = (Instant::now(), 0);
    let goes_on = |executions: u64| match seconds {
        None => executions < SHORT,
        Some(seconds) => {
            !executions.is_multiple_of(64) || began.elapsed() < Duration::from_secs(seconds)
        }
    };
    let mut unchanged = inputs.examples.clone();
    while goes_on(executions) {
        let input = unchanged.pop().unwrap_or_else(|| inputs.next());
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut hasher = DefaultHasher::new();
            target(&input).hash(&mut hasher);
            hasher.finish()
        }));
        let outcome = outcome.unwrap_or_else(|panic| {
            eprintln!("fuzz {name}, seed {seed}: b\"{}\"", input.escape_ascii());
            resume_unwind(panic)
        });
        executions += 1;
        if outcomes.insert(outcome) && inputs.examples.len() < EXAMPLES {
            inputs.examples.push(input);
        }
    }
    println!(
        "fuzz {name}: {executions} executions, {} outcomes, seed {seed}",
        outcomes.len()
    );
}

struct Inputs<'a> {
    random: Random,
    examples: Vec<Vec<u8>>,
    words: &'a [&'a str],
}

impl Inputs<'_> {
    fn next(&mut self) -> Vec<u8> {
        let mut input = self.random.pick(&self.examples).clone();
        for _ in 0..=self.random.below(6) {
            self.change(&mut input);
        }
        if input.len() > USUAL_LENGTH && !self.random.chance(2) {
            input.truncate(USUAL_LENGTH);
        }
        input
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let at = self.random.below(input.len() + 1);
        let end = (at + 1 + self.random.below(12)).min(input.len());
        match self.random.below(11) {
            0 if at < input.len() => input[at] ^= 1 << self.random.below(8),
            1 if at < input.len() => input[at] = *self.random.pick(BYTES),
            2 => input.insert(at, *self.random.pick(BYTES)),
            3 => drop(input.drain(at..end)),
            4 => input.truncate(at),
            5 => {
                let part = input[at..end].to_vec();
                let times = 1 + self.random.below(20);
                drop(input.splice(at..at, part.repeat(times)));
            }
            6 => {
                let other = self.random.pick(&self.examples);
                let from = self.random.below(other.len() + 1);
                let part = other[from..].to_vec();
                drop(input.splice(at.., part));
            }
            7 | 8 => {
                let (from, to) = number_at(input, at);
                let number = *self.random.pick(&NUMBERS);
                drop(input.splice(from..to, number.bytes()));
            }
            9 if !self.words.is_empty() => {
                let word = *self.random.pick(self.words);
                let to = if self.random.chance(50) { at } else { end };
                drop(input.splice(at..to, word.bytes()));
            }
            10 if self.random.chance(2) => {
                let byte = *self.random.pick(BYTES);
                let run = vec![byte; self.random.below(LONG_RUN)];
                drop(input.splice(at..at, run));
            }
            _ => input.insert(at, self.random.number().to_le_bytes()[0]),
        }
    }
}

/// Returns where the first number behind this place begins and ends.
fn number_at(input: &[u8], at: usize) -> (usize, usize) {
    let Some(from) = input[at..].iter().position(u8::is_ascii_digit) else {
        return (at, at);
    };
    let from = at + from;
    let len = input[from..].iter().take_while(|it| it.is_ascii_digit());
    (from, from + len.count())
}

#[cfg(test)]
mod tests {
    use super::fuzz;

    /// The fault needs two changes, of which the first one leads to a new outcome.
    #[test]
    #[should_panic(expected = "found")]
    fn fault_behind_several_steps_is_found() {
        fuzz("steps", &[b"lock"], &["unlock"], |input| {
            let text = String::from_utf8_lossy(input);
            let has_word = text.contains("unlock");
            assert!(!(has_word && text.contains("9007199254740993")), "found");
            has_word
        });
    }
}
