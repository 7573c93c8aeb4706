//! The guard process and the command, as the process that holds the lock sees them.

use std::env;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lock_core::{LockGuard, LockSet};
use rustix::process::{Pid, Signal};
use tokio::time::Instant;

use super::Job;
use super::processes::{self, ChildEnd};
use super::signals::{Event, Signals};

/// The signal by which this process tells the guard process to end the command. No terminal and no
/// service manager sends it.
pub(super) const END: Signal = Signal::ALARM;

/// How much longer than `--kill-after` the guard process may take before this process ends the group itself;
/// and how long killed processes may take to die.
const GRACE: Duration = Duration::from_secs(1);

/// How often a group without its guard process is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// How CMD ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The code of CMD, or 128+n.
    Code(u8),
    /// The guard process was killed, so CMD may still run.
    GuardKilled,
}

/// The guard process.
pub(super) struct Child {
    pid: Pid,
    is_on_terminal: bool,
}

impl Child {
    /// Starts the guard process, which starts CMD.
    pub(super) fn spawn(job: &Job<'_>, held: &LockSet) -> io::Result<Self> {
        let args = &job.args;
        let is_on_terminal = io::stdin().is_terminal();
        let mut command = Command::new(this_program()?);
        command.arg0("lockctl");
        command
            .arg("exec")
            .arg(std::process::id().to_string())
            .arg("--kill-after")
            .arg(format!("{}ms", job.kill_after.as_millis()));
        // The guard process reports a command that cannot be run.
        if job.output.is_json() {
            command.arg("--json");
        }
        if is_on_terminal {
            command.arg("--terminal");
        } else {
            command.process_group(0);
        }
        command.arg("--").args(&args.command);
        name_locks(&mut command, job, held);
        if !args.keep_url {
            command.env_remove("DISTRIBUTED_LOCK_URL");
        }
        // `reap` waits for all children.
        let child = command.spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        Ok(Self {
            pid: pid.ok_or_else(|| io::Error::other("the process has no id"))?,
            is_on_terminal,
        })
    }

    /// Passes a signal to the command.
    pub(super) fn forward(&self, signal: Signal) {
        if !self.is_on_terminal {
            processes::send_to_group(self.pid, signal);
        } else if !matches!(signal, Signal::INT | Signal::QUIT | Signal::WINCH) {
            // The terminal sends those to the whole foreground group. The guard process knows the command.
            processes::send(self.pid, signal);
        }
    }

    /// Stops the command and this process, as Ctrl-Z does. Returns when this process continues.
    pub(super) fn suspend(&self) {
        if !self.is_on_terminal {
            processes::send_to_group(self.pid, Signal::STOP);
        }
        processes::stop_this_process();
    }

    /// Lets the command continue.
    pub(super) fn resume(&self) {
        if !self.is_on_terminal {
            processes::send_to_group(self.pid, Signal::CONT);
        }
    }

    /// Returns how CMD ended, if it has ended.
    pub(super) fn reap(&mut self) -> Option<Ended> {
        Some(match processes::reap(self.pid)? {
            ChildEnd::Code(code) => Ended::Code(code),
            ChildEnd::Signal(_) => Ended::GuardKilled,
        })
    }

    /// Ends CMD: SIGTERM now, SIGKILL after `kill_after`. The guard process does both, and nobody else while it
    /// lives: a command that gets SIGTERM twice may give up its own cleanup.
    pub(super) async fn end(&mut self, kill_after: Duration, signals: &mut Signals) {
        // Before the guard process begins to count, so that it is the first to reach the end.
        let kill_at = Instant::now() + kill_after;
        processes::send(self.pid, END);
        // A stopped guard process acts only when it continues. It lets the command continue after SIGTERM.
        processes::send(self.pid, Signal::CONT);
        loop {
            let event = tokio::time::timeout_at(kill_at + GRACE, signals.next()).await;
            match event {
                Ok(Event::ChildChanged) => match self.reap() {
                    // It killed itself with its group, or it was killed.
                    Some(Ended::GuardKilled) => return self.end_group(kill_at).await,
                    Some(Ended::Code(_)) => return,
                    None => {}
                },
                Ok(Event::Signal(signal)) => self.forward(signal),
                Ok(Event::Suspend) => {}
                Err(_) => {
                    // The guard process does not do its work, so it has to go too.
                    processes::send(self.pid, Signal::KILL);
                    return self.end_group(kill_at).await;
                }
            }
        }
    }

    /// Ends a group whose guard process is gone, and returns when its processes are dead: SIGTERM now and SIGKILL
    /// at `kill_at`, or SIGKILL at once when that has passed. The number of the group cannot be used again while
    /// it has members.
    pub(super) async fn end_group(&self, kill_at: Instant) {
        if self.is_on_terminal {
            return;
        }
        if Instant::now() < kill_at {
            processes::send_to_group(self.pid, Signal::TERM);
            // A stopped process gets SIGTERM only when it continues.
            processes::send_to_group(self.pid, Signal::CONT);
            self.wait_for_group(kill_at).await;
        }
        processes::send_to_group(self.pid, Signal::KILL);
        self.wait_for_group(Instant::now() + GRACE).await;
    }

    /// Waits until all processes of the group are dead, at most until `limit`.
    async fn wait_for_group(&self, limit: Instant) {
        loop {
            processes::reap(self.pid);
            if !processes::is_group_alive(self.pid) || Instant::now() >= limit {
                return;
            }
            tokio::time::sleep_until(limit.min(Instant::now() + LOOK)).await;
        }
    }
}

/// The variables that name a lock. With several locks, each has a number.
const OF_LOCKS: [&str; 3] = ["LOCKCTL_NAME", "LOCKCTL_KEY", "LOCKCTL_FENCING_TOKEN"];

/// Tells the command which locks it has. What a surrounding lockctl said of its own is removed.
fn name_locks(command: &mut Command, job: &Job<'_>, held: &LockSet) {
    for (variable, _) in env::vars_os() {
        let text = variable.to_string_lossy();
        let of_lock = |name: &&str| {
            let number = text.strip_prefix(*name);
            number.is_some_and(|number| number.is_empty() || number.starts_with('_'))
        };
        if OF_LOCKS.iter().any(of_lock) {
            command.env_remove(&variable);
        }
    }
    let names = &job.args.names;
    for (number, name) in (1..).zip(names) {
        let number = match names.len() {
            1 => String::new(),
            _ => format!("_{number}"),
        };
        let key = job.key(name);
        let guard = held.guards().iter().find(|guard| guard.key() == key);
        let token = guard.and_then(LockGuard::fencing_token);
        let values = [
            Some(name.clone()),
            Some(key),
            token.map(|token| token.to_string()),
        ];
        for (variable, value) in OF_LOCKS.into_iter().zip(values) {
            if let Some(value) = value {
                command.env(format!("{variable}{number}"), value);
            }
        }
    }
}

/// Returns the program of this process. On Linux the link works also when an update has replaced the
/// file.
fn this_program() -> io::Result<OsString> {
    let link = Path::new("/proc/self/exe");
    if cfg!(target_os = "linux") && link.exists() {
        return Ok(link.into());
    }
    env::current_exe().map(Into::into)
}
