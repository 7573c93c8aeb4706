//! What breaks things. Each works for about two seconds, and undoes what it did.

mod load;

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use lock_core::Dialect;

use crate::history::Assumption::{self, Inside, Outside};
use crate::history::SLOTS;
use crate::spoken;
use crate::stage::{Admin, Flavour, Stage};
use crate::worker::{LONG_KEYS, SHORT_KEYS};
use test_support::Random;
use test_support::{Direction, Lost};

/// Something that breaks things.
#[derive(Clone, Copy)]
pub struct Nemesis {
    /// For the command line and the report.
    pub name: &'static str,
    /// What kind of server it needs.
    pub flavour: Flavour,
    /// Whether the promises hold meanwhile.
    pub assumption: Assumption,
    /// Whether it breaks nothing, and only asks for much.
    pub is_load: bool,
    act: fn(&mut Scene<'_>) -> Disturbed,
}

/// Whom it disturbed.
enum Disturbed {
    Everybody,
    Slots(Vec<usize>),
}

struct Scene<'a> {
    stage: &'a Stage,
    random: &'a mut Random,
    until: Instant,
}

impl Nemesis {
    /// Whether it has something to break where clients speak that dialect, and the dialect
    /// promises anything meanwhile.
    ///
    /// Of the others none outlives a lost key or a clock that is set, and none has pushes or a
    /// queue.
    pub fn fits(&self, dialect: Dialect) -> bool {
        let is_for_all = self.flavour == Flavour::Durable && !NATIVE.contains(&self.name);
        dialect == Dialect::Native || is_for_all
    }

    /// Breaks things for about this long, and puts them right again. Returns the places of the
    /// processes that were disturbed; none for all.
    pub fn act(&self, stage: &Stage, random: &mut Random, span: Duration) -> Vec<u32> {
        let mut scene = Scene {
            stage,
            random,
            until: Instant::now() + span,
        };
        match (self.act)(&mut scene) {
            Disturbed::Everybody => Vec::new(),
            Disturbed::Slots(slots) => slots
                .into_iter()
                .map(|slot| u32::try_from(slot).expect("there are four"))
                .collect(),
        }
    }
}

const fn durable(name: &'static str, act: fn(&mut Scene<'_>) -> Disturbed) -> Nemesis {
    Nemesis {
        name,
        flavour: Flavour::Durable,
        assumption: Inside,
        is_load: false,
        act,
    }
}

const fn load(name: &'static str, act: fn(&mut Scene<'_>) -> Disturbed) -> Nemesis {
    Nemesis {
        is_load: true,
        ..durable(name, act)
    }
}

const fn forgetful(name: &'static str, act: fn(&mut Scene<'_>) -> Disturbed) -> Nemesis {
    Nemesis {
        name,
        flavour: Flavour::Forgetful,
        assumption: Outside,
        is_load: false,
        act,
    }
}

const fn clock(
    name: &'static str,
    assumption: Assumption,
    act: fn(&mut Scene<'_>) -> Disturbed,
) -> Nemesis {
    Nemesis {
        name,
        flavour: Flavour::Clock,
        assumption,
        is_load: false,
        act,
    }
}

const PUSHES: &str = "pushes-killed";
const DEAD: &str = "dead-waiters";
const FORGED: &str = "notifications-forged";

/// What breaks a push or the queue.
const NATIVE: [&str; 3] = [PUSHES, DEAD, FORGED];

/// All of them.
pub const ALL: &[Nemesis] = &[
    durable("client-pause", client_pause),
    durable("client-pause-long", client_pause_long),
    durable("client-kill", client_kill),
    durable("client-kill-midway", client_kill_midway),
    durable("server-pause", server_pause),
    durable("server-pause-long", server_pause_long),
    durable("server-restart", server_restart),
    durable("connections-killed", connections_killed),
    durable(PUSHES, pushes_killed),
    durable("commands-paused", commands_paused),
    durable("scripts-flushed", scripts_flushed),
    durable("out-of-memory", out_of_memory),
    durable("misconf", misconf),
    durable("no-replicas", no_replicas),
    durable("busy-script", busy_script),
    durable("max-clients", max_clients),
    durable("net-cut", net_cut),
    durable("net-delay", net_delay),
    durable("net-delay-long", net_delay_long),
    durable("net-black-hole", net_black_hole),
    durable("net-lost-reply", net_lost_reply),
    durable("net-lost-request", net_lost_request),
    durable("net-mute", net_mute),
    durable("net-refused", net_refused),
    durable("runtimes-dropped", load::runtimes_dropped),
    load("guards-dropped", load::guards_dropped),
    durable("callers-in-outage", load::callers_in_outage),
    durable("subscriber-panics", load::subscriber_panics),
    durable(DEAD, load::dead_waiters),
    load(FORGED, load::notifications_forged),
    forgetful("restart-empty", restart_empty),
    forgetful("restart-truncated", restart_truncated),
    forgetful("restart-old", restart_old),
    forgetful("key-deleted", key_deleted),
    forgetful("flushall", flushall),
    forgetful("evicted", evicted),
    clock("clock-forward", Outside, clock_forward),
    clock("clock-back", Inside, clock_back),
];

impl Scene<'_> {
    fn goes_on(&self) -> bool {
        Instant::now() < self.until
    }

    /// Sleeps for so many milliseconds, but not beyond the end.
    fn rest(&mut self, from: u64, to: u64) {
        let pause = self.random.millis(from, to);
        sleep(pause.min(self.until.saturating_duration_since(Instant::now())));
    }

    fn admin(&self) -> Option<Admin> {
        self.stage.admin()
    }

    /// Sets a configuration for a while, again and again; the second value is the normal one.
    fn configure(&mut self, set: &[&str], normal: &[&str]) -> Disturbed {
        while self.goes_on() {
            if let Some(mut admin) = self.admin() {
                admin.call(&[&["CONFIG", "SET"], set].concat());
            }
            self.rest(200, 900);
            self.insist(&[&["CONFIG", "SET"], normal].concat());
            self.rest(30, 200);
        }
        Disturbed::Everybody
    }

    /// Sends a command until it is answered.
    fn insist(&self, words: &[&str]) {
        let done = || self.admin()?.call(words);
        while done().is_none() {
            sleep(Duration::from_millis(20));
        }
    }

    fn some_slots(&mut self) -> Vec<usize> {
        let all = self.stage.proxies.len();
        self.random.some(all, all)
    }
}

fn each(slots: &[usize], mut act: impl FnMut(usize)) {
    for slot in slots {
        act(*slot);
    }
}

fn client_pause(scene: &mut Scene<'_>) -> Disturbed {
    let slots = scene.random.some(SLOTS as usize, 2);
    while scene.goes_on() {
        each(&slots, |slot| scene.stage.stop(slot));
        scene.rest(50, 700);
        each(&slots, |slot| scene.stage.cont(slot));
        scene.rest(20, 200);
    }
    Disturbed::Slots(slots)
}

fn client_pause_long(scene: &mut Scene<'_>) -> Disturbed {
    // One: the others have to go on, behind its claims and its lease.
    let slots = vec![scene.random.below(SLOTS as usize)];
    each(&slots, |slot| scene.stage.stop(slot));
    scene.rest(1_300, 2_200);
    each(&slots, |slot| scene.stage.cont(slot));
    Disturbed::Slots(slots)
}

fn client_kill(scene: &mut Scene<'_>) -> Disturbed {
    while scene.goes_on() {
        let slot = scene.random.below(SLOTS as usize);
        scene.stage.kill(slot);
        scene.rest(0, 500);
        scene.stage.spawn(slot);
        scene.rest(300, 800);
    }
    Disturbed::Everybody
}

/// Killed while its commands and their answers are on their way.
fn client_kill_midway(scene: &mut Scene<'_>) -> Disturbed {
    while scene.goes_on() {
        let slot = scene.random.below(SLOTS as usize);
        let delay = scene.random.millis(20, 250);
        scene.stage.proxies[slot].delay_round_trip(delay);
        scene.rest(50, 400);
        scene.stage.kill(slot);
        scene.rest(0, 300);
        scene.stage.proxies[slot].forward();
        scene.stage.spawn(slot);
        scene.rest(200, 500);
    }
    Disturbed::Everybody
}

fn server_pause(scene: &mut Scene<'_>) -> Disturbed {
    while scene.goes_on() {
        scene.stage.server.stop();
        scene.rest(20, 500);
        scene.stage.server.cont();
        scene.rest(10, 100);
    }
    Disturbed::Everybody
}

fn server_pause_long(scene: &mut Scene<'_>) -> Disturbed {
    scene.stage.server.stop();
    scene.rest(1_100, 1_900);
    scene.stage.server.cont();
    scene.rest(200, 900);
    Disturbed::Everybody
}

fn server_restart(scene: &mut Scene<'_>) -> Disturbed {
    while scene.goes_on() {
        scene.stage.server.kill9();
        scene.rest(0, 400);
        scene.stage.server.restart();
        scene.rest(50, 600);
    }
    Disturbed::Everybody
}

fn kill_connections(scene: &mut Scene<'_>, kind: &str) -> Disturbed {
    while scene.goes_on() {
        if let Some(mut admin) = scene.admin() {
            admin.call(&["CLIENT", "KILL", "TYPE", kind]);
        }
        scene.rest(20, 250);
    }
    Disturbed::Everybody
}

fn connections_killed(scene: &mut Scene<'_>) -> Disturbed {
    kill_connections(scene, "normal")
}

fn pushes_killed(scene: &mut Scene<'_>) -> Disturbed {
    kill_connections(scene, "pubsub")
}

fn commands_paused(scene: &mut Scene<'_>) -> Disturbed {
    while scene.goes_on() {
        let span = scene.random.millis(100, 900);
        let millis = span.as_millis().to_string();
        let kind = *scene.random.pick(&["ALL", "WRITE"]);
        if let Some(mut admin) = scene.admin() {
            admin.call(&["CLIENT", "PAUSE", &millis, kind]);
        }
        sleep(span);
        scene.rest(20, 150);
    }
    Disturbed::Everybody
}

fn scripts_flushed(scene: &mut Scene<'_>) -> Disturbed {
    while scene.goes_on() {
        if let Some(mut admin) = scene.admin() {
            admin.call(&["SCRIPT", "FLUSH", "SYNC"]);
        }
        scene.rest(5, 60);
    }
    Disturbed::Everybody
}

fn out_of_memory(scene: &mut Scene<'_>) -> Disturbed {
    scene.configure(&["maxmemory", "1"], &["maxmemory", "0"])
}

fn no_replicas(scene: &mut Scene<'_>) -> Disturbed {
    let name = "min-replicas-to-write";
    scene.configure(&[name, "1"], &[name, "0"])
}

/// The server cannot write its dump, because there is a folder in its place.
fn misconf(scene: &mut Scene<'_>) -> Disturbed {
    let dump = scene.stage.server.directory().join("dump.rdb");
    while scene.goes_on() {
        // What a last good one left. A folder needs something in it, or it is written over.
        let _ = fs::remove_file(&dump);
        let _ = fs::create_dir_all(dump.join("in-the-way"));
        scene.insist(&["CONFIG", "SET", "save", "3600 1000000000"]);
        scene.insist(&["BGSAVE"]);
        scene.rest(300, 1_000);
        let _ = fs::remove_dir_all(&dump);
        scene.insist(&["BGSAVE"]);
        scene.insist(&["CONFIG", "SET", "save", ""]);
        scene.rest(50, 200);
    }
    Disturbed::Everybody
}

fn busy_script(scene: &mut Scene<'_>) -> Disturbed {
    scene.insist(&["CONFIG", "SET", "busy-reply-threshold", "20"]);
    while scene.goes_on() {
        // Its reply is not waited for, and it writes nothing, so that it can be killed.
        let endless = scene.admin().map(|mut admin| {
            admin.send(&["EVAL", "while true do end", "0"]);
            admin
        });
        scene.rest(100, 800);
        scene.insist(&["SCRIPT", "KILL"]);
        drop(endless);
        scene.rest(20, 150);
    }
    scene.insist(&["CONFIG", "SET", "busy-reply-threshold", "5000"]);
    Disturbed::Everybody
}

fn max_clients(scene: &mut Scene<'_>) -> Disturbed {
    while scene.goes_on() {
        // The connection stays open: nobody else would get in to put it right.
        let Some(mut admin) = scene.admin() else {
            continue;
        };
        let allowed = scene.random.below(12) + 1;
        admin.call(&["CONFIG", "SET", "maxclients", &allowed.to_string()]);
        admin.call(&["CLIENT", "KILL", "TYPE", "normal"]);
        scene.rest(100, 600);
        admin.call(&["CONFIG", "SET", "maxclients", "10000"]);
        scene.rest(20, 200);
    }
    Disturbed::Everybody
}

fn net_cut(scene: &mut Scene<'_>) -> Disturbed {
    while scene.goes_on() {
        for slot in scene.some_slots() {
            scene.stage.proxies[slot].cut_all();
        }
        scene.rest(10, 250);
    }
    Disturbed::Everybody
}

/// How many of the processes a network fault can reach.
#[derive(Clone, Copy)]
enum Reach {
    All,
    /// So that there is somebody who takes the locks that the others lose.
    Half,
}

/// A network fault between some of the processes and the server, which is undone in the end.
fn between(
    scene: &mut Scene<'_>,
    reach: Reach,
    mut act: impl FnMut(&mut Scene<'_>, &[usize]) -> (u64, u64),
) -> Disturbed {
    let slots = match reach {
        Reach::All => scene.some_slots(),
        Reach::Half => scene.random.some(SLOTS as usize, 2),
    };
    while scene.goes_on() {
        let (from, to) = act(scene, &slots);
        scene.rest(from, to);
    }
    for slot in &slots {
        scene.stage.proxies[*slot].forward();
    }
    Disturbed::Slots(slots)
}

fn net_delay(scene: &mut Scene<'_>) -> Disturbed {
    between(scene, Reach::All, |scene, slots| {
        for slot in slots {
            let delay = scene.random.millis(2, 250);
            scene.stage.proxies[*slot].delay_round_trip(delay);
        }
        (100, 600)
    })
}

/// Replies that come when the lease they tell of is over, or nearly.
fn net_delay_long(scene: &mut Scene<'_>) -> Disturbed {
    between(scene, Reach::Half, |scene, slots| {
        for slot in slots {
            let delay = scene.random.millis(600, 1_500);
            scene.stage.proxies[*slot].delay(Direction::ToClient, delay);
        }
        (500, 1_500)
    })
}

fn net_black_hole(scene: &mut Scene<'_>) -> Disturbed {
    between(scene, Reach::Half, |scene, slots| {
        each(slots, |slot| scene.stage.proxies[slot].black_hole());
        scene.rest(300, 1_800);
        each(slots, |slot| scene.stage.proxies[slot].forward());
        (30, 300)
    })
}

fn lose(scene: &mut Scene<'_>, what: Lost) -> Disturbed {
    let requests = spoken::requests(scene.stage.dialect);
    between(scene, Reach::All, |scene, slots| {
        for slot in slots {
            let request = scene.random.pick(requests);
            scene.stage.proxies[*slot].lose_next(what, request);
        }
        (5, 80)
    })
}

fn net_lost_reply(scene: &mut Scene<'_>) -> Disturbed {
    lose(scene, Lost::Reply)
}

fn net_lost_request(scene: &mut Scene<'_>) -> Disturbed {
    lose(scene, Lost::Request)
}

/// One connection of each falls silent in one direction, and stays open.
fn net_mute(scene: &mut Scene<'_>) -> Disturbed {
    between(scene, Reach::All, |scene, slots| {
        for slot in slots {
            let proxy = &scene.stage.proxies[*slot];
            let direction = *scene
                .random
                .pick(&[Direction::ToServer, Direction::ToClient]);
            // The youngest three are open, if any are.
            let accepted = proxy.accepted();
            if accepted > 0 {
                let back = scene.random.below(accepted.min(3)) + 1;
                proxy.mute(accepted - back, direction);
            }
        }
        (400, 1_500)
    })
}

fn net_refused(scene: &mut Scene<'_>) -> Disturbed {
    between(scene, Reach::All, |scene, slots| {
        for slot in slots {
            scene.stage.proxies[*slot].refuse();
            scene.stage.proxies[*slot].cut_all();
        }
        scene.rest(100, 1_500);
        each(slots, |slot| scene.stage.proxies[slot].forward());
        (50, 300)
    })
}

const APPEND_ONLY: &str = "appendonlydir";

fn restart_empty(scene: &mut Scene<'_>) -> Disturbed {
    while scene.goes_on() {
        scene.stage.server.kill9();
        let _ = fs::remove_dir_all(scene.stage.server.directory().join(APPEND_ONLY));
        scene.rest(0, 300);
        scene.stage.server.restart();
        scene.rest(200, 900);
    }
    Disturbed::Everybody
}

/// The last writes are gone, as after a power cut.
fn restart_truncated(scene: &mut Scene<'_>) -> Disturbed {
    while scene.goes_on() {
        scene.stage.server.kill9();
        let most = 20_000;
        let lost = u64::try_from(scene.random.below(most)).expect("it is small");
        let folder = scene.stage.server.directory().join(APPEND_ONLY);
        for file in files(&folder) {
            if file.to_string_lossy().ends_with(".incr.aof")
                && let Ok(open) = fs::File::options().write(true).open(&file)
                && let Ok(data) = open.metadata()
            {
                let _ = open.set_len(data.len().saturating_sub(lost));
            }
        }
        scene.stage.server.restart();
        scene.rest(200, 900);
    }
    Disturbed::Everybody
}

/// What was true a moment ago is true again.
fn restart_old(scene: &mut Scene<'_>) -> Disturbed {
    let folder = scene.stage.server.directory().join(APPEND_ONLY);
    let copy = scene.stage.server.directory().join("copy");
    while scene.goes_on() {
        let _ = fs::remove_dir_all(&copy);
        let _ = fs::create_dir(&copy);
        for file in files(&folder) {
            if let Some(name) = file.file_name() {
                let _ = fs::copy(&file, copy.join(name));
            }
        }
        scene.rest(50, 900);
        scene.stage.server.kill9();
        let _ = fs::remove_dir_all(&folder);
        let _ = fs::rename(&copy, &folder);
        scene.stage.server.restart();
        scene.rest(50, 500);
    }
    Disturbed::Everybody
}

fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.flatten().map(|entry| entry.path()).collect()
}

fn key_deleted(scene: &mut Scene<'_>) -> Disturbed {
    while scene.goes_on() {
        let keys = [&SHORT_KEYS[..], &LONG_KEYS[..]].concat();
        let key = format!("lock:{}", scene.random.pick(&keys));
        if let Some(mut admin) = scene.admin() {
            admin.call(&["DEL", &key]);
        }
        scene.rest(10, 150);
    }
    Disturbed::Everybody
}

fn flushall(scene: &mut Scene<'_>) -> Disturbed {
    while scene.goes_on() {
        if let Some(mut admin) = scene.admin() {
            admin.call(&["FLUSHALL"]);
        }
        scene.rest(100, 800);
    }
    Disturbed::Everybody
}

/// Memory is full, and the server makes room by deleting whatever it likes.
fn evicted(scene: &mut Scene<'_>) -> Disturbed {
    scene.insist(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
    let disturbed = scene.configure(&["maxmemory", "1"], &["maxmemory", "0"]);
    scene.insist(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    disturbed
}

fn clock_forward(scene: &mut Scene<'_>) -> Disturbed {
    while scene.goes_on() {
        let by = scene.random.millis(5, 2_500).as_millis();
        scene
            .stage
            .move_clock(i64::try_from(by).expect("it is small"));
        scene.rest(200, 900);
    }
    Disturbed::Everybody
}

fn clock_back(scene: &mut Scene<'_>) -> Disturbed {
    while scene.goes_on() {
        let by = scene.random.millis(5, 800).as_millis();
        scene
            .stage
            .move_clock(-i64::try_from(by).expect("it is small"));
        scene.rest(200, 900);
    }
    Disturbed::Everybody
}
