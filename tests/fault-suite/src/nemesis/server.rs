//! The server is paused, restarted, or refuses commands.

use std::fs;
use std::thread::sleep;

use super::{Affected, Context};
use crate::history::SLOTS;

pub(super) fn server_pause(context: &mut Context<'_>) -> Affected {
    while context.goes_on() {
        context.environment.server.stop();
        context.rest(20, 500);
        context.environment.server.cont();
        context.rest(10, 100);
    }
    Affected::All
}

pub(super) fn server_pause_long(context: &mut Context<'_>) -> Affected {
    context.environment.server.stop();
    context.rest(1_100, 1_900);
    context.environment.server.cont();
    context.rest(200, 900);
    Affected::All
}

pub(super) fn server_restart(context: &mut Context<'_>) -> Affected {
    while context.goes_on() {
        context.environment.server.kill9();
        context.rest(0, 400);
        context.environment.server.restart();
        context.rest(50, 600);
    }
    Affected::All
}

/// Processes start while the server is away.
pub(super) fn server_away(context: &mut Context<'_>) -> Affected {
    while context.goes_on() {
        let slot = context.random.below(SLOTS as usize);
        context.environment.server.kill9();
        context.environment.crew.kill(slot);
        context.rest(0, 200);
        context.environment.crew.spawn(slot);
        context.rest(300, 1_200);
        context.environment.server.restart();
        context.rest(50, 600);
    }
    Affected::All
}

fn kill_connections(context: &mut Context<'_>, kind: &str) -> Affected {
    while context.goes_on() {
        if let Some(mut admin) = context.admin() {
            admin.call(&["CLIENT", "KILL", "TYPE", kind]);
        }
        context.rest(20, 250);
    }
    Affected::All
}

pub(super) fn connections_killed(context: &mut Context<'_>) -> Affected {
    kill_connections(context, "normal")
}

pub(super) fn subscribers_killed(context: &mut Context<'_>) -> Affected {
    kill_connections(context, "pubsub")
}

pub(super) fn commands_paused(context: &mut Context<'_>) -> Affected {
    while context.goes_on() {
        let span = context.random.millis(100, 900);
        let millis = span.as_millis().to_string();
        let kind = *context.random.pick(&["ALL", "WRITE"]);
        if let Some(mut admin) = context.admin() {
            admin.call(&["CLIENT", "PAUSE", &millis, kind]);
        }
        sleep(span);
        context.rest(20, 150);
    }
    Affected::All
}

pub(super) fn scripts_flushed(context: &mut Context<'_>) -> Affected {
    while context.goes_on() {
        if let Some(mut admin) = context.admin() {
            admin.call(&["SCRIPT", "FLUSH", "SYNC"]);
        }
        context.rest(5, 60);
    }
    Affected::All
}

pub(super) fn out_of_memory(context: &mut Context<'_>) -> Affected {
    context.configure(&["maxmemory", "1"], &["maxmemory", "0"])
}

pub(super) fn no_replicas(context: &mut Context<'_>) -> Affected {
    let name = "min-replicas-to-write";
    context.configure(&[name, "1"], &[name, "0"])
}

/// The server cannot write its dump, because a directory has the dump's name.
pub(super) fn misconf(context: &mut Context<'_>) -> Affected {
    let dump = context.environment.server.directory().join("dump.rdb");
    while context.goes_on() {
        // Remove the last good dump. The directory must not be empty, or the server replaces it.
        let _ = fs::remove_file(&dump);
        let _ = fs::create_dir_all(dump.join("in-the-way"));
        context.insist(&["CONFIG", "SET", "save", "3600 1000000000"]);
        context.insist(&["BGSAVE"]);
        context.rest(300, 1_000);
        let _ = fs::remove_dir_all(&dump);
        context.insist(&["BGSAVE"]);
        context.insist(&["CONFIG", "SET", "save", ""]);
        context.rest(50, 200);
    }
    Affected::All
}

pub(super) fn busy_script(context: &mut Context<'_>) -> Affected {
    context.insist(&["CONFIG", "SET", "lua-time-limit", "20"]);
    while context.goes_on() {
        // The reply is not awaited, and the script writes nothing, so that it can be killed.
        let endless = context.admin().map(|mut admin| {
            admin.send(&["EVAL", "while true do end", "0"]);
            admin
        });
        context.rest(100, 800);
        context.insist(&["SCRIPT", "KILL"]);
        drop(endless);
        context.rest(20, 150);
    }
    context.insist(&["CONFIG", "SET", "lua-time-limit", "5000"]);
    Affected::All
}

pub(super) fn max_clients(context: &mut Context<'_>) -> Affected {
    while context.goes_on() {
        // The connection stays open: no other connection could restore the setting.
        let Some(mut admin) = context.admin() else {
            continue;
        };
        let allowed = context.random.below(12) + 1;
        admin.call(&["CONFIG", "SET", "maxclients", &allowed.to_string()]);
        admin.call(&["CLIENT", "KILL", "TYPE", "normal"]);
        context.rest(100, 600);
        admin.call(&["CONFIG", "SET", "maxclients", "10000"]);
        context.rest(20, 200);
    }
    Affected::All
}
