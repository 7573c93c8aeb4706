//! The guard process: the hidden `lockctl exec`. It starts CMD, and ends CMD when lockctl is gone.
//!
//! It has no runtime and no connection. It learns of signals by flags and a socket, which handlers may
//! use.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal};

use super::child::END;
use super::processes::{self, ChildEnd};
use super::signals::FORWARDED;
use crate::args::{self, ExecArgs};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;

/// The longest interval in which the guard process looks for its parent, and for the rest of a group
/// that ends.
const LOOK: Duration = Duration::from_millis(100);

/// The shortest such interval.
const SHORTEST_LOOK: Duration = Duration::from_millis(10);

/// Returns how often to look. While renewals succeed, a lease has two thirds of its ttl left. By default
/// `--kill-after` is half of a short ttl, so a quarter of it more ends before the lease does.
fn interval(kill_after: Duration) -> Duration {
    (kill_after / 4).clamp(SHORTEST_LOOK, LOOK)
}

/// Runs the guard process with the arguments behind `exec`.
pub(crate) fn main(arguments: &[OsString]) -> Exit {
    match ExecArgs::try_parse_from(arguments) {
        Ok(args) => {
            let output = Output::plain(args.json);
            crate::end(&output, run(&args, &output))
        }
        Err(refused) => {
            // A person has typed it.
            let output = Output::plain(false);
            crate::end(&output, args::explain(&refused, &[]))
        }
    }
}

/// Runs CMD until it ends, or until lockctl is gone.
fn run(args: &ExecArgs, output: &Output) -> Result<Exit, Failure> {
    let internal = |error: io::Error| Failure::internal("cannot guard the command", &error);
    let mut wake = Wake::install().map_err(internal)?;
    if args.terminal {
        processes::adopt_orphans().map_err(internal)?;
    }
    if is_orphan(args) {
        return Ok(Exit::Internal);
    }
    // A signal that came before CMD exists, and that CMD could not get. Or the lock is lost already.
    let early = wake.take(END).then_some(Signal::TERM);
    if let Some(signal) = early.or_else(|| wake.take_first()) {
        return Ok(by_signal(signal));
    }
    let (program, arguments) = args
        .command
        .split_first()
        .ok_or_else(|| Failure::new(Exit::Usage, "usage", "the command is missing"))?;
    let child = Command::new(program).args(arguments).spawn();
    let child = child.map_err(|error| cannot_run(program.to_string_lossy().as_ref(), &error))?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| internal(io::Error::other("the command has no process id")))?;
    // A signal that came while CMD was started may have missed it. A second one does no harm.
    while let Some(signal) = wake.take_first() {
        processes::send(pid, signal);
    }
    let command = Guarded { pid, args };
    loop {
        wake.wait(interval(args.kill_after));
        // Before the end of CMD: after a loss, the processes that CMD leaves behind end too.
        if wake.take(END) {
            return Ok(command.end(&mut wake));
        }
        if let Some(end) = processes::reap(pid) {
            return Ok(exit_of(end));
        }
        if is_orphan(args) {
            output.note("lockctl was killed; ending the command");
            return Ok(command.end(&mut wake));
        }
        while let Some(signal) = wake.take_first() {
            command.forward(signal);
        }
    }
}

/// Whether lockctl is gone: then this process has another parent.
fn is_orphan(args: &ExecArgs) -> bool {
    // As process 1 of a container, lockctl takes all other processes with it.
    rustix::process::getppid().is_none_or(|parent| processes::raw(parent) != args.parent)
}

fn by_signal(signal: Signal) -> Exit {
    Exit::Signal(u8::try_from(signal.as_raw()).unwrap_or(0))
}

fn exit_of(end: ChildEnd) -> Exit {
    match end {
        ChildEnd::Code(code) => Exit::Chosen(code),
        ChildEnd::Signal(number) => Exit::Signal(number),
    }
}

/// Says why CMD was not started.
fn cannot_run(program: &str, error: &io::Error) -> Failure {
    if error.kind() == io::ErrorKind::NotFound {
        let text = format!("the command `{program}` was not found");
        return Failure::new(Exit::NotFound, "not-found", text);
    }
    let text = format!("cannot run `{program}`: {error}");
    Failure::new(Exit::CannotRun, "cannot-run", text)
}

/// CMD.
struct Guarded<'a> {
    pid: Pid,
    args: &'a ExecArgs,
}

impl Guarded<'_> {
    /// Passes a signal on. Without a terminal, the whole group has got it already.
    fn forward(&self, signal: Signal) {
        if self.args.terminal && !matches!(signal, Signal::INT | Signal::QUIT | Signal::WINCH) {
            processes::send(self.pid, signal);
        }
    }

    /// Ends CMD and its children: SIGTERM now, SIGKILL after `--kill-after`.
    fn end(&self, wake: &mut Wake) -> Exit {
        let limit = Instant::now() + self.args.kill_after;
        self.signal(Signal::TERM);
        // A stopped process gets SIGTERM only when it continues.
        self.signal(Signal::CONT);
        let mut ended = None;
        while Instant::now() < limit {
            ended = ended.or(processes::reap(self.pid));
            if let Some(end) = ended
                && self.is_alone()
            {
                return exit_of(end);
            }
            wake.wait(LOOK.min(limit.saturating_duration_since(Instant::now())));
            // Without a terminal, the group includes this process, so its own SIGTERM comes back here. `forward` drops it.
            while let Some(signal) = wake.take_first() {
                self.forward(signal);
            }
        }
        // Without a terminal, this also ends the guard process.
        self.signal(Signal::KILL);
        while !self.is_alone() {
            processes::reap(self.pid);
            wake.wait(LOOK);
            self.signal(Signal::KILL);
        }
        by_signal(Signal::KILL)
    }

    /// Sends a signal to the group of CMD. On a terminal, the group also contains the script or the
    /// pipeline that started lockctl, so there the signal goes to CMD and its descendants.
    fn signal(&self, signal: Signal) {
        if !self.args.terminal {
            // The group has this process, so the signal arrives.
            let _ = rustix::process::kill_current_process_group(signal);
            return;
        }
        let descendants = processes::descendants();
        if descendants.is_empty() {
            processes::send(self.pid, signal);
        }
        for process in descendants {
            processes::send(process, signal);
        }
    }

    /// Whether no other process is left. Where the system does not tell, this process waits until the
    /// end of `--kill-after`.
    fn is_alone(&self) -> bool {
        if self.args.terminal {
            return processes::descendants().is_empty();
        }
        processes::is_alone_in_group().unwrap_or(false)
    }
}

/// The signals that this process has got.
struct Wake {
    socket: UnixStream,
    flags: Vec<(Signal, Arc<AtomicBool>)>,
}

impl Wake {
    /// Installs the handlers, so that a signal to the group does not end this process. Handlers are
    /// not inherited by CMD. Signals that lockctl's parent ignores stay ignored.
    fn install() -> io::Result<Self> {
        let (socket, write) = UnixStream::pair()?;
        socket.set_nonblocking(true)?;
        let ignored = processes::ignored_signals();
        let own = [END, Signal::CHILD];
        let forwarded = FORWARDED.into_iter();
        let heard = forwarded.filter(|signal| !ignored.contains(*signal));
        let mut flags = Vec::new();
        for signal in heard.chain(own) {
            let flag = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(signal.as_raw(), Arc::clone(&flag))?;
            signal_hook::low_level::pipe::register(signal.as_raw(), write.try_clone()?)?;
            flags.push((signal, flag));
        }
        Ok(Self { socket, flags })
    }

    /// Waits for a signal, at most for this time.
    fn wait(&mut self, limit: Duration) {
        let limit = Timespec::try_from(limit).ok();
        // A signal also interrupts the call, and the caller looks for all events after each call.
        let _ = poll(
            &mut [PollFd::new(&self.socket, PollFlags::IN)],
            limit.as_ref(),
        );
        let mut bytes = [0; 64];
        while matches!(self.socket.read(&mut bytes), Ok(1..)) {}
    }

    /// Returns whether this signal has come.
    fn take(&self, signal: Signal) -> bool {
        let mut flags = self.flags.iter();
        flags.any(|(known, flag)| *known == signal && flag.swap(false, Ordering::SeqCst))
    }

    /// Returns a signal for CMD that has come.
    fn take_first(&self) -> Option<Signal> {
        FORWARDED.into_iter().find(|signal| self.take(*signal))
    }
}
