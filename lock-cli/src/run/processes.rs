//! What the system knows about processes.

use std::fs;
use std::io;

use rustix::process::{Pid, Signal, WaitOptions};

/// A set of signals.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SignalSet(u64);

impl SignalSet {
    pub(super) fn contains(self, signal: Signal) -> bool {
        u32::try_from(signal.as_raw() - 1)
            .ok()
            .and_then(|bit| self.0.checked_shr(bit))
            .is_some_and(|bits| bits & 1 == 1)
    }
}

/// Returns the signals that this process ignores. Only Linux tells it without unsafe code; elsewhere
/// the set is empty.
pub(super) fn ignored_signals() -> SignalSet {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    SignalSet(mask.unwrap_or_default())
}

/// Sends a signal to a process. One that has ended needs none, and one of another user takes none.
pub(super) fn send(process: Pid, signal: Signal) {
    let _ = rustix::process::kill_process(process, signal);
}

/// Sends a signal to a group of processes, as [`send`] does.
pub(super) fn send_to_group(group: Pid, signal: Signal) {
    let _ = rustix::process::kill_process_group(group, signal);
}

/// Stops this process until it gets SIGCONT.
pub(super) fn stop_this_process() {
    // A process may always stop itself.
    send(rustix::process::getpid(), Signal::STOP);
}

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChildEnd {
    Code(u8),
    Signal(u8),
}

/// Reaps all children that have ended, and returns how `wanted` ended, if it is one of them.
///
/// As process 1 of a container, this process has to reap the orphans too, or they stay as zombies.
pub(super) fn reap(wanted: Pid) -> Option<ChildEnd> {
    let mut found = None;
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == wanted => {
                let number = |raw: i32| u8::try_from(raw & 0xff).unwrap_or(0);
                found = match (status.exit_status(), status.terminating_signal()) {
                    (Some(code), _) => Some(ChildEnd::Code(number(code))),
                    (None, Some(signal)) => Some(ChildEnd::Signal(number(signal))),
                    (None, None) => found,
                };
            }
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            // No child has ended, or there is none.
            Ok(None) | Err(_) => return found,
        }
    }
}

/// A process, as `/proc` shows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Process {
    pub(super) pid: i32,
    parent: i32,
    group: i32,
    is_zombie: bool,
}

/// Lists all processes. `None` where `/proc` does not have them.
fn all() -> Option<Vec<Process>> {
    // A container may show the processes of another namespace, with other numbers.
    let own = fs::read_link("/proc/self").ok()?;
    if own.to_str()?.parse() != Ok(raw(rustix::process::getpid())) {
        return None;
    }
    let entries = fs::read_dir("/proc").ok()?;
    let mut processes = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        // A process may end meanwhile.
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        processes.extend(parse(pid, &stat));
    }
    Some(processes)
}

/// Reads `pid (name) state parent group ..`. The name may contain anything.
fn parse(pid: i32, stat: &str) -> Option<Process> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let is_zombie = matches!(fields.next()?, "Z" | "X");
    Some(Process {
        pid,
        parent: fields.next()?.parse().ok()?,
        group: fields.next()?.parse().ok()?,
        is_zombie,
    })
}

/// Returns whether this process is the only one in its group. `None` if the system does not tell.
pub(super) fn is_alone_in_group() -> Option<bool> {
    let own = raw(rustix::process::getpid());
    let group = raw(rustix::process::getpgrp());
    Some(!has_other_members(&all()?, group, own))
}

/// Returns whether a group has a living process. Zombies do not count: a process whose parent is gone stays one
/// for as long as process 1 does not reap it, and some containers have none that does.
pub(super) fn is_group_alive(group: Pid) -> bool {
    let all = all().map(|all| has_other_members(&all, raw(group), 0));
    all.unwrap_or_else(|| rustix::process::test_kill_process_group(group).is_ok())
}

fn has_other_members(all: &[Process], group: i32, own: i32) -> bool {
    let is_other =
        |process: &Process| process.group == group && process.pid != own && !process.is_zombie;
    all.iter().any(is_other)
}

/// Returns the living descendants of this process. Empty if the system does not tell.
pub(super) fn descendants() -> Vec<Pid> {
    let all = all().unwrap_or_default();
    let mut found = vec![raw(rustix::process::getpid())];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        let children = all.iter().filter(|process| process.parent == parent);
        found.extend(
            children
                .filter(|child| !child.is_zombie)
                .map(|child| child.pid),
        );
        next += 1;
    }
    found
        .into_iter()
        .skip(1)
        .filter_map(Pid::from_raw)
        .collect()
}

/// Lets orphans of the command become children of this process, so that [`descendants`] finds them.
pub(super) fn adopt_orphans() -> io::Result<()> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(())
}

pub(super) fn raw(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_brackets_do_not_hide_the_fields() {
        let process = parse(7, "7 (a) b (c) S 3 5 5 0 -1").unwrap();
        assert_eq!((process.pid, process.parent, process.group), (7, 3, 5));
        assert!(!process.is_zombie);
        assert!(parse(7, "7 (sh) Z 3 5").unwrap().is_zombie);
        assert!(parse(7, "").is_none());
    }

    #[test]
    fn signals_are_bits_of_the_set() {
        let set = SignalSet(0b1);
        assert!(set.contains(Signal::HUP));
        assert!(!set.contains(Signal::INT));
        assert!(!SignalSet::default().contains(Signal::TERM));
    }
}
