//! Signals to a child of this process.

use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use crate::wait::eventually;

fn send(pid: u32, signal: Signal) {
    // A process that is gone has no use for a signal.
    let _ = rustix::process::kill_process(to_pid(pid), signal);
}

fn to_pid(pid: u32) -> Pid {
    let raw = i32::try_from(pid).expect("process ids fit in an i32");
    Pid::from_raw(raw).expect("process ids are positive")
}

/// Freezes the child. Returns when all of its threads stand still.
pub(crate) fn stop(pid: u32) {
    send(pid, Signal::STOP);
    // The signal is delivered some time after `kill` returned; a test that goes on at once would
    // now and then meet a process that still answers. NOWAIT leaves the report where it is, so
    // that stopping twice is no different from stopping once.
    let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    eventually(Duration::from_secs(10), || {
        match rustix::process::waitid(WaitId::Pid(to_pid(pid)), options) {
            Ok(status) => status.is_some(),
            Err(e) => panic!("process {pid} cannot be stopped: {e}"),
        }
    });
}

/// Whether the child has ended. It stays to be reaped.
pub(crate) fn has_ended(pid: u32) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    match rustix::process::waitid(WaitId::Pid(to_pid(pid)), options) {
        Ok(status) => status.is_some(),
        Err(e) => panic!("process {pid} cannot be waited for: {e}"),
    }
}

/// Lets a frozen child run on.
pub(crate) fn cont(pid: u32) {
    send(pid, Signal::CONT);
}

/// Asks the child to end.
pub(crate) fn terminate(pid: u32) {
    send(pid, Signal::TERM);
}
