//! Races clients of other languages against lock-core on one key. Each process increments a counter
//! in a file without an atomic increment, so that two holders at the same time lose an update.
//!
//! tests/interop/README.md describes the programs and their protocol.

pub mod beside;
pub mod clients;
pub mod counter;
pub mod dialects;
pub mod lock_agent;
pub mod migration;
pub mod race;
pub mod wakes;
pub mod worker;

use std::fmt::{self, Display, Formatter};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use clients::ClientKind;
use dialects::{REDISSON, REDISSON_FENCED, is_redisson};
use race::{Figures, LEAST};
use test_support::Helper;
use test_support::RedisServer;

/// A client program in another language.
#[derive(Debug)]
pub struct Client {
    /// The name, which is also the name of its program folder.
    pub name: &'static str,
    /// The toolchain that must be installed.
    pub language: &'static str,
    /// The schemes with which it can lock; each is also the name of a dialect, or [`QUORUM`].
    pub schemes: &'static [&'static str],
}

/// The scheme of a lock at a majority of several servers, in the dialect `set-nx-px` at each of them.
pub const QUORUM: &str = "quorum";

/// The number of servers of a quorum.
const QUORUM_SERVERS: usize = 3;

/// The smallest share of a side where releases notify the waiters of both sides, in percent. The other
/// sides poll.
const LEAST_NOTIFIED: u64 = 30;

/// The smallest share of lock-core beside two other clients, which get two thirds of the sections.
const LEAST_OF_THREE: u64 = 15;

const REDISSON_SCHEMES: &[&str] = &[REDISSON, REDISSON_FENCED];

/// All clients.
pub const CLIENTS: &[Client] = &[
    Client {
        name: "jedis",
        language: "Java",
        schemes: &[
            "setnx-expire",
            "deadline-getset",
            "lua-setnx-expire",
            "set-nx-px",
            "watch-multi",
        ],
    },
    Client {
        name: "redis-py",
        language: "Python",
        schemes: &["set-nx-px"],
    },
    Client {
        name: "python-redis-lock",
        language: "Python",
        schemes: &["set-nx-px"],
    },
    Client {
        name: "node-redlock",
        language: "JavaScript",
        schemes: &["set-nx-px", QUORUM],
    },
    Client {
        name: "go-redsync",
        language: "Go",
        schemes: &["set-nx-px", QUORUM],
    },
    Client {
        name: "bsm-redislock",
        language: "Go",
        schemes: &["set-nx-px"],
    },
    Client {
        name: "redisson-3.20",
        language: "Java",
        schemes: REDISSON_SCHEMES,
    },
    Client {
        name: "redisson-3.24",
        language: "Java",
        schemes: REDISSON_SCHEMES,
    },
    Client {
        name: "redisson-4.7",
        language: "Java",
        schemes: REDISSON_SCHEMES,
    },
];

/// The options of a run.
#[derive(Debug)]
pub struct Options {
    /// The number of sections of each pair.
    pub sections: u64,
    /// The names of the clients; empty for all.
    pub only: Vec<String>,
    /// The folder of the client programs, each under its name.
    pub clients: PathBuf,
    /// The lock-core program.
    pub worker: PathBuf,
}

/// The lock-core side of a race.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OurSide {
    /// Two processes of one dialect.
    Dialect(&'static str),
    /// Two processes of the other side's dialect, and two of the first version of Redisson.
    Third,
    /// A migration from the client over its dialect to native.
    Migration,
}

impl OurSide {
    fn name(self) -> &'static str {
        match self {
            Self::Dialect(name) => name,
            Self::Third => "redisson, 3 sides",
            Self::Migration => "migration",
        }
    }
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// The other client.
    pub client: &'static Client,
    /// The scheme of the other client.
    pub scheme: &'static str,
    /// The lock-core side.
    pub ours: OurSide,
}

impl Pair {
    /// Returns the smallest share of a side in percent.
    fn least(&self) -> u64 {
        match self.ours {
            OurSide::Third => LEAST_OF_THREE,
            _ if is_redisson(self.scheme) => LEAST_NOTIFIED,
            _ => LEAST,
        }
    }

    /// Returns the client of the third side, if there is one.
    fn third(&self) -> Option<&'static Client> {
        let mut clients = CLIENTS.iter();
        (self.ours == OurSide::Third).then(|| {
            let third = clients.find(|client| is_redisson(client.schemes[0]));
            third.expect("Redisson is a client")
        })
    }
}

/// Returns all selected pairs: each client with its dialect and with native, one complete migration,
/// and a race of three sides.
///
/// Redisson has no pair with native. It fails where a key is no hash, and does not wait.
pub fn pairs(only: &[String]) -> Vec<Pair> {
    let mut pairs = Vec::new();
    for client in CLIENTS {
        for &scheme in client.schemes {
            let dialect = if scheme == QUORUM {
                "set-nx-px"
            } else {
                scheme
            };
            let sides = [OurSide::Dialect(dialect), OurSide::Dialect("native")];
            let sides = if is_redisson(scheme) {
                &sides[..1]
            } else {
                &sides[..]
            };
            pairs.extend(sides.iter().map(|&ours| Pair {
                client,
                scheme,
                ours,
            }));
        }
    }
    pairs.push(Pair {
        client: &CLIENTS[0],
        scheme: "set-nx-px",
        ours: OurSide::Migration,
    });
    pairs.push(Pair {
        client: CLIENTS.last().expect("there are clients"),
        scheme: REDISSON,
        ours: OurSide::Third,
    });
    pairs.retain(|pair| only.is_empty() || only.iter().any(|name| name == pair.client.name));
    pairs
}

/// The outcome of a pair.
#[derive(Debug)]
struct Outcome {
    figures: Option<Figures>,
    /// The fault that the figures do not show.
    note: Option<String>,
    fault: Option<String>,
}

impl Outcome {
    fn new(result: Result<Figures, String>, least: u64) -> Self {
        match result {
            Ok(figures) => Self {
                fault: figures.fault(least),
                note: figures.wakes.map(|wakes| wakes.describe()),
                figures: Some(figures),
            },
            Err(fault) => Self {
                figures: None,
                note: None,
                fault: Some(fault),
            },
        }
    }
}

/// The results of a run.
#[derive(Debug, Default)]
pub struct Summary {
    lines: Vec<String>,
    passed: usize,
    failed: usize,
    skipped: usize,
    lost: u64,
    missing: Vec<&'static Client>,
}

impl Summary {
    /// Returns whether no pair failed.
    pub fn is_good(&self) -> bool {
        self.failed == 0
    }

    fn skip(&mut self, client: &'static Client) {
        self.skipped += 1;
        if !self.missing.iter().any(|known| known.name == client.name) {
            self.missing.push(client);
        }
    }

    fn add(&mut self, pair: &Pair, outcome: Outcome) {
        let name = format!(
            "{} ({}) with {}",
            pair.client.name,
            pair.scheme,
            pair.ours.name()
        );
        self.lost += outcome.figures.map_or(0, |figures| figures.lost);
        if let Some(note) = outcome.note {
            self.lines.push(format!("{name}: {note}"));
        }
        match outcome.fault {
            None => self.passed += 1,
            Some(fault) => {
                self.failed += 1;
                self.lines.push(format!("FAILED: {name}: {fault}"));
            }
        }
    }
}

impl Display for Summary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            writeln!(f, "{line}")?;
        }
        let run = self.passed + self.failed;
        write!(f, "{run} pairs run, {} updates lost", self.lost)?;
        for (number, client) in self.missing.iter().enumerate() {
            let before = if number == 0 { "; skipped: " } else { ", " };
            write!(f, "{before}{} (needs {})", client.name, client.language)?;
        }
        let (passed, failed, skipped) = (self.passed, self.failed, self.skipped);
        write!(f, "\n{passed} passed, {failed} failed, {skipped} skipped")
    }
}

/// Runs all pairs one after the other, and reports each row as it completes.
pub fn run(options: &Options, print: impl Fn(&str)) -> Summary {
    let servers: Vec<_> = (0..QUORUM_SERVERS).map(|_| RedisServer::start()).collect();
    let mut summary = Summary::default();
    print(&header());
    for (number, pair) in pairs(&options.only).iter().enumerate() {
        let clients = [Some(pair.client), pair.third()];
        let missing = |client: &&Client| !options.clients.join(client.name).exists();
        if let Some(client) = clients.into_iter().flatten().find(missing) {
            summary.skip(client);
            continue;
        }
        let key = format!("lock:interop:{number}");
        let servers = match pair.scheme {
            QUORUM => &servers[..],
            _ => &servers[..1],
        };
        // The harness panics when its environment is not as required; the other pairs still run.
        let outcome = catch_unwind(AssertUnwindSafe(|| outcome(options, servers, &key, pair)));
        let outcome = outcome.unwrap_or_else(|_| {
            let fault = Err("see the panic above".to_owned());
            Outcome::new(fault, pair.least())
        });
        print(&row(pair, &outcome));
        summary.add(pair, outcome);
    }
    summary
}

fn outcome(options: &Options, servers: &[RedisServer], key: &str, pair: &Pair) -> Outcome {
    let other = |client: &Client| {
        let program = Helper::new(options.clients.join(client.name));
        ClientKind::new(client.name, program.env("SCHEME", pair.scheme))
    };
    let theirs = other(pair.client);
    let ours = |name: &str, dialect: &str, share: &str| {
        let worker = Helper::new(&options.worker);
        ClientKind::new(name, worker.env("DIALECT", dialect).env("SHARE", share))
    };
    match pair.ours {
        OurSide::Dialect(dialect) => {
            let ours = ours("lock-core", dialect, "1");
            let figures = race::race(servers, key, &[&theirs, &ours], options.sections);
            Outcome::new(figures, pair.least())
        }
        OurSide::Third => {
            let third = pair.third().map(other).expect("there is a third side");
            let ours = ours("lock-core", pair.scheme, "1");
            let figures = race::race(servers, key, &[&theirs, &third, &ours], options.sections);
            Outcome::new(figures, pair.least())
        }
        OurSide::Migration => {
            let sides = migration::Sides {
                old: theirs,
                dialect: ours("dialect", pair.scheme, "1"),
                shared: ours("native", "native", "1"),
                native: ours("native alone", "native", "0"),
            };
            match migration::migrate(servers, key, &sides, options.sections) {
                Ok((figures, note)) => Outcome {
                    note: Some(note),
                    ..Outcome::new(Ok(figures), pair.least())
                },
                Err(fault) => Outcome::new(Err(fault), pair.least()),
            }
        }
    }
}

fn header() -> String {
    format!(
        "{:<18} {:<17} {:<17} {:>8} {:>7} {:>6} {:>8} {:>5}",
        "client", "its scheme", "lock-core", "sections", "theirs", "ours", "refused", "lost"
    )
}

fn row(pair: &Pair, outcome: &Outcome) -> String {
    let names = format!(
        "{:<18} {:<17} {:<17}",
        pair.client.name,
        pair.scheme,
        pair.ours.name()
    );
    let failed = if outcome.fault.is_some() {
        "  FAILED"
    } else {
        ""
    };
    let Some(figures) = &outcome.figures else {
        return names + failed;
    };
    let [theirs, ours] = figures.refused;
    format!(
        "{names} {:>8} {:>5} % {:>4} % {:>8} {:>5}{failed}",
        figures.sections(),
        figures.percent(figures.theirs),
        figures.percent(figures.ours),
        format!("{theirs} + {ours}"),
        figures.lost,
    )
}
