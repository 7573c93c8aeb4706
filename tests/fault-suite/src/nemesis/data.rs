//! The server loses data, or its clock is set.

use std::fs;
use std::path::Path;

use super::{Affected, Context};
use crate::worker::LONG_KEYS;
use crate::worker::SHORT_KEYS;

const APPEND_ONLY: &str = "appendonlydir";

pub(super) fn restart_empty(context: &mut Context<'_>) -> Affected {
    while context.goes_on() {
        context.environment.server.kill9();
        let _ = fs::remove_dir_all(context.environment.server.directory().join(APPEND_ONLY));
        context.rest(0, 300);
        context.environment.server.restart();
        context.rest(200, 900);
    }
    Affected::All
}

/// The last writes are lost, as after a power cut.
pub(super) fn restart_truncated(context: &mut Context<'_>) -> Affected {
    while context.goes_on() {
        context.environment.server.kill9();
        let most = 20_000;
        let lost = u64::try_from(context.random.below(most)).expect("the number is small");
        let folder = context.environment.server.directory().join(APPEND_ONLY);
        for file in files(&folder) {
            if file.to_string_lossy().ends_with(".incr.aof")
                && let Ok(open) = fs::File::options().write(true).open(&file)
                && let Ok(data) = open.metadata()
            {
                let _ = open.set_len(data.len().saturating_sub(lost));
            }
        }
        context.environment.server.restart();
        context.rest(200, 900);
    }
    Affected::All
}

/// An earlier state is restored.
pub(super) fn restart_old(context: &mut Context<'_>) -> Affected {
    let folder = context.environment.server.directory().join(APPEND_ONLY);
    let copy = context.environment.server.directory().join("copy");
    while context.goes_on() {
        let _ = fs::remove_dir_all(&copy);
        let _ = fs::create_dir(&copy);
        for file in files(&folder) {
            if let Some(name) = file.file_name() {
                let _ = fs::copy(&file, copy.join(name));
            }
        }
        context.rest(50, 900);
        context.environment.server.kill9();
        let _ = fs::remove_dir_all(&folder);
        let _ = fs::rename(&copy, &folder);
        context.environment.server.restart();
        context.rest(50, 500);
    }
    Affected::All
}

fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.flatten().map(|entry| entry.path()).collect()
}

pub(super) fn key_deleted(context: &mut Context<'_>) -> Affected {
    while context.goes_on() {
        let keys = [&SHORT_KEYS[..], &LONG_KEYS[..]].concat();
        let key = format!("lock:{}", context.random.pick(&keys));
        if let Some(mut admin) = context.admin() {
            admin.call(&["DEL", &key]);
        }
        context.rest(10, 150);
    }
    Affected::All
}

pub(super) fn flushall(context: &mut Context<'_>) -> Affected {
    while context.goes_on() {
        if let Some(mut admin) = context.admin() {
            admin.call(&["FLUSHALL"]);
        }
        context.rest(100, 800);
    }
    Affected::All
}

/// Memory is full, and the server evicts arbitrary keys.
pub(super) fn evicted(context: &mut Context<'_>) -> Affected {
    context.insist(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
    let disturbed = context.configure(&["maxmemory", "1"], &["maxmemory", "0"]);
    context.insist(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    disturbed
}

pub(super) fn clock_forward(context: &mut Context<'_>) -> Affected {
    while context.goes_on() {
        let by = context.random.millis(5, 2_500).as_millis();
        context
            .environment
            .move_clock(i64::try_from(by).expect("the number is small"));
        context.rest(200, 900);
    }
    Affected::All
}

pub(super) fn clock_back(context: &mut Context<'_>) -> Affected {
    while context.goes_on() {
        let by = context.random.millis(5, 800).as_millis();
        context
            .environment
            .move_clock(-i64::try_from(by).expect("the number is small"));
        context.rest(200, 900);
    }
    Affected::All
}
