//! The faults. Each nemesis works for about two seconds, and then undoes its effects.

mod clients;
mod data;
mod hostile;
mod load;
mod network;
mod server;

use std::thread::sleep;
use std::time::{Duration, Instant};

use lock_core::dialect::Dialect;
use test_support::Random;

pub(crate) use hostile::ENDLESS;

use crate::environment::Admin;
use crate::environment::Environment;
use crate::environment::ServerSetup;

use crate::history::Assumption::{self, Divided, Inside, Outside};

/// A kind of fault.
#[derive(Clone, Copy)]
pub struct Nemesis {
    /// The name for the command line and the report.
    pub name: &'static str,
    /// The kind of server that it needs.
    pub setup: ServerSetup,
    /// Whether the guarantees hold meanwhile.
    pub assumption: Assumption,
    /// Whether it breaks nothing and only causes load.
    pub is_load: bool,
    act: fn(&mut Context<'_>) -> Affected,
}

/// The processes that it disturbed.
enum Affected {
    All,
    Slots(Vec<usize>),
}

struct Context<'a> {
    environment: &'a Environment,
    random: &'a mut Random,
    until: Instant,
}

impl Nemesis {
    /// Returns whether the nemesis applies to clients of this dialect, and whether the dialect
    /// promises anything meanwhile.
    ///
    /// No other dialect tolerates a lost key or a changed clock, and no other has notifications or
    /// a queue.
    pub fn fits(&self, dialect: Dialect) -> bool {
        let is_for_all = self.setup == ServerSetup::Durable && !NATIVE.contains(&self.name);
        dialect == Dialect::Native || is_for_all
    }

    /// Causes the fault for about this long, and undoes it. Returns the slots of the disturbed
    /// processes; empty for all.
    pub fn act(&self, environment: &Environment, random: &mut Random, span: Duration) -> Vec<u32> {
        let mut context = Context {
            environment,
            random,
            until: Instant::now() + span,
        };
        match (self.act)(&mut context) {
            Affected::All => Vec::new(),
            Affected::Slots(slots) => slots
                .into_iter()
                .map(|slot| u32::try_from(slot).expect("there are four"))
                .collect(),
        }
    }
}

const fn durable(name: &'static str, act: fn(&mut Context<'_>) -> Affected) -> Nemesis {
    Nemesis {
        name,
        setup: ServerSetup::Durable,
        assumption: Inside,
        is_load: false,
        act,
    }
}

const fn load(name: &'static str, act: fn(&mut Context<'_>) -> Affected) -> Nemesis {
    Nemesis {
        is_load: true,
        ..durable(name, act)
    }
}

const fn forgetful(name: &'static str, act: fn(&mut Context<'_>) -> Affected) -> Nemesis {
    Nemesis {
        name,
        setup: ServerSetup::Forgetful,
        assumption: Outside,
        is_load: false,
        act,
    }
}

const fn clock(
    name: &'static str,
    assumption: Assumption,
    act: fn(&mut Context<'_>) -> Affected,
) -> Nemesis {
    Nemesis {
        name,
        setup: ServerSetup::Clock,
        assumption,
        is_load: false,
        act,
    }
}

const fn named(
    name: &'static str,
    assumption: Assumption,
    act: fn(&mut Context<'_>) -> Affected,
) -> Nemesis {
    Nemesis {
        setup: ServerSetup::Named,
        assumption,
        ..durable(name, act)
    }
}

const SUBSCRIBERS: &str = "subscribers-killed";
const DEAD: &str = "dead-waiters";
const FORGED: &str = "notifications-forged";

/// Faults of notifications or of the queue.
const NATIVE: [&str; 3] = [SUBSCRIBERS, DEAD, FORGED];

/// All nemeses.
pub const ALL: &[Nemesis] = &[
    durable("client-pause", clients::client_pause),
    durable("client-pause-long", clients::client_pause_long),
    durable("client-kill", clients::client_kill),
    durable("client-kill-midway", clients::client_kill_midway),
    durable("server-pause", server::server_pause),
    durable("server-pause-long", server::server_pause_long),
    durable("server-restart", server::server_restart),
    durable("server-away", server::server_away),
    durable("connections-killed", server::connections_killed),
    durable(SUBSCRIBERS, server::subscribers_killed),
    durable("commands-paused", server::commands_paused),
    durable("scripts-flushed", server::scripts_flushed),
    durable("out-of-memory", server::out_of_memory),
    durable("misconf", server::misconf),
    durable("no-replicas", server::no_replicas),
    durable("busy-script", server::busy_script),
    durable("max-clients", server::max_clients),
    durable("net-cut", network::net_cut),
    durable("net-delay", network::net_delay),
    durable("net-delay-long", network::net_delay_long),
    durable("net-black-hole", network::net_black_hole),
    durable("net-lost-reply", network::net_lost_reply),
    durable("net-lost-request", network::net_lost_request),
    durable("net-mute", network::net_mute),
    durable("net-refused", network::net_refused),
    durable("replies-endless", hostile::replies_endless),
    durable("replies-dripping", hostile::replies_dripping),
    durable("subscribers-flooded", hostile::subscribers_flooded),
    durable("runtimes-dropped", load::runtimes_dropped),
    load("guards-dropped", load::guards_dropped),
    durable("callers-in-outage", load::callers_in_outage),
    durable("subscriber-panics", load::subscriber_panics),
    durable(DEAD, load::dead_waiters),
    load(FORGED, load::notifications_forged),
    forgetful("restart-empty", data::restart_empty),
    forgetful("restart-truncated", data::restart_truncated),
    forgetful("restart-old", data::restart_old),
    forgetful("key-deleted", data::key_deleted),
    forgetful("flushall", data::flushall),
    forgetful("evicted", data::evicted),
    Nemesis {
        assumption: Divided,
        ..forgetful("two-servers", hostile::two_servers)
    },
    named("name-moves", Inside, hostile::name_moves),
    named("name-moves-away", Divided, hostile::name_moves_away),
    Nemesis {
        setup: ServerSetup::Tls,
        ..durable("certificate-ends", hostile::certificate_ends)
    },
    clock("clock-forward", Outside, data::clock_forward),
    clock("clock-back", Inside, data::clock_back),
];

impl Context<'_> {
    fn goes_on(&self) -> bool {
        Instant::now() < self.until
    }

    /// Sleeps for a random number of milliseconds, but not beyond the end of the fault.
    fn rest(&mut self, from: u64, to: u64) {
        let pause = self.random.millis(from, to);
        sleep(pause.min(self.until.saturating_duration_since(Instant::now())));
    }

    fn admin(&self) -> Option<Admin> {
        self.environment.admin()
    }

    /// Sets a configuration for a while, again and again; the second value is the normal one.
    fn configure(&mut self, set: &[&str], normal: &[&str]) -> Affected {
        while self.goes_on() {
            if let Some(mut admin) = self.admin() {
                admin.call(&[&["CONFIG", "SET"], set].concat());
            }
            self.rest(200, 900);
            self.insist(&[&["CONFIG", "SET"], normal].concat());
            self.rest(30, 200);
        }
        Affected::All
    }

    /// Sends a command until the server replies.
    fn insist(&self, words: &[&str]) {
        let done = || self.admin()?.call(words);
        while done().is_none() {
            sleep(Duration::from_millis(20));
        }
    }

    fn some_slots(&mut self) -> Vec<usize> {
        let all = self.environment.proxies.len();
        self.random.some(all, all)
    }
}

fn each(slots: &[usize], mut act: impl FnMut(usize)) {
    for slot in slots {
        act(*slot);
    }
}
