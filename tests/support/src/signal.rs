//! Signals to a child of this process.

use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use crate::wait::eventually;

fn send(pid: u32, signal: Signal) {
    // A process that has ended needs no signal.
    let _ = rustix::process::kill_process(to_pid(pid), signal);
}

fn to_pid(pid: u32) -> Pid {
    let raw = i32::try_from(pid).expect("process ids fit in an i32");
    Pid::from_raw(raw).expect("process ids are positive")
}

/// Freezes the child. Returns when all of its threads have stopped.
pub(crate) fn stop(pid: u32) {
    send(pid, Signal::STOP);
    // The signal is delivered some time after `kill` returns. Without this wait, the process could
    // still reply to the test. NOWAIT keeps the report, so that a second stop behaves like the
    // first.
    let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    eventually(Duration::from_secs(10), || {
        match rustix::process::waitid(WaitId::Pid(to_pid(pid)), options) {
            Ok(status) => status.is_some(),
            Err(e) => panic!("process {pid} cannot be stopped: {e}"),
        }
    });
}

/// Returns whether the child has ended, without reaping it.
pub(crate) fn has_ended(pid: u32) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    match rustix::process::waitid(WaitId::Pid(to_pid(pid)), options) {
        Ok(status) => status.is_some(),
        Err(e) => panic!("process {pid} cannot be waited for: {e}"),
    }
}

/// Lets a frozen child continue.
pub(crate) fn cont(pid: u32) {
    send(pid, Signal::CONT);
}

/// Requests the child to end.
pub(crate) fn terminate(pid: u32) {
    send(pid, Signal::TERM);
}

/// Requests the child to end at once, with its own children.
pub(crate) fn quit(pid: u32) {
    send(pid, Signal::QUIT);
}
